"""Rows of weight zero, so that fits to nearly as many rows share one compiled program.

A program is compiled for a number of rows. The folds of a cross-validation differ by one row, and each size
would be compiled for itself. Rows of weight zero add nothing to a sum over rows. So a run that depends on the
rows only through such sums is the same with them, up to rounding.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.rows import filled_up, on_host
from credax.inference.method import Method
from credax.model import Model
from credax.model.data import ArrayData

FEWEST = 32
"""The least distance of two sizes."""
PARTS = 8
"""The number of sizes between a power of two and the next; at most an eighth of the rows is added."""


def padded_size(rows: int) -> int:
    """The number of rows to which so many are filled up.

    >>> padded_size(333), padded_size(334), padded_size(1_000)
    (352, 352, 1024)
    """
    step = max(FEWEST, (1 << (rows.bit_length() - 1)) // PARTS)
    return -(-rows // step) * step


def padded(model: Any, method: Method, data: Any) -> Any:
    """The data with rows of weight zero, if these change nothing; otherwise the data as they are.

    The network must treat each row by itself, without noise, and the method must use sums over all rows only.
    """
    if not isinstance(model, Model) or not isinstance(data, ArrayData):
        return data
    if not ("pad rows" in method.can and model.network.row_by_row):
        return data
    more = padded_size(data.rows) - data.rows
    # In NumPy, where nothing is compiled for each number of rows.
    weights = np.ones(data.rows) if data.weights is None else np.asarray(data.weights)
    weights = np.concatenate([weights, np.zeros(more)]).astype(jnp.result_type(float))
    x, y = (filled_up(on_host(part), data.rows + more) for part in (data.x, data.y))
    return ArrayData.weighted(*jax.tree.map(jnp.asarray, (x, y, weights)))
