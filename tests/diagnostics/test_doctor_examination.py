"""The numbers that the rows of a fit give a diagnosis, against answers that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doctor_cases import line

import credax as cx
from credax.diagnostics.doctor.baselines import _line, _neighbours, compare
from credax.diagnostics.doctor.conjugate_gradients import conjugate_gradients
from credax.posterior.training import ROWS, TrainingRows

NOISE = 0.3


def correlated(rho=0.99, rows=200, columns=4):
    """Targets of a line in columns that are all correlated by ``rho``."""
    rng = np.random.default_rng(0)
    x = rho**0.5 * rng.normal(size=(rows, 1)) + (1 - rho) ** 0.5 * rng.normal(size=(rows, columns))
    return x, x @ rng.normal(size=columns) + NOISE * rng.normal(size=rows)


LINEAR = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(NOISE))


def precision_and_mode(x, y):
    """The precision of the exact posterior of ``LINEAR`` and its mode, with the bias first."""
    design = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    precision = np.eye(design.shape[1]) + design.T @ design / NOISE**2
    return precision, np.linalg.solve(precision, design.T @ y / NOISE**2)


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(float)


# -- the optimum -----------------------------------------------------------------------------------


def test_a_point_is_short_of_its_mode_by_what_newtons_method_gains():
    x, y = correlated()
    point = cx.fit(LINEAR, (x, y), cx.MAP(num_steps=300), progress=False)
    precision, mode = precision_and_mode(x, y)
    off = flat(jax.tree.map(lambda leaf: leaf[0, 0], point.draws)) - mode
    short = 0.5 * off @ precision @ off
    assert short > 5
    assert point.examination["gain"] == pytest.approx(short, rel=0.02)
    (found,) = (f for f in point.diagnose() if "has not reached its maximum" in f.what)
    assert found.what.startswith("The log joint has not reached its maximum: one step of Newton's")
    assert found.kind == "run"
    # With enough steps, as the advice says, the finding is gone.
    longer = cx.fit(LINEAR, (x, y), cx.MAP(num_steps=20_000, learning_rate=0.05), progress=False)
    assert longer.examination["gain"] < 0.05
    assert "maximum" not in str(longer.diagnose())


@pytest.mark.slow
def test_a_variational_bound_is_short_of_its_optimum():
    x, y = correlated()
    method = cx.BayesByBackprop(num_steps=500)
    q = cx.fit(LINEAR, (x, y), method, progress=False)
    precision, mode = precision_and_mode(x, y)
    # The best factorised normal has the mode as its mean and the precision's diagonal as its precisions.
    off = flat(q.approximation.mean) - mode
    ratio = flat(q.approximation.sigma) ** 2 * np.diag(precision)
    short = 0.5 * (off @ precision @ off + np.sum(ratio - 1 - np.log(ratio)))
    gain, error = (q.examination[name] for name in ("gain", "gain_error"))
    assert 0.5 * short < gain < short + 4 * error
    assert "The ELBO has not reached its maximum" in str(q.diagnose())


def test_a_run_that_was_stopped_early_is_not_asked_for_its_optimum():
    point = cx.fit(
        LINEAR,
        correlated(),
        cx.MAP(num_steps=300),
        progress=False,
        callbacks=[lambda event: True],
        chunk_steps=50,
    )
    assert point.info["ended"] == "callback"
    assert "maximum" not in str(point.diagnose())


def test_conjugate_gradients_solve_a_linear_system():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 9))
    matrix, target = jnp.asarray(root @ root.T), jnp.asarray(rng.normal(size=6))
    solved = conjugate_gradients(lambda v: matrix @ v, target, 50)
    np.testing.assert_allclose(matrix @ solved, target, atol=1e-4)
    assert np.all(conjugate_gradients(lambda v: -v, target, 50) == 0)


# -- the variance ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_exact_posterior_has_the_variance_of_the_linearised_network():
    """A linear network is its own expansion. The variance of 100 draws has a relative error of 0.14."""
    exact = cx.Laplace(structure="full", predictive="sampled", num_steps=3000, learning_rate=0.05)
    found = cx.fit(LINEAR, correlated(0.5), exact, progress=False)
    assert found.examination["relative_variance"] == pytest.approx(1, abs=4 * (2 / 99) ** 0.5)
    assert found.diagnose() == ()


# -- simple predictions ----------------------------------------------------------------------------


def test_simple_predictions_leave_each_row_out():
    x, y = correlated(0.5, rows=30, columns=2)
    x = (x - x.mean(0)) / x.std(0)
    for row in range(30):
        others = np.arange(30) != row
        design = np.concatenate([np.ones((30, 1)), x], axis=1)
        weights = np.linalg.lstsq(design[others], y[others], rcond=None)[0]
        assert _line(x, y[:, None])[row, 0] == pytest.approx(design[row] @ weights, abs=1e-4)
        nearest = np.argsort(np.sum((x[others] - x[row]) ** 2, 1))[:5]
        assert _neighbours(x, y[:, None])[row, 0] == pytest.approx(y[others][nearest].mean())


def test_a_comparison_finds_what_a_line_explains():
    x, y = line(200)
    nothing = compare("regression", x, y, np.full(200, y.mean()))
    assert nothing.explained == pytest.approx(0)
    assert nothing.baseline > 0.98
    assert nothing.baseline_name == "a straight line"
    assert nothing.worse_by > 10
    perfect = compare("regression", x, y, 2 * x[:, 0])
    assert perfect.explained > 0.98
    assert perfect.worse_by < 4


def test_a_curve_is_found_by_neighbours_and_labels_by_their_indicators():
    x = np.linspace(-3, 3, 200)[:, None]
    curve = compare("regression", x, np.cos(x[:, 0]) ** 2, np.full(200, 0.5))
    assert curve.baseline_name == "the mean of the five nearest rows"
    labels = (x[:, 0] > 0).astype(int) + (x[:, 0] > 1)
    known = compare("classification", x, labels, np.eye(3)[labels])
    assert known.explained == 1
    assert compare("classification", x, labels, np.full((200, 3), 1 / 3)).worse_by > 4


@pytest.mark.parametrize("rows, y", [(10, np.arange(10.0)), (40, np.ones(40))])
def test_too_few_rows_and_constant_targets_are_not_compared(rows, y):
    assert compare("regression", np.arange(rows)[:, None], y, np.zeros(rows)) is None


# -- keeping ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::credax.DataWarning")
def test_a_sample_of_the_rows_is_kept_and_never_saved(tmp_path):
    x, y = line(3 * ROWS)
    x[:, 0] += 12345
    point = cx.fit(LINEAR, (x, y), cx.MAP(num_steps=50), progress=False)
    assert isinstance(point.training, TrainingRows)
    assert (len(point.training.x), point.training.total) == (ROWS, 3 * ROWS)
    assert np.all(np.isin(point.training.x, x.astype(np.float32)))
    point.diagnose()
    point.save(tmp_path / "point.credax")
    loaded = cx.load(tmp_path / "point.credax")
    assert loaded.training is None
    assert loaded.examination == point.examination
    assert str(loaded.diagnose()) == str(point.diagnose())
    held = (tmp_path / "point.credax").read_bytes()
    assert np.asarray(point.training.x[0, 0]).tobytes() not in held
