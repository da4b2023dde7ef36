r"""Priors over the weights: a density of every weight, independent of the others.

.. math:: \log p(w) = \sum_{\text{leaves}} \sum_i \log p(w_i)
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import fraction, must, number, positive
from credax.core.special import normal_log_density, student_t_log_density
from credax.core.trees import named_leaves, tree_paths
from credax.core.typing import Array, Key, Params, PyTree
from credax.core.weights import Weights


class Prior(ABC):
    """A density over a pytree of weights, found leaf by leaf through :meth:`at`."""

    discrete: ClassVar[bool] = False
    """Whether every weight takes one of a few values."""

    @abstractmethod
    def at(self, path: str) -> Elementwise:
        """The prior of the weights whose path in the pytree is ``path``."""

    def log_prob(self, params: Params) -> Array:
        """The log density, summed over every weight of every leaf."""
        leaves = named_leaves(params)
        if not leaves:
            return jnp.zeros((), jnp.result_type(float))
        with jax.numpy_dtype_promotion("standard"):
            # A sum over many weights in half precision would be whole units off.
            dtype = jnp.result_type(jnp.float32, *(leaf for _, leaf in leaves))
        sums = [jnp.sum(self.at(path).log_density(leaf), dtype=dtype) for path, leaf in leaves]
        return jnp.sum(jnp.stack(sums))

    def sample(self, key: Key, like: PyTree) -> Params:
        """A draw with the structure, shapes and dtypes of ``like`` (arrays, or their shapes)."""
        leaves = named_leaves(like)
        keys = jax.random.split(key, len(leaves))
        draws = [
            self.at(path).draw(leaf_key, tuple(leaf.shape), leaf.dtype)
            for (path, leaf), leaf_key in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(like), draws)

    def check(self, like: PyTree) -> None:
        """Refuses parameters (arrays, or their shapes) that this prior cannot describe."""
        for path, leaf in named_leaves(like):
            dtype = getattr(leaf, "dtype", None)
            if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
                got = type(leaf).__name__ if dtype is None else dtype
                raise ValueError(
                    f"Every parameter must be a floating-point array; got {got} at {path!r}."
                )
            self.at(path).check_dtype(np.dtype(dtype))


class Elementwise(Prior):
    """A prior that gives every leaf of the pytree the same kind of density."""

    def at(self, path: str) -> Elementwise:
        """This prior, whatever the path."""
        return self

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """The log density of each weight of one leaf, in the leaf's shape and dtype."""

    @abstractmethod
    def draw(self, key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
        """One leaf of independent draws."""

    def gaussian(self, shape: tuple[int, ...]) -> tuple[float | Array, float] | None:
        """Mean and standard deviation of a leaf of this shape, where the density is normal."""
        return None

    def expected_log_density(self, mean: Array, variance: Array) -> Array | None:
        """The expectation of ``log_density`` over weights of these moments, where it is closed form."""
        normal = self.gaussian(mean.shape)
        if normal is None:
            return None
        loc, scale = normal
        return _normal_log_density(mean - loc, scale) - variance / (2 * scale**2)

    def check_dtype(self, dtype: np.dtype) -> None:
        """Refuses a dtype in which this prior cannot be expressed."""


@dataclass(frozen=True)
class Normal(Elementwise):
    r"""A normal distribution: weight decay, read as a prior.

    .. math:: p(w) = \frac{1}{\sigma\sqrt{2\pi}} \exp\left(-\frac{(w - \mu)^2}{2\sigma^2}\right)

    Args:
      scale: the standard deviation, sigma.
      loc: the mean, mu.
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self):
        _location_scale(self)

    def gaussian(self, shape):
        return self.loc, self.scale

    def log_density(self, x):
        return _normal_log_density(x - self.loc, self.scale)

    def draw(self, key, shape, dtype):
        return self.loc + self.scale * jax.random.normal(key, shape, dtype)


@dataclass(frozen=True)
class Laplace(Elementwise):
    r"""A Laplace distribution: its sharp peak draws small weights to the location.

    .. math:: p(w) = \frac{1}{2b} \exp\left(-\frac{|w - \mu|}{b}\right)

    Args:
      scale: b; the standard deviation is b times the square root of two.
      loc: the mean, mu.
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self):
        _location_scale(self)

    def log_density(self, x):
        return -jnp.abs(x - self.loc) / self.scale - math.log(2 * self.scale)

    def draw(self, key, shape, dtype):
        return self.loc + self.scale * jax.random.laplace(key, shape, dtype)


@dataclass(frozen=True)
class StudentT(Elementwise):
    r"""Student's t distribution: a few weights may be large.

    .. math:: p(w) = \frac{\Gamma((\nu + 1) / 2)}{\Gamma(\nu / 2) \sqrt{\nu\pi} \, s}
              \left(1 + \frac{(w - \mu)^2}{\nu s^2}\right)^{-(\nu + 1) / 2}

    Args:
      df: nu, the degrees of freedom; the smaller, the heavier the tails (1: Cauchy).
      scale: s.
      loc: the median, mu.
    """

    df: float = 3.0
    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "df", positive("StudentT", "df", self.df))
        _location_scale(self)

    def log_density(self, x):
        z = (x - self.loc) / self.scale
        return student_t_log_density(z, self.df) - math.log(self.scale)

    def draw(self, key, shape, dtype):
        return self.loc + self.scale * jax.random.t(key, self.df, shape, dtype)


@dataclass(frozen=True)
class ScaleMixture(Elementwise):
    r"""Two normal distributions around zero, one wide and one narrow: spike and slab, smoothed.

    .. math:: p(w) = \pi \, N(w; 0, \sigma_1^2) + (1 - \pi) \, N(w; 0, \sigma_2^2)

    Args:
      pi: the share of the first component.
      sigma1: its standard deviation.
      sigma2: the standard deviation of the second component.

    Reference: Blundell et al., Weight Uncertainty in Neural Networks, 2015, equation 7.
    """

    pi: float = 0.5
    sigma1: float = 1.0
    sigma2: float = math.exp(-6)

    def __post_init__(self):
        object.__setattr__(self, "pi", fraction("ScaleMixture", "pi", self.pi))
        for name in ("sigma1", "sigma2"):
            object.__setattr__(self, name, positive("ScaleMixture", name, getattr(self, name)))

    def log_density(self, x):
        first = math.log(self.pi) + _normal_log_density(x, self.sigma1)
        second = math.log1p(-self.pi) + _normal_log_density(x, self.sigma2)
        return jnp.logaddexp(first, second)

    def draw(self, key, shape, dtype):
        component_key, normal_key = jax.random.split(key)
        first = jax.random.bernoulli(component_key, self.pi, shape)
        sigma = jnp.where(first, jnp.asarray(self.sigma1, dtype), jnp.asarray(self.sigma2, dtype))
        return sigma * jax.random.normal(normal_key, shape, dtype)


@dataclass(frozen=True)
class FanInNormal(Elementwise):
    r"""A normal distribution that keeps a layer's outputs at one size, however wide its input.

    .. math:: w \sim N(0, \sigma^2 / n_\text{in})

    The fan-in of a weight array is the product of all its axes but the last, the output's; arrays
    with fewer than two axes (biases, scales) keep the standard deviation sigma.

    Args:
      scale: sigma.

    Reference: Neal, Bayesian Learning for Neural Networks, 1996, chapter 2.
    """

    scale: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "scale", positive("FanInNormal", "scale", self.scale))

    def gaussian(self, shape):
        return 0.0, self._standard_deviation(shape)

    def log_density(self, x):
        return _normal_log_density(x, self._standard_deviation(x.shape))

    def draw(self, key, shape, dtype):
        return self._standard_deviation(shape) * jax.random.normal(key, shape, dtype)

    def _standard_deviation(self, shape: tuple[int, ...]) -> float:
        fan_in = math.prod(shape[:-1]) if len(shape) >= 2 else 1
        return self.scale / math.sqrt(max(fan_in, 1))


@dataclass(frozen=True)
class Discrete(Elementwise):
    r"""Weights that take one of a few values, as in a binary or ternary network.

    .. math:: P(w = v_k) = p_k

    Args:
      values: the values v, all different.
      probs: their probabilities p; ``None``: all alike.
    """

    discrete: ClassVar[bool] = True

    values: Sequence[float] | np.ndarray
    probs: Sequence[float] | np.ndarray | None = None

    def __post_init__(self):
        values = _numbers("values", self.values)
        if not values or len(set(values)) < len(values):
            raise ValueError(must("Discrete", "values", "one or more different numbers", values))
        count = len(values)
        probs = (1 / count,) * count if self.probs is None else _numbers("probs", self.probs)
        total = math.fsum(probs)
        if len(probs) != count or min(probs) <= 0 or abs(total - 1) > 1e-6:
            allowed = f"{count} positive numbers that add up to one, one for each value"
            raise ValueError(must("Discrete", "probs", allowed, probs))
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "probs", tuple(prob / total for prob in probs))

    @property
    def log_probs(self) -> tuple[float, ...]:
        """The log probability of each value."""
        return tuple(math.log(prob) for prob in self.probs)  # pyright: ignore[reportOptionalIterable]

    def log_density(self, x):
        # One comparison a value: a table of weights by values would not fit in memory.
        result = jnp.full(x.shape, -jnp.inf, x.dtype)
        for value, log_prob in zip(self.values, self.log_probs, strict=True):
            result = jnp.where(x == value, jnp.asarray(log_prob, x.dtype), result)
        return result

    def draw(self, key, shape, dtype):
        log_probs = jnp.asarray(self.log_probs, jnp.result_type(float))
        return jnp.asarray(self.values, dtype)[jax.random.categorical(key, log_probs, shape=shape)]

    def check_dtype(self, dtype):
        rounded = np.asarray(self.values).astype(dtype)
        if len(np.unique(rounded)) < len(rounded) or not np.all(np.isfinite(rounded)):
            allowed = f"different and finite in {dtype}, the dtype of the parameters"
            raise ValueError(must("Discrete", "values", allowed, self.values))


@dataclass(frozen=True)
class Around(Prior):
    r"""A normal distribution around given weights, such as those of a pretrained network.

    .. math:: w \sim N(w_0, \sigma^2)

    Args:
      weights: w_0, in the structure of the network's parameters: ``network.init(key)`` of a pretrained one.
      scale: sigma, how far from them the weights may go.
    """

    weights: PyTree
    scale: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "scale", positive("Around", "scale", self.scale))
        if not isinstance(self.weights, Weights):
            object.__setattr__(self, "weights", Weights.of(self.weights))

    def at(self, path: str) -> Elementwise:
        """The prior around the weights at this path."""
        if path not in self.weights.arrays:
            raise ValueError(
                f"Around(weights=...) must hold every parameter of the network; {path!r} is not among "
                f"{sorted(self.weights.arrays)}."
            )
        return _NormalAround(Weights.of(self.weights.arrays[path]), self.scale)

    def check(self, like: PyTree) -> None:
        """Refuses also weights of other shapes."""
        super().check(like)
        for path, leaf in named_leaves(like):
            shape = self.weights.arrays[path].shape
            if shape != tuple(leaf.shape):
                raise ValueError(
                    f"Around(weights=...) must have the shapes of the network's parameters, "
                    f"{tuple(leaf.shape)} at {path!r}; got {shape}."
                )


@dataclass(frozen=True)
class _NormalAround(Elementwise):
    """One leaf of :class:`Around`."""

    loc: Weights
    scale: float

    def _centre(self, dtype: Any) -> Array:
        return jnp.asarray(self.loc.arrays[""], dtype)

    def gaussian(self, shape):
        return self._centre(jnp.result_type(float)), self.scale

    def log_density(self, x):
        return _normal_log_density(x - self._centre(x.dtype), self.scale)

    def draw(self, key, shape, dtype):
        return self._centre(dtype) + self.scale * jax.random.normal(key, shape, dtype)


@dataclass(frozen=True)
class PerLayer(Prior):
    """A prior for each part of the network, chosen by the path of the parameter.

    Patterns are those of the shell (``*`` also crosses ``/``); the first that matches wins, so the
    general ones come last. Either every part is discrete, or none is.

    Args:
      parts: pattern to prior, e.g. ``{"layer_0/*": Normal(0.1), "*": Normal(1.0)}``.
    """

    parts: Mapping[str, Elementwise] | tuple[tuple[str, Elementwise], ...]

    def __post_init__(self):
        parts = tuple(self.parts.items()) if isinstance(self.parts, Mapping) else self.parts
        allowed = "a mapping of one or more path patterns to priors, none of them PerLayer"
        if not isinstance(parts, tuple):
            raise TypeError(must("PerLayer", "parts", allowed, parts))
        for part in parts:
            match part:
                case (str(), Elementwise()):
                    continue
            raise TypeError(must("PerLayer", "parts", allowed, part))
        if not parts:
            raise ValueError(must("PerLayer", "parts", allowed, parts))
        if len({prior.discrete for _, prior in parts}) > 1:
            raise ValueError(
                must("PerLayer", "parts", "all discrete or all continuous", dict(parts))
            )
        object.__setattr__(self, "parts", parts)

    @property
    def _pairs(self) -> tuple[tuple[str, Elementwise], ...]:
        return self.parts  # pyright: ignore[reportReturnType]  (made a tuple in __post_init__)

    @property
    def discrete(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the parts are discrete: a fact of the instance here, of the class elsewhere."""
        return self._pairs[0][1].discrete

    def at(self, path: str) -> Elementwise:
        """The prior of the first pattern that matches."""
        for pattern, prior in self._pairs:
            if fnmatchcase(path, pattern):
                return prior
        patterns = ", ".join(repr(pattern) for pattern, _ in self._pairs)
        raise ValueError(
            f"PerLayer(parts=...) must match every parameter; {path!r} matches none of {patterns}. "
            "Add a pattern for it, or '*' at the end for all others."
        )

    def check(self, like: PyTree) -> None:
        """Refuses also a pattern that no parameter reads: a typo must not pass silently."""
        paths = tree_paths(like)
        taken: set[str] = set()
        for pattern, _ in self._pairs:
            matched = {path for path in paths if fnmatchcase(path, pattern)}
            if not matched:
                near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.4) or paths[:3]
                raise ValueError(
                    f"PerLayer(parts=...) must hold patterns that match parameters; {pattern!r} "
                    f"matches none. Near it: {', '.join(map(repr, near))}."
                )
            # A last "*" with nothing left to match is a habit, not a mistake.
            if matched <= taken and pattern != "*":
                raise ValueError(
                    f"PerLayer(parts=...) must go from the special to the general; {pattern!r} is "
                    f"never reached, since earlier patterns match all of {sorted(matched)}."
                )
            taken |= matched
        super().check(like)


def prior_from(value: Any) -> Prior:
    """What ``Model(prior=...)`` takes: a prior, or a mapping of path patterns to priors."""
    if isinstance(value, Prior):
        return value
    if isinstance(value, Mapping):
        return PerLayer(value)
    allowed = "a prior, e.g. cx.priors.Normal(1.0), or a mapping of path patterns to priors"
    raise TypeError(must("Model", "prior", allowed, value))


def _normal_log_density(residual: Array, scale: float) -> Array:
    return normal_log_density(residual / scale) - math.log(scale)


def _location_scale(prior: Normal | Laplace | StudentT) -> None:
    """Checks the two settings that these priors share, and makes them Python floats."""
    owner = type(prior).__name__
    object.__setattr__(prior, "scale", positive(owner, "scale", prior.scale))
    object.__setattr__(prior, "loc", number(owner, "loc", prior.loc))


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(must("Discrete", name, "a list of numbers", values))
    return tuple(number("Discrete", name, value) for value in values)
