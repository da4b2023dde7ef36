"""Recalibration: intervals have the coverage that they state, and the temperature is optimal."""

import jax.numpy as jnp
import numpy as np
import pytest
from known_predictions import posterior
from scipy import optimize, special

import credax as cx
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


# -- positions and heads ---------------------------------------------------------------------------

ROWS, LENGTH = 300, 4


def sequences(likelihood, outputs, classes=False):
    """A posterior with a single draw whose outputs at all positions of all rows are given."""
    network = cx.networks.from_function(
        lambda key: {"table": jnp.zeros(outputs.shape)}, lambda params, x: params["table"][x]
    )
    x = np.arange(len(outputs))
    y = np.zeros(outputs.shape[:2], int if classes else float)
    model = cx.Model(network, likelihood=likelihood).bind((x, y))
    params = {"table": outputs[None, None].astype(np.float32)}
    return cx.Posterior(model, cx.approximations.Draws(params, (), np.zeros((1, 1), np.float32))), x


def ragged(rng, rows):
    """Residuals that depend on their row, and a mask of rows of different lengths: wild rows are longer."""
    wild = rng.random(rows) < 0.3
    y = np.where(wild, 4.0, 1.0)[:, None] * rng.normal(size=(rows, LENGTH))
    lengths = np.where(wild, LENGTH, 1)
    return y, np.arange(LENGTH) < lengths[:, None]


@pytest.mark.parametrize("method", ["quantile", "residual"])
def test_a_random_position_of_a_new_row_is_covered(method):
    rng = np.random.default_rng(8)
    y, seen = ragged(rng, 4 * ROWS)
    posterior, x = sequences(likelihoods.Gaussian(1.0), np.zeros((4 * ROWS, LENGTH, 1)))
    hidden = np.where(seen, y, np.nan)
    shares = seen / seen.sum(1, keepdims=True)  # a random position of a random row
    coverage = []
    for _ in range(60):
        held, new = np.split(rng.permutation(4 * ROWS), [20])
        found = posterior.calibrate(x[held], hidden[held], method=method, weights=seen[held])
        lower, upper = found.predict(x[new]).interval(LEVEL)
        inside = (y[new] >= lower) & (y[new] <= upper)
        coverage.append((inside * shares[new]).sum(1).mean())
    error = np.std(coverage) / np.sqrt(len(coverage))
    # The weight of the largest score that is reached is at most that of a row.
    assert LEVEL - 4 * error < np.mean(coverage) < LEVEL + 1 / 21 + 4 * error
    assert found.seen.shape == (20, LENGTH)
    assert len(found.y) == seen[held].sum()
    assert f"{len(found.y)} held-out positions" in repr(found)


def test_rows_of_equal_scores_are_corrected_like_single_rows():
    """Positions that repeat the target of their row say no more than one of them."""
    rng = np.random.default_rng(9)
    y = rng.normal(size=ROWS)
    single, x = posterior(likelihoods.Gaussian(0.3), y, np.zeros((1, ROWS, 1)))
    several, rows = sequences(likelihoods.Gaussian(0.3), np.zeros((ROWS, LENGTH, 1)))
    for method in ("quantile", "residual"):
        want = single.calibrate(x, y, method=method).predict(x[:2])
        got = several.calibrate(rows, np.repeat(y[:, None], LENGTH, 1), method=method)
        got = got.predict(rows[:2])
        for level in (0.5, 0.9, 0.97):
            for a, b in zip(got.interval(level), want.interval(level), strict=True):
                assert a.shape == (2, LENGTH)
                np.testing.assert_allclose(a, np.repeat(b[:, None], LENGTH, 1), rtol=1e-5)
        assert got.quantile([[0.1, 0.5], [0.3, 0.9]]).shape == (2, 2, 2, LENGTH)


@pytest.mark.parametrize("bernoulli", [False, True])
def test_one_temperature_for_all_positions_that_count(bernoulli):
    rng = np.random.default_rng(10)
    classes, true = 2 if bernoulli else 3, 2.5
    logits = 4 * rng.normal(size=(ROWS, LENGTH, 1 if bernoulli else classes))
    both = np.concatenate([0 * logits, logits], -1) if bernoulli else logits
    probs = special.softmax(both / true, axis=-1)
    y = np.array([[rng.choice(classes, p=p) for p in row] for row in probs])
    seen = rng.random(y.shape) < 0.6
    hidden = np.where(seen, y, 99)
    likelihood = likelihoods.Bernoulli() if bernoulli else likelihoods.Categorical(classes)
    found, x = sequences(likelihood, logits, classes=True)

    calibrated = found.calibrate(x, hidden, weights=seen)

    def loss(log_temperature):
        logs = special.log_softmax(both[seen] / np.exp(log_temperature), axis=-1)
        return -logs[np.arange(seen.sum()), y[seen]].mean()

    want = np.exp(optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    assert calibrated.temperature == pytest.approx(want, rel=1e-3)
    predictive = calibrated.predict(x)
    np.testing.assert_allclose(
        predictive.probs, special.softmax(both / want, axis=-1), rtol=0.01, atol=1e-6
    )
    assert predictive.entropy.shape == predictive.label.shape == y.shape
    assert predictive.mean.shape == (y.shape if bernoulli else (*y.shape, classes))
    log_prob = predictive.log_prob(hidden, weights=seen)
    np.testing.assert_allclose(log_prob[seen].mean(), -loss(np.log(want)), rtol=1e-4)
    assert np.all(log_prob[~seen] == 0)
    scores = calibrated.evaluate(x, hidden, weights=seen)
    assert scores.log_likelihood == pytest.approx(log_prob[seen].mean())
    assert scores.ece < found.evaluate(x, hidden, weights=seen).ece
    sets = predictive.prediction_set(0.9)
    assert sets.shape == (*y.shape, classes)
    assert np.take_along_axis(sets, y[..., None], -1)[..., 0][seen].mean() > 0.87
    with pytest.raises(TypeError, match="plot is for rows with targets of their own"):
        predictive.plot()


def test_rows_that_are_left_out_do_not_count():
    found, x, y = misspecified(200, seed=11)
    keep = np.arange(200) % 2 == 0
    want = found.calibrate(x[keep], y[keep]).predict(x).interval(0.8)
    got = found.calibrate(x, y, weights=keep).predict(x).interval(0.8)
    np.testing.assert_allclose(got, want)


def test_every_head_has_its_own_correction():
    rng = np.random.default_rng(12)
    network = cx.networks.from_function(
        lambda key: {"a": jnp.ones(3), "b": jnp.ones(1)},
        lambda params, x: {"kind": x[..., None] * params["a"], "size": x[:, :1] * params["b"]},
    )
    x = rng.normal(size=(60, LENGTH))
    y = {"kind": rng.integers(0, 3, x.shape), "size": 3 * rng.normal(size=60)}
    known = rng.random(60) < 0.7
    model = cx.Model(
        network,
        likelihood={"kind": likelihoods.Categorical(3), "size": likelihoods.Gaussian(0.1)},
    )
    posterior = cx.fit(model, (x, y), cx.MAP(num_steps=3), progress=False)

    found = posterior.calibrate(x, y, weights={"size": known})

    assert list(found) == ["kind", "size"]
    assert found["kind"].temperature != 1
    assert len(found["size"].y) == known.sum()
    assert "kind: Calibrated('temperature', 240 held-out positions" in repr(found)
    predictive = found.predict(x)
    lower, upper = predictive["size"].interval(0.9)
    inside = (y["size"] >= lower) & (y["size"] <= upper)
    assert np.mean(inside[known]) >= 0.9
    np.testing.assert_allclose(found["kind"].predict(x).probs, predictive["kind"].probs)
    scores = found.evaluate(x, y, weights={"size": known})
    assert scores["size"].rows == known.sum()
    assert scores["size"].coverage > posterior.evaluate(x, y)["size"].coverage
    alone = found["size"].evaluate(x, y["size"], weights=known)
    assert alone.coverage == scores["size"].coverage
    with pytest.raises(ValueError, match="size missing"):
        posterior.calibrate(x, {"kind": y["kind"]})
