r"""The computations behind a prediction: the mixture over posterior samples, in compiled code.

.. math:: p(y \mid x, D) \approx \sum_s \omega_s\, p(y \mid x, w_s)

A result that is a mean over the samples is accumulated one sample at a time (:func:`fold`). Other results need
the *components*: the network's outputs and the likelihood's parameters for all samples (:func:`outputs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.typing import Array, Draw
from credax.model import Model
from credax.tracing.convolutions import rearranged


class Moments(NamedTuple):
    """Running weighted means over the samples seen so far (West, 1979)."""

    weight: Array
    mean: Array
    spread: Array  # the sum of weighted squared deviations of E[y | w]
    variance: Array
    entropy: Array


def applied(model: Model, centre: Draw | None, x: Array) -> Callable[[Draw], tuple[Array, Any]]:
    """The function from a draw to the network's outputs at ``x`` and the likelihood's parameters.

    Args:
      model: the model.
      centre: the draw at which the network is replaced by its linear expansion. If ``None``, it is not.
      x: the rows.
    """
    if centre is None:

        def apply(draw):
            network, likelihood = model.split(draw.params)
            return widened(model.network.apply(network, x, draw.state)), likelihood

        return apply
    mode, _ = model.split(centre.params)
    outputs, change = jax.linearize(lambda w: model.network.apply(w, x, centre.state), mode)

    def expand(draw):
        network, likelihood = model.split(draw.params)
        return widened(outputs + change(jax.tree.map(jnp.subtract, network, mode))), likelihood

    return expand


@jit(static_argnames=("model", "update"))
def fold(model, update, carry, draws, log_weights, centre, x, *rows):
    """Update a carry with the outputs of one sample after the other; see ``Predictive._stream``."""
    apply = rearranged(applied(model, centre, x))

    def add(carry, sample):
        draw, log_weight = sample
        outputs, params = apply(draw)
        return update(model.likelihood, carry, log_weight, outputs, params, *rows), None

    return lax.scan(add, carry, (draws, log_weights))[0]


def no_moments(model: Model, rows: int) -> Moments:
    """The moments before the first sample."""
    likelihood, outputs = model.likelihood, model.schema.outputs  # pyright: ignore[reportOptionalMemberAccess]
    dtype = np.dtype(jnp.result_type(float))
    row = jax.ShapeDtypeStruct((1, outputs), dtype)
    width = jax.eval_shape(likelihood.mean, row, likelihood.init(outputs)).shape[1]
    zeros = np.zeros((rows, width), dtype)
    return Moments(np.zeros((), dtype), zeros, zeros, zeros, np.zeros(rows, dtype))


def add_moments(likelihood, moments, log_weight, outputs, params):
    """The moments after one more sample."""
    weight = jnp.exp(log_weight)
    total = moments.weight + weight
    share = jnp.where(total > 0, weight / jnp.where(total > 0, total, 1), 0)
    mean = likelihood.mean(outputs, params)
    # A sample of weight zero may be infinite, and zero times infinity is NaN.
    seen = lambda old, new: jnp.where(share > 0, new, old)  # noqa: E731
    toward = lambda old, new: seen(old, old + share * (new - old))  # noqa: E731
    middle = toward(moments.mean, mean)
    # The spread is a mean and not a sum, so that its last value is the variance itself; and it only adds
    # squares, so that it is never negative, however the compiler rounds.
    spread = (1 - share) * (moments.spread + share * (mean - moments.mean) ** 2)
    spread = seen(moments.spread, spread)
    entropy = moments.entropy
    if likelihood.task == "classification":
        entropy = toward(entropy, likelihood.entropy(outputs, params))
    variance = toward(moments.variance, likelihood.variance(outputs, params))
    return Moments(total, middle, spread, variance, entropy)


def add_log_density(likelihood, total, log_weight, outputs, params, y):
    """The log of the mean density of each target after one more sample."""
    log_prob = likelihood.log_prob(outputs, y, params)
    return jnp.where(log_weight > -jnp.inf, jnp.logaddexp(total, log_weight + log_prob), total)


@jit(static_argnames=("model",))
def outputs(model, draws, centre, x):
    """The components: for every sample, the outputs at ``x`` and the likelihood's parameters."""
    return lax.map(rearranged(applied(model, centre, x)), draws)


@jit(static_argnames=("model",))
def sample_targets(model, keys, components):
    """One draw of y from each component."""
    return jax.vmap(lambda key, c: model.likelihood.sample(key, c[0], c[1]))(keys, components)


@jit(static_argnames=("model",))
def each_mean(model, components):
    """E[y | w] of each component."""
    return jax.vmap(lambda c: model.likelihood.mean(c[0], c[1]))(components)


@jit(static_argnames=("model",))
def each_log_prob(model, components, y):
    """log p(y | w) of each component."""
    return jax.vmap(lambda c: model.likelihood.log_prob(c[0], y, c[1]))(components)


@jit(static_argnames=("model",))
def cdf(model, components, log_weights, t):
    """P(y <= t) under the mixture, for several arrays t, stacked."""
    weights = jnp.exp(log_weights).astype(t.dtype)

    def one(t):
        each = jax.vmap(lambda c: model.likelihood.cdf(c[0], t, c[1]))(components)
        weighted = jax.vmap(lambda weight, each: jnp.where(weight > 0, weight * each, 0))
        return jnp.sum(weighted(weights, each), 0)

    return lax.map(one, t)


@jit(static_argnames=("model",))
def quantiles(model, components, log_weights, moments, levels):
    """Quantiles of the mixture, found by bisection of its distribution function.

    The bracket is valid for every distribution: by Cantelli's inequality the q-quantile lies between
    mean - sd sqrt((1-q)/q) and mean + sd sqrt(q/(1-q)).
    """
    mean, variance = moments
    weights = jnp.exp(log_weights).astype(mean.dtype)
    weighted = lambda weight, each: jnp.where(weight > 0, weight * each, 0)  # noqa: E731

    counts = model.likelihood.task == "count"

    def one(level):
        sd = jnp.sqrt(variance)
        lower = mean - sd * jnp.sqrt((1 - level) / level)
        upper = mean + sd * jnp.sqrt(level / (1 - level))
        if counts:  # the quantile is the smallest count with at least this probability
            lower, upper = jnp.maximum(jnp.floor(lower), 0) - 1, jnp.ceil(upper)

        def unfinished(bracket):
            step, lower, upper = bracket
            finished = counts and jnp.all(upper - lower <= 1)
            return (step < jnp.finfo(mean.dtype).nmant + 12) & ~jnp.asarray(finished)

        def halve(bracket):
            step, lower, upper = bracket
            middle = 0.5 * (lower + upper)
            middle = jnp.floor(middle) if counts else middle
            each = jax.vmap(lambda c: model.likelihood.cdf(c[0], middle, c[1]))(components)
            below = jnp.sum(jax.vmap(weighted)(weights, each), 0) < level
            return step + 1, jnp.where(below, middle, lower), jnp.where(below, upper, middle)

        return lax.while_loop(unfinished, halve, (0, lower, upper))[2]

    return lax.map(one, levels.astype(mean.dtype))
