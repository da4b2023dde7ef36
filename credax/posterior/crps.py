r"""The continuous ranked probability score: the distance of a predicted distribution from the observation.

.. math::
    \int \bigl( F(t) - 1[y \le t] \bigr)^2 \,\mathrm{d}t = E|Y - y| - \tfrac12 E|Y - Y'|,
    \qquad F(t) = \sum_s \omega_s F_s(t)

(Gneiting & Raftery, 2007.) It has a closed form for a normal distribution and for mixtures of normal
distributions, used up to ``PAIRS`` components. For counts it is a sum over whole numbers. In all other cases it
is computed by Gauss-Legendre quadrature over panels that are short wherever components lie, however narrow and
far apart the components are.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from scipy import special

from credax.core.programs import jit
from credax.core.special import half_line, normal_log_density
from credax.core.typing import Array
from credax.model.likelihoods import Gaussian, Heteroscedastic, Likelihood, MultivariateGaussian

PAIRS = 512
"""The most components for which the closed form, a sum over all pairs, is used."""
POINTS = 10
"""The number of points by which each component contributes to the choice of the panels."""
PANELS = (64, 256)
"""The least and the most panels of the integral. Fewer components need more panels: each may be so narrow that
the distribution function is nearly a step function."""
COUNTS = 512
"""The most terms of the sum over whole numbers, on each side of a count."""

_NORMAL_NOISE = (Gaussian, Heteroscedastic, MultivariateGaussian)
# Evenly spaced, since panels are needed wherever F changes, however little it changes there.
_STANDARD = np.linspace(-4.5, 4.5, POINTS)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def normal(y: Any, mean: Any, sd: Any) -> np.ndarray:
    """The score of a normal prediction with the given mean and standard deviation."""
    z = (np.asarray(y, np.float64) - mean) / sd
    density = np.exp(normal_log_density(z))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return sd * (z * (2 * special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def mixture(likelihood: Likelihood, components: Any, log_weights: Any, y: Any) -> Array:
    """The score of a mixture for each target.

    Args:
      likelihood: the likelihood of each component.
      components: the outputs, ``(samples, rows, outputs)``, and the likelihood's parameters of every component.
      log_weights: the normalised log weights of the components.
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
    """The mean and the standard deviation of each component; 0 and 1 for components of weight zero.

    Components of weight zero may be infinite.
    """
    found = jax.vmap(lambda c: (likelihood.mean(*c), jnp.sqrt(likelihood.variance(*c))))(components)
    weighs = weights[:, None, None] > 0
    return jnp.where(weighs, found[0], 0), jnp.where(weighs, found[1], 1)


def _cdf(likelihood: Likelihood, components: Any, weights: Array, t: Array) -> Array:
    """F at the points ``t``, which have leading axes before the shape of the targets."""

    def one(t):
        each = jax.vmap(lambda c: likelihood.cdf(c[0], t, c[1]))(components)
        return jnp.sum(jnp.where(weights[:, None, None] > 0, weights[:, None, None] * each, 0), 0)

    return lax.map(one, t)


@jit(static_argnames=("likelihood",))
def _normals(likelihood, components, weights, y):
    r"""The closed form for a mixture of normal distributions (Grimit et al., 2006).

    It is a sum over pairs of :math:`E|N(m, s^2)| = m\,(2\Phi(m/s) - 1) + 2 s\,\phi(m/s)`.
    """
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


@jit(static_argnames=("likelihood",))
def _panels(likelihood, components, weights, y):
    """The score by quadrature, for mixtures of any continuous distributions."""
    mean, sd = _moments(likelihood, components, weights)
    edges = jnp.sort(jnp.concatenate([*_edges(mean, sd, weights), y[None]]), axis=0)
    nodes, gauss = (
        jnp.asarray(a, y.dtype)[:, None, None, None] / 2 for a in (_NODES + 1, _WEIGHTS)
    )
    width = jnp.diff(edges, axis=0)
    t = edges[:-1] + nodes * width
    below = _cdf(likelihood, components, weights, t.reshape(-1, *y.shape)).reshape(t.shape)
    inside = jnp.sum(gauss * width * jnp.where(t < y, below, 1 - below) ** 2, axis=(0, 1))
    # Only the tails of the components lie beyond the outer edges; they may be heavy.
    reach, far = (jnp.asarray(a, y.dtype)[:, None, None] for a in half_line())
    scale = jnp.max(sd, axis=0)
    left = _cdf(likelihood, components, weights, edges[0] - reach * scale)
    right = 1 - _cdf(likelihood, components, weights, edges[-1] + reach * scale)
    return inside + scale * jnp.sum(far * (left**2 + right**2), axis=0)


def _edges(mean: Array, sd: Array, weights: Array) -> tuple[Array, ...]:
    """The edges of the panels, and two outer edges between which nearly all of the distribution lies.

    Between two neighbouring edges lies an equal share of the components' points, counted by weight.
    """
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


@jit(static_argnames=("likelihood",))
def _reach(likelihood, components, weights, y):
    """The most counts of noticeable probability on one side of a target."""
    lowest, highest = _ends(likelihood, components, weights)
    nearest = jnp.clip(y, lowest, highest)
    return jnp.maximum(jnp.max(nearest - lowest), jnp.max(highest - nearest))


def _ends(likelihood: Likelihood, components: Any, weights: Array) -> tuple[Array, Array]:
    """The lowest and the highest count of noticeable probability."""
    mean, sd = _moments(likelihood, components, weights)
    weighs = weights[:, None, None] > 0
    lowest = jnp.min(jnp.where(weighs, mean - 8 * sd, jnp.inf), axis=0)
    highest = jnp.max(jnp.where(weighs, mean + 8 * sd + 8, 0), axis=0)
    return jnp.maximum(jnp.floor(lowest), 0), jnp.ceil(highest)


@jit(static_argnames=("likelihood", "steps"))
def _count(likelihood, components, weights, y, steps):
    """The score as a sum over counts.

    The sum has at most ``steps`` terms on each side. If there are more counts, each term stands for a block of
    an odd number of counts and is evaluated at the middle of the block.
    """
    lowest, highest = _ends(likelihood, components, weights)
    nearest = jnp.clip(y, lowest, highest)  # between this and the target, F is 0 or 1
    k = jnp.arange(steps, dtype=y.dtype)[:, None, None]

    def total(reach, side):
        half = jnp.ceil((reach / steps - 1) / 2)
        block = 2 * half + 1
        t = nearest + side * (block * k + half) - float(side < 0)
        below = _cdf(likelihood, components, weights, t)
        return jnp.sum(block * (1 - below if side > 0 else below) ** 2, axis=0)

    return jnp.abs(y - nearest) + total(nearest - lowest, -1) + total(highest - nearest, 1)
