"""Likelihoods for real targets: the network's outputs plus noise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtr

from credax.core.checks import must, number, positive
from credax.core.precision import check_range
from credax.core.settings import optional, setting
from credax.core.special import (
    normal_log_density,
    softplus,
    student_t_cdf,
    student_t_log_density,
)
from credax.core.typing import Array, Key
from credax.model.likelihoods.likelihood import Learned, Likelihood
from credax.model.likelihoods.targets import like_outputs, points, width
from credax.model.priors import Normal, Prior


class LocationScale(Likelihood):
    r"""Base class of likelihoods whose noise has a standard distribution, shifted and scaled.

    .. math:: y = \mu + \sigma \, \epsilon

    A subclass defines mu, sigma and, if it is not standard normal, the distribution of epsilon.
    """

    task = "regression"

    @abstractmethod
    def location_scale(self, outputs: Array, params: Learned | None) -> tuple[Array, Array]:
        """mu, ``(rows, targets)``, and sigma, which broadcasts against it."""

    def noise_log_density(self, z: Array) -> Array:
        """The log density of epsilon."""
        return normal_log_density(z)

    def noise_variance(self) -> float:
        """The variance of epsilon."""
        return 1.0

    def noise_information(self) -> float:
        """The expected information of y about mu, in units of 1 / sigma^2."""
        return 1.0

    def noise_sample(self, key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
        """Draws of epsilon."""
        return jax.random.normal(key, shape, dtype)

    def noise_cdf(self, z: Array) -> Array:
        """P(epsilon <= z)."""
        return ndtr(z)

    def log_prob(self, outputs, y, params=None):
        location, scale = self.location_scale(outputs, params)
        residual = like_outputs(self, y, location) - location
        return jnp.sum(self.noise_log_density(residual / scale) - jnp.log(scale), axis=-1)

    def mean(self, outputs, params=None):
        return self.location_scale(outputs, params)[0]

    def variance(self, outputs, params=None):
        location, scale = self.location_scale(outputs, params)
        return jnp.broadcast_to(self.noise_variance() * scale**2, location.shape)

    def sample(self, key, outputs, params=None):
        location, scale = self.location_scale(outputs, params)
        return location + scale * self.noise_sample(key, location.shape, location.dtype)

    def cdf(self, outputs, t, params=None):
        location, scale = self.location_scale(outputs, params)
        return self.noise_cdf((points(t, location.dtype) - location) / scale)


# -- the same scale for every row -------------------------------------------------------------------


def _scales(owner: str, name: str, scale: Any) -> float | tuple[float, ...]:
    """Check a positive number, or one for each target."""
    if isinstance(scale, str) or not isinstance(scale, Iterable):
        return positive(owner, name, scale)
    scales = tuple(positive(owner, name, each) for each in scale)
    if not scales:
        raise ValueError(must(owner, name, "one positive number for each target", scales))
    return scales


def _continuous(owner: str, name: str, prior: Any) -> Prior:
    """Check that the value is a continuous prior."""
    if not isinstance(prior, Prior) or prior.discrete or prior.learned:
        allowed = "a continuous prior of known scale, e.g. cx.priors.Normal(1.0)"
        raise TypeError(must(owner, name, allowed, prior))
    return prior


class ConstantScale(LocationScale):
    """A location-scale likelihood with one scale per target, the same for every row.

    The scale is either known or learned through its logarithm.
    """

    scale: float | Sequence[float] | np.ndarray | None
    scale_prior: Prior

    @property
    def learned(self):
        return self.scale is None

    def bind(self, y):
        if isinstance(self.scale, tuple) and len(self.scale) != width(y):
            allowed = f"one number, or one for each of the {width(y)} targets of y"
            raise ValueError(must(self._owner, "scale", allowed, self.scale))
        if self.scale is not None:
            # Predictions are described by variances, so the squares must be representable.
            for scale in np.atleast_1d(self.scale):
                check_range(self._owner, "scale", float(scale), jnp.result_type(float), power=2)
        return self

    def init(self, outputs):
        return (
            {"log_scale": jnp.zeros((outputs,), jnp.result_type(float))} if self.learned else None
        )

    @property
    def parameter_prior(self):
        return self.scale_prior if self.learned else None

    def with_parameter_prior(self, prior):
        return replace(self, scale_prior=prior)  # pyright: ignore[reportArgumentType]

    def location_scale(self, outputs, params):
        if self.scale is None:
            log_scale = _learned(self, "scale", params)["log_scale"]
            return outputs, jnp.exp(log_scale.astype(outputs.dtype))
        return outputs, jnp.asarray(self.scale, outputs.dtype)


@dataclass(frozen=True)
class Gaussian(ConstantScale):
    r"""Normal noise with the same standard deviation for every row.

    .. math:: y \sim N(f_w(x), \sigma^2)

    Args:
      scale: sigma, as one number or one number for each target. If ``None``, log sigma is learned, as the
        parameter ``log_scale``.
      scale_prior: the prior of log sigma, used if it is learned; ``Normal()`` makes sigma log-normal.
    """

    scale: float | Sequence[float] | np.ndarray | None = setting(1.0, optional(_scales))
    scale_prior: Prior = setting(Normal(), _continuous)

    def information(self):
        """Exactly 2: the Fisher information of log sigma."""
        return 2.0


def _above_two(owner: str, name: str, value: Any) -> float:
    result = number(owner, name, value)
    if result <= 2:
        raise ValueError(must(owner, name, "above 2, so that y has a variance", value))
    return result


@dataclass(frozen=True)
class StudentT(ConstantScale):
    r"""Student's t noise, for a regression that is robust to outliers.

    .. math:: y = f_w(x) + s \, \epsilon, \quad \epsilon \sim t_\nu, \quad
              \operatorname{Var}[y] = s^2 \frac{\nu}{\nu - 2}

    Args:
      df: nu, the degrees of freedom; above two, so that the variance exists.
      scale: s, as one number or one number for each target. If ``None``, log s is learned, as the parameter
        ``log_scale``.
      scale_prior: the prior of log s, used if it is learned.
    """

    df: float = setting(4.0, _above_two)
    scale: float | Sequence[float] | np.ndarray | None = setting(1.0, optional(_scales))
    scale_prior: Prior = setting(Normal(), _continuous)

    def information(self):
        r"""Exactly :math:`2\nu / (\nu + 3)`: the Fisher information of log s."""
        return 2 * self.df / (self.df + 3)

    def noise_log_density(self, z):
        return student_t_log_density(z, self.df)

    def noise_variance(self):
        return self.df / (self.df - 2)

    def noise_information(self):
        return (self.df + 1) / (self.df + 3)

    def noise_sample(self, key, shape, dtype):
        return jax.random.t(key, self.df, shape, dtype)

    def noise_cdf(self, z):
        return student_t_cdf(z, self.df)


# -- a scale that depends on the row ----------------------------------------------------------------


@dataclass(frozen=True)
class Heteroscedastic(LocationScale):
    r"""Normal noise whose standard deviation the network predicts for each row, along with the mean.

    .. math:: [\mu \mid r] = f_w(x), \quad y \sim N(\mu, \sigma^2), \quad
              \sigma = \sigma_\text{min} + \operatorname{softplus}(r)

    Args:
      min_scale: the smallest sigma; without it the likelihood of a row that is fitted exactly would be
        unbounded.
    """

    min_scale: float = setting(1e-3, positive)

    def num_outputs(self, y):
        return 2 * width(y)

    def location_scale(self, outputs, params):
        location, raw = jnp.split(outputs, 2, axis=-1)
        return location, self.min_scale + softplus(raw)


# -- correlated targets -----------------------------------------------------------------------------


def _covariance(owner: str, name: str, value: Any) -> tuple[tuple[float, ...], ...]:
    """Check a symmetric positive definite matrix; return it as nested tuples, which are hashable."""
    message = must(owner, name, "a symmetric positive definite matrix", value)
    try:
        matrix = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(message) from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.all(np.isfinite(matrix)):
        raise ValueError(message)
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ValueError(message) from None
    # Cholesky reads one triangle only. The other may differ by rounding errors, as in the result of np.cov.
    if matrix.size == 0 or not np.allclose(matrix, matrix.T, rtol=1e-6, atol=0):
        raise ValueError(message)
    return tuple(map(tuple, matrix.tolist()))


@dataclass(frozen=True)
class MultivariateGaussian(Likelihood):
    r"""Normal noise that is correlated between the targets of a row.

    .. math:: y \sim N(f_w(x), L L^\top)

    A learned covariance is parametrised by its Cholesky factor L: the logarithm of the diagonal
    (``log_diagonal``) and the entries below it, row by row (``lower``). Every value of these parameters gives a
    valid covariance.

    Args:
      covariance: a symmetric positive definite matrix. If ``None``, it is learned.
      factor_prior: the prior of ``log_diagonal`` and ``lower``, used if they are learned.
    """

    task = "regression"

    covariance: Sequence[Sequence[float]] | np.ndarray | None = setting(None, optional(_covariance))
    factor_prior: Prior = setting(Normal(), _continuous)

    @property
    def learned(self):
        return self.covariance is None

    def bind(self, y):
        if y.ndim != 2:
            raise ValueError(f"y must have shape (rows, targets) for {self._owner}; got {y.shape}.")
        if self.covariance is not None and len(self.covariance) != width(y):
            allowed = f"{width(y)} by {width(y)}, for the {width(y)} targets of y"
            raise ValueError(must(self._owner, "covariance", allowed, self.covariance))
        return self

    def init(self, outputs):
        if not self.learned:
            return None
        dtype = jnp.result_type(float)
        lower = outputs * (outputs - 1) // 2
        return {"log_diagonal": jnp.zeros((outputs,), dtype), "lower": jnp.zeros((lower,), dtype)}

    @property
    def parameter_prior(self):
        return self.factor_prior if self.learned else None

    def with_parameter_prior(self, prior):
        return replace(self, factor_prior=prior)

    def log_prob(self, outputs, y, params=None):
        factor = self.factor(outputs, params)
        residual = like_outputs(self, y, outputs) - outputs
        z = solve_triangular(factor, residual.T, lower=True).T
        return jnp.sum(normal_log_density(z) - jnp.log(jnp.diag(factor)), axis=-1)

    def mean(self, outputs, params=None):
        return outputs

    def variance(self, outputs, params=None):
        variances = jnp.sum(self.factor(outputs, params) ** 2, axis=-1)
        return jnp.broadcast_to(variances, outputs.shape)

    def sample(self, key, outputs, params=None):
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return outputs + noise @ self.factor(outputs, params).T

    def cdf(self, outputs, t, params=None):
        """The marginal P(y_j <= t_j | outputs) of each target."""
        scale = jnp.sqrt(self.variance(outputs, params))
        return ndtr((points(t, outputs.dtype) - outputs) / scale)

    def factor(self, outputs: Array, params: Learned | None) -> Array:
        """L, lower triangular."""
        if self.covariance is not None:
            return jnp.asarray(np.linalg.cholesky(np.asarray(self.covariance)), outputs.dtype)
        params = _learned(self, "covariance", params)
        diagonal = jnp.diag(jnp.exp(params["log_diagonal"].astype(outputs.dtype)))
        below = np.tril_indices(diagonal.shape[0], -1)
        return diagonal.at[below].set(params["lower"].astype(outputs.dtype))


def _learned(owner: Likelihood, name: str, params: Learned | None) -> Learned:
    """Check that the learned parameters are given; return them."""
    if params is None:
        raise ValueError(
            f"{type(owner).__name__}({name}=None) has learned parameters: pass params=, in the structure that "
            "init returns."
        )
    return params
