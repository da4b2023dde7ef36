r"""Priors over the weights, under which all weights are independent.

.. math:: \log p(w) = \sum_{\text{leaves}} \sum_i \log p(w_i)
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import fraction, must, number, positive
from credax.core.precision import check_range
from credax.core.settings import REQUIRED, Settings, optional, setting
from credax.core.special import normal_log_density, softplus, student_t_log_density
from credax.core.trees import named_leaves, tree_paths
from credax.core.typing import Array, Key, Params, PyTree

NOTHING = 1_000.0
"""Twice the difference of two log densities beyond which the smaller density is nothing beside the larger."""


class Prior(Settings, ABC):
    """A density over a pytree of weights. Method :meth:`at` gives the prior of each leaf."""

    discrete: ClassVar[bool] = False
    """Whether every weight takes one of finitely many values."""
    learned: ClassVar[bool] = False
    """Whether the scale of some weights is learned by the method, so that there is no density without it."""
    independent: ClassVar[bool] = True
    """Whether all weights are independent, so that each leaf has a prior of its own."""

    @abstractmethod
    def at(self, path: str) -> Elementwise:
        """The prior of the leaf at this path of the pytree."""

    def log_prob(self, params: Params) -> Array:
        """The log density of all weights: the sum over every weight of every leaf."""
        leaves = named_leaves(params)
        if not leaves:
            return jnp.zeros((), jnp.result_type(float))
        with jax.numpy_dtype_promotion("standard"):
            # In half precision, the sum over many weights would be wrong by whole units.
            dtype = jnp.result_type(jnp.float32, *(leaf for _, leaf in leaves))
        sums = [jnp.sum(self.at(path).log_density(leaf), dtype=dtype) for path, leaf in leaves]
        return jnp.sum(jnp.stack(sums))

    def sample(self, key: Key, like: PyTree) -> Params:
        """A draw of all weights.

        Args:
          key: a random key.
          like: a pytree of arrays, or of their shapes and dtypes, which the draw has as well.
        """
        leaves = named_leaves(like)
        keys = jax.random.split(key, len(leaves))
        draws = [
            self.at(path).draw(leaf_key, tuple(leaf.shape), leaf.dtype)
            for (path, leaf), leaf_key in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(like), draws)

    def near(self, key: Key, like: Params) -> Params:
        """Where a run starts: ``like``, the network's own initial parameters, unless the prior knows better."""
        return like

    def for_network(self, fan_in: Callable[[], Mapping[str, int]]) -> Prior:
        """This prior, completed with what depends on how a network uses its weights.

        Args:
          fan_in: a function that returns the fan-in of each weight by its path.
        """
        return self

    def check(self, like: PyTree) -> None:
        """Raise an error if this prior does not fit the parameters (arrays, or their shapes and dtypes)."""
        for path, leaf in named_leaves(like):
            dtype = getattr(leaf, "dtype", None)
            if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
                got = type(leaf).__name__ if dtype is None else dtype
                raise ValueError(
                    f"Every parameter must be a floating-point array; got {got} at {path!r}."
                )
            self.at(path).check_dtype(np.dtype(dtype))


class Elementwise(Prior):
    """A prior that treats all leaves of the pytree alike, and all weights of a leaf alike."""

    def at(self, path: str) -> Elementwise:
        """This prior itself, which is the same at every path."""
        return self

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """The log density of each weight of one leaf, as an array like the leaf."""

    @abstractmethod
    def draw(self, key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
        """Independent draws of the weights of one leaf."""

    def gaussian(self, shape: tuple[int, ...]) -> tuple[float | Array, float | Array] | None:
        """The mean and the standard deviation of a leaf of this shape, or ``None`` if it is not normal."""
        return None

    def matched(self, mean: Array, variance: Array) -> tuple[float | Array, float | Array] | None:
        """The mean and the standard deviation of the normal prior of weights with these posterior moments.

        They depend on the moments only if they are learned. ``None`` if the prior is not normal.
        """
        return self.gaussian(mean.shape)

    def expected_log_density(self, mean: Array, variance: Array) -> Array | None:
        """The expectation of ``log_density`` over weights with this mean and variance.

        It is ``None`` if the expectation has no closed form.
        """
        normal = self.matched(mean, variance)
        if normal is None:
            return None
        loc, scale = normal
        return scaled_normal_log_density(mean - loc, scale) - variance / (2 * scale**2)

    def check_dtype(self, dtype: np.dtype) -> None:
        """Raise an error if the settings of this prior cannot be represented in the dtype.

        A scale that is rounded to zero or infinity would make every density NaN.
        """
        for name, value in vars(self).items():
            if isinstance(value, float):
                check_range(type(self).__name__, name, value, dtype)


@dataclass(frozen=True)
class Normal(Elementwise):
    r"""A normal distribution: the prior to which weight decay corresponds.

    .. math:: p(w) = \frac{1}{\sigma\sqrt{2\pi}} \exp\left(-\frac{(w - \mu)^2}{2\sigma^2}\right)

    Args:
      scale: the standard deviation, sigma.
      loc: the mean, mu.
    """

    scale: float = setting(1.0, positive)
    loc: float = setting(0.0, number)

    def gaussian(self, shape):
        return self.loc, self.scale

    def log_density(self, x):
        return scaled_normal_log_density(x - self.loc, self.scale)

    def draw(self, key, shape, dtype):
        return self.loc + self.scale * jax.random.normal(key, shape, dtype)


@dataclass(frozen=True)
class Laplace(Elementwise):
    r"""A Laplace distribution, whose sharp peak pulls small weights towards the mean.

    .. math:: p(w) = \frac{1}{2b} \exp\left(-\frac{|w - \mu|}{b}\right)

    Args:
      scale: b; the standard deviation is b times the square root of two.
      loc: the mean, mu.
    """

    scale: float = setting(1.0, positive)
    loc: float = setting(0.0, number)

    def log_density(self, x):
        return -jnp.abs(x - self.loc) / self.scale - math.log(2 * self.scale)

    def draw(self, key, shape, dtype):
        return self.loc + self.scale * jax.random.laplace(key, shape, dtype)


@dataclass(frozen=True)
class StudentT(Elementwise):
    r"""Student's t distribution, whose heavy tails allow a few weights to be large.

    .. math:: p(w) = \frac{\Gamma((\nu + 1) / 2)}{\Gamma(\nu / 2) \sqrt{\nu\pi} \, s}
              \left(1 + \frac{(w - \mu)^2}{\nu s^2}\right)^{-(\nu + 1) / 2}

    Args:
      df: nu, the degrees of freedom; smaller values give heavier tails, and 1 gives the Cauchy distribution.
      scale: s.
      loc: the median, mu.
    """

    df: float = setting(3.0, positive)
    scale: float = setting(1.0, positive)
    loc: float = setting(0.0, number)

    def log_density(self, x):
        z = (x - self.loc) / self.scale
        return student_t_log_density(z, self.df) - math.log(self.scale)

    def draw(self, key, shape, dtype):
        return self.loc + self.scale * jax.random.t(key, self.df, shape, dtype)


@dataclass(frozen=True)
class ScaleMixture(Elementwise):
    r"""A mixture of a wide and a narrow normal distribution around zero: a smooth spike-and-slab prior.

    .. math:: p(w) = \pi \, N(w; 0, \sigma_1^2) + (1 - \pi) \, N(w; 0, \sigma_2^2)

    Args:
      pi: the probability of the first component.
      sigma1: the standard deviation of the first component.
      sigma2: the standard deviation of the second component.

    Reference: Blundell et al., Weight Uncertainty in Neural Networks, 2015, equation 7.
    """

    pi: float = setting(0.5, fraction)
    sigma1: float = setting(1.0, positive)
    sigma2: float = setting(math.exp(-6), positive)

    def log_density(self, x):
        # log(a + b) = log a + softplus(log b - log a), where a is the wider component. The gradient of
        # logaddexp, which minds infinities, takes several times as long on a CPU.
        shares = (self.pi, 1 - self.pi)
        (wide, share), (narrow, other) = sorted(
            zip((self.sigma1, self.sigma2), shares, strict=True), reverse=True
        )
        most = math.log(other / share) + math.log(wide / narrow)
        pull = math.sqrt(1 - (narrow / wide) ** 2) / narrow
        # Beyond this the narrower one is nothing, and its gradient must not be zero times infinity.
        end = math.sqrt(2 * max(most, 0) + NOTHING)
        z = jnp.clip(x * pull, -end, end)
        first = math.log(share) + scaled_normal_log_density(x, wide)
        return first + softplus(most - 0.5 * z * z)

    def draw(self, key, shape, dtype):
        component_key, normal_key = jax.random.split(key)
        first = jax.random.bernoulli(component_key, self.pi, shape)
        sigma = jnp.where(first, jnp.asarray(self.sigma1, dtype), jnp.asarray(self.sigma2, dtype))
        return sigma * jax.random.normal(normal_key, shape, dtype)


@dataclass(frozen=True)
class FanInNormal(Elementwise):
    r"""A normal distribution with which the outputs of a layer have the same scale for any width of its input.

    .. math:: w \sim N(0, \sigma^2 / n_\text{in})

    The fan-in of a weight is the number of inputs that its product sums over. It is found from the product in
    which the network uses the weight, since libraries order the axes of weights differently. Biases and other
    weights without a product have the standard deviation sigma. Before the network is known, and for an array
    whose product is not found, the fan-in is the product of the lengths of all axes except the last.

    Args:
      scale: sigma.

    Attributes:
      fan_in: the fan-in of each weight by its path, once the model is bound to data.

    Reference: Neal, Bayesian Learning for Neural Networks, 1996, chapter 2.
    """

    scale: float = setting(1.0, positive)
    fan_in: tuple[tuple[str, int], ...] | None = field(default=None, kw_only=True, repr=False)

    def at(self, path):
        """The prior of the weight at this path, whose fan-in is known if the model is bound."""
        found = dict(self.fan_in or ()).get(path)
        return self if found is None else Normal(self.scale / math.sqrt(found))

    def for_network(self, fan_in):
        """The prior with the fan-in of each weight of a network."""
        return replace(self, fan_in=tuple(sorted(fan_in().items())))

    def gaussian(self, shape):
        return 0.0, self._standard_deviation(shape)

    def log_density(self, x):
        return scaled_normal_log_density(x, self._standard_deviation(x.shape))

    def draw(self, key, shape, dtype):
        return self._standard_deviation(shape) * jax.random.normal(key, shape, dtype)

    def _standard_deviation(self, shape: tuple[int, ...]) -> float:
        fan_in = math.prod(shape[:-1]) if len(shape) >= 2 else 1
        return self.scale / math.sqrt(max(fan_in, 1))


@dataclass(frozen=True)
class LearnedNormal(Elementwise):
    r"""A normal distribution around zero whose scales are learned: automatic relevance determination.

    .. math:: w_{ij} \sim N(0, \sigma_i^2), \qquad \sigma_i^2 = \frac{1}{n} \sum_{j=1}^{n} E_q[w_{ij}^2]

    The n weights by which the outputs of a layer depend on its input i have a common scale, the one with the
    largest evidence lower bound (empirical Bayes). An input or a hidden unit that the data do not need is thus
    switched off at no cost, so that a wide network fits a small table. Arrays with fewer than two axes (biases)
    have one scale. In arrays with more axes, i runs over the last but one axis, the input channels.

    Only ``BayesByBackprop`` learns the scales.

    References: MacKay, Bayesian non-linear modelling for the prediction competition, 1994; Neal, Bayesian
    Learning for Neural Networks, 1996, chapter 4.
    """

    learned: ClassVar[bool] = True

    def matched(self, mean, variance):
        inputs = mean.ndim - 2
        others = tuple(axis for axis in range(mean.ndim) if axis != inputs)
        square = jnp.mean(mean**2 + variance, axis=others, keepdims=True)
        # Where draws are rounded to zero, any scale is as good as another.
        return 0.0, jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))

    def log_density(self, x):
        raise ValueError(_NOT_LEARNED)

    def draw(self, key, shape, dtype):
        raise ValueError(_NOT_LEARNED)


_NOT_LEARNED = (
    "LearnedNormal has no density of its own: its scales are learned by BayesByBackprop. For everything else, "
    "give a scale, e.g. cx.priors.Normal(1.0)."
)


def _numbers(owner: str, name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(must(owner, name, "a list of numbers", values))
    return tuple(number(owner, name, value) for value in values)


def _different(owner: str, name: str, values: Any) -> tuple[float, ...]:
    """Check that the values are one or more numbers, no two of them equal."""
    values = _numbers(owner, name, values)
    if not values or len(set(values)) < len(values):
        raise ValueError(must(owner, name, "one or more different numbers", values))
    return values


@dataclass(frozen=True)
class Discrete(Elementwise):
    r"""Weights that take one of a few values, as in a binary or ternary network.

    .. math:: P(w = v_k) = p_k

    Args:
      values: the values v, all different.
      probs: their probabilities p. If ``None``, all values are equally probable.
    """

    discrete: ClassVar[bool] = True

    values: Sequence[float] | np.ndarray = setting(REQUIRED, _different)
    probs: Sequence[float] | np.ndarray | None = setting(None, optional(_numbers))

    def __post_init__(self):
        super().__post_init__()
        count = len(self.values)
        probs = (1 / count,) * count if self.probs is None else self.probs
        total = math.fsum(probs)
        if len(probs) != count or min(probs) <= 0 or abs(total - 1) > 1e-6:
            allowed = f"{count} positive numbers that add up to one, one for each value"
            raise ValueError(must("Discrete", "probs", allowed, probs))
        object.__setattr__(self, "probs", tuple(prob / total for prob in probs))

    @property
    def log_probs(self) -> tuple[float, ...]:
        """The log probability of each value."""
        return tuple(math.log(prob) for prob in self.probs)  # pyright: ignore[reportOptionalIterable]

    def log_density(self, x):
        # One comparison per value, because a table of weights by values might not fit in memory.
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


def _patterns(owner: str, name: str, parts: Any) -> tuple[tuple[str, Elementwise], ...]:
    """Convert a mapping from pattern to prior to a tuple of pairs, which is hashable."""
    parts = tuple(parts.items()) if isinstance(parts, Mapping) else parts
    allowed = "a mapping of one or more path patterns to priors, none of them PerLayer"
    if not isinstance(parts, tuple):
        raise TypeError(must(owner, name, allowed, parts))
    for part in parts:
        match part:
            case (str(), Elementwise()):
                continue
        raise TypeError(must(owner, name, allowed, part))
    if not parts:
        raise ValueError(must(owner, name, allowed, parts))
    if len({prior.discrete for _, prior in parts}) > 1:
        raise ValueError(must(owner, name, "all discrete or all continuous", dict(parts)))
    return parts


@dataclass(frozen=True)
class PerLayer(Prior):
    """Different priors for different parts of the network, chosen by the path of the parameter.

    Paths are matched with shell patterns, in which ``*`` also matches ``/``. The first pattern that matches a
    path decides, so general patterns come last. The priors must be either all discrete or all continuous.

    Args:
      parts: a mapping from pattern to prior, e.g. ``{"layer_0/*": Normal(0.1), "*": Normal(1.0)}``.
    """

    parts: Mapping[str, Elementwise] | tuple[tuple[str, Elementwise], ...] = setting(
        REQUIRED, _patterns
    )

    @property
    def _pairs(self) -> tuple[tuple[str, Elementwise], ...]:
        return self.parts  # pyright: ignore[reportReturnType]  (the check makes it a tuple)

    def __repr__(self):
        return f"PerLayer({dict(self._pairs)!r})"

    @property
    def discrete(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the priors of the parts are discrete."""
        return self._pairs[0][1].discrete

    @property
    def learned(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the scale of some part is learned."""
        return any(prior.learned for _, prior in self._pairs)

    def at(self, path: str) -> Elementwise:
        """The prior of the first pattern that matches the path."""
        for pattern, prior in self._pairs:
            if fnmatchcase(path, pattern):
                return prior.at(path)
        patterns = ", ".join(repr(pattern) for pattern, _ in self._pairs)
        raise ValueError(
            f"PerLayer(parts=...) must match every parameter; {path!r} matches none of {patterns}. "
            "Add a pattern for it, or '*' at the end for all others."
        )

    def for_network(self, fan_in):
        """The parts, each completed for the network."""
        return PerLayer({k: prior.for_network(fan_in) for k, prior in self._pairs})  # pyright: ignore[reportArgumentType]

    def check(self, like: PyTree) -> None:
        """Raise an error also if a pattern applies to no parameter, which is most likely a typing mistake."""
        paths = tree_paths(like)
        taken: set[str] = set()
        for pattern, _ in self._pairs:
            matched = {path for path in paths if fnmatchcase(path, pattern)}
            if not matched:
                near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.4) or paths[:3]
                raise ValueError(
                    f"PerLayer(parts=...) must hold patterns that match parameters; {pattern!r} "
                    f"matches none. Similar paths: {', '.join(map(repr, near))}."
                )
            # A final "*" with nothing left to match is allowed: it is a common habit.
            if matched <= taken and pattern != "*":
                raise ValueError(
                    f"PerLayer(parts=...) must list specific patterns before general ones; {pattern!r} is "
                    f"never reached, since earlier patterns match all of {sorted(matched)}."
                )
            taken |= matched
        super().check(like)


def prior_from(owner: str, name: str, value: Any) -> Prior:
    """Check that the value is a prior, or convert a mapping from path pattern to prior to one."""
    if isinstance(value, Prior):
        return value
    if isinstance(value, Mapping):
        return PerLayer(value)
    allowed = "a prior, e.g. cx.priors.Normal(1.0), or a mapping of path patterns to priors"
    raise TypeError(must(owner, name, allowed, value))


def scaled_normal_log_density(residual: Array, scale: float | Array) -> Array:
    """The log density of a normal distribution around zero with this standard deviation."""
    log_scale = math.log(scale) if isinstance(scale, float) else jnp.log(scale)
    return normal_log_density(residual / scale) - log_scale
