"""The variance of the gradient estimates of a variational method."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from credax.core import random
from credax.core.checks import integer, must
from credax.core.programs import jit
from credax.inference.variational.objective import make_family
from credax.model import LogDensity, Model
from credax.posterior.approximations.families import Family


class GradientVariance(NamedTuple):
    """The mean and the variance of each coordinate of a gradient estimate.

    Both have the structure of the variational parameters phi.
    """

    mean: Family
    variance: Family

    @property
    def total(self) -> float:
        """The variance summed over all coordinates."""
        return float(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(self.variance)))


def gradient_variance(
    model: Model | LogDensity,
    data: Any,
    method: Any,
    key: Any = 0,
    *,
    family: Family | None = None,
    draws: int = 1_000,
) -> GradientVariance:
    """Measure the mean and variance of a method's estimate of the gradient of the evidence lower bound.

    Args:
      model: a ``Model``, or a ``LogDensity``.
      data: ``(x, y)``; ``None`` for a ``LogDensity``.
      method: ``BayesByBackprop`` or ``BlackBoxVI`` with the settings to measure.
      key: an int or a JAX key. If the method uses minibatches, each estimate has its own.
      family: the q at which the gradient is estimated. If ``None``, the q from which the method would start.
      draws: the number of estimates.
    """
    if not hasattr(method, "gradient"):
        allowed = "a method that estimates gradients of a bound, BayesByBackprop or BlackBoxVI"
        raise TypeError(must("gradient_variance", "method", allowed, method))
    integer("gradient_variance", "draws", draws, minimum=2)
    bound, data = model.prepare(data)
    method.check(bound, data)
    start_key, key = jax.random.split(random.key(key))
    family = make_family(method, start_key, bound) if family is None else family
    mean, variance = _moments(bound, method, family, data, jax.random.split(key, draws))
    return GradientVariance(mean, variance)


@jit(static_argnames=("model", "method"))
def _moments(model, method, family, data, keys):
    """Mean and variance by Welford's algorithm, so that memory does not grow with the number of draws."""

    def estimate(key, index):
        batch_key, key = jax.random.split(key)
        batch = None if data is None else data.batch(batch_key, index, method.batch_size)
        return method.gradient(key, family, model, batch)[-1]

    def add(carry, key):
        count, mean, square = carry
        gradient = estimate(key, count)
        count = count + 1
        toward = jax.tree.map(jnp.subtract, gradient, mean)
        mean = jax.tree.map(lambda m, d: m + d / count.astype(d.dtype), mean, toward)
        square = jax.tree.map(lambda s, d, g, m: s + d * (g - m), square, toward, gradient, mean)
        return (count, mean, square), None

    zeros = jax.tree.map(jnp.zeros_like, family)
    start = (jnp.zeros((), jnp.int32), zeros, zeros)
    (count, mean, square), _ = lax.scan(add, start, keys)
    return mean, jax.tree.map(lambda s: s / (count - 1).astype(s.dtype), square)
