"""Estimates from importance weights: the plain and the self-normalised mean, and the smoothed tail."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import LIMIT, correlated, linear_regression
from scipy import stats

import credax as cx
from credax.inference.montecarlo.importance import ImportanceSampling, expectation, smooth_tail
from credax.posterior.approximations import Draws

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

# -- plain and self-normalised ----------------------------------------------------------------------


def by_hand(weights, values, self_normalised):
    log_weights = np.log(np.asarray(weights, np.float64))
    draws = Draws({"w": np.asarray(values, np.float32)[None]}, (), log_weights[None])
    density = cx.LogDensity(lambda key: {"w": jnp.zeros(2)}, lambda params: jnp.sum(params["w"]))
    return cx.Posterior(density, draws, info={"self_normalised": self_normalised})


def test_both_formulas_on_given_draws():
    weights = [0.5, 2.0, 1.0, 0.25]
    values = [[1.0, 0.0], [3.0, -1.0], [2.0, 5.0], [-4.0, 2.0]]
    first = lambda params: params["w"] ** 2  # noqa: E731
    plain, plain_error = expectation(by_hand(weights, values, False), first)
    terms = np.array([[0.5, 0.0], [18.0, 2.0], [4.0, 25.0], [4.0, 1.0]])
    np.testing.assert_allclose(plain, terms.sum(0) / 4)
    np.testing.assert_allclose(plain_error, terms.std(0, ddof=1) / 2)
    mean, error = expectation(by_hand(weights, values, True), first)
    np.testing.assert_allclose(mean, terms.sum(0) / 3.75)
    shares = np.array(weights)[:, None] / 3.75
    np.testing.assert_allclose(
        error, np.sqrt(np.sum((shares * (np.square(values) - mean)) ** 2, axis=0))
    )
    number, _ = expectation(by_hand(weights, values, True), lambda params: 7)
    assert number == pytest.approx(7)


@pytest.mark.slow
def test_a_normalised_density_allows_the_plain_estimate():
    target = correlated()
    # Narrower than the density, so that the largest weights would be smoothed.
    method = ImportanceSampling(20_000, self_normalised=False, df=None, inflation=0.9)
    posterior = cx.fit(target.model, None, method, progress=False)
    value, error = posterior.log_evidence
    assert abs(value) < LIMIT * error
    total, error = expectation(posterior, lambda w: jnp.ones(()))
    assert error > 0  # the mean of plain weights differs from one by chance
    assert total == pytest.approx(np.exp(value))
    mean, error = expectation(posterior, lambda w: w)
    assert np.all(np.abs(mean - target.mean) < LIMIT * error)
    weights = np.exp(posterior.log_weights[0])
    np.testing.assert_allclose(mean, (weights[:, None] * posterior.draws[0]).mean(0), rtol=1e-5)
    # No weight is smoothed, since that would bias the mean.
    draws = posterior.draws[0].astype(np.float64)
    density = stats.multivariate_normal(target.mean, target.covariance).logpdf(draws)
    proposal = stats.multivariate_normal(target.mean, 0.81 * target.covariance).logpdf(draws)
    np.testing.assert_allclose(posterior.log_weights[0], density - proposal, atol=1e-4)
    assert np.abs(smooth_tail(density - proposal)[0] - (density - proposal)).max() > 0.01


def test_expectation_is_for_weighted_draws():
    point = cx.Posterior(linear_regression().model, Draws({"w": np.zeros((1, 3, 2))}))
    with pytest.raises(TypeError, match=r"expectation\(posterior=...\) must be a posterior by Imp"):
        expectation(point, lambda params: 0.0)


# -- the tail of the weights ------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9, 1.5])
def test_k_of_pareto_weights(k):
    uniform = np.random.default_rng(0).uniform(size=100_000)
    log_weights = -k * np.log(uniform)
    assert smooth_tail(log_weights)[1] == pytest.approx(k, abs=0.12)
    assert smooth_tail(log_weights - 5_000)[1] == pytest.approx(k, abs=0.12)


def test_smoothing_puts_quantiles_in_place_of_the_largest():
    log_weights = -0.6 * np.log(np.random.default_rng(1).uniform(size=10_000)) + 7
    smoothed, _ = smooth_tail(log_weights)
    order = np.argsort(log_weights)
    tail = 300
    np.testing.assert_array_equal(smoothed[order[:-tail]], log_weights[order[:-tail]])
    assert np.all(np.diff(smoothed[order]) >= 0)
    assert np.all(smoothed <= log_weights.max())
    # Quantiles of the true tail above the largest of the other weights.
    levels = (np.arange(tail) + 0.5) / tail
    truth = log_weights[order[-tail - 1]] - 0.6 * np.log(1 - levels)
    np.testing.assert_allclose(smoothed[order[-tail:]][: tail // 2], truth[: tail // 2], atol=0.05)
    np.testing.assert_allclose(smoothed[order[-tail:-5]], truth[:-5], atol=0.8)


def test_smoothing_lowers_the_error_of_the_mean():
    """For k = 0.6 the variance of the weights is infinite, and smoothed means are nearer to the truth."""
    generator = np.random.default_rng(2)
    errors = []
    for _ in range(300):
        log_weights = -0.6 * np.log(generator.uniform(size=500))
        estimates = [np.exp(lw).mean() for lw in (log_weights, smooth_tail(log_weights)[0])]
        errors.append(np.abs(np.array(estimates) - 2.5))
    plain, smoothed = np.sqrt(np.mean(np.square(errors), axis=0))
    assert smoothed < plain


@pytest.mark.parametrize(
    "log_weights, k",
    [
        (np.zeros(1_000), 0.0),
        (np.repeat([-3.0, 0.0], [500, 500]), 0.0),
        (np.repeat([-1.0, 0.0], [950, 50]), 50 / 94),  # Hill: ties make a fit impossible
        (np.linspace(-1e5, 0.0, 1_000), 29.8),
        (np.concatenate([np.full(999, -np.inf), [3.0]]), 700 / 94),
    ],
)
def test_tails_that_no_pareto_distribution_fits(log_weights, k):
    smoothed, got = smooth_tail(log_weights)
    assert got == pytest.approx(k, rel=0.05)
    assert math.isfinite(got)
    np.testing.assert_array_equal(smoothed, log_weights)


@pytest.mark.parametrize("count, known", [(1, False), (24, False), (25, True)])
def test_few_draws_have_no_tail(count, known):
    log_weights = np.random.default_rng(0).normal(size=count)
    smoothed, k = smooth_tail(log_weights)
    assert (k is not None) == known
    if not known:
        np.testing.assert_array_equal(smoothed, log_weights)
