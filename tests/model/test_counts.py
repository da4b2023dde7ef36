"""Negative binomial counts against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import credax as cx
from credax.model.likelihoods import NegativeBinomial

OUTPUTS = np.array([[0.5, 1.0], [3.0, -1.0], [-1.0, 2.0]], np.float32)
MEAN, SHAPE = np.exp(OUTPUTS.astype(float)).T
SCIPY = stats.nbinom(SHAPE, SHAPE / (SHAPE + MEAN))


@pytest.mark.parametrize("count", [0.0, 1.0, 7.0, 120.0])
def test_probabilities_and_distribution_function(count):
    likelihood, y = NegativeBinomial(), jnp.full(3, count)
    np.testing.assert_allclose(likelihood.log_prob(OUTPUTS, y), SCIPY.logpmf(count), rtol=2e-4)
    np.testing.assert_allclose(
        likelihood.cdf(OUTPUTS, y + 0.5)[:, 0], SCIPY.cdf(count), rtol=1e-4, atol=1e-6
    )
    assert np.all(likelihood.cdf(OUTPUTS, jnp.full(3, -0.5)) == 0)


def test_moments_and_draws():
    likelihood = NegativeBinomial()
    np.testing.assert_allclose(likelihood.mean(OUTPUTS)[:, 0], SCIPY.mean(), rtol=1e-5)
    np.testing.assert_allclose(likelihood.variance(OUTPUTS)[:, 0], SCIPY.var(), rtol=1e-5)
    drawn = likelihood.sample(jax.random.key(0), jnp.repeat(jnp.asarray(OUTPUTS), 20_000, 0))
    drawn = np.asarray(drawn).reshape(3, -1)
    error = SCIPY.std() / np.sqrt(drawn.shape[1])
    assert np.all(np.abs(drawn.mean(1) - SCIPY.mean()) < 4 * error)


def test_a_fit_reaches_the_maximum_that_scipy_finds():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(500, 1))
    y = rng.poisson(rng.gamma(2.0, np.exp(1 + x[:, 0]) / 2.0)).astype(float)

    def loss(w):
        mean, shape = np.exp(w[0] + w[1] * x[:, 0]), np.exp(w[2] + w[3] * x[:, 0])
        return -stats.nbinom.logpmf(y, shape, shape / (shape + mean)).sum()

    best = -optimize.minimize(loss, np.zeros(4)).fun
    model = cx.Model(cx.networks.linear(), likelihood=NegativeBinomial())
    posterior = cx.fit(model, (x, y), cx.MaximumLikelihood(num_steps=4_000), progress=False)
    found = posterior.predict(x).log_prob(y).sum()
    assert best - 0.1 < found < best + 0.05


@pytest.mark.parametrize("y", [[-1.0, 2.0], [0.5, 1.0]])
def test_other_targets_are_refused(y):
    model = cx.Model(cx.networks.linear(), likelihood=NegativeBinomial())
    with pytest.raises(ValueError, match=r"whole numbers, at least 0, for NegativeBinomial\(\)"):
        cx.fit(model, (np.zeros((2, 1)), np.array(y)), cx.MAP(), progress=False)
