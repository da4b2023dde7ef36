"""Gaussian posteriors on which SGLD and SGHMC are linear recursions, with their exact stationary moments."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_lyapunov

import credax as cx

CHAINS = 256


def fit(model, data, method, **arguments):
    return cx.fit(model, data, method, progress=False, **arguments)


# -- a location, whose gradient is linear in the data -------------------------------------------------

ROWS = 12
SCALES = (2.0, 0.8, 0.35)


def start(key):
    return jnp.zeros(3)


def location(params, x):
    return jnp.broadcast_to(params, (x.shape[0], 3))


LOCATION = cx.Model(
    cx.networks.from_function(start, location),
    cx.priors.Normal(1.0),
    cx.likelihoods.Gaussian(SCALES),
)


def rows(count=ROWS, seed=0):
    y = np.random.default_rng(seed).normal(size=(count, 3)) * SCALES + [0.3, -0.5, 1.0]
    return np.arange(count)[:, None] / count, y


def exact(y):
    """Mean and precision of the posterior."""
    precision = len(y) / np.square(SCALES) + 1
    return y.sum(0) / np.square(SCALES) / precision, precision


def gradient_noise(y, batch):
    """The covariance of the gradient of a batch drawn without replacement, times N / B."""
    count = len(y)
    return count**2 * (1 / batch - 1 / count) * np.cov((y / np.square(SCALES)).T)


def z_scores(values, truth):
    """The error of a mean over chains in standard errors.

    The chains are independent of each other, even if the draws of each chain are correlated.
    """
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return np.ravel((values.mean(0) - truth) / error)


def assert_moments(draws, mean, covariance):
    """Assert that the moments of (chain, draw, coordinate) are right within four small standard errors."""
    centred = np.asarray(draws, np.float64) - mean
    second = np.einsum("cti,ctj->cij", centred, centred) / centred.shape[1]
    z = np.concatenate([z_scores(centred.mean(1), 0.0), z_scores(second, covariance)])
    assert np.abs(z).max() < 4, z
    spread = np.diagonal(second.std(0) / np.sqrt(len(second))) / np.diag(covariance)
    assert spread.max() < 0.02, "too few draws to see an error of a few per cent"


def sgld_covariance(precision, metric, noise=0.0, temperature=1.0):
    r"""The stationary covariance of :math:`w' = w - \frac{\epsilon}{2} G A w + ...` for diagonal G and A."""
    step = np.eye(len(precision)) - np.diag(metric * precision / 2)
    half = np.diag(np.broadcast_to(metric, precision.shape)) / 2
    added = (
        2 * half * temperature + half @ (noise * np.eye(3) if np.ndim(noise) == 0 else noise) @ half
    )
    return solve_discrete_lyapunov(step, added)


QUICK = {"chains": CHAINS, "num_warmup": 300, "num_draws": 200, "thin": 10, "preconditioner": None}


# -- linear regression with correlated columns --------------------------------------------------------

REGRESSION = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.5))


def correlated(count=24):
    """Data with correlated columns, the design matrix, and the posterior mean and precision of (bias,
    kernel)."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(count, 2)) @ np.array([[1.0, 0.7], [0.0, 0.6]])
    y = x @ [0.5, -1.0] + 0.2 + 0.5 * generator.normal(size=count)
    design = np.hstack([np.ones((count, 1)), x])
    precision = design.T @ design / 0.25 + np.eye(3)
    return (x, y), design, np.linalg.solve(precision, design.T @ y / 0.25), precision


def coefficients(posterior):
    leaves = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(posterior.draws)]
    return np.concatenate(leaves, -1)
