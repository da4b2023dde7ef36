r"""The largest eigenvalues of the Gauss-Newton matrix and their eigenvectors, from products with vectors alone.

In units of the prior's standard deviations S, the product of the curvature with a vector u is

.. math:: \tilde G u = S \sum_i J_i^\top H_i\, (J_i\, S u),

one pass forward and one backward through the network for each block of rows. No Jacobian is formed. A random
subspace that is multiplied by :math:`\tilde G` a few times turns towards the largest eigenvectors, which are
then found within it (Halko, Martinsson & Tropp, 2011). Memory: three matrices of the weights by
``rank + EXTRA`` columns, and what a block of rows needs in a backward pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.typing import Array, NetworkState, Params
from credax.inference.laplace.curvature import Sums, output_root
from credax.model import Model
from credax.model.data import roots as roots_of
from credax.tracing.backward import rows_at_once
from credax.tracing.convolutions import rearranged

EXTRA = 8
"""The number of columns beyond the rank, which make the last eigenvectors more accurate."""
ITERATIONS = 4
"""How often the subspace is multiplied by the matrix."""
ROWS = 256
"""The largest number of rows in a block; there are fewer if these take too much memory."""


class Largest(NamedTuple):
    """The largest eigenvalues of the curvature in units of the prior, and their eigenvectors."""

    values: Array  # (rank,), in descending order
    vectors: Array  # (weights, rank)


def columns(rank: int, weights: int) -> int:
    """The number of columns of the subspace."""
    return min(rank + EXTRA, weights)


@jit(static_argnames=("model", "curvature", "rank"))
def accumulate_low_rank(
    model: Model,
    curvature: str,
    rank: int,
    params: Params,
    state: NetworkState,
    data: Any,
    scale: Any,
) -> Sums:
    """The sums over all rows, with the largest eigenvectors of the curvature of all weights.

    Args:
      model: the model.
      curvature: ``"ggn"`` or ``"fisher"``.
      rank: the number of eigenvectors, at most the number of weights.
      params: the parameters of the network and of the likelihood.
      state: the state of the network.
      data: all rows.
      scale: S, one number for each weight of the network.
    """
    network, learned = model.split(params)
    leaves = jax.tree.leaves(network)
    mode, unravel = ravel_pytree(network)

    def log_likelihood(network):
        whole = network if learned is None else {**params, "network": network}
        return model.full_log_likelihood(whole, data, state, size)

    size = rows_at_once(model, network, state, data.x, ROWS)
    value, gradient = jax.value_and_grad(log_likelihood)(network)

    def multiply(basis: Array) -> Array:
        """The product of the matrix with each row of ``basis``."""

        def add(total, begin):
            # The last block starts early enough to have the full size; rows counted before get weight 0.
            start = jnp.minimum(begin, data.rows - size)
            take = partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
            x, y, weights = jax.tree.map(take, (data.x, data.y, data.weights))
            new = (start + jnp.arange(size) >= begin).astype(total.dtype)
            share = new if weights is None else new * roots_of(weights, new)
            outputs, pull = jax.vjp(lambda w: model.network.apply(unravel(w), x, state), mode)
            root = partial(output_root, model.likelihood, curvature, learned=learned)
            roots = share[:, None, None] * jax.vmap(root)(widened(outputs), y)

            def backward(z):
                output = jnp.einsum("rcf,rc->rf", roots, z).astype(outputs.dtype)
                return scale * widened(pull(output)[0])

            # The transpose of a backward pass, which networks with a derivative of their own have too.
            shape = jax.ShapeDtypeStruct(roots.shape[:2], roots.dtype)
            forward = jax.linear_transpose(backward, shape)
            return total + lax.map(lambda u: backward(forward(u)[0]), basis), None

        return lax.scan(rearranged(add), jnp.zeros_like(basis), jnp.arange(0, data.rows, size))[0]

    with jax.default_matmul_precision("highest"):
        # A fixed key: the subspace begins anywhere, and the result hardly depends on it.
        shape = columns(rank, mode.size), mode.size
        basis = jax.random.normal(jax.random.key(0), shape, scale.dtype)
        turn = lambda _, basis: jnp.linalg.qr(multiply(basis).T)[0].T  # noqa: E731
        basis = lax.fori_loop(0, ITERATIONS, turn, jnp.linalg.qr(basis.T)[0].T)
        inner = multiply(basis) @ basis.T
        values, vectors = jnp.linalg.eigh(0.5 * (inner + inner.T))
    largest = slice(None, -rank - 1, -1)
    found = Largest(jnp.maximum(values[largest], 0), basis.T @ vectors[:, largest])
    slopes = tuple(widened(leaf) for leaf in jax.tree.leaves(gradient))
    return Sums((None,) * len(leaves), found, slopes, value)
