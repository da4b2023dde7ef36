r"""The directions in which a posterior is narrowest, from gradients, and a mass matrix that is heavy in them.

A diagonal mass matrix cannot make the posterior of a network equally wide in all directions: what the data fix
are combinations of the weights. On an 8-50-1 network, the largest eigenvalue of the Hessian in units of the
diagonal was several times the next ones, and it alone limits the step size.

By the identity :math:`E[g g^\top] = -E[\nabla^2 \log p(w, D)]`, the covariance of the gradients g is the mean
curvature of the posterior. In units in which the diagonal inverse mass matrix :math:`S^2` is the identity, its
eigenvectors u with the largest eigenvalues :math:`\lambda` are the narrow directions, and the inverse mass
matrix

.. math:: M^{-1} = S \Bigl( I + \sum_j (\lambda_0 / \lambda_j - 1)\, u_j u_j^\top \Bigr) S

makes the posterior as wide there as along the others, whose eigenvalues are at most :math:`\lambda_0`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from credax.core import random
from credax.core.trees import Flat
from credax.core.typing import Array
from credax.inference.montecarlo import kernels

RANK = 32
"""The most directions. Each costs as much time per leapfrog step as two additions of vectors of all weights."""
ROWS = 128
"""The number of gradients of a window from which the directions are computed."""
LARGEST = 100_000
"""The most weights for which there are such directions; each chain carries ``RANK + ROWS`` vectors for them."""
LEAST = 2.0
"""The least eigenvalue of a direction, as a multiple of what it is reduced to. The estimates of smaller ones
err as much as they differ."""


class Stiff(NamedTuple):
    """Orthonormal directions, and the inverse mass along them as a multiple of that of the diagonal."""

    directions: Array  # (rank, weights); zeros where there are fewer
    factors: Array  # (rank,)


def none(position: Array, rank: int) -> Stiff:
    """No directions yet, but room for some."""
    zeros = jnp.zeros((rank, position.size), position.dtype)
    return Stiff(zeros, jnp.ones(rank, position.dtype))


def stiff(gradients: Array, mean: Array, root: Array, rank: int) -> Stiff:
    r"""The directions in which gradients vary most, made as wide as the next ones.

    Where the diagonal is right, all eigenvalues are 1; but those of the covariance of n gradients of d weights
    are then up to :math:`(1 + \sqrt{d / n})^2` (Marchenko & Pastur, 1967). So the eigenvalues are reduced to
    this limit or, if it is larger, to the first one that is left out, which then limits the step size.

    Args:
      gradients: one in each row; rows of NaN are left out.
      mean: the mean gradient.
      root: the square root of the diagonal inverse mass matrix.
      rank: the most directions.
    """
    seen = jnp.isfinite(gradients).all(1, keepdims=True)
    count = jnp.maximum(jnp.sum(seen), 1).astype(root.dtype)
    scaled = jnp.where(seen, (gradients - mean) * root, 0) / jnp.sqrt(count)
    values, vectors = jnp.linalg.eigh(_times(scaled, scaled.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    level = jnp.maximum(values[rank], (1 + jnp.sqrt(root.size / count)) ** 2)
    values, vectors = values[:rank], vectors[:, :rank]
    found = values > LEAST * level
    directions = _times((vectors * lax.rsqrt(values)).T, scaled)
    return Stiff(jnp.where(found[:, None], directions, 0), jnp.where(found, level / values, 1))


def metric(root: Array, stiff: Stiff) -> Any:
    """BlackJAX's metric of the inverse mass matrix.

    Args:
      root: the square root of the diagonal inverse mass matrix.
      stiff: the directions.
    """
    directions, factors = stiff

    def sample(key, position):
        noise = random.normal(key, position.vector.shape, position.vector.dtype)
        along = (lax.rsqrt(factors) - 1) * _times(directions, noise)
        momentum = (noise + _times(along, directions)) / root
        return Flat(momentum, position.structure, position.leaves)

    def kinetic(momentum, position=None):
        # Written as squares, whose gradient takes two products with the directions instead of four.
        scaled = root * momentum.vector
        along = _times(directions, scaled)
        return 0.5 * (jnp.sum(scaled**2) + jnp.sum((factors - 1) * along**2))

    whole = kernels.metrics.gaussian_euclidean_low_rank(root, directions.T, factors)
    return whole._replace(sample_momentum=sample, kinetic_energy=kinetic)


def _times(a, b):
    # The energy of a trajectory must be conserved to all digits, also on accelerators.
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def rank_of(size: int) -> int:
    """The most directions for a number of weights; none beyond ``LARGEST``."""
    return min(RANK, size) if size <= LARGEST else 0
