"""Ten classic targets of samplers, each with moments that are known without sampling.

A target is a log density of a vector, and functions of the vector whose means are known: in closed form, or by
quadrature in at most three dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import digamma, polygamma

import credax as cx


class Target(NamedTuple):
    """A density and what is known of it.

    Attributes:
      name: what it is called.
      size: the number of dimensions.
      log_density: the log density of a vector ``(size,)``, up to a constant.
      functions: functions of vectors ``(..., size)``, stacked along the last axis.
      means: their exact means.
      scales: their exact standard deviations.
    """

    name: str
    size: int
    log_density: Callable[[Any], Any]
    functions: Callable[[np.ndarray], np.ndarray]
    means: np.ndarray
    scales: np.ndarray

    @property
    def density(self) -> cx.LogDensity:
        """The target as a density that credax samples from, which begins near the origin."""
        start = lambda key: 0.1 * jax.random.normal(key, (self.size,), jnp.float32)  # noqa: E731
        return cx.LogDensity(start, self.log_density)


def targets() -> list[Target]:
    """All ten."""
    return [
        normal(),
        ill_conditioned(),
        autoregression(),
        student_t(),
        funnel(),
        banana(),
        two_modes(),
        unknown_noise(),
        logistic_regression(),
        eight_schools(),
    ]


def _itself(x: np.ndarray) -> np.ndarray:
    return x


def normal(size: int = 100) -> Target:
    """Independent standard normals."""
    density = lambda x: -0.5 * jnp.sum(x**2)  # noqa: E731
    return Target("normal", size, density, _itself, np.zeros(size), np.ones(size))


def ill_conditioned(size: int = 50) -> Target:
    """Independent normals with standard deviations from 0.01 to 1."""
    scales = np.logspace(-2, 0, size)
    precision = np.float32(scales**-2)
    density = lambda x: -0.5 * jnp.sum(precision * x**2)  # noqa: E731
    return Target("ill-conditioned normal", size, density, _itself, np.zeros(size), scales)


def autoregression(size: int = 50, rho: float = 0.95) -> Target:
    """A stationary autoregression of order one: neighbours have the correlation rho."""
    sd = np.float32(np.sqrt(1 - rho**2))

    def density(x):
        return -0.5 * (x[0] ** 2 + jnp.sum(((x[1:] - np.float32(rho) * x[:-1]) / sd) ** 2))

    return Target("autoregression", size, density, _itself, np.zeros(size), np.ones(size))


def student_t(size: int = 10, df: float = 5.0) -> Target:
    """Independent Student t variables."""

    def density(x):
        return -0.5 * (df + 1) * jnp.sum(jnp.log1p(x**2 / df))

    scale = np.full(size, np.sqrt(df / (df - 2)))
    return Target("Student t", size, density, _itself, np.zeros(size), scale)


def funnel(size: int = 10) -> Target:
    """Neal's funnel: v is normal with standard deviation 3, and the others given v have the variance exp(v)."""

    def density(x):
        v, rest = x[0], x[1:]
        return -0.5 * (v / 3) ** 2 - 0.5 * jnp.sum(rest**2) * jnp.exp(-v) - 0.5 * (size - 1) * v

    def functions(x):
        # The others have moments that no sampler can estimate; v has all of its own.
        v = x[..., 0]
        return np.stack([v, v**2], axis=-1)

    return Target("funnel", size, density, functions, np.array([0, 9.0]), np.array([3, 9 * 2**0.5]))


def banana() -> Target:
    """A normal a, and b around a squared."""

    def density(x):
        a, b = x
        return -0.5 * a**2 - 0.5 * ((b - a**2) / 0.5) ** 2

    def functions(x):
        a, b = x[..., 0], x[..., 1]
        return np.stack([a, a**2, b], axis=-1)

    # b has the variance of a squared, 2, and 0.25 of its own.
    scales = np.sqrt([1.0, 2.0, 2.25])
    return Target("banana", 2, density, functions, np.array([0.0, 1.0, 1.0]), scales)


def two_modes(share: float = 0.3, apart: float = 2.0) -> Target:
    """A mixture of two normals in two dimensions, of unequal weight."""
    log_weights = np.log(np.float32([share, 1 - share]))

    def density(x):
        centres = jnp.asarray([-apart, apart], x.dtype)
        each = -0.5 * ((x[0] - centres) ** 2 + x[1] ** 2)
        return jax.nn.logsumexp(each + log_weights)

    mean = apart * (1 - 2 * share)
    sd = np.sqrt(1 + apart**2 - mean**2)
    return Target("two modes", 2, density, _itself, np.array([mean, 0.0]), np.array([sd, 1.0]))


def unknown_noise(rows: int = 40) -> Target:
    """A linear regression with conjugate priors of its weights and of its noise."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 2))])
    y = x @ [0.5, 1.0, -1.0] + 0.7 * rng.normal(size=rows)
    a0, b0 = 2.0, 1.0  # the noise's variance is inverse gamma; the weights are normal, in its units
    precision = x.T @ x + np.eye(3)
    centre = np.linalg.solve(precision, x.T @ y)
    a, b = a0 + rows / 2, b0 + 0.5 * (y @ y - centre @ precision @ centre)
    x32, y32 = np.float32(x), np.float32(y)

    def density(params):
        weights, log_variance = params[:3], params[3]
        squares = jnp.sum((y32 - x32 @ weights) ** 2) + jnp.sum(weights**2) + 2 * b0
        return -0.5 * squares * jnp.exp(-log_variance) - (a0 + (rows + 3) / 2) * log_variance

    # The weights are Student t with 2 a degrees of freedom; the variance is inverse gamma.
    sd = np.sqrt(np.diag(np.linalg.inv(precision)) * b / (a - 1))
    means = np.append(centre, np.log(b) - digamma(a))
    return Target(
        "unknown noise", 4, density, _itself, means, np.append(sd, np.sqrt(polygamma(1, a)))
    )


def logistic_regression(rows: int = 60, nodes: int = 32) -> Target:
    """Three weights with standard normal priors; moments by Gauss-Hermite quadrature around the mode."""
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 2))])
    sign = np.where(x @ [0.3, 1.5, -1.0] + rng.logistic(size=rows) > 0, 1.0, -1.0)
    signed = np.float32(sign[:, None] * x)

    def density(w):
        return jnp.sum(jax.nn.log_sigmoid(signed @ w)) - 0.5 * jnp.sum(w**2)

    def exact(w):  # in double precision
        return -np.logaddexp(0, -(w @ (sign[:, None] * x).T)).sum(-1) - 0.5 * (w**2).sum(-1)

    mode = np.zeros(3)
    for _ in range(50):
        p = 1 / (1 + np.exp(sign * (x @ mode)))
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(3)
        mode = mode + np.linalg.solve(hessian, x.T @ (sign * p) - mode)
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(points, points, points, indexing="ij"), -1).reshape(-1, 3)
    volume = np.prod(np.stack(np.meshgrid(weights, weights, weights, indexing="ij"), -1), -1)
    at = mode + grid @ np.linalg.cholesky(np.linalg.inv(hessian)).T
    log_ratio = exact(at) + 0.5 * (grid**2).sum(-1)
    mass = volume.reshape(-1) * np.exp(log_ratio - log_ratio.max())
    means, scales = _moments(at, mass)
    return Target("logistic regression", 3, density, _itself, means, scales)


SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(points: int = 401) -> Target:
    """Rubin's eight schools, with effects in units of tau; moments by a grid over mu and log tau."""
    y, s = np.float32(SCHOOLS), np.float32(ERRORS)

    def density(params):
        mu, log_tau, z = params[0], params[1], params[2:]
        prior = -0.5 * (mu / 5) ** 2 - 0.5 * jnp.sum(z**2)
        # tau is half Cauchy with scale 5; its logarithm has the derivative of tau as a factor.
        prior += log_tau - jnp.log1p((jnp.exp(log_tau) / 5) ** 2)
        return prior - 0.5 * jnp.sum(((y - mu - jnp.exp(log_tau) * z) / s) ** 2)

    def functions(params):
        mu, log_tau, z = params[..., 0], params[..., 1], params[..., 2:]
        effects = mu[..., None] + np.exp(log_tau)[..., None] * z
        return np.concatenate([np.stack([mu, log_tau], -1), effects], axis=-1)

    mu, log_tau = np.meshgrid(np.linspace(-30, 35, points), np.linspace(-12, 7, points))
    tau2 = np.exp(2 * log_tau)[..., None]
    total = ERRORS**2 + tau2
    log_mass = stats.norm.logpdf(SCHOOLS, mu[..., None], np.sqrt(total)).sum(-1)
    log_mass += -0.5 * (mu / 5) ** 2 + log_tau - np.log1p((np.exp(log_tau) / 5) ** 2)
    mass = np.exp(log_mass - log_mass.max()).reshape(-1)
    # Given mu and tau, the effects are normal.
    shrunk = (mu[..., None] + (SCHOOLS - mu[..., None]) * tau2 / total).reshape(-1, 8)
    within = (tau2 * ERRORS**2 / total).reshape(-1, 8)
    flat = np.column_stack([mu.reshape(-1), log_tau.reshape(-1), shrunk])
    means, scales = _moments(flat, mass)
    scales[2:] = np.sqrt(scales[2:] ** 2 + mass @ within / mass.sum())
    return Target("eight schools", 10, density, functions, means, scales)


def _moments(values: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means and standard deviations of columns whose rows have these masses."""
    mass = mass / mass.sum()
    means = mass @ values
    return means, np.sqrt(mass @ (values - means) ** 2)
