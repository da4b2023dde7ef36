r"""Likelihoods: the density of the targets, given the outputs of the network.

.. math:: \log p(D \mid w) = \sum_i \log p(y_i \mid f_w(x_i))

Outputs have shape ``(rows, outputs)``; targets ``(rows,)`` or ``(rows, targets)``, independent
given the outputs unless the likelihood says otherwise. What a likelihood learns beside the network
(the noise scale) is a small dictionary of arrays, passed as ``params``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtr

from credax.core.checks import integer, must, number, positive
from credax.core.special import (
    normal_log_density,
    poisson_cdf,
    poisson_log_prob,
    poisson_sample,
    softplus,
    student_t_cdf,
    student_t_log_density,
)
from credax.core.typing import Array, Key
from credax.model.priors import Normal, Prior

Learned = dict[str, Array]


class Likelihood(ABC):
    """The density of the targets given the outputs, and what follows from it."""

    task: ClassVar[Literal["regression", "classification", "count"]]

    @property
    def learned(self) -> bool:
        """Whether there is something to learn beside the network."""
        return False

    def check_targets(self, y: np.ndarray) -> np.ndarray:
        """The targets as this likelihood takes them, or an error that says what is wrong."""
        return _as_floats(_check_shape(self, y))

    def bind(self, y: np.ndarray) -> Self:
        """This likelihood, complete for these targets."""
        return self

    def num_outputs(self, y: np.ndarray) -> int:
        """How many outputs the network needs for these targets."""
        return _width(y)

    def init(self, outputs: int) -> Learned | None:
        """The learned parameters at their start; ``None`` where nothing is learned."""
        return None

    @property
    def parameter_prior(self) -> Prior | None:
        """The prior of the learned parameters; ``None`` where nothing is learned."""
        return None

    def log_prior(self, params: Learned | None) -> Array:
        """The prior log density of the learned parameters."""
        prior = self.parameter_prior
        return jnp.zeros((), jnp.result_type(float)) if prior is None else prior.log_prob(params)

    @abstractmethod
    def log_prob(self, outputs: Array, y: Array, params: Learned | None = None) -> Array:
        """log p(y | outputs) of each row, summed over its targets."""

    @abstractmethod
    def mean(self, outputs: Array, params: Learned | None = None) -> Array:
        """E[y | outputs], ``(rows, targets)``; the probabilities for ``Categorical``."""

    @abstractmethod
    def variance(self, outputs: Array, params: Learned | None = None) -> Array:
        """Var[y | outputs], in the shape of the mean."""

    @abstractmethod
    def sample(self, key: Key, outputs: Array, params: Learned | None = None) -> Array:
        """A draw of y, ``(rows, targets)``; for one class a row, integers of shape ``(rows,)``."""

    def cdf(self, outputs: Array, t: Array, params: Learned | None = None) -> Array:
        """P(y <= t | outputs) of each target, where targets have an order."""
        raise TypeError(f"{type(self).__name__} has no cdf: classes have no order.")

    def probs(self, outputs: Array, params: Learned | None = None) -> Array:
        """The probability of each class, ``(rows, classes)``."""
        raise TypeError(f"{type(self).__name__} has no probs: its targets are not classes.")

    def entropy(self, outputs: Array, params: Learned | None = None) -> Array:
        """The entropy of the class given the outputs, in nats, ``(rows,)``."""
        raise TypeError(f"{type(self).__name__} has no entropy: its targets are not classes.")


# -- Regression -----------------------------------------------------------------------------------


class LocationScale(Likelihood):
    r"""What the regressions share: noise of one standard shape, moved and stretched.

    .. math:: y = \mu + \sigma \, \epsilon

    A concrete class says where mu and sigma come from, and what the noise is.
    """

    task = "regression"

    @abstractmethod
    def location_scale(self, outputs: Array, params: Learned | None) -> tuple[Array, Array]:
        """mu, ``(rows, targets)``, and sigma, which broadcasts against it."""

    def noise_log_density(self, z: Array) -> Array:
        """The log density of the standard noise; normal unless said otherwise."""
        return normal_log_density(z)

    def noise_variance(self) -> float:
        """The variance of the standard noise."""
        return 1.0

    def noise_sample(self, key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
        """Standard noise."""
        return jax.random.normal(key, shape, dtype)

    def noise_cdf(self, z: Array) -> Array:
        """P(noise <= z)."""
        return ndtr(z)

    def log_prob(self, outputs, y, params=None):
        location, scale = self.location_scale(outputs, params)
        residual = _like(self, y, location) - location
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
        return self.noise_cdf((_points(t, location.dtype) - location) / scale)


class ConstantScale(LocationScale):
    """Location-scale, with one scale a target for every row: known, or learned as its logarithm."""

    scale: float | Sequence[float] | np.ndarray | None
    scale_prior: Prior

    def __post_init__(self):
        owner = type(self).__name__
        if isinstance(self.scale, Iterable):
            scales = tuple(positive(owner, "scale", scale) for scale in self.scale)
            if not scales:
                raise ValueError(must(owner, "scale", "one positive number a target", scales))
            object.__setattr__(self, "scale", scales)
        elif self.scale is not None:
            object.__setattr__(self, "scale", positive(owner, "scale", self.scale))
        _check_prior(self, "scale_prior", self.scale_prior)

    @property
    def learned(self):
        return self.scale is None

    def bind(self, y):
        if isinstance(self.scale, tuple) and len(self.scale) != _width(y):
            allowed = f"one number, or one for each of the {_width(y)} targets of y"
            raise ValueError(must(type(self).__name__, "scale", allowed, self.scale))
        return self

    def init(self, outputs):
        return (
            {"log_scale": jnp.zeros((outputs,), jnp.result_type(float))} if self.learned else None
        )

    @property
    def parameter_prior(self):
        return self.scale_prior if self.learned else None

    def location_scale(self, outputs, params):
        if self.scale is None:
            log_scale = _learned(self, "scale", params)["log_scale"]
            return outputs, jnp.exp(log_scale.astype(outputs.dtype))
        return outputs, jnp.asarray(self.scale, outputs.dtype)


@dataclass(frozen=True)
class Gaussian(ConstantScale):
    r"""Normal noise, alike for every row.

    .. math:: y \sim N(f_w(x), \sigma^2)

    Args:
      scale: sigma; one number, one for each target, or ``None``: learned, as ``log_scale``.
      scale_prior: the prior of log sigma, where it is learned; ``Normal()`` makes sigma log-normal.
    """

    scale: float | Sequence[float] | np.ndarray | None = 1.0
    scale_prior: Prior = Normal()


@dataclass(frozen=True)
class StudentT(ConstantScale):
    r"""Student's t noise: a regression that outliers do not bend.

    .. math:: y = f_w(x) + s \, \epsilon, \quad \epsilon \sim t_\nu, \quad
              \operatorname{Var}[y] = s^2 \frac{\nu}{\nu - 2}

    Args:
      df: nu, the degrees of freedom; above two, so that the variance exists.
      scale: s; one number, one for each target, or ``None``: learned, as ``log_scale``.
      scale_prior: the prior of log s, where it is learned.
    """

    df: float = 4.0
    scale: float | Sequence[float] | np.ndarray | None = 1.0
    scale_prior: Prior = Normal()

    def __post_init__(self):
        df = number("StudentT", "df", self.df)
        if df <= 2:
            raise ValueError(must("StudentT", "df", "above 2, so that y has a variance", self.df))
        object.__setattr__(self, "df", df)
        super().__post_init__()

    def noise_log_density(self, z):
        return student_t_log_density(z, self.df)

    def noise_variance(self):
        return self.df / (self.df - 2)

    def noise_sample(self, key, shape, dtype):
        return jax.random.t(key, self.df, shape, dtype)

    def noise_cdf(self, z):
        return student_t_cdf(z, self.df)


@dataclass(frozen=True)
class Heteroscedastic(LocationScale):
    r"""Normal noise whose scale the network predicts for each row, beside the mean.

    .. math:: [\mu \mid r] = f_w(x), \quad y \sim N(\mu, \sigma^2), \quad
              \sigma = \sigma_\text{min} + \operatorname{softplus}(r)

    Args:
      min_scale: the smallest sigma; without it the likelihood of a row that is met exactly has no
        upper bound.
    """

    min_scale: float = 1e-3

    def __post_init__(self):
        min_scale = positive("Heteroscedastic", "min_scale", self.min_scale)
        object.__setattr__(self, "min_scale", min_scale)

    def num_outputs(self, y):
        return 2 * _width(y)

    def location_scale(self, outputs, params):
        location, raw = jnp.split(outputs, 2, axis=-1)
        return location, self.min_scale + softplus(raw)


@dataclass(frozen=True)
class MultivariateGaussian(Likelihood):
    r"""Normal noise that is correlated between the targets of a row.

    .. math:: y \sim N(f_w(x), L L^\top)

    A learned covariance is a Cholesky factor L: its diagonal by its logarithm (``log_diagonal``),
    what is below it as it is (``lower``, row by row), so that every value of the parameters is a
    covariance.

    Args:
      covariance: the matrix, symmetric and positive definite; ``None``: learned.
      factor_prior: the prior of ``log_diagonal`` and ``lower``, where they are learned.
    """

    task = "regression"

    covariance: Sequence[Sequence[float]] | np.ndarray | None = None
    factor_prior: Prior = Normal()

    def __post_init__(self):
        _check_prior(self, "factor_prior", self.factor_prior)
        if self.covariance is None:
            return
        allowed = "a symmetric positive definite matrix"
        message = must("MultivariateGaussian", "covariance", allowed, self.covariance)
        try:
            matrix = np.asarray(self.covariance, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(message) from None
        if (
            matrix.ndim != 2
            or matrix.shape[0] != matrix.shape[1]
            or not np.all(np.isfinite(matrix))
        ):
            raise ValueError(message)
        try:
            np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            raise ValueError(message) from None
        # Cholesky reads one triangle only; the other may differ by rounding, as in np.cov's.
        if matrix.size == 0 or not np.allclose(matrix, matrix.T, rtol=1e-6, atol=0):
            raise ValueError(message)
        object.__setattr__(self, "covariance", tuple(map(tuple, matrix.tolist())))

    @property
    def learned(self):
        return self.covariance is None

    def bind(self, y):
        if y.ndim != 2:
            raise ValueError(f"y must have shape (rows, targets) for {self._name}; got {y.shape}.")
        if self.covariance is not None and len(self.covariance) != _width(y):
            allowed = f"{_width(y)} by {_width(y)}, for the {_width(y)} targets of y"
            raise ValueError(must(self._name, "covariance", allowed, self.covariance))
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

    def log_prob(self, outputs, y, params=None):
        factor = self._factor(outputs, params)
        residual = _like(self, y, outputs) - outputs
        z = solve_triangular(factor, residual.T, lower=True).T
        return jnp.sum(normal_log_density(z) - jnp.log(jnp.diag(factor)), axis=-1)

    def mean(self, outputs, params=None):
        return outputs

    def variance(self, outputs, params=None):
        variances = jnp.sum(self._factor(outputs, params) ** 2, axis=-1)
        return jnp.broadcast_to(variances, outputs.shape)

    def sample(self, key, outputs, params=None):
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return outputs + noise @ self._factor(outputs, params).T

    def cdf(self, outputs, t, params=None):
        """The marginal P(y_j <= t_j | outputs) of each target."""
        scale = jnp.sqrt(self.variance(outputs, params))
        return ndtr((_points(t, outputs.dtype) - outputs) / scale)

    def _factor(self, outputs: Array, params: Learned | None) -> Array:
        """L, lower triangular."""
        if self.covariance is not None:
            return jnp.asarray(np.linalg.cholesky(np.asarray(self.covariance)), outputs.dtype)
        params = _learned(self, "covariance", params)
        diagonal = jnp.diag(jnp.exp(params["log_diagonal"].astype(outputs.dtype)))
        below = np.tril_indices(diagonal.shape[0], -1)
        return diagonal.at[below].set(params["lower"].astype(outputs.dtype))

    @property
    def _name(self) -> str:
        return type(self).__name__


# -- Classification -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Categorical(Likelihood):
    r"""One of several classes.

    .. math:: P(y = k) = \operatorname{softmax}(f_w(x))_k

    Args:
      num_classes: how many classes there are; ``None``: as many as the targets show, which must
        then be 0, 1, ..., K - 1, each at least once.
    """

    task = "classification"

    num_classes: int | None = None

    def __post_init__(self):
        if self.num_classes is not None:
            num_classes = integer("Categorical", "num_classes", self.num_classes, minimum=2)
            object.__setattr__(self, "num_classes", num_classes)

    def check_targets(self, y):
        if y.ndim not in (1, 2) or _width(y) != 1:
            raise ValueError(f"y must have shape (rows,) for Categorical; got {y.shape}.")
        labels = np.unique(y)
        listed = ", ".join(map(_plain, labels[:8])) + (", ..." if len(labels) > 8 else "")
        if self.num_classes is not None:
            if not _integral(labels) or labels[0] < 0 or labels[-1] >= self.num_classes:
                raise ValueError(
                    f"y must hold whole numbers from 0 to {self.num_classes - 1} for "
                    f"Categorical(num_classes={self.num_classes}); got labels {listed}."
                )
        elif len(labels) < 2 or not np.array_equal(labels, np.arange(len(labels))):
            raise ValueError(
                "y must hold the labels 0, 1, ..., K - 1 for Categorical(), two or more, each at "
                f"least once; got labels {listed}. Relabel them, e.g. by "
                "np.unique(y, return_inverse=True)[1], or pass num_classes=."
            )
        return y.reshape(-1).astype(np.int32)

    def bind(self, y):
        return self if self.num_classes is not None else replace(self, num_classes=int(y.max()) + 1)

    def num_outputs(self, y):
        return int(y.max()) + 1 if self.num_classes is None else self.num_classes

    def log_prob(self, outputs, y, params=None):
        labels = jnp.asarray(y).reshape(outputs.shape[0], 1).astype(jnp.int32)
        # By comparison: a gather has a scatter for a gradient, which accelerators are slow at.
        of_label = labels == lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
        return jnp.sum(jax.nn.log_softmax(outputs), axis=-1, where=of_label)

    def mean(self, outputs, params=None):
        return self.probs(outputs)

    def variance(self, outputs, params=None):
        """p (1 - p): the variance of the indicator of each class."""
        probs = self.probs(outputs)
        return probs * (1 - probs)

    def sample(self, key, outputs, params=None):
        return jax.random.categorical(key, outputs).astype(jnp.int32)

    def probs(self, outputs, params=None):
        return jax.nn.softmax(outputs)

    def entropy(self, outputs, params=None):
        log_probs = jax.nn.log_softmax(outputs)
        probs = jnp.exp(log_probs)
        # 0 log 0 = 0, also where the logarithm is minus infinity.
        return -jnp.sum(probs * jnp.where(probs > 0, log_probs, 0), axis=-1)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    r"""Yes or no, by one logit; several targets are several independent labels.

    .. math:: P(y = 1) = \operatorname{sigmoid}(f_w(x))
    """

    task = "classification"

    def check_targets(self, y):
        y = _check_shape(self, y)
        if not np.all((y == 0) | (y == 1)):
            got = _plain(y[(y != 0) & (y != 1)][0])
            raise ValueError(f"y must hold only 0 and 1 for Bernoulli(); got {got}.")
        return y.astype(np.int32)

    def log_prob(self, outputs, y, params=None):
        # log P(y) = log sigmoid(+-logit): one expression that loses nothing on either side.
        sign = 2 * _like(self, y, outputs) - 1
        return jnp.sum(jax.nn.log_sigmoid(sign * outputs), axis=-1)

    def mean(self, outputs, params=None):
        return jax.nn.sigmoid(outputs)

    def variance(self, outputs, params=None):
        # Not p (1 - p), which is zero as soon as p rounds to one.
        return jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs)

    def sample(self, key, outputs, params=None):
        draws = jax.random.bernoulli(key, jax.nn.sigmoid(outputs)).astype(jnp.int32)
        return draws[:, 0] if outputs.shape[-1] == 1 else draws

    def probs(self, outputs, params=None):
        """The probabilities of 0 and of 1, ``(rows, 2)``, where there is one target."""
        if outputs.shape[-1] != 1:
            raise ValueError(
                f"Bernoulli.probs needs one target; got {outputs.shape[-1]}. Use mean: the "
                "probability that each label is 1."
            )
        return jnp.concatenate([jax.nn.sigmoid(-outputs), jax.nn.sigmoid(outputs)], axis=-1)

    def entropy(self, outputs, params=None):
        """The entropy of all labels of a row together: the sum of theirs."""
        one, zero = jax.nn.sigmoid(outputs), jax.nn.sigmoid(-outputs)
        terms = one * jax.nn.softplus(-outputs) + zero * jax.nn.softplus(outputs)
        return jnp.sum(terms, axis=-1)


# -- Counts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poisson(Likelihood):
    r"""Counts, by the logarithm of their rate.

    .. math:: P(y = k) = \frac{\lambda^k e^{-\lambda}}{k!}, \quad \lambda = \exp f_w(x)

    Targets and draws are whole numbers in floating point, so that counts, means and quantiles
    share one dtype.
    """

    task = "count"

    def check_targets(self, y):
        y = _check_shape(self, y)
        if not _integral(y) or y.min() < 0:
            got = _plain(y[(y < 0) | (y != np.floor(y))][0])
            raise ValueError(f"y must hold whole numbers, at least 0, for Poisson(); got {got}.")
        return _as_floats(y)

    def log_prob(self, outputs, y, params=None):
        return jnp.sum(poisson_log_prob(_like(self, y, outputs), outputs), axis=-1)

    def mean(self, outputs, params=None):
        return jnp.exp(outputs)

    def variance(self, outputs, params=None):
        return jnp.exp(outputs)

    def sample(self, key, outputs, params=None):
        return poisson_sample(key, jnp.exp(outputs))

    def cdf(self, outputs, t, params=None):
        return poisson_cdf(_points(t, outputs.dtype), jnp.exp(outputs))


# -- Shapes and checks ----------------------------------------------------------------------------


def _width(y: np.ndarray) -> int:
    return 1 if y.ndim == 1 else y.shape[1]


def _check_shape(owner: Likelihood, y: np.ndarray) -> np.ndarray:
    if y.ndim not in (1, 2) or y.size == 0:
        name = type(owner).__name__
        raise ValueError(f"y must have shape (rows,) or (rows, targets) for {name}; got {y.shape}.")
    return y


def _as_floats(y: np.ndarray) -> np.ndarray:
    dtype = jnp.result_type(float)
    with np.errstate(over="ignore"):
        floats = y.astype(dtype)
    if not np.all(np.isfinite(floats)):
        got = np.abs(y.astype(np.float64)).max()
        raise ValueError(f"y must fit {dtype}: rescale it, or enable jax_enable_x64; got {got:g}.")
    return floats


def _plain(value: Any) -> str:
    """A number of any dtype as a person writes it: ``3``, not ``3.0`` or ``np.int64(3)``."""
    return str(int(value)) if value == int(value) else f"{float(value):g}"


def _integral(y: np.ndarray) -> bool:
    return bool(np.all(y == np.floor(y)))


def _like(owner: Likelihood, y: Array, outputs: Array) -> Array:
    """The targets in the shape and dtype of the outputs; broadcasting would hide a mistake."""
    y = _points(y, outputs.dtype)
    if y.shape != outputs.shape:
        raise ValueError(
            f"{type(owner).__name__} must get y in the shape of its outputs' targets, "
            f"{outputs.shape}; got {y.shape}."
        )
    return y


def _points(t: Any, dtype: Any) -> Array:
    """Values to compare with ``(rows, targets)``: one axis means rows."""
    t = jnp.asarray(t).astype(dtype)
    return t[:, None] if t.ndim == 1 else t


def _check_prior(owner: Likelihood, name: str, prior: Any) -> None:
    if not isinstance(prior, Prior) or prior.discrete:
        allowed = "a continuous prior, e.g. cx.priors.Normal(1.0)"
        raise TypeError(must(type(owner).__name__, name, allowed, prior))


def _learned(owner: Likelihood, name: str, params: Learned | None) -> Learned:
    if params is None:
        raise ValueError(
            f"{type(owner).__name__}({name}=None) learns it: pass params=, as init gives them."
        )
    return params
