"""Linear systems with a matrix that is known by its products only (Hestenes & Stiefel, 1952)."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from credax.core.typing import Array

TOLERANCE = 1e-10
"""The squared norm of the residual, relative to that of the target, at which the iteration ends."""


def conjugate_gradients(product: Callable[[Array], Array], target: Array, iterations: int) -> Array:
    """An approximate solution x of ``product(x) = target``.

    For a positive definite matrix A, each iteration raises ``target @ x`` towards its final value, the target's
    squared length in the metric of the inverse of A. The iteration ends at a direction whose curvature is not
    positive, with what was found before.
    """
    first = jnp.vdot(target, target)

    def go_on(carry):
        count, *_, square, positive = carry
        return (count < iterations) & (square > TOLERANCE * first) & positive

    def improve(carry):
        count, solution, residual, direction, square, _ = carry
        image = product(direction)
        curvature = jnp.vdot(direction, image)
        positive = curvature > 0
        length = jnp.where(positive, square / jnp.where(positive, curvature, 1), 0)
        solution, residual = solution + length * direction, residual - length * image
        after = jnp.vdot(residual, residual)
        return count + 1, solution, residual, residual + after / square * direction, after, positive

    start = (0, jnp.zeros_like(target), target, target, first, first > 0)
    return lax.while_loop(go_on, improve, start)[1]
