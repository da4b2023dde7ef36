r"""By how much one step of Newton's method raises the objective of a run that seeks a maximum.

The direction is found by conjugate gradients on a sample of the rows and, for an evidence lower bound, of the
noise,

.. math:: -\nabla^2 L_A(\phi)\, d = \nabla L_A(\phi),

and the gain :math:`L_B(\phi + t d) - L_B(\phi)` is measured with other noise and, unless all rows are used, on
other rows. It is therefore a lower bound of what the run is short of, whatever the direction is worth: noise in
it, or too few iterations, can hide a gain but not invent one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from credax.core import random
from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.special import softplus
from credax.core.typing import Array
from credax.diagnostics.doctor.conjugate_gradients import conjugate_gradients
from credax.inference.variational.objective import negative_kl
from credax.model import LogDensity
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import Categorical, Family, MeanField

if TYPE_CHECKING:
    from credax.posterior import Posterior
    from credax.posterior.training import TrainingRows

MEMBERS = 3
"""The most members of an ensemble that are examined."""
ITERATIONS, NOISE = 64, 16
"""Iterations of conjugate gradients, and draws of the noise for each purpose (the direction, the step length
and the gain); a quarter of each for networks of more than ``LARGE`` weights."""
LARGE, SMALL = 100_000, 3e6
"""Below ``SMALL`` products in an iteration (weights x rows x draws), compiling takes most of the time."""
WORK = 2e10
"""The most products (weights x rows x draws x iterations); with more weights, fewer rows are used."""
STEPS = tuple(0.5**k for k in range(8))
"""The step lengths t that are tried."""


def newton_gain(posterior: Posterior, rows: TrainingRows | None) -> dict[str, Any]:
    """The keys ``objective``, ``gain`` and ``gain_error`` (in nats); empty if the run sought no maximum."""
    model, method, approximation = posterior.model, posterior.method, posterior.approximation
    objective = getattr(method, "objective", None)
    if objective is None or model.discrete or isinstance(approximation, Categorical):
        return {}
    if not isinstance(model, LogDensity) and (rows is None or jax.tree.leaves(model.init_state())):
        return {}  # batch statistics make the objective of training another one
    if objective == "elbo":
        if not isinstance(approximation, Family):
            return {}
        points = [approximation.with_state(())]
    else:
        if not isinstance(approximation, Draws) or approximation.shape[1] != 1:
            return {}
        params = approximation.params
        members = range(min(MEMBERS, approximation.shape[0]))
        points = [jax.tree.map(lambda leaf, i=i: leaf[i, 0], params) for i in members]

    weights = approximation.num_weights
    part = 1 if weights <= LARGE else 4
    iterations, noise = ITERATIONS // part, NOISE // part if objective == "elbo" else 1
    batches, scale, sampled = _halves(rows, int(WORK / (weights * iterations * noise)))
    words: Any = np.random.default_rng(0).integers(1 << 32, size=(3, noise, 2), dtype=np.uint32)
    keys = jax.random.wrap_key_data(words, impl=random.IMPLEMENTATION)
    temperature = float(getattr(method, "temperature", 1.0))
    settings = (model, objective, temperature, iterations)
    # A program that keeps what it traced.
    products = weights * noise * (1 if rows is None else len(batches[0][0]))
    program: Any = _gain.quick if products < SMALL else _gain
    try:
        program.eval_shape(*settings, points[0], batches, scale, keys)
    except (NotImplementedError, TypeError, ValueError):
        return {}  # JAX cannot differentiate this model twice
    found = [program(*settings, point, batches, scale, keys) for point in points]
    gains = []
    for by_row, rest in found:
        by_row, rest = np.asarray(by_row, np.float64), np.asarray(rest, np.float64)
        each = scale * by_row.sum(1) + rest  # of each draw of the noise
        variance = each.var(ddof=1) / noise if noise > 1 else 0.0
        if sampled:
            variance += scale**2 * by_row.mean(0).var() * by_row.shape[1]
        gains.append((each.mean(), variance**0.5))
    gain, error = max(gains, key=lambda pair: pair[0] - 2 * pair[1])
    if not np.isfinite(gain) or not np.isfinite(error):
        return {}
    return {"objective": objective, "gain": max(0.0, float(gain)), "gain_error": float(error)}


def _halves(rows: TrainingRows | None, most: int) -> tuple[Any, float, bool]:
    """Rows for the direction and rows for the gain, their weight in a sum, and whether they are a sample."""
    if rows is None:
        return (None, None), 1.0, False
    most = max(64, most)
    if len(rows.x) == rows.total <= most:
        return ((rows.x, rows.y, rows.weights),) * 2, 1.0, False
    half = min(len(rows.x), 2 * most) // 2
    parts = tuple(rows.part(slice(i * half, (i + 1) * half)) for i in (0, 1))
    return parts, rows.total / half, True


@jit(static_argnames=("model", "objective", "temperature", "iterations"))
def _gain(model, objective, temperature, iterations, point, batches, scale, keys):
    """The gain of each row for each draw of the noise, and the gain of the terms without rows."""
    start, unravel = ravel_pytree(point)
    unit = ravel_pytree(_units(point))[0]
    scale = jnp.asarray(scale, start.dtype)

    def terms(vector, batch, key):
        rest = jnp.zeros((), start.dtype)
        if objective == "elbo":
            family = _whole(point, vector) or unravel(vector)
            params = family.draw(key)
            rest = temperature * negative_kl(model, family, params)
        else:
            params = unravel(vector)
        if isinstance(model, LogDensity):
            return model.log_joint(params)[None], rest
        if objective == "log_joint":
            rest = model.log_prior(params)
        network, learned = model.split(params)
        outputs, _ = model.network.call(network, batch[0], state=(), key=None, train=False)
        log_prob = model.likelihood.log_prob(widened(outputs), batch[1], learned)
        weights = batch[2]
        return log_prob if weights is None else weights.astype(log_prob.dtype) * log_prob, rest

    def loss(step, batch, keys):
        """Minus the objective after a step, which is measured in units of each coordinate."""

        def one(key):
            by_row, rest = terms(start + unit * step, batch, key)
            return scale * jnp.sum(by_row).astype(start.dtype) + rest.astype(start.dtype)

        return -jnp.mean(jax.vmap(one)(keys))

    slope = jax.grad(partial(loss, batch=batches[0], keys=keys[0]))
    zero = jnp.zeros_like(start)
    # Reverse mode twice, since functions with derivatives of their own often have no forward mode.
    curvature = lambda v: jax.grad(lambda step: jnp.vdot(slope(step), v))(zero)  # noqa: E731
    downhill = -slope(zero)
    direction = conjugate_gradients(curvature, downhill, iterations)
    # If not even the first direction is curved upwards, the gradient itself is tried.
    direction = jnp.where(jnp.any(direction != 0), direction, downhill)
    lengths = jnp.asarray(STEPS, start.dtype)
    losses = lax.map(lambda t: loss(t * direction, batches[1], keys[1]), lengths)
    best = lengths[jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses))]

    def gain(key):
        lengths = jnp.stack([jnp.zeros_like(best), best])
        both = lax.map(lambda t: terms(start + unit * t * direction, batches[1], key), lengths)
        return jax.tree.map(lambda value: value[1] - value[0], both)

    return lax.map(gain, keys[2])


def _whole(point: Any, vector: Any) -> Any:
    """A mean field that computes with all weights as one vector: a fifth of the program for five leaves."""
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(point)}
    if not isinstance(point, MeanField) or len(dtypes) > 1:
        return None
    mean, rho = jnp.split(vector, 2)
    return _Whole(mean, softplus(rho), ravel_pytree(point.mean)[1])


class _Whole(NamedTuple):
    """Independent Gaussians, whose draws and moments are taken apart into leaves at the end."""

    mean: Array
    sigma: Array
    leaves: Callable[[Array], Any]

    def draw(self, key: Any) -> Any:
        return self.leaves(self.mean + self.sigma * random.noise_like(key, self.mean))

    def moments(self) -> tuple[Any, Any]:
        return self.leaves(self.mean), self.leaves(self.sigma**2)

    def entropy(self) -> Array:
        return jnp.sum(jnp.log(self.sigma)) + 0.5 * len(self.sigma) * math.log(2 * math.pi * math.e)


def _units(point: Any) -> Any:
    """A unit for each coordinate, so that curvatures are similar: standard deviations for the means."""
    ones = jax.tree.map(jnp.ones_like, point)
    if isinstance(point, MeanField):
        return MeanField(point.sigma, ones.rho)
    return ones
