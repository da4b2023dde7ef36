"""Recalibration: intervals have the coverage that they state, and the temperature is optimal."""

import jax.numpy as jnp
import numpy as np
import pytest
from known_predictions import posterior
from scipy import optimize, special

from credax.diagnostics.recalibration import conformal_quantile
from credax.model import likelihoods

LEVEL, HELD, NEW = 0.8, 60, 200


def misspecified(rows, seed, scale=0.2):
    """A posterior and data with noise that is skewed, heteroscedastic and five times wider than the model's."""
    rng = np.random.default_rng(seed)
    outputs = np.broadcast_to(rng.normal(size=(1, rows, 1)), (2, rows, 1)) + 0.05 * rng.normal(
        size=(2, 1, 1)
    )
    noise = rng.exponential(1.0, rows) - 0.3
    y = outputs[0, :, 0] + noise * rng.uniform(0.5, 1.5, rows)
    return (*posterior(likelihoods.Gaussian(scale), y, outputs), y)


@pytest.mark.parametrize("method", ["quantile", "residual"])
@pytest.mark.parametrize("scale", [0.2, pytest.param(5.0, marks=pytest.mark.slow)])
def test_coverage_is_at_least_what_is_claimed(method, scale):
    """For exchangeable rows, the mean coverage lies between level and level + 1 / (n + 1)."""
    found, x, y = misspecified(1000, seed=0, scale=scale)
    raw = found.evaluate(x, y).coverage_at[15]
    assert abs(raw - LEVEL) > 0.15  # before the correction, the coverage is far off
    everything = found.predict(x)
    if method == "residual":
        scores = np.abs(y - everything.mean) / everything.std
    else:
        lower, upper = everything.interval(LEVEL)
        scores = np.maximum(lower - y, y - upper)
    rng, coverage = np.random.default_rng(1), []
    for _ in range(1000):
        chosen = rng.permutation(len(y))[: HELD + NEW]
        reach = conformal_quantile(scores[chosen[:HELD]], LEVEL)
        coverage.append(np.mean(scores[chosen[HELD:]] <= reach))
    error = np.std(coverage) / np.sqrt(len(coverage))
    assert LEVEL - 4 * error < np.mean(coverage) < LEVEL + 1 / (HELD + 1) + 4 * error
    # The public interface gives the same coverage as these scores.
    held, new = chosen[:HELD], chosen[HELD:]
    lower, upper = found.calibrate(x[held], y[held], method=method).predict(x[new]).interval(LEVEL)
    inside = np.mean((y[new] >= lower) & (y[new] <= upper))
    assert inside == pytest.approx(coverage[-1], abs=1.01 / NEW)


def test_coverage_of_several_targets_holds_for_each():
    rng = np.random.default_rng(2)
    y = rng.normal(size=(3000, 2)) * [1.0, 3.0]
    found, x = posterior(likelihoods.Gaussian(0.5), y, np.zeros((1, 3000, 2)))
    for method in ("quantile", "residual"):
        calibrated = found.calibrate(x[:1500], y[:1500], method=method)
        lower, upper = calibrated.predict(x[1500:]).interval(0.9)
        inside = ((y[1500:] >= lower) & (y[1500:] <= upper)).mean(0)
        np.testing.assert_allclose(inside, 0.9, atol=0.035)
        # The 90 % interval of a normal distribution reaches 1.645 standard deviations to either side.
        np.testing.assert_allclose((upper - lower).mean(0), 3.29 * np.array([1, 3]), rtol=0.1)


def test_intervals_and_quantiles_are_the_same_thing():
    found, x, y = misspecified(300, seed=3)
    for method in ("quantile", "residual"):
        predictive = found.calibrate(x[:200], y[:200], method=method).predict(x[200:])
        lower, upper = predictive.interval(0.9)
        np.testing.assert_allclose(predictive.quantile([0.05, 0.95]), [lower, upper], rtol=1e-6)
        assert predictive.quantile([[0.1, 0.5], [0.3, 0.9]]).shape == (2, 2, 100)
        middle = found.predict(x[200:]).quantile(0.5)
        np.testing.assert_allclose(predictive.quantile(0.5), middle)
        stacked = predictive.quantile([0.1, 0.3, 0.5, 0.7, 0.9])
        assert np.all(np.diff(stacked, axis=0) > -1e-6)


def test_intervals_too_wide_are_drawn_in_but_never_turned_over():
    y = 0.01 * np.random.default_rng(4).normal(size=400)
    found, x = posterior(likelihoods.Gaussian(1.0), y, np.zeros((1, 400, 1)))
    lower, upper = found.calibrate(x[:200], y[:200]).predict(x[200:]).interval(0.5)
    assert np.all(lower <= upper)
    assert np.all(upper - lower < 0.05)


def test_everything_else_is_as_it_was():
    found, x, y = misspecified(100, seed=5)
    calibrated, raw = found.calibrate(x, y).predict(x), found.predict(x)
    np.testing.assert_array_equal(calibrated.mean, raw.mean)
    np.testing.assert_array_equal(calibrated.std, raw.std)
    np.testing.assert_array_equal(calibrated.log_prob(y), raw.log_prob(y))


def test_a_calibrated_posterior_is_evaluated():
    found, x, y = misspecified(2000, seed=6)
    calibrated = found.calibrate(x[:1000], y[:1000])
    before, after = found.evaluate(x[1000:], y[1000:]), calibrated.evaluate(x[1000:], y[1000:])
    assert before.coverage < 0.5
    assert after.coverage == pytest.approx(0.9, abs=0.04)
    assert after.calibration_error < 0.05 < 0.2 < before.calibration_error
    assert after.rmse == before.rmse


def test_counts():
    rng = np.random.default_rng(7)
    y = rng.poisson(rng.gamma(1.0, 4.0, 600)).astype(float)  # far wider than a Poisson distribution
    found, x = posterior(likelihoods.Poisson(), y, np.full((1, 600, 1), np.log(4.0)))
    lower, upper = found.predict(x).interval(0.9)
    assert np.mean((y >= lower) & (y <= upper)) < 0.8
    lower, upper = found.calibrate(x[:300], y[:300]).predict(x[300:]).interval(0.9)
    assert np.mean((y[300:] >= lower) & (y[300:] <= upper)) > 0.85


@pytest.mark.parametrize("n, level, rank", [(9, 0.9, 9), (19, 0.9, 18), (99, 0.5, 50), (4, 0.1, 1)])
def test_the_quantile_is_the_right_order_statistic(n, level, rank):
    scores = np.random.default_rng(n).permutation(n) + 1.0
    assert conformal_quantile(scores, level) == rank


def test_too_few_rows_are_refused():
    found, x, y = misspecified(100, seed=8)
    calibrated = found.calibrate(x[:8], y[:8]).predict(x)
    with pytest.raises(ValueError, match=r"at least 9 rows for intervals of 90 %; got 8\."):
        calibrated.interval(0.9)
    assert len(calibrated.interval(0.8)) == 2  # eight rows are enough for this level


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 2])
def test_levels_are_checked(level):
    found, x, y = misspecified(100, seed=9)
    predictive = found.calibrate(x, y).predict(x)
    with pytest.raises(ValueError, match="between 0 and 1"):
        predictive.interval(level)
    with pytest.raises(ValueError, match="between 0 and 1"):
        predictive.quantile([0.5, level])


# -- classification --------------------------------------------------------------------------------


def overconfident(factor, rows=3000, classes=4):
    """Labels sampled from softmax(z), and a posterior that predicts softmax(factor z)."""
    rng = np.random.default_rng(10)
    logits = rng.normal(size=(rows, classes))
    y = np.array([rng.choice(classes, p=p) for p in special.softmax(logits, -1)])
    found, x = posterior(likelihoods.Categorical(classes), y, factor * logits[None])
    return found, x, y


@pytest.mark.parametrize("factor", [4.0, 1.0, 0.4])
def test_temperature_undoes_what_was_done(factor):
    found, x, y = overconfident(factor)
    calibrated = found.calibrate(x, y)
    assert calibrated.temperature == pytest.approx(factor, rel=0.15)
    after, before = calibrated.evaluate(x, y), found.evaluate(x, y)
    assert after.log_likelihood >= before.log_likelihood - 1e-9
    assert after.accuracy == before.accuracy
    assert after.ece < 0.03


def test_temperature_is_the_best_on_a_grid():
    found, x, y = overconfident(3.0, rows=400)
    temperature = found.calibrate(x, y).temperature
    logs = np.log(found.predict(x).probs.astype(float))

    def loss(t):
        return -special.log_softmax(logs / t, axis=1)[np.arange(len(y)), y].mean()

    grid = np.geomspace(0.1, 10, 4001)
    best = grid[np.argmin([loss(t) for t in grid])]
    assert temperature == pytest.approx(best, rel=2e-3)
    assert temperature > 1
    assert optimize.approx_fprime([temperature], lambda t: loss(t[0]), 1e-5) == pytest.approx(
        0, abs=1e-4
    )


def test_prediction_sets_hold_the_true_class():
    found, x, y = overconfident(4.0, rows=4000)
    predictive = found.calibrate(x[:2000], y[:2000]).predict(x[2000:])
    sizes = []
    for level in (0.5, 0.8, 0.95):
        sets = predictive.prediction_set(level)
        assert sets.shape == (2000, 4)
        assert sets.dtype == bool
        held = sets[np.arange(2000), y[2000:]].mean()
        # With 2000 held-out and 2000 new rows, the standard error is about 0.016 at level 0.5.
        assert level - 0.04 < held < level + 0.04
        sizes.append(sets.sum(1).mean())
    assert sizes[0] < sizes[1] < sizes[2]


def test_two_classes_by_one_logit():
    rng = np.random.default_rng(11)
    logits = rng.normal(size=2000)
    y = (rng.uniform(size=2000) < special.expit(logits)).astype(int)
    found, x = posterior(likelihoods.Bernoulli(), y, 3 * logits[None, :, None])
    calibrated = found.calibrate(x, y)
    assert calibrated.temperature == pytest.approx(3, rel=0.2)
    predictive = calibrated.predict(x)
    assert predictive.mean.shape == (2000,)
    np.testing.assert_allclose(predictive.probs[:, 1], predictive.mean)
    np.testing.assert_allclose(predictive.probs.sum(1), 1)
    expected = special.expit(3 * logits / calibrated.temperature)
    np.testing.assert_allclose(predictive.mean, expected, atol=2e-3)  # 1 - p loses digits
    assert predictive.entropy.mean() > found.predict(x).entropy.mean()
    np.testing.assert_array_equal(predictive.label, found.predict(x).label)


def test_certainty_does_no_harm():
    y = np.array([0, 1] * 20)
    logits = np.where(np.arange(2) == y[:, None], 300.0, -300.0)
    found, x = posterior(likelihoods.Categorical(2), y, logits[None])
    predictive = found.calibrate(x, y).predict(x)
    assert np.all(np.isfinite(predictive.log_prob(y)))
    assert np.all(np.isfinite(predictive.entropy))


def test_methods_belong_to_their_task():
    found, x, y = misspecified(50, seed=12)
    with pytest.raises(ValueError, match="one of 'quantile', 'residual'; got 'temperature'"):
        found.calibrate(x, y, method="temperature")
    assert repr(found.calibrate(x, y)) == "Calibrated('quantile', 50 held-out rows)"
    assert repr(found.calibrate(x, y).predict(x[:3])).startswith("CalibratedPredictive(3 rows, ")
    with pytest.raises(AttributeError, match="prediction_set is for classification"):
        found.calibrate(x, y).predict(x).prediction_set()
    found, x, y = overconfident(1.0, rows=50)
    with pytest.raises(ValueError, match="one of 'temperature'"):
        found.calibrate(x, y, method="residual")
    assert "50 held-out rows, temperature " in repr(found.calibrate(x, y))
    with pytest.raises(AttributeError, match="quantile is for"):
        found.calibrate(x, y).predict(x).interval()
    with pytest.raises(ValueError, match="as many rows as x"):
        found.calibrate(x, y[:-1])


def test_double_precision(x64):
    found, x, y = misspecified(100, seed=13)
    lower, upper = found.calibrate(x, y).predict(x).interval()
    assert lower.dtype == upper.dtype == jnp.result_type(float) == np.float64
