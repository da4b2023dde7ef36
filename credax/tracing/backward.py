"""Derivatives of the outputs of single rows: the inputs of each product and the derivatives at its result."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from credax.core.memory import bytes_of
from credax.core.precision import widened
from credax.core.rows import some_rows
from credax.core.typing import Array
from credax.tracing.products import Rows

BLOCK_BYTES = 1 << 27
"""The memory that the derivatives evaluated at once may take."""
SAVED_BYTES = 1 << 30
"""The memory that a pass through the network may take for what it saves for the pass backwards."""


class Backward(NamedTuple):
    """The derivatives of one row, in several directions of its outputs (columns).

    Attributes:
      inputs: the inputs of each tapped product, ``(places, inputs)``.
      results: the derivatives with respect to its result, ``(columns, places, outputs)``.
      leaves: the derivatives with respect to each other requested leaf, ``(columns, *shape)``.
    """

    inputs: dict[int, Array]
    results: dict[int, Array]
    leaves: dict[int, Array]


def backward(rows: Rows, tapped, wanted, leaves, state, row, *roots) -> tuple[Any, ...]:
    """The outputs of one row, and for each root the derivatives of ``root(outputs) @ outputs``.

    The root itself is held constant in these derivatives.

    Args:
      rows: the network.
      tapped: indices of the leaves for which the derivatives are returned as inputs and results of the product.
      wanted: indices of the leaves for which the derivatives are returned directly.
      leaves: all leaves of the parameters.
      state: the state of the network.
      row: one row.
      *roots: functions from the outputs to ``(columns, outputs)``, or to a single column ``(outputs,)``.
    """

    def outputs(taps, chosen):
        merged = [chosen.get(i, leaf) for i, leaf in enumerate(leaves)]
        return rows.outputs(merged, state, row, taps)

    taps = {i: jnp.zeros(rows.products[i].shape, leaves[i].dtype) for i in tapped}
    found, pull, inputs = jax.vjp(outputs, taps, {i: leaves[i] for i in wanted}, has_aux=True)

    def of(root):
        columns = root(widened(found)).astype(found.dtype)
        each = jax.vmap if columns.ndim == 2 else lambda function: function
        results, derivatives = each(pull)(columns)
        results = {i: each(rows.products[i].result)(results[i]) for i in tapped}
        return jax.tree.map(widened, Backward(inputs, results, derivatives))

    return widened(found), *map(of, roots)


def row_bytes(rows: Rows, tapped, wanted, leaves, columns: int, *, outer: bool) -> int:
    """The memory in bytes that the derivatives of one row take.

    Args:
      rows: the network.
      tapped: indices of the leaves for which the derivatives are returned as inputs and results of the product.
      wanted: indices of the leaves for which the derivatives are returned directly.
      leaves: all leaves of the parameters.
      columns: the number of derivatives per row.
      outer: whether the outer products are formed for products at several places.
    """
    floats = sum(columns * leaves[i].size for i in wanted)
    for i in tapped:
        product = rows.products[i]
        inputs = leaves[i].size // (math.prod(product.shape) // product.places)
        floats += columns * math.prod(product.shape) + product.places * inputs
        floats += columns * leaves[i].size if outer and product.places > 1 else 0
    return max(1, 2 * floats * leaves[0].dtype.itemsize)


def rows_at_once(model: Any, network: Any, state: Any, x: Any, most: int) -> int:
    """How many rows may go through the network at once, given what a pass saves for the pass backwards.

    Args:
      model: the model.
      network: the parameters of the network.
      state: the state of the network.
      x: the inputs of all rows.
      most: the largest number, in any case.
    """

    def saved(count: int) -> int:
        def pull(network, state, rows):
            return jax.vjp(lambda network: model.network.apply(network, rows, state), network)[1]

        return bytes_of(jax.eval_shape(pull, network, state, some_rows(x, count)))

    return max(1, min(most, len(x), SAVED_BYTES // max(1, saved(2) - saved(1))))
