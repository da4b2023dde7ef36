"""A likelihood whose noise may have any shape, and another one for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from credax.core.checks import integer, positive
from credax.core.settings import optional, setting
from credax.core.special import normal_log_density, softplus, student_t_log_density
from credax.core.typing import Array
from credax.model.likelihoods.likelihood import Likelihood
from credax.model.likelihoods.targets import points, width

TAIL_DF = 4.0
"""The degrees of freedom of the last component, whose distribution function then has a closed form."""
TAIL_VARIANCE = TAIL_DF / (TAIL_DF - 2)
LEAST_TAIL = 1e-3
"""The least weight of the last component. A target that is 1,000 scales off then costs about 40 nats, which
would be 500,000 under a normal density."""
FAR = 8.0
"""The distance in scales from which the probability of an interval is not computed as a difference."""


@dataclass(frozen=True)
class MixtureDensity(Likelihood):
    r"""A mixture of normal densities and one with heavy tails, all of whose parameters the network predicts.

    .. math::
        p(y \mid x) = \sum_{k < K} \pi_k\, N(y \mid \mu_k, \sigma_k^2)
                      + \pi_K\, t_4(y \mid \mu_K, \sigma_K),
        \qquad \sigma_k = \sigma_\text{min} + \operatorname{softplus}(r_k)

    The noise of a row may thus be skewed, have several modes or heavy tails, and differ between rows. The last
    component has Student's t distribution with four degrees of freedom and at least a thousandth of the weight,
    so that no target is impossible.

    Args:
      components: K, the number of components of each target.
      min_scale: the smallest scale of a component.
      rounding: the distance between neighbouring values of a target that was rounded, such as a grade. The
        density is then the probability of the interval of that width around the value, divided by the width,
        so that it cannot be raised by narrow peaks at the values that occur. If ``None``, y is not rounded.
      stretch: a factor by which the density of every row is stretched around its mean, as
        :class:`CrossFitEnsemble` does after a fit, so that its intervals are neither too wide nor too narrow.

    Reference: Bishop, Mixture density networks, 1994.
    """

    components: int = setting(3, integer)
    min_scale: float = setting(1e-2, positive)
    rounding: float | None = setting(None, optional(positive))
    stretch: float = setting(1.0, positive)

    task = "regression"

    def num_outputs(self, y: np.ndarray) -> int:
        return 3 * self.components * width(y)

    def parts(self, outputs: Array) -> tuple[Array, Array, Array]:
        """The weights, locations and scales of the components, ``(rows, targets, components)``."""
        count = self.components
        logits, location, raw = jnp.moveaxis(outputs.reshape(len(outputs), -1, 3, count), 2, 0)
        tail = jnp.arange(count) == count - 1
        weight = (1 - LEAST_TAIL) * jax.nn.softmax(logits) + jnp.where(
            tail, LEAST_TAIL, 0.0
        ).astype(outputs.dtype)
        # Components that start apart learn different parts of the targets.
        apart = jnp.linspace(-0.5, 0.5, count, dtype=outputs.dtype) if count > 1 else 0
        location, scale = location + apart, self.min_scale + softplus(raw)
        if self.stretch == 1:
            return weight, location, scale
        return stretched(self.stretch, weight, location, scale)

    def log_prob(self, outputs, y, params=None):
        return self.log_density(self.parts(outputs), y)

    def log_density(self, parts: tuple[Array, Array, Array], y: Array) -> Array:
        """The log density of each row under a mixture of these weights, locations and scales."""
        weight, location, scale = parts
        away = points(y, location.dtype)[:, :, None] - location
        if self.rounding is None:
            z = away / scale
            each = self._by_kind(normal_log_density, _tail_log_density, z)
            found = jax.nn.logsumexp(each - jnp.log(scale) + jnp.log(weight), axis=-1)
        else:
            lower, upper = (away - self.rounding / 2) / scale, (away + self.rounding / 2) / scale
            each = self._by_kind(_normal_interval, _tail_interval, lower, upper)
            found = jnp.log(jnp.sum(weight * each, -1)) - np.log(self.rounding)
        return jnp.sum(found, axis=-1)

    def _by_kind(self, normal, tail, *arrays):
        """A function of each normal component, and another one of the last component."""
        first, last = [a[..., :-1] for a in arrays], [a[..., -1:] for a in arrays]
        return jnp.concatenate([normal(*first), tail(*last)], axis=-1)

    def mean(self, outputs, params=None):
        weight, location, _ = self.parts(outputs)
        return jnp.sum(weight * location, -1)

    def variance(self, outputs, params=None):
        weight, location, scale = self.parts(outputs)
        stretch = jnp.where(jnp.arange(self.components) == self.components - 1, TAIL_VARIANCE, 1.0)
        mean = jnp.sum(weight * location, -1, keepdims=True)
        within = stretch.astype(outputs.dtype) * scale**2
        return jnp.sum(weight * (within + (location - mean) ** 2), -1)

    def sample(self, key, outputs, params=None):
        weight, location, scale = self.parts(outputs)
        which_key, normal_key, tail_key = jax.random.split(key, 3)
        which = jax.random.categorical(which_key, jnp.log(weight))
        noise = jax.random.normal(normal_key, which.shape, outputs.dtype)
        heavy = jax.random.t(tail_key, TAIL_DF, which.shape, outputs.dtype)
        noise = jnp.where(which == self.components - 1, heavy, noise)
        chosen = lambda a: jnp.take_along_axis(a, which[..., None], -1)[..., 0]  # noqa: E731
        return chosen(location) + chosen(scale) * noise

    def cdf(self, outputs, t, params=None):
        weight, location, scale = self.parts(outputs)
        z = (points(t, outputs.dtype)[:, :, None] - location) / scale
        return jnp.sum(weight * self._by_kind(ndtr, _tail_cdf, z), -1)


def stretched(
    factor: Any, weight: Array, location: Array, scale: Array
) -> tuple[Array, Array, Array]:
    """The weights, locations and scales of a mixture that is stretched around its mean."""
    mean = jnp.sum(weight * location, -1, keepdims=True)
    return weight, mean + factor * (location - mean), factor * scale


def _tail_log_density(z: Array) -> Array:
    return student_t_log_density(z, TAIL_DF)


def _tail_cdf(z: Array) -> Array:
    """The distribution function of Student's t with four degrees of freedom."""
    s = z / jnp.sqrt(4 + z**2)
    return 0.5 + 0.75 * (s - s**3 / 3)


def _normal_interval(lower: Array, upper: Array) -> Array:
    """The probability of an interval, from the tail on its side of zero, where it is accurate."""
    right = lower + upper > 0
    return ndtr(jnp.where(right, -lower, upper)) - ndtr(jnp.where(right, -upper, lower))


def _tail_interval(lower: Array, upper: Array) -> Array:
    """The probability of an interval: a difference, or far out, where that would cancel, Simpson's rule."""
    middle = (lower + upper) / 2
    density = lambda z: jnp.exp(_tail_log_density(z))  # noqa: E731
    mean = (density(lower) + 4 * density(middle) + density(upper)) / 6
    near = jnp.abs(middle) < FAR
    safe = lambda z: jnp.where(near, z, 0)  # noqa: E731
    difference = _tail_cdf(safe(upper)) - _tail_cdf(safe(lower))
    return jnp.where(near, difference, mean * (upper - lower))
