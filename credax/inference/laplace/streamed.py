"""The curvature of the log likelihood on a source: the sums over its rows are added block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from credax.inference.laplace.curvature import Sums
from credax.model.sources.streamed import SourceData


def added(of_rows: Callable[[Any], Any], data: Any) -> Any:
    """A sum over all rows: ``of_rows(data)`` for arrays, the sum of ``of_rows(block)`` for a source."""
    if not isinstance(data, SourceData):
        return of_rows(data)
    total = None
    for block in data.chunks():
        part = _with_matrices(of_rows(block))
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    return total


def _with_matrices(part: Any) -> Any:
    """The sums of a block with all input factors as matrices, which can be added.

    A block of fewer rows than a product has inputs keeps the inputs themselves.
    """
    if not isinstance(part, Sums):
        return part

    def matrix(kept):
        if not isinstance(kept, tuple):
            return kept
        inputs, outputs = kept
        few = inputs.shape[0] != inputs.shape[1]
        return (inputs.T @ inputs if few else inputs), outputs

    with jax.default_matmul_precision("highest"):
        return part._replace(leaves=tuple(matrix(kept) for kept in part.leaves))
