"""Fits on sources: the same bits as on arrays, flat memory, clear refusals, and nothing lost."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import credax as cx
from credax.fit import streamed
from credax.inference import METHODS
from credax.model.sources import survey
from credax.model.sources.source import Source

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 3)).astype(np.float32)
Y = (np.sin(X[:, 0]) + 0.1 * GENERATOR.normal(size=300)).astype(np.float32)
MODEL = cx.Model(cx.networks.mlp([8]), likelihood=cx.likelihoods.Gaussian(0.1), standardise=True)
POINT = cx.MAP(num_steps=50, batch_size=32)
quiet = pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")


def fit(data, method=POINT, model=MODEL, **options):
    return cx.fit(model, data, method, progress=False, **options)


def bits(posterior):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(vars(posterior.approximation))]


def assert_same(one, other):
    for a, b in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(a, b)


SMALL = {
    "num_steps": 40,
    "num_warmup": 20,
    "num_draws": 20,
    "members": 2,
    "chains": 2,
    "particles": 8,
    "batch_size": 32,
}


@quiet
@pytest.mark.matrix
@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_the_same_posterior_from_a_source_or_refuses_it_at_once(name):
    settings = {item.name for item in dataclasses.fields(METHODS[name])}
    method = METHODS[name](**{k: v for k, v in SMALL.items() if k in settings})
    model, y = MODEL, Y
    if name == "enumeration":
        model = cx.Model(
            cx.networks.linear(), cx.priors.Discrete([-1, 1]), cx.likelihoods.Gaussian(0.5)
        )
    steps = []
    source = cx.sources.arrays(X, y)
    if "batch_size" not in settings or "all rows" in METHODS[name]().needs:
        with pytest.raises(
            TypeError, match=f"^{type(method).__name__} with these settings needs all"
        ):
            fit(source, method, model, callbacks=lambda event: steps.append(event.step))
        assert not steps
        return
    of_arrays, of_source = fit((X, y), method, model), fit(source, method, model)
    for a, b in zip(bits(of_arrays), bits(of_source), strict=True):
        # The rows are the same; a compiler may round sums over them differently.
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)
    for field in ("elbo", "log_evidence"):
        one, other = getattr(of_arrays, field), getattr(of_source, field)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one[0], other[0], rtol=1e-3)


def test_a_run_on_a_source_has_the_bits_of_one_on_arrays(tmp_path, monkeypatch):
    whole = fit((X, Y))
    assert_same(fit(cx.sources.arrays(X, Y)), whole)
    # However the steps are cut into windows and chunks, and wherever the rows are.
    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr(streamed, "WINDOW_BYTES", 7 * 32 * 16)
    source = cx.sources.arrays(tmp_path / "x.npy", Y)
    assert_same(fit(source, chunk_steps=3), whole)


@pytest.mark.usefixtures("x64")
def test_a_source_in_double_precision():
    x, y = X.astype(np.float64) + 1e-9, Y.astype(np.float64)
    source = fit(cx.sources.arrays(x, y))
    assert bits(source)[0].dtype == np.float64
    assert_same(source, fit((x, y)))


def test_replicas_have_their_own_rows(monkeypatch):
    method = cx.DeepEnsemble(members=3, num_steps=30, batch_size=20)
    assert_same(fit(cx.sources.arrays(X, Y), method), fit((X, Y), method))


def test_a_second_fit_compiles_nothing(compilations):
    fit(cx.sources.arrays(X, Y))
    with compilations() as count:
        fit(cx.sources.arrays(X + 1, Y))
    assert count() == 0


def test_a_function_is_asked_for_each_step_of_each_replica():
    asked = []

    def batch(key, step, size):
        asked.append((tuple(np.asarray(jax.random.key_data(key)).tolist()), step, size))
        rows = np.asarray(jax.random.randint(key, (size,), 0, 300)) * 0 + step % 300
        return X[rows], Y[rows]

    source = cx.sources.function(batch, rows=300, name="one row a step")
    model = dataclasses.replace(MODEL, standardise=False)
    posterior = fit(source, cx.DeepEnsemble(members=2, num_steps=9, batch_size=5), model)
    of_run = {each for each in asked if each[2] == 5}
    assert {step for _, step, _ in of_run} == set(range(9))
    assert len(of_run) == 18
    assert np.isfinite(posterior.info["log_joint"]).all()
    with pytest.raises(cx.SourceError, match="Laplace needs the curvature of every row"):
        fit(source, cx.Laplace(num_steps=3, batch_size=5), model)
    with pytest.raises(cx.SourceError, match="cannot be predicted one by one"):
        posterior.predict(source)


@quiet
@pytest.mark.matrix
@pytest.mark.parametrize("structure", ["kronecker", "diagonal", "full"])
def test_the_curvature_of_blocks_is_that_of_all_rows(monkeypatch, structure):
    monkeypatch.setattr("credax.model.sources.streamed.BLOCK", 77)
    model = cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Gaussian(None))
    method = cx.Laplace(structure=structure, num_steps=30, batch_size=50)
    one, other = fit((X, Y), method, model), fit(cx.sources.arrays(X, Y), method, model)
    np.testing.assert_allclose(one.log_evidence[0], other.log_evidence[0], rtol=1e-4)
    for a, b in zip(one.predict(X[:9]).interval(), other.predict(X[:9]).interval(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3)


@quiet
@pytest.mark.slow
def test_the_bound_of_a_sample_agrees_with_that_of_all_rows(monkeypatch):
    method = cx.BayesByBackprop(num_steps=200, batch_size=10)
    one = fit((X, Y), method)
    monkeypatch.setattr("credax.inference.variational.source_bound.FEWEST", 100)
    monkeypatch.setattr("credax.model.sources.streamed.BLOCK", 64)
    few = dataclasses.replace(method, num_steps=9)
    whole, part = fit((X, Y), few), fit(cx.sources.arrays(X, Y), few)
    assert part.elbo[1] > whole.elbo[1]  # 200 rows were not read
    assert abs(part.elbo[0] - whole.elbo[0]) < 4 * part.elbo[1]
    other = fit(cx.sources.arrays(X, Y), method)  # visits every row, so every row is read
    np.testing.assert_allclose(one.elbo[0], other.elbo[0], rtol=1e-4)


def test_methods_and_settings_that_need_all_rows_are_refused_with_a_remedy():
    source = cx.sources.arrays(X, Y)
    with pytest.raises(TypeError, match=r"Give MAP\(batch_size=...\)"):
        fit(source, cx.MAP(num_steps=5))
    with pytest.raises(
        TypeError, match=r"^NUTS .* Use a method that takes batches, such as .*SGLD"
    ):
        fit(source, cx.NUTS(num_warmup=5, num_draws=5))
    with pytest.raises(TypeError, match="DeepEnsemble with these settings"):
        fit(source, cx.DeepEnsemble(num_steps=5, batch_size=5, bootstrap=True))
    with pytest.raises(TypeError, match=r"EarlyStopping\(validation=\(x, y\)\)"):
        fit(source, early_stopping=True)
    with pytest.raises(cx.SourceError, match="no targets"):
        fit(cx.sources.arrays(X))
    with pytest.raises(ValueError, match="at most the number of rows, 300"):
        fit(source, cx.MAP(num_steps=5, batch_size=301))
    density = cx.LogDensity(lambda key: jax.numpy.zeros(2), lambda w: -jax.numpy.sum(w**2))
    with pytest.raises(TypeError, match="None for a LogDensity"):
        cx.fit(density, source, cx.MAP(num_steps=5), progress=False)


@pytest.mark.slow
def test_early_stopping_on_given_rows():
    stopping = cx.EarlyStopping((X[:40], Y[:40]), every=10, patience=1)
    one = fit((X, Y), early_stopping=stopping)
    assert_same(fit(cx.sources.arrays(X, Y), early_stopping=stopping), one)


class Failing(Source):
    """Fails when a row is read after some time."""

    def __init__(self, reads, x=X):
        self.rows, self.left, self.x = len(x), reads, x

    def take(self, numbers):
        self.left -= 1
        if self.left < 0:
            raise cx.SourceError("the disk is gone")
        return self.x[numbers], Y[numbers]

    def fingerprint(self):
        return "same"


def test_a_source_that_fails_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(streamed, "WINDOW_BYTES", 10 * 32 * 16)
    with pytest.raises(cx.SourceError, match="the disk is gone"):
        fit(Failing(6), checkpoint=tmp_path / "run")
    done = []
    again = fit(
        Failing(100), checkpoint=tmp_path / "run", callbacks=lambda event: done.append(event.step)
    )
    assert done[0] > 10  # it did not begin again
    assert_same(again, fit((X, Y)))


def test_a_bad_row_that_appears_during_the_run_is_named(monkeypatch):
    monkeypatch.setattr(streamed, "WINDOW_BYTES", 32 * 16)
    x = X.copy()
    source = cx.sources.arrays(x, Y)

    def spoil(event):
        x[:, 1] = np.nan

    with pytest.raises(
        cx.SourceError, match=r"x must hold finite numbers; got nan at row \d+, column 1"
    ):
        fit(source, callbacks=spoil)


def test_a_changed_source_is_not_continued(tmp_path):
    stop = {
        "checkpoint": tmp_path / "run",
        "callbacks": lambda event: event.step > 5,
        "chunk_steps": 4,
    }
    fit(cx.sources.arrays(X, Y), **stop)
    other = X.copy()
    other[299, 2] += 1
    with pytest.raises(cx.StorageError, match="its data differs"):
        fit(cx.sources.arrays(other, Y), checkpoint=tmp_path / "run")
    continued = fit(cx.sources.arrays(X, Y), checkpoint=tmp_path / "run")
    assert_same(continued, fit((X, Y)))


def test_predictions_of_a_source_are_those_of_its_rows(monkeypatch):
    monkeypatch.setattr("credax.posterior.streamed.BLOCK", 70)
    posterior, source = fit((X, Y)), cx.sources.arrays(X, Y)
    found, whole = posterior.predict(source), posterior.predict(X)
    assert [len(block.mean) for block in found] == [70, 70, 70, 70, 20]
    for name in ("mean", "std", "epistemic", "aleatoric", "variance"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.interval(0.8), whole.interval(0.8), rtol=1e-5)
    np.testing.assert_allclose(
        found.quantile([[0.1], [0.7]]), whole.quantile([[0.1], [0.7]]), rtol=1e-5
    )
    np.testing.assert_allclose(found.log_prob(), whole.log_prob(Y), rtol=1e-4, atol=1e-5)
    assert posterior.evaluate(source).rmse == pytest.approx(posterior.evaluate(X, Y).rmse)
    assert len(found) == 300
    corrected = posterior.calibrate(X, Y)
    for wrong in (corrected.predict, lambda x: posterior.calibrate(x, Y)):
        with pytest.raises(TypeError, match=r"\(x=...\) must be rows in memory"):
            wrong(source)
    with pytest.raises(AttributeError, match="probs is for predictions of classes"):
        _ = found.probs
    with pytest.raises(TypeError, match="None for a source"):
        posterior.evaluate(source, Y)
    with pytest.raises(cx.SourceError, match="no targets"):
        posterior.evaluate(cx.sources.arrays(X))


def test_predictions_of_classes_from_a_source(monkeypatch):
    monkeypatch.setattr("credax.posterior.streamed.BLOCK", 70)
    labels = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)
    model = cx.Model(cx.networks.mlp([8]), likelihood=cx.likelihoods.Categorical())
    posterior = fit(cx.sources.arrays(X, labels), model=model)
    found, whole = posterior.predict(cx.sources.arrays(X)), posterior.predict(X)
    for name in ("probs", "label", "entropy", "expected_entropy", "mutual_information", "mean"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-4, atol=1e-5)


KILLED = """
import sys, time
from pathlib import Path
import numpy as np
import credax as cx
from credax.fit import pace, streamed

pace.SHARE = 1e9  # a checkpoint after every chunk
streamed.WINDOW_BYTES = 5 * 32 * 16
folder = Path(sys.argv[1])
source = cx.sources.arrays(folder / "x.npy", folder / "y.npy")
model = cx.Model(cx.networks.mlp([8]), likelihood=cx.likelihoods.Gaussian(0.1), standardise=True)
def show(event):
    print(event.step, flush=True)
    time.sleep(0.02)
posterior = cx.fit(model, source, cx.MAP(num_steps=50, batch_size=32), progress=False,
                   checkpoint=folder / "run", chunk_steps=2, callbacks=show)
"""


@pytest.mark.slow
def test_a_run_on_files_that_is_killed_ends_with_the_same_bits(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    environment = {**os.environ, "PYTHONPATH": str(Path(cx.__file__).parent.parent)}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    for at in (9, 23):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            for line in process.stdout:
                if int(line) >= at:
                    os.kill(process.pid, signal.SIGKILL)
                    break
        assert process.returncode == -signal.SIGKILL
        time.sleep(0.1)
    steps = []
    source = cx.sources.arrays(tmp_path / "x.npy", tmp_path / "y.npy")
    continued = fit(
        source, checkpoint=tmp_path / "run", callbacks=lambda event: steps.append(event.step)
    )
    assert steps[0] > 20
    assert_same(continued, fit((X, Y)))


def test_the_sample_of_a_source_is_what_a_diagnosis_sees(monkeypatch):
    monkeypatch.setattr(survey, "SAMPLE", 64)
    posterior = fit(cx.sources.arrays(X, Y))
    assert len(posterior.training.x) == 64
    assert posterior.training.total == 300
    assert str(posterior.diagnose())


def test_a_step_that_asks_for_more_rows_than_were_foreseen_is_refused():
    bound, data = survey.prepare(MODEL, cx.sources.arrays(X, Y))
    feeder = streamed.Feeder(POINT, bound, data)
    window = feeder.empty()
    window.batch(cx.random.key(0), np.int32(0), 32)
    with pytest.raises(TypeError, match="MAP with these settings"), streamed.refusing(POINT):
        window.batch(cx.random.key(1), np.int32(0), 32)
    feeder.close()


def test_windows_are_bounded_and_read_ahead(monkeypatch):
    monkeypatch.setattr(streamed, "WINDOW_BYTES", 5 * 32 * 16)
    bound, data = survey.prepare(MODEL, cx.sources.arrays(X, Y))
    feeder = streamed.Feeder(POINT, bound, data)
    keys = jax.random.split(jax.random.split(cx.random.key(0), 1)[0], (1, 2))
    feeder.start(keys)
    assert feeder.steps == 5
    first = feeder.window(0)
    assert first.inputs.shape == (5, 32, 3)
    assert feeder.window(4) is first
    second = feeder.window(5)
    assert np.asarray(second.steps).tolist() == [5, 6, 7, 8, 9]
    feeder.close()
