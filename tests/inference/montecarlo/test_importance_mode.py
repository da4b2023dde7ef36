"""The Student t proposal around a mode: its density, its draws, and the curvature that it is made from."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import LIMIT, gaussian, logistic_regression
from scipy import stats

import credax as cx
from credax.core import random
from credax.core.trees import Flat
from credax.inference.montecarlo.importance import (
    AroundMode,
    ImportanceSampling,
    around_mode,
    expectation,
)
from credax.posterior.approximations import Draws

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

CENTRE = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.2]])


def around(df, inflation=1.0, start=(0.0, 0.0, 0.0)) -> AroundMode:
    """The proposal for a normal density, whose mode one Newton step finds from any starting point."""
    target = gaussian(CENTRE, COVARIANCE)
    point = Flat.of({"a": jnp.asarray(start[:1]), "b": jnp.asarray(start[1:])})
    log_joint = lambda flat: target.model.log_joint(flat.vector)  # noqa: E731
    return around_mode(log_joint, point, (), df, inflation, width=2)


@pytest.mark.parametrize("df", [None, 4])
def test_density_of_the_proposal(df, x64):
    proposal = around(df, inflation=1.5)
    np.testing.assert_allclose(proposal.mode.vector, CENTRE, atol=1e-9)
    points = np.random.default_rng(0).normal(size=(20, 3)) * 3
    got = [proposal.log_prob({"a": jnp.asarray(w[:1]), "b": jnp.asarray(w[1:])}) for w in points]
    shape = 2.25 * COVARIANCE
    exact = (
        stats.multivariate_normal(CENTRE, shape)
        if df is None
        else stats.multivariate_t(CENTRE, shape, df)
    )
    np.testing.assert_allclose(got, exact.logpdf(points), rtol=1e-9)


@pytest.mark.parametrize("df", [None, 12])
def test_draws_of_the_proposal(df):
    count = 40_000
    draw = around(df).sample(random.key(0), count)
    vectors = np.concatenate([draw.params["a"], draw.params["b"]], axis=1).astype(np.float64)
    whitened = np.linalg.solve(np.linalg.cholesky(COVARIANCE), (vectors - CENTRE).T)
    marginal = stats.norm() if df is None else stats.t(df)
    for row in whitened:
        assert stats.kstest(row, marginal.cdf).pvalue > 1e-4
    # All weights of a draw share one divisor, so their squares are correlated in a Student t distribution.
    square = np.sum(whitened**2, axis=0)
    radial = stats.chi2(3) if df is None else stats.f(3, df, scale=3)
    assert stats.kstest(square, radial.cdf).pvalue > 1e-4


def test_a_direction_that_is_not_concave_gets_a_width():
    """Two modes, with the start at the saddle between them, where the curvature has the wrong sign."""

    def log_joint(w):
        return -2 * (w[0] ** 2 - 1) ** 2 - 0.5 * w[1] ** 2

    density = cx.LogDensity(lambda key: jnp.zeros(2), log_joint)
    method = ImportanceSampling(20_000, num_warmup=0, inflation=2.0)
    posterior = cx.fit(density, None, method, progress=False)
    assert posterior.info["effective_sample_size"] > 5_000
    grid = np.linspace(-4, 4, 4001)
    mass = np.exp(-2 * (grid**2 - 1) ** 2)
    (square, other), (error, other_error) = expectation(posterior, lambda w: w**2)
    assert abs(square - (mass @ grid**2) / mass.sum()) < LIMIT * error
    assert abs(other - 1) < LIMIT * other_error
    evidence = np.log(mass.sum() * (grid[1] - grid[0])) + 0.5 * math.log(2 * math.pi)
    value, error = posterior.log_evidence
    assert abs(value - evidence) < LIMIT * error


@pytest.mark.slow
def test_a_start_takes_the_place_of_the_warm_up():
    target = logistic_regression()
    mean = target.mean.astype(np.float32)
    near = {"bias": mean[None, None, :1], "slope": mean[None, None, 1:, None]}
    mode = cx.Posterior(target.model.bind(target.data), Draws(near))
    method = ImportanceSampling(2_000, num_warmup=0)
    posterior = cx.fit(target.model, target.data, method, start=mode, progress=False)
    assert posterior.info["steps"] == 100
    assert posterior.info["effective_sample_size"] > 1_000
    value, error = posterior.log_evidence
    assert abs(value - target.log_evidence) < LIMIT * error
