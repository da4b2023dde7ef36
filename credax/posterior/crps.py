r"""The continuous ranked probability score: how far a predicted distribution is from what happened.

.. math::
    \int \bigl( F(t) - 1[y \le t] \bigr)^2 \,\mathrm{d}t = E|Y - y| - \tfrac12 E|Y - Y'|,
    \qquad F(t) = \sum_s \omega_s F_s(t)

(Gneiting & Raftery, 2007.) In closed form for a normal distribution and for mixtures of a few normal ones; a
sum over whole numbers for counts; else Gauss-Legendre sums over parts that are short where components are,
however narrow and far apart they may be.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from scipy import special

from credax.core.special import half_line, normal_log_density
from credax.core.typing import Array
from credax.model.likelihoods import Gaussian, Heteroscedastic, Likelihood, MultivariateGaussian

PAIRS = 512
"""The most components of which all pairs are looked at."""
POINTS = 10
"""Points that stand for a component where the integral is cut into parts."""
PANELS = (64, 256)
"""Of how many parts the integral is made, at least and at most: more where there are few components, each of
which may be as narrow as a step."""
COUNTS = 512
"""The most whole numbers that are summed on either side of a count."""

_NORMAL_NOISE = (Gaussian, Heteroscedastic, MultivariateGaussian)
_STANDARD = np.linspace(
    -4.5, 4.5, POINTS
)  # evenly, since what matters is where F changes, not how much
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def normal(y: Any, mean: Any, sd: Any) -> np.ndarray:
    """The score of a normal prediction."""
    z = (np.asarray(y, np.float64) - mean) / sd
    density = np.exp(normal_log_density(z))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return sd * (z * (2 * special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def mixture(likelihood: Likelihood, components: Any, log_weights: Any, y: Any) -> Array:
    """The score of a mixture for each target.

    Args:
      likelihood: of a component.
      components: outputs ``(samples, rows, outputs)`` and learned parameters of every component.
      log_weights: of the components, normalised.
      y: the targets, ``(rows, targets)``.
    """
    dtype = components[0].dtype
    weights = jnp.exp(jnp.asarray(log_weights)).astype(dtype)
    y = jnp.asarray(y, dtype)
    if likelihood.task == "count":
        reach = int(_reach(likelihood, components, weights, y))
        steps = min(COUNTS, 1 << max(reach - 1, 0).bit_length())
        return _count(likelihood, components, weights, y, steps)
    if len(weights) <= PAIRS and isinstance(likelihood, _NORMAL_NOISE):
        return _normals(likelihood, components, weights, y)
    return _panels(likelihood, components, weights, y)


def _moments(likelihood: Likelihood, components: Any, weights: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of every component that weighs; the others may be infinite."""
    found = jax.vmap(lambda c: (likelihood.mean(*c), jnp.sqrt(likelihood.variance(*c))))(components)
    weighs = weights[:, None, None] > 0
    return jnp.where(weighs, found[0], 0), jnp.where(weighs, found[1], 1)


def _cdf(likelihood: Likelihood, components: Any, weights: Array, t: Array) -> Array:
    """F at points stacked in front of the shape of the targets."""

    def one(t):
        each = jax.vmap(lambda c: likelihood.cdf(c[0], t, c[1]))(components)
        return jnp.sum(jnp.where(weights[:, None, None] > 0, weights[:, None, None] * each, 0), 0)

    return lax.map(one, t)


@partial(jax.jit, static_argnames=("likelihood",))
def _normals(likelihood, components, weights, y):
    r"""By pairs (Grimit et al., 2006), with :math:`E|N(m, s^2)| = m\,(2\Phi(m/s) - 1) + 2 s\,\phi(m/s)`."""
    mean, sd = _moments(likelihood, components, weights)
    columns = lambda a: jnp.moveaxis(a, 0, -1).reshape(-1, a.shape[0])  # noqa: E731

    def distance(m, s):
        z = m / s
        return m * (2 * ndtr(z) - 1) + 2 * s * jnp.exp(normal_log_density(z))

    def one(target):
        m, s, y = target
        between = distance(m[:, None] - m, jnp.sqrt(s[:, None] ** 2 + s**2))
        return weights @ distance(y - m, s) - 0.5 * weights @ (between @ weights)

    return lax.map(one, (columns(mean), columns(sd), y.reshape(-1))).reshape(y.shape)


@partial(jax.jit, static_argnames=("likelihood",))
def _panels(likelihood, components, weights, y):
    mean, sd = _moments(likelihood, components, weights)
    edges = jnp.sort(jnp.concatenate([*_edges(mean, sd, weights), y[None]]), axis=0)
    nodes, gauss = (
        jnp.asarray(a, y.dtype)[:, None, None, None] / 2 for a in (_NODES + 1, _WEIGHTS)
    )
    width = jnp.diff(edges, axis=0)
    t = edges[:-1] + nodes * width
    below = _cdf(likelihood, components, weights, t.reshape(-1, *y.shape)).reshape(t.shape)
    inside = jnp.sum(gauss * width * jnp.where(t < y, below, 1 - below) ** 2, axis=(0, 1))
    # Beyond the last edge nothing is left but tails, as heavy as they like.
    reach, far = (jnp.asarray(a, y.dtype)[:, None, None] for a in half_line())
    scale = jnp.max(sd, axis=0)
    left = _cdf(likelihood, components, weights, edges[0] - reach * scale)
    right = 1 - _cdf(likelihood, components, weights, edges[-1] + reach * scale)
    return inside + scale * jnp.sum(far * (left**2 + right**2), axis=0)


def _edges(mean: Array, sd: Array, weights: Array) -> tuple[Array, ...]:
    """Where the integral is cut: equally many points of components lie between two cuts; and all lie inside."""
    standard = jnp.asarray(_STANDARD, mean.dtype)[:, None, None, None]
    points = (mean + standard * sd).reshape(-1, *mean.shape[1:])
    order = jnp.argsort(points, axis=0)
    total = jnp.cumsum(jnp.tile(weights / POINTS, POINTS)[order], axis=0)
    points = jnp.take_along_axis(points, order, axis=0)

    def quantile(level):
        at = jnp.minimum(jnp.sum(total < level, axis=0), len(points) - 1)
        return jnp.take_along_axis(points, at[None], axis=0)[0]

    panels = int(np.clip((1 << 15) // len(weights), *PANELS))
    levels = jnp.asarray((np.arange(panels) + 0.5) / panels, mean.dtype)
    weighs = weights[:, None, None] > 0
    first = jnp.min(jnp.where(weighs, mean - 8 * sd, jnp.inf), axis=0, keepdims=True)
    last = jnp.max(jnp.where(weighs, mean + 8 * sd, -jnp.inf), axis=0, keepdims=True)
    return lax.map(quantile, levels), first, last


@partial(jax.jit, static_argnames=("likelihood",))
def _reach(likelihood, components, weights, y):
    """The most whole numbers on either side of a count that its distribution may still give."""
    lowest, highest = _ends(likelihood, components, weights)
    nearest = jnp.clip(y, lowest, highest)
    return jnp.maximum(jnp.max(nearest - lowest), jnp.max(highest - nearest))


def _ends(likelihood: Likelihood, components: Any, weights: Array) -> tuple[Array, Array]:
    """Counts below and above which there is as good as nothing."""
    mean, sd = _moments(likelihood, components, weights)
    weighs = weights[:, None, None] > 0
    lowest = jnp.min(jnp.where(weighs, mean - 8 * sd, jnp.inf), axis=0)
    highest = jnp.max(jnp.where(weighs, mean + 8 * sd + 8, 0), axis=0)
    return jnp.maximum(jnp.floor(lowest), 0), jnp.ceil(highest)


@partial(jax.jit, static_argnames=("likelihood", "steps"))
def _count(likelihood, components, weights, y, steps):
    """Sums over blocks of an odd number of counts, one where they are few, each judged at its middle."""
    lowest, highest = _ends(likelihood, components, weights)
    nearest = jnp.clip(y, lowest, highest)  # between it and the count, F is 0 or 1
    k = jnp.arange(steps, dtype=y.dtype)[:, None, None]

    def total(reach, side):
        half = jnp.ceil((reach / steps - 1) / 2)
        block = 2 * half + 1
        t = nearest + side * (block * k + half) - float(side < 0)
        below = _cdf(likelihood, components, weights, t)
        return jnp.sum(block * (1 - below if side > 0 else below) ** 2, axis=0)

    return jnp.abs(y - nearest) + total(nearest - lowest, -1) + total(highest - nearest, 1)
