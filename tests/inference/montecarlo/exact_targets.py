"""Targets with known moments, and the distance of draws from these in Monte Carlo standard errors.

Any test in this folder can import this module, since ``conftest.py`` puts the folder on the path::

    from exact_targets import check, correlated, z_mean, z_sd

    target = correlated()
    posterior = cx.fit(target.model, target.data, method, key=0, progress=False)
    check(posterior, target)  # |z| < 4 for every mean and every standard deviation

For other quantities, ``values = target.values(posterior)`` has shape ``(chain, draw, quantity)`` in double
precision, and ``z_mean(values, target.mean)`` and ``z_sd(values, target.sd)`` have one entry per quantity.

The targets ``isotropic()``, ``ill_conditioned()`` (scales 1 : 1000), ``correlated()`` and ``funnel()`` are
``LogDensity``s; ``linear_regression()`` and ``logistic_regression()`` are ``Model``s with data, and have a
known ``log_evidence`` as well. Each call returns the same object, so a second fit compiles nothing. All
targets use the default float type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from scipy import stats
from scipy.special import log_expit, logsumexp

import credax as cx
from credax.core import random

LIMIT = 4.0
"""The allowed deviation in standard errors, exceeded by one in 16,000 correct quantities."""
FEWEST = 100.0
"""With fewer effective draws, standard errors are not reliable."""


@dataclass(frozen=True, eq=False)
class Target:
    """A density with known moments.

    Attributes:
      model: a ``Model`` or a ``LogDensity``.
      data: what ``fit`` takes with it.
      quantities: a function from the draws, a pytree with leading axes (chain, draw), to an array of shape
        (chain, draw, quantity).
      mean: the mean of each quantity.
      sd: the standard deviation of each quantity.
      covariance: the covariance of the quantities, if known.
      log_evidence: the log of the normalising constant, if known.
    """

    model: Any
    data: Any
    quantities: Callable[[Any], np.ndarray]
    mean: np.ndarray
    sd: np.ndarray
    covariance: np.ndarray | None = None
    log_evidence: float | None = None

    def values(self, posterior: cx.Posterior) -> np.ndarray:
        """The quantities of the draws, ``(chain, draw, quantity)``, in double precision."""
        return np.asarray(self.quantities(posterior.draws), np.float64)


# -- how far draws are from the truth ----------------------------------------------------------------


def _last(values, function, **settings):
    """A statistic of ArviZ for each quantity of ``(chain, draw)`` or ``(chain, draw, quantity)``."""
    values = np.asarray(values, np.float64)
    return function(values, chain_axis=0, draw_axis=1, **settings)


def ess_mean(values) -> np.ndarray:
    """The effective sample size for each mean."""
    return _last(values, array_stats.ess, method="mean")


def ess_sd(values) -> np.ndarray:
    """The effective sample size for each standard deviation, that is, of the squared deviations.

    Antithetic chains have a larger effective sample size for the mean than for the standard deviation.
    """
    return _last(values, array_stats.ess, method="sd")


def rhat(values) -> np.ndarray:
    """Rank-normalised split R-hat of each quantity."""
    return _last(values, array_stats.rhat)


def mcse_mean(values) -> np.ndarray:
    """Monte Carlo standard error of each mean."""
    values = np.asarray(values, np.float64)
    return values.std(axis=(0, 1), ddof=1) / np.sqrt(ess_mean(values))


def mcse_sd(values) -> np.ndarray:
    """Monte Carlo standard error of each standard deviation, by the delta method."""
    values = np.asarray(values, np.float64)
    squares = (values - values.mean(axis=(0, 1))) ** 2
    variance = squares.mean(axis=(0, 1))
    return np.sqrt(squares.var(axis=(0, 1)) / ess_sd(values) / (4 * variance))


def z_mean(values, truth) -> np.ndarray:
    """The error of each mean in standard errors."""
    return (np.mean(values, axis=(0, 1), dtype=np.float64) - truth) / mcse_mean(values)


def z_sd(values, truth) -> np.ndarray:
    """The error of each standard deviation in standard errors."""
    sd = np.std(np.asarray(values, np.float64), axis=(0, 1), ddof=1)
    return (sd - truth) / mcse_sd(values)


def check(posterior: cx.Posterior, target: Target, *, sd_error: float | None = 0.05) -> None:
    """Assert that all means and standard deviations are right, and that there are enough draws to tell.

    Args:
      posterior: the posterior to check.
      target: the target with the true moments.
      sd_error: the relative error of a standard deviation that must exceed ``LIMIT`` standard errors, so that
        it would be detected. If ``None``, this is not checked.
    """
    values = target.values(posterior)
    assert ess_mean(values).min() > FEWEST, f"only {ess_mean(values).min():.0f} effective draws"
    if sd_error is not None:
        visible = sd_error * target.sd / mcse_sd(values)
        assert visible.min() > LIMIT, f"{sd_error:.0%} is only {visible.min():.1f} standard errors"
    for name, z in (("mean", z_mean(values, target.mean)), ("sd", z_sd(values, target.sd))):
        worst = np.argmax(np.abs(z))
        assert abs(z[worst]) < LIMIT, f"the {name} of quantity {worst} is off by z = {z[worst]:.1f}"


def caught(posterior: cx.Posterior, target: Target) -> bool:
    """Whether ``check`` would reject the draws."""
    values = target.values(posterior)
    z = np.concatenate([z_mean(values, target.mean), z_sd(values, target.sd)])
    return bool((np.abs(z) > LIMIT).any())


# -- the densities -----------------------------------------------------------------------------------


def gaussian(mean, covariance) -> Target:
    """A normal density. It is normalised, so its log evidence is zero."""
    mean, covariance = np.asarray(mean, np.float64), np.asarray(covariance, np.float64)
    precision = np.linalg.inv(covariance)
    constant = -0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]

    def init(key):
        return jax.random.normal(key, mean.shape)

    def log_joint(x):
        away = x - jnp.asarray(mean, x.dtype)
        quadratic = jnp.sum(away * (jnp.asarray(precision, x.dtype) @ away))
        return jnp.asarray(constant, x.dtype) - quadratic / 2

    sd = np.sqrt(np.diag(covariance))
    model = cx.LogDensity(init, log_joint)
    return Target(model, None, np.asarray, mean, sd, covariance, 0.0)


@cache
def isotropic(dimension: int = 5) -> Target:
    """A normal distribution with unit variances and nonzero means."""
    return gaussian(np.linspace(-1.0, 1.0, dimension), np.eye(dimension))


@cache
def ill_conditioned(dimension: int = 5) -> Target:
    """Independent normals whose scales go from 1 to 1000."""
    return gaussian(np.zeros(dimension), np.diag(np.logspace(0, 3, dimension) ** 2))


@cache
def correlated(dimension: int = 3, correlation: float = 0.9) -> Target:
    """Normals with different scales, and the same correlation between all pairs."""
    scale = np.linspace(0.5, 2.0, dimension)
    same = np.full((dimension, dimension), correlation)
    covariance = np.outer(scale, scale) * (same + (1 - correlation) * np.eye(dimension))
    return gaussian(np.linspace(1.0, -1.0, dimension), covariance)


@cache
def funnel(width: int = 9, scale: float = 3.0) -> Target:
    r"""Neal's funnel, :math:`v \sim N(0, s^2),\ x_i \sim N(0, e^v)`; its only quantity is v.

    At s = 3, no chain with a fixed step size reaches the end of the neck; s = 1 is steep enough for a test.
    """

    def init(key):
        return {"v": jnp.zeros(()), "x": jax.random.normal(key, (width,))}

    def log_joint(params):
        v, x = params["v"], params["x"]
        log_neck = jax.scipy.stats.norm.logpdf(v / scale) - np.log(scale)
        return log_neck + jnp.sum(jax.scipy.stats.norm.logpdf(x * jnp.exp(-v / 2)) - v / 2)

    model = cx.LogDensity(init, log_joint)
    neck = lambda draws: np.asarray(draws["v"])[..., None]  # noqa: E731
    return Target(model, None, neck, np.zeros(1), np.array([scale]), np.array([[scale**2]]), 0.0)


def banana(df: float = 5.0, bend: float = 0.5, width: float = 0.5) -> Target:
    r"""A bent ridge with heavy tails: :math:`a \sim t_5,\ b = (a^2 - 5/3)/2 + e/2,\ e \sim t_5`.

    Its quantities are a and e. The fourth moment of b is infinite, so its standard deviation cannot be tested.
    """
    variance = df / (df - 2)

    def log_t(z):
        return -0.5 * (df + 1) * jnp.log1p(z**2 / df)

    def log_joint(w):
        return log_t(w[0]) + log_t((w[1] - bend * (w[0] ** 2 - variance)) / width)

    def quantities(draws):
        a, b = np.moveaxis(np.asarray(draws, np.float64), -1, 0)
        return np.stack([a, (b - bend * (a**2 - variance)) / width], axis=-1)

    model = cx.LogDensity(lambda key: 0.5 * jax.random.normal(key, (2,)), log_joint)
    covariance = variance * np.eye(2)
    return Target(model, None, quantities, np.zeros(2), np.sqrt(np.diag(covariance)), covariance)


# -- the models --------------------------------------------------------------------------------------


def _columns(x):
    """The design matrix: a column of ones, then the features."""
    return np.column_stack([np.ones(len(x)), x])


def _init(features):
    return lambda key: {"bias": jnp.zeros(1), "slope": random.normal(key, (features, 1))}


def _apply(params, x):
    return x @ params["slope"] + params["bias"]


def _weights(draws):
    """The bias, then the slopes."""
    bias, slope = (np.asarray(draws[name]) for name in ("bias", "slope"))
    return np.concatenate([bias, slope[..., 0]], axis=-1)


PRIOR_SCALE, NOISE_SCALE = 1.5, 0.5


@cache
def regression_rows(rows: int = 30, features: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """``x`` with correlated columns, and a noisy linear ``y``."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(rows, features)) @ (np.eye(features) + 0.5)
    y = 0.7 + x @ np.linspace(-1.0, 1.0, features) + NOISE_SCALE * generator.normal(size=rows)
    return x, y


@cache
def linear_regression(rows: int = 30, features: int = 3) -> Target:
    """Bayesian linear regression with known noise, for which everything has a closed form."""
    x, y = regression_rows(rows, features)
    design = _columns(x)
    precision = design.T @ design / NOISE_SCALE**2 + np.eye(features + 1) / PRIOR_SCALE**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ design.T @ y / NOISE_SCALE**2
    marginal = NOISE_SCALE**2 * np.eye(rows) + PRIOR_SCALE**2 * design @ design.T
    evidence = stats.multivariate_normal(np.zeros(rows), marginal).logpdf(y)
    model = cx.Model(
        cx.networks.from_function(_init(features), _apply),
        cx.priors.Normal(PRIOR_SCALE),
        cx.likelihoods.Gaussian(scale=NOISE_SCALE),
    )
    sd = np.sqrt(np.diag(covariance))
    return Target(model, (x, y), _weights, mean, sd, covariance, float(evidence))


def exact_predictive(target: Target, x) -> tuple[np.ndarray, np.ndarray]:
    """Mean and epistemic variance of ``linear_regression`` at new rows."""
    design = _columns(x)
    return design @ target.mean, np.einsum("ij,jk,ik->i", design, target.covariance, design)


@cache
def logistic_regression(rows: int = 20) -> Target:
    """The bias and slope of a logistic regression, with moments by quadrature on a grid."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(rows, 1))
    y = (generator.uniform(size=rows) < 1 / (1 + np.exp(-0.5 - 1.5 * x[:, 0]))).astype(int)
    # The integrand is smooth and vanishes at the ends, so the trapezoidal sum is exact to many digits.
    grid = np.linspace(-9.0, 9.0, 601)
    bias, slope = np.meshgrid(grid, grid, indexing="ij")
    log_joint = stats.norm.logpdf(bias / PRIOR_SCALE) + stats.norm.logpdf(slope / PRIOR_SCALE)
    log_joint -= 2 * np.log(PRIOR_SCALE)
    for row, label in zip(x[:, 0], y, strict=True):
        log_joint += log_expit((2 * label - 1) * (bias + slope * row))
    mass = np.exp(log_joint - logsumexp(log_joint))
    points = np.stack([bias, slope])
    mean = np.sum(points * mass, axis=(1, 2))
    away = points - mean[:, None, None]
    covariance = np.einsum("iab,jab,ab->ij", away, away, mass)
    evidence = logsumexp(log_joint) + 2 * np.log(grid[1] - grid[0])
    model = cx.Model(
        cx.networks.from_function(_init(1), _apply),
        cx.priors.Normal(PRIOR_SCALE),
        cx.likelihoods.Bernoulli(),
    )
    sd = np.sqrt(np.diag(covariance))
    return Target(model, (x, y), _weights, mean, sd, covariance, float(evidence))
