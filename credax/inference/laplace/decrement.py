r"""How far a point is from the mode, judged by the whole Gauss-Newton matrix instead of an approximation of it.

The squared distance in posterior standard deviations is the Newton decrement :math:`g^\top P^{-1} g`, with the
gradient g of the log joint density and its precision P. A diagonal or Kronecker-factored P leaves out
correlations between weights, and understates the distance along flat directions. For any direction d,

.. math:: \frac{(g^\top d)^2}{d^\top P\, d} \le g^\top P^{-1} g,

with equality for :math:`d = P^{-1} g`, which conjugate gradients find with products of P and vectors alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.typing import Array, Params
from credax.inference.laplace.curvature import output_root
from credax.model import Model
from credax.model.data import roots
from credax.tracing.backward import rows_at_once
from credax.tracing.convolutions import rearranged

ROWS = 4096
"""The largest number of rows from which the direction is computed, and of a block in a sum over rows."""
ITERATIONS = 100
"""The largest number of steps of conjugate gradients."""
TOLERANCE = 1e-5
"""The relative residual at which conjugate gradients end."""


@jit(static_argnames=("model",))
def newton_decrement(model: Model, params: Params, state: Any, data: Any, scales: Any) -> Array:
    """A lower bound of the Newton decrement, which is close to it after enough steps of conjugate gradients.

    Args:
      model: the model.
      params: the parameters of the network and of the likelihood, which is held fixed.
      state: the state of the network.
      data: all rows.
      scales: for each leaf of the network, the prior's standard deviations.
    """
    network, learned = model.split(params)
    mode, unravel = ravel_pytree(network)
    leaves = jax.tree.leaves(network)
    each = zip(scales, leaves, strict=True)
    scale = jnp.concatenate([jnp.broadcast_to(s, leaf.shape).reshape(-1) for s, leaf in each])

    size = rows_at_once(model, network, state, data.x, ROWS)

    def log_joint(vector):
        inner = unravel(vector)
        whole = inner if learned is None else {**params, "network": inner}
        log_likelihood = model.full_log_likelihood(whole, data, state, size)
        return model.log_prior(whole) + log_likelihood

    def columns_of(x, y, weights):
        """S J' R of some rows as a function of a vector, where R R' is the curvature in the outputs."""
        outputs, pull = jax.vjp(lambda w: model.network.apply(unravel(w), x, state), mode)
        root = partial(output_root, model.likelihood, "ggn", learned=learned)
        found = jax.vmap(root)(widened(outputs), y)
        if weights is not None:
            found = found * roots(weights, found)

        def backward(z):
            output = jnp.einsum("rcf,rc->rf", found, z).astype(outputs.dtype)
            return scale * widened(pull(output)[0])

        return backward, jax.ShapeDtypeStruct(found.shape[:2], found.dtype)

    def forward(rows, u):
        # The transpose of a backward pass, which networks with a derivative of their own have too.
        return jax.linear_transpose(*columns_of(*rows))(u)[0]

    with jax.default_matmul_precision("highest"):
        gradient = scale * widened(jax.grad(log_joint)(mode))
        chosen = jnp.linspace(0, data.rows - 1, min(data.rows, ROWS)).astype(jnp.int32)
        some = jax.tree.map(lambda a: a[chosen], (data.x, data.y, data.weights))
        factor = data.rows / len(chosen)

        def product(rows, u):
            return columns_of(*rows)[0](forward(rows, u))

        def precision(u):
            return u + factor * _sum(lambda rows: product(rows, u), some, size)

        direction, _ = cg(precision, gradient, tol=TOLERANCE, maxiter=ITERATIONS)
        square = lambda rows: jnp.sum(forward(rows, direction) ** 2)  # noqa: E731
        curved = jnp.sum(direction**2) + _sum(square, (data.x, data.y, data.weights), size)
        return (gradient @ direction) ** 2 / jnp.maximum(curved, jnp.finfo(curved.dtype).tiny)


def _sum(function: Any, rows: Any, size: int) -> Array:
    """The sum of a function of some rows over all rows, in blocks."""
    blocks, rest = divmod(len(rows[0]), size)
    cut = blocks * size
    if blocks == 1 and not rest:
        return function(rows)
    first = function(jax.tree.map(lambda a: a[cut:], rows)) if rest else None
    if not blocks:
        return first  # pyright: ignore[reportReturnType]  (there are rows, so there is a rest)

    def add(total, block):
        return total + function(block), None

    stacked = jax.tree.map(lambda a: a[:cut].reshape(blocks, size, *a.shape[1:]), rows)
    if first is None:
        shape = jax.eval_shape(function, jax.tree.map(lambda a: a[:size], rows))
        first = jnp.zeros(shape.shape, shape.dtype)
    return lax.scan(rearranged(add), first, stacked)[0]
