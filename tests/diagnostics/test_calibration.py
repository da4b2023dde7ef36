"""Every score is compared with scikit-learn, SciPy or a calculation by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_predictions import posterior
from scipy import special, stats
from sklearn import metrics

import credax as cx
from credax.diagnostics.calibration import LEVELS, Score, detect, detection, gaps
from credax.model import likelihoods

RNG = np.random.default_rng(0)
LOG_WEIGHTS = np.log([0.5, 0.2, 0.1, 0.15, 0.05])


# -- classes ---------------------------------------------------------------------------------------


def classes(rows=300, draws=5, weights=None):
    rng = np.random.default_rng(1)
    logits = 2 * rng.normal(size=(draws, rows, 3))
    y = rng.integers(0, 3, rows)
    found, x = posterior(likelihoods.Categorical(3), y, logits, weights)
    shares = np.full(draws, 1 / draws) if weights is None else np.exp(weights)
    probs = np.tensordot(shares, special.softmax(logits, -1), 1)
    return found.evaluate(x, y), probs, y


@pytest.mark.parametrize("weights", [None, LOG_WEIGHTS])
def test_scores_of_classes_are_those_of_scikit_learn(weights):
    scores, probs, y = classes(weights=weights)
    assert scores.rows == 300
    assert scores.log_likelihood == pytest.approx(-metrics.log_loss(y, probs), rel=1e-5)
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(y, probs.argmax(1)))
    brier = ((probs - np.eye(3)[y]) ** 2).sum(1).mean()
    assert scores.brier == pytest.approx(brier, rel=1e-5)
    assert scores.sharpness == pytest.approx(probs.max(1).mean(), rel=1e-5)
    assert scores.rmse is scores.crps is scores.pit is None


def test_the_brier_score_of_two_classes_is_twice_that_of_scikit_learn():
    y = RNG.integers(0, 2, 100)
    logits = RNG.normal(size=(4, 100, 1))
    found, x = posterior(likelihoods.Bernoulli(), y, logits)
    probs = special.expit(logits).mean(0)[:, 0]
    scores = found.evaluate(x, y)
    assert scores.brier == pytest.approx(2 * metrics.brier_score_loss(y, probs), rel=1e-5)
    assert scores.log_likelihood == pytest.approx(-metrics.log_loss(y, probs), rel=1e-5)
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(y, probs > 0.5))


def expected_calibration_error(confidence, right, edges):
    """The definition, as a loop over bins."""
    total = 0.0
    for low, high in itertools.pairwise(edges):
        held = (confidence > low) & (confidence <= high)
        if held.any():
            total += held.mean() * abs(right[held].mean() - confidence[held].mean())
    return total


def test_expected_calibration_errors_are_those_of_a_loop_over_bins():
    scores, probs, y = classes()
    confidence, right = probs.max(1), probs.argmax(1) == y
    by_width = expected_calibration_error(confidence, right, np.linspace(0, 1, 16))
    assert scores.ece == pytest.approx(by_width, rel=1e-4)
    edges = np.quantile(confidence, np.linspace(0, 1, 16))
    by_mass = expected_calibration_error(confidence, right, [-1, *edges[1:-1], 2])
    assert scores.ece_equal_mass == pytest.approx(by_mass, rel=1e-3)


def test_a_bin_holds_its_upper_edge():
    found = gaps(np.array([[0.5], [0.25], [0.75]]), np.ones((3, 1)), np.array([0.5]))
    np.testing.assert_array_equal(found, [[0.5, 0], [0.75, 0], [0, 0.25]])


def test_a_table_by_hand():
    probs = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]])
    y = np.array([0, 1, 1, 1])
    found, x = posterior(likelihoods.Categorical(2), y, np.log(probs)[None])
    scores = found.evaluate(x, y)
    assert scores.accuracy == 0.75
    assert scores.brier == pytest.approx(2 * (0.04 + 0.36 + 0.09 + 0.01) / 4)
    assert scores.ece == pytest.approx((0.2 + 0.6 + 0.3 + 0.1) / 4)
    assert scores.log_likelihood == pytest.approx(np.log([0.8, 0.4, 0.7, 0.9]).mean())


def test_several_labels_are_averaged():
    y = RNG.integers(0, 2, (50, 3))
    logits = RNG.normal(size=(2, 50, 3))
    found, x = posterior(likelihoods.Bernoulli(), y, logits)
    scores, probs = found.evaluate(x, y), special.expit(logits).mean(0)
    assert scores.accuracy == pytest.approx(((probs > 0.5) == y).mean())
    assert scores.brier == pytest.approx(2 * ((probs - y) ** 2).mean(), rel=1e-5)
    assert 0 <= scores.ece <= 1


# -- numbers ---------------------------------------------------------------------------------------


def normal_crps(y, mean, sd):
    z = (y - mean) / sd
    return sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))


def mixture_crps(y, means, sd, weights):
    """The CRPS in its energy form, E|Y - y| - E|Y - Y'| / 2 (Grimit et al., 2006), in double precision."""

    def absolute(m, s):
        return m * (2 * stats.norm.cdf(m / s) - 1) + 2 * s * stats.norm.pdf(m / s)

    pairs = absolute(means[:, None] - means, np.sqrt(2) * sd)
    return weights @ absolute(y - means, sd) - 0.5 * weights @ pairs @ weights


def test_errors_are_those_of_scikit_learn():
    y, outputs = RNG.normal(size=200), RNG.normal(size=(3, 200, 1))
    found, x = posterior(likelihoods.Gaussian(0.5), y, outputs)
    scores, mean = found.evaluate(x, y), outputs.mean(0)[:, 0]
    assert scores.rmse == pytest.approx(metrics.root_mean_squared_error(y, mean), rel=1e-5)
    median = found.predict(x).quantile(0.5)
    assert scores.mae == pytest.approx(metrics.mean_absolute_error(y, median), rel=1e-5)
    density = stats.norm(outputs[..., 0], 0.5).pdf(y).mean(0)
    assert scores.log_likelihood == pytest.approx(np.log(density).mean(), rel=1e-5)
    assert scores.sharpness == pytest.approx(found.predict(x).std.mean())


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("sd", [1.0, 0.05, 1e-4])
@pytest.mark.parametrize("weights", [None, LOG_WEIGHTS])
def test_crps_of_a_mixture_of_normals(sd, weights, double, request):
    if double:
        request.getfixturevalue("x64")
    outputs = np.random.default_rng(2).normal(size=(5, 6, 1)).astype(jnp.result_type(float))
    y = np.array([0.0, 0.3, -1.0, 2.0, 30.0, -5.0])
    found, x = posterior(likelihoods.Gaussian(sd), y, outputs, weights)
    shares = np.full(5, 0.2) if weights is None else np.exp(weights)
    expected = [mixture_crps(t, outputs[:, i, 0] + 0.0, sd, shares) for i, t in enumerate(y)]
    got = found.predict(x).crps(y)
    np.testing.assert_allclose(got, expected, rtol=1e-10 if double else 1e-5)
    assert got.dtype == jnp.result_type(float)


def test_crps_of_one_normal():
    y = np.linspace(-4, 4, 9)
    found, x = posterior(likelihoods.Gaussian(2.0), y, np.zeros((1, 9, 1)))
    np.testing.assert_allclose(found.predict(x).crps(y), normal_crps(y, 0, 2.0), rtol=1e-5)


@pytest.mark.parametrize("sd, within", [(0.5, 1e-5), (0.05, 5e-5), (0.001, 5e-4)])
def test_crps_of_more_normals_than_allow_a_sum_over_pairs(sd, within):
    means = np.random.default_rng(3).normal(size=(1000, 4, 1)).astype(np.float32)
    means[:, 3] = np.where(np.arange(1000) < 300, -1, 1)[:, None]  # two modes
    y = np.array([0.0, 1.0, 10.0, 0.2])
    found, x = posterior(likelihoods.Gaussian(sd), y, means)
    shares = np.full(1000, 1e-3)
    expected = [mixture_crps(t, means[:, i, 0].astype(float), sd, shares) for i, t in enumerate(y)]
    np.testing.assert_allclose(found.predict(x).crps(y), expected, rtol=within)


@pytest.mark.parametrize("draws", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_crps_of_student_t_by_its_energy_form(draws):
    rng = np.random.default_rng(4)
    outputs, y = rng.normal(size=(draws, 3, 1)), np.array([0.0, 1.5, -6.0])
    found, x = posterior(likelihoods.StudentT(5.0, 0.5), y, outputs)
    a, b = rng.standard_t(5.0, (2, 400_000, 3)) * 0.5
    a += outputs[rng.integers(0, draws, 400_000), :, 0]
    b += outputs[rng.integers(0, draws, 400_000), :, 0]
    each = np.abs(a - y) - 0.5 * np.abs(a - b)
    z = (found.predict(x).crps(y) - each.mean(0)) / (each.std(0) / np.sqrt(len(each)))
    assert np.all(np.abs(z) < 4)


@pytest.mark.parametrize(
    "rates, within", [([0.05], 2e-6), ([3.0], 2e-6), ([2.0, 40.0], 2e-6), ([5000.0], 1e-4)]
)
def test_crps_of_counts_is_a_sum(rates, within):
    y = np.array([0.0, 2.0, 45.0, 4900.0])
    outputs = np.broadcast_to(np.log(rates)[:, None, None], (len(rates), 4, 1))
    found, x = posterior(likelihoods.Poisson(), y, outputs)
    k = np.arange(10_000)
    below = np.mean([stats.poisson.cdf(k, rate) for rate in rates], axis=0)
    expected = [np.sum((below - (t <= k)) ** 2) for t in y]
    np.testing.assert_allclose(found.predict(x).crps(y), expected, rtol=within)


def test_coverage_and_width():
    y, sd = RNG.normal(size=500), 0.8
    found, x = posterior(likelihoods.Gaussian(sd), y, np.zeros((1, 500, 1)))
    scores = found.evaluate(x, y)
    half = np.array([stats.norm.ppf((1 + level) / 2) * sd for level in LEVELS])
    inside = (np.abs(y) <= half[:, None]).mean(1)
    np.testing.assert_allclose(scores.coverage_at, inside)
    np.testing.assert_allclose(scores.width_at, 2 * half, rtol=1e-5)
    at = LEVELS.index(0.9)
    assert scores.coverage == pytest.approx(inside[at])
    assert scores.width == pytest.approx(2 * half[at], rel=1e-5)
    assert scores.calibration_error == pytest.approx(np.abs(inside - LEVELS).mean())


def test_pit_is_uniform_for_a_calibrated_model():
    rng = np.random.default_rng(5)
    outputs = rng.normal(size=(4, 2000, 1))
    which = rng.integers(0, 4, 2000)
    y = outputs[which, np.arange(2000), 0] + 0.7 * rng.normal(size=2000)
    found, x = posterior(likelihoods.Gaussian(0.7), y, outputs)
    scores = found.evaluate(x, y)
    assert stats.kstest(scores.pit, "uniform").pvalue > 0.01
    assert scores.calibration_error < 0.03
    wrong, _ = posterior(likelihoods.Gaussian(0.3), y, outputs)
    assert stats.kstest(wrong.evaluate(x, y).pit, "uniform").pvalue < 1e-6


def test_the_pit_of_a_count_is_the_middle_of_its_step():
    y = np.array([0.0, 3.0])
    found, x = posterior(likelihoods.Poisson(), y, np.zeros((1, 2, 1)))
    middle = (stats.poisson.cdf(y, 1.0) + stats.poisson.cdf(y - 1, 1.0)) / 2
    np.testing.assert_allclose(found.evaluate(x, y).pit, middle, rtol=1e-5)


@pytest.mark.parametrize("weights", [pytest.param(None, marks=pytest.mark.slow), LOG_WEIGHTS])
def test_several_targets_are_averaged(weights):
    y, outputs = RNG.normal(size=(60, 2)), RNG.normal(size=(5, 60, 2))
    both, x = posterior(likelihoods.Gaussian([0.5, 1.0]), y, outputs, weights)
    scores = both.evaluate(x, y)
    assert scores.pit.shape == (60, 2)
    single = []
    for j, scale in enumerate([0.5, 1.0]):
        one, x = posterior(likelihoods.Gaussian(scale), y[:, j], outputs[..., [j]], weights)
        single.append(one.evaluate(x, y[:, j]))
    for name in ("mae", "crps", "coverage", "width", "sharpness"):
        mean = np.mean([getattr(one, name) for one in single])
        assert getattr(scores, name) == pytest.approx(mean, rel=1e-5), name
    assert scores.rmse**2 == pytest.approx(np.mean([one.rmse**2 for one in single]), rel=1e-5)


@pytest.mark.slow
def test_targets_in_a_column_are_as_good_as_in_a_row():
    y, outputs = RNG.normal(size=40), RNG.normal(size=(3, 40, 1))
    flat, x = posterior(likelihoods.Gaussian(0.5), y, outputs)
    column, _ = posterior(likelihoods.Gaussian(0.5), y[:, None], outputs)
    for (name, a), (_, b) in zip(flat.evaluate(x, y), column.evaluate(x, y[:, None]), strict=True):
        assert a == pytest.approx(b, rel=1e-6), name


# -- standard errors -------------------------------------------------------------------------------


def test_bootstrap_errors_are_those_of_a_mean():
    scores, probs, y = classes(rows=1000)
    n = 1000
    accuracy = float(scores.accuracy)
    analytic = np.sqrt(accuracy * (1 - accuracy) / n)
    # The relative error of a standard error from 500 resamples is 1 / sqrt(1000), about 3 %.
    assert scores.accuracy.standard_error == pytest.approx(analytic, rel=0.15)
    logs = np.log(probs[np.arange(n), y])
    analytic = logs.std(ddof=1) / np.sqrt(n)
    assert scores.log_likelihood.standard_error == pytest.approx(analytic, rel=0.15)


def test_the_error_of_a_root_is_that_of_the_delta_method():
    rng = np.random.default_rng(6)
    y = rng.normal(size=2000)
    found, x = posterior(likelihoods.Gaussian(1.0), y, np.zeros((1, 2000, 1)))
    # Var(y^2) = 2, so the standard error of the root is sqrt(2 / n) / 2.
    assert found.evaluate(x, y).rmse.standard_error == pytest.approx(
        np.sqrt(2 / 2000) / 2, rel=0.15
    )


def test_one_row_has_scores_without_errors():
    found, x = posterior(likelihoods.Gaussian(1.0), np.zeros(2), np.zeros((1, 2, 1)))
    scores = found.evaluate(x[:1], np.array([0.5]))
    assert scores.rmse == pytest.approx(0.5)
    assert np.isnan(scores.rmse.standard_error)


def test_a_score_prints_with_its_error():
    assert str(Score(0.12345, 0.0123)) == "0.1235 ± 0.012"
    scores, *_ = classes()
    lines = str(scores).splitlines()
    assert lines[0] == "300 rows"
    assert any(line.startswith("log likelihood") for line in lines)
    assert next(iter(scores))[0] == "log_likelihood"
    assert repr(scores).startswith(f"Scores(rows=300, log_likelihood={scores.log_likelihood}, ")
    assert "\n" not in repr(scores)
    assert "None" not in repr(scores)
    assert f"<td>{scores.accuracy:.4g}</td>" in scores._repr_html_()


def test_wrong_rows_are_refused():
    found, x = posterior(likelihoods.Gaussian(1.0), np.zeros(4), np.zeros((1, 4, 1)))
    with pytest.raises(ValueError, match="as many rows as x, 4; got 3"):
        found.evaluate(x, np.zeros(3))
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(TypeError, match="needs a Model"):
        cx.Posterior(density, found.approximation).evaluate(x, np.zeros(4))


# -- out of distribution ---------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_areas_are_those_of_scikit_learn(ties):
    rng = np.random.default_rng(7)
    inside, outside = rng.normal(size=80), rng.normal(0.7, 1, size=50)
    if ties:
        inside, outside = np.round(inside), np.round(outside)
    truth, values = np.repeat([0, 1], [80, 50]), np.concatenate([inside, outside])
    auroc, aupr = detection(inside, outside)
    assert auroc == pytest.approx(metrics.roc_auc_score(truth, values))
    assert aupr == pytest.approx(metrics.average_precision_score(truth, values))


def test_detection_by_each_measure():
    y = np.tile([0, 1], 20)
    logits = np.random.default_rng(8).normal(size=(6, 40, 2))
    logits[:, :20] = [4.0, -4.0]  # confident, and all draws agree
    found, x = posterior(likelihoods.Categorical(2), y, logits)
    measures = detect(found, x[:20], x[20:])
    assert set(measures) == {"entropy", "mutual_information", "variance"}
    assert all(area.auroc == area.aupr == 1 for area in measures.values())
    outputs = np.zeros((6, 40, 1))
    outputs[:, 20:] = np.random.default_rng(9).normal(size=(6, 20, 1))
    numbers, x = posterior(likelihoods.Gaussian(1.0), np.zeros(40), outputs)
    measures = detect(numbers, x[:20], x[20:])
    assert set(measures) == {"variance", "epistemic"}
    assert measures["epistemic"].auroc == 1


def test_no_dtype_is_promoted(x64):
    y, outputs = RNG.normal(size=20), RNG.normal(size=(3, 20, 1))
    found, x = posterior(likelihoods.Gaussian(0.5), y, outputs)
    assert found.predict(x).crps(y).dtype == np.float64
    assert jax.config.jax_enable_x64
    assert found.evaluate(x, y).crps > 0
