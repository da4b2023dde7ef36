"""Exported predictions: equal to those of ``predict``, without credax, for any number of rows."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax import likelihoods, networks

pytest.importorskip("flatbuffers")

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "production.md"
RNG = np.random.default_rng(0)
# Columns whose offset would cost all digits in single precision, with gross outliers in one of them.
X = RNG.normal(size=(70, 3)) * [30.0, 1e3, 1e-3] + [1.7e9, 5.0, 0.0]
X[3, 2] = 100.0
Y = 3000 + 100 * np.sin(X[:, 1] / 1000) + 10 * RNG.normal(size=70)
CPU = {"platforms": ["cpu"]}


def drawn(likelihood, y=Y, *, draws=4, network=None, x=X, standardise=True, weighted=False, key=0):
    """A posterior of some draws from the prior, for which nothing needs to be fitted."""
    network = networks.mlp([6]) if network is None else network
    model = cx.Model(network, likelihood=likelihood, standardise=standardise).bind((x, y))
    params = jax.vmap(model.init)(jax.random.split(cx.random.key(key), draws))
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[None], params)
    log_weights = np.linspace(0, 2, draws)[None] if weighted else None
    return cx.Posterior(model, cx.approximations.Draws(params, (), log_weights))


def laplace(likelihood):
    model = cx.Model(networks.mlp([4]), likelihood=likelihood, standardise=True)
    with warnings.catch_warnings():  # it is not at the mode, which does not matter here
        warnings.simplefilter("ignore", cx.PosteriorWarning)
        return cx.fit(model, (X, Y), cx.Laplace(num_steps=30), progress=False)


def stacked(likelihood=likelihoods.Gaussian(0.5), y=Y):
    """Two posteriors whose units differ."""
    parts = drawn(likelihood, y), drawn(likelihoods.StudentT(4.0, 0.3), y[:70], key=1)
    other = drawn(likelihoods.Gaussian(20.0), y, standardise="x", key=2)
    return cx.StackedPosterior((*parts, other), (0.5, 0.3, 0.2))


def opened(path):
    """What the ten lines of the guide do: the two programs as functions of rows."""
    with np.load(path) as archive:
        file = dict(archive)
    weights = [file[name] for name in file if name.startswith("weights/")]

    def call(name):
        program = jax.export.deserialize(bytearray(file[name]))

        def run(x, *more):
            with jax.enable_x64(True):
                found = program.call(weights, x, *more)
                return jax.tree.map(np.asarray, found)

        return run

    return call("predict"), call("draws"), json.loads(str(file["about"]))


CLASSES = (Y > 3000).astype(int)
CASES = {
    "gaussian": lambda: drawn(likelihoods.Gaussian(0.5)),
    "weighted student-t": lambda: drawn(likelihoods.StudentT(4.0, 0.5), weighted=True),
    "weighted": lambda: drawn(likelihoods.Gaussian(0.3), weighted=True),
    "as it is": lambda: drawn(
        likelihoods.Gaussian(0.5), X[:, 2] + 1, standardise=False, x=X[:, 2:]
    ),
    "heteroscedastic": lambda: drawn(likelihoods.Heteroscedastic()),
    "poisson": lambda: drawn(likelihoods.Poisson(), RNG.poisson(4.0, 70), standardise="x"),
    "two targets": lambda: drawn(likelihoods.Gaussian(0.5), np.stack([Y, -Y / 1e6], 1)),
    "closed form": lambda: laplace(likelihoods.Gaussian(None)),
    "linearised student-t": lambda: laplace(likelihoods.StudentT(4.0, 0.5)),
    "quantiles of columns": lambda: drawn(likelihoods.Gaussian(0.5), network=networks.tabular()),
    "categorical": lambda: drawn(likelihoods.Categorical(2), CLASSES),
    "bernoulli": lambda: drawn(likelihoods.Bernoulli(), CLASSES),
    "several labels": lambda: drawn(likelihoods.Bernoulli(), np.stack([CLASSES, 1 - CLASSES], 1)),
    "stack": stacked,
    "stack of classes": lambda: cx.StackedPosterior(
        (
            drawn(likelihoods.Categorical(2), CLASSES),
            drawn(likelihoods.Categorical(2), CLASSES, key=1),
        ),
        (0.4, 0.6),
    ),
}


def expected(prediction, names, level):
    found = {name: getattr(prediction, name) for name in names if name not in ("lower", "upper")}
    if "lower" in names:
        found["lower"], found["upper"] = prediction.interval(level)
    return found


def assert_equal_up_to_rounding(found, prediction, level=0.9):
    for name, value in expected(prediction, list(found), level).items():
        assert found[name].shape == value.shape, name
        if name in ("mean", "lower", "upper", "std"):
            assert np.max(np.abs(found[name] - value) / prediction.std) < 1e-5, name
        elif name == "label":
            np.testing.assert_array_equal(found[name], value)
        elif name in ("epistemic", "aleatoric"):
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


LONG = "linearised student-t"  # whose quantiles are found by bisection, twice


@pytest.mark.matrix
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c == LONG else []) for c in CASES]
)
def test_results_are_those_of_predict(case, tmp_path):
    posterior = CASES[case]()
    posterior.export(tmp_path / "made.npz", level=0.8, **CPU)
    predict, draws, about = opened(tmp_path / "made.npz")
    x = X[:, 2:] if case == "as it is" else X
    found = predict(x)
    assert {name: ["rows", *a.shape[1:]] for name, a in found.items()} == about["predict"]
    assert_equal_up_to_rounding(found, posterior.predict(x), 0.8)
    shape = (100, *posterior.predict(x).sample(0, 1).shape[1:])
    assert draws(x, np.int64(0)).shape == shape
    classes = "probs" in dir(posterior.predict(x)) and about["task"] == "classification"
    assert ("lower" in found) != classes


def test_any_number_of_rows(tmp_path):
    posterior = drawn(likelihoods.Gaussian(0.5))
    posterior.export(tmp_path / "made.npz", **CPU)
    predict = opened(tmp_path / "made.npz")[0]
    for rows in (1, 64, 65, 200):
        x = np.resize(X, (rows, 3))
        assert_equal_up_to_rounding(predict(x), posterior.predict(x))


def test_the_samples_are_those_of_the_key(tmp_path):
    posterior = drawn(likelihoods.Gaussian(0.5), draws=20)
    posterior.export(tmp_path / "made.npz", num_samples=3, key=5, **CPU)
    found = opened(tmp_path / "made.npz")[0](X)
    assert_equal_up_to_rounding(found, posterior.predict(X, num_samples=3, key=5))
    other = posterior.predict(X, num_samples=3, key=6).mean
    assert np.max(np.abs(found["mean"] - other) / posterior.predict(X).std) > 1e-2


@pytest.mark.parametrize("case", ["weighted", pytest.param("stack", marks=pytest.mark.slow)])
def test_draws_have_the_predictive_distribution(case, tmp_path):
    posterior, n = CASES[case](), 400
    posterior.export(tmp_path / "made.npz", draws=n, **CPU)
    draw = opened(tmp_path / "made.npz")[1]
    found, prediction = draw(X, np.int64(3)), posterior.predict(X)
    # Under the predictive distribution, P(y' <= y) is uniform for each row: mean 1/2, variance 1/12.
    ranks = prediction.cdf(found).astype(np.float64)
    assert np.max(np.abs(ranks.mean(0) - 0.5)) < 5 * np.sqrt(1 / 12 / n)
    assert np.max(np.abs(((ranks - 0.5) ** 2).mean(0) - 1 / 12)) < 5 * np.sqrt(1 / 180 / n)
    np.testing.assert_array_equal(draw(X, np.int64(3)), found)
    assert not np.any(draw(X, np.int64(3 + 2**32)) == found)


@pytest.mark.slow
def test_every_row_has_its_own_noise_and_all_rows_of_a_draw_the_same_weights(tmp_path):
    posterior, n = drawn(likelihoods.Gaussian(1.0), draws=3), 2_000
    posterior.export(tmp_path / "made.npz", draws=n, **CPU)
    same = np.repeat(X[:1], 130, axis=0)  # three blocks of rows
    found = opened(tmp_path / "made.npz")[1](same, np.int64(0))
    prediction = posterior.predict(X[:1])
    share = prediction.epistemic[0] / prediction.variance[0]
    correlation = np.corrcoef(found[:, 0], found[:, 129])[0, 1]
    assert abs(correlation - share) < 5 / np.sqrt(n)


@pytest.mark.slow
def test_double_precision(x64, tmp_path):
    posterior = drawn(likelihoods.Gaussian(0.5))
    posterior.export(tmp_path / "made.npz", **CPU)
    found = opened(tmp_path / "made.npz")[0](X)
    for name, value in expected(posterior.predict(X), list(found), 0.9).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.slow
def test_formats_that_numpy_does_not_know(tmp_path):
    posterior = drawn(likelihoods.Gaussian(0.5), standardise=False, x=X[:, 2:], y=X[:, 1])
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), posterior.draws)

    def apply(params, x):
        return x.astype(jnp.bfloat16) * params["layer_0"]["kernel"][0, :1].astype(jnp.bfloat16)

    network = networks.from_function(posterior.model.network.init, apply)
    model = cx.Model(network, likelihood=likelihoods.Gaussian(0.5)).bind((X[:, 2:], X[:, 1]))
    made = cx.Posterior(model, cx.approximations.Draws(params))
    made.export(tmp_path / "made.npz", **CPU)
    assert_equal_up_to_rounding(opened(tmp_path / "made.npz")[0](X[:, 2:]), made.predict(X[:, 2:]))


def test_whole_numbers_stay_whole_numbers(tmp_path):
    table = networks.from_function(
        lambda key: jax.random.normal(key, (5, 1)), lambda params, x: params[x[:, 0]]
    )
    words = RNG.integers(0, 5, size=(30, 1))
    posterior = drawn(
        likelihoods.Gaussian(1.0), RNG.normal(size=30), network=table, x=words, standardise=False
    )
    posterior.export(tmp_path / "made.npz", integers=True, **CPU)
    predict, _, about = opened(tmp_path / "made.npz")
    assert about["x"]["dtype"] == "int32"
    assert_equal_up_to_rounding(predict(words.astype(np.int32)), posterior.predict(words))


def test_the_runner_of_the_guide_runs_without_credax(tmp_path):
    posterior = drawn(likelihoods.Gaussian(0.5))
    posterior.export(tmp_path / "made.npz")
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",", fmt="%.17g")
    code = re.findall(r"^```python\n(import sys\n.*?)^```$", GUIDE.read_text(), re.S | re.M)[0]
    assert len([line for line in code.splitlines() if line]) <= 12
    (tmp_path / "run.py").write_text(f"import sys\nsys.modules['credax'] = None\n{code}")
    command = [sys.executable, "-W", "error", "run.py", "made.npz", "rows.csv", "found.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "found.npz") as found:
        assert_equal_up_to_rounding(dict(found), posterior.predict(X))


@pytest.mark.slow
def test_a_data_frame_gives_its_names(tmp_path):
    pd = pytest.importorskip("pandas")
    posterior = drawn(likelihoods.Gaussian(0.5), x=pd.DataFrame(X, columns=["a", "b", "c"]))
    posterior.export(tmp_path / "made.npz", **CPU)
    about = opened(tmp_path / "made.npz")[2]
    assert about["x"] == {"shape": ["rows", 3], "dtype": "float64", "columns": ["a", "b", "c"]}
    assert about["level"] == 0.9


BAD = {
    "path": [("made.credax", ValueError), (3, TypeError), ("folder.npz", IsADirectoryError)],
    "level": [(1.0, ValueError), ("0.9", TypeError)],
    "draws": [(0, ValueError), (2.5, TypeError)],
    "num_samples": [(0, ValueError)],
    "platforms": [("cpu", ValueError), (["abacus"], ValueError), ([], ValueError)],
    "integers": [(1, TypeError), (True, ValueError)],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_by_name(name, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    posterior = drawn(likelihoods.Gaussian(0.5))
    for value, error in BAD[name]:
        given = {"path": tmp_path / "made.npz", **CPU, name: value}
        if name == "path" and isinstance(value, str):
            given["path"] = tmp_path / value
        with pytest.raises(error, match=rf"export\({name}="):
            posterior.export(**given)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


def test_what_cannot_predict_cannot_be_exported(tmp_path):
    density = cx.LogDensity(lambda key: jnp.zeros(()), lambda params: -(params**2))
    with pytest.raises(TypeError, match="export needs a Model with a network"):
        cx.Posterior(density, cx.approximations.Draws(np.zeros((1, 1)))).export(tmp_path / "a.npz")
    bound = drawn(likelihoods.Gaussian(0.5))
    unbound = cx.Posterior(cx.Model(networks.mlp([6])), bound.approximation)
    with pytest.raises(ValueError, match="bound to data"):
        unbound.export(tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())
