"""Mixtures of any scale, chosen by Hypothesis: quantiles invert the distribution, and scores are integrals."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import credax as cx
from credax.posterior.approximations import Draws

few = settings(max_examples=15, deadline=None, derandomize=True)
LEVELS = np.array([1e-4, 0.05, 0.5, 0.8, 0.999])
ONE = np.zeros((1, 1))
"""One row. The outputs of the network below do not depend on it: they are the parameters."""
CONSTANT = cx.networks.from_function(
    lambda key: {"output": jnp.zeros(1)},
    lambda params, x: jnp.broadcast_to(params["output"], (len(x), 1)),
)


@st.composite
def mixtures(draw, components=4):
    """Locations, scales and weights of a few components, all in units of one scale of any size."""
    unit = 10.0 ** draw(st.floats(-15, 15))
    numbers = lambda low, high: np.array(  # noqa: E731
        draw(st.lists(st.floats(low, high), min_size=components, max_size=components))
    )
    locations, sizes = numbers(-20, 20), 10.0 ** numbers(-2, 2)
    weights = np.exp(numbers(-5, 0))
    return unit, unit * locations, unit * sizes, weights / weights.sum()


def predictive(likelihood, locations, scales, weights):
    """The prediction of one row by a mixture whose components have these locations and scales."""
    model = cx.Model(CONSTANT, likelihood=likelihood).bind((ONE, np.zeros(1)))
    params = {
        "network": {"output": locations.astype(np.float32)[None, :, None]},
        "likelihood": {"log_scale": np.log(scales).astype(np.float32)[None, :, None]},
    }
    return cx.Posterior(model, Draws(params, (), np.log(weights)[None])).predict(ONE)


def distribution(noise, locations, scales, weights):
    """The distribution function of the mixture, in double precision, at the rounded parameters."""
    locations = locations.astype(np.float32).astype(np.float64)
    scales = np.exp(np.log(scales).astype(np.float32).astype(np.float64))

    def cdf(t):
        return noise.cdf((np.asarray(t)[..., None] - locations) / scales) @ weights

    return cdf


KINDS = {
    "Gaussian": (cx.likelihoods.Gaussian(scale=None), stats.norm),
    "StudentT": (cx.likelihoods.StudentT(4.0, scale=None), stats.t(4)),
}


@pytest.mark.parametrize("kind", KINDS)
@few
@given(mixtures())
def test_quantiles_invert_the_distribution_function(kind, mixture):
    _, *parts = mixture
    likelihood, noise = KINDS[kind]
    found = predictive(likelihood, *parts)
    quantiles = found.quantile(LEVELS)
    assert np.isfinite(quantiles).all()
    cdf = distribution(noise, *parts)
    # The rounding error of a quantile times the largest density.
    rounding = 4e-6 * (np.abs(quantiles[:, 0]) / parts[1].min()) * 0.4 + 1e-5
    assert np.all(
        np.abs(cdf(quantiles[:, 0].astype(np.float64)) - LEVELS) < rounding + 1e-3 * LEVELS
    )
    np.testing.assert_allclose(found.cdf(quantiles)[:, 0], LEVELS, atol=rounding.max(), rtol=1e-3)
    assert np.all(np.diff(quantiles[:, 0]) >= 0)
    drawn = np.asarray(found.sample(3, 64), np.float64)[:, 0]
    assert stats.kstest(cdf(drawn), "uniform").pvalue > 1e-6


@pytest.mark.parametrize("kind", KINDS)
@few
@given(mixtures(), st.floats(-30, 30))
def test_scores_are_integrals_at_any_scale(kind, mixture, target):
    unit, *parts = mixture
    likelihood, noise = KINDS[kind]
    y = np.float32(unit * target)
    found = float(predictive(likelihood, *parts).crps(np.array([y]))[0])
    cdf = distribution(noise, *parts)
    # In units of the mixture, with nodes that are dense around every component and reach far into the tails.
    u = np.linspace(-12, 12, 200_001)
    centres = np.r_[parts[0], float(y)] / unit
    t = np.unique(np.concatenate([c + np.sinh(u[:: len(centres)]) for c in centres]))
    values = (cdf(t * unit) - (t * unit >= float(y))) ** 2
    exact = unit * np.sum((values[1:] + values[:-1]) / 2 * np.diff(t))
    assert found == pytest.approx(exact, rel=2e-3)


@few
@given(st.floats(-3, 6), st.floats(-3, 6), st.floats(0.05, 0.95), st.integers(0, 300))
def test_counts(first, second, share, target):
    """The score of a mixture of two Poisson distributions is a sum over whole numbers."""
    log_rates = np.array([first, second], np.float32)
    model = cx.Model(CONSTANT, likelihood=cx.likelihoods.Poisson()).bind((ONE, np.zeros(1)))
    weights = np.array([share, 1 - share])
    draws = Draws({"output": log_rates[None, :, None]}, (), np.log(weights)[None])
    found = cx.Posterior(model, draws).predict(ONE)
    counts = np.arange(2_000)
    mixture = stats.poisson(np.exp(log_rates.astype(np.float64))).cdf(counts[:, None]) @ weights
    exact = np.sum((mixture - (counts >= target)) ** 2)
    assert float(found.crps(np.array([target]))[0]) == pytest.approx(exact, rel=2e-3, abs=1e-4)
    for level, quantile in zip(LEVELS, found.quantile(LEVELS)[:, 0], strict=True):
        k = int(quantile)
        # The smallest count at which the distribution function reaches the level.
        assert mixture[k] >= level * (1 - 1e-3) - 1e-5
        assert k == 0 or mixture[k - 1] <= level * (1 + 1e-3) + 1e-5
