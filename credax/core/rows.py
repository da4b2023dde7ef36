"""Rows that consist of several arrays, and what code needs to treat them like rows of one array.

The inputs of a model may be a tree of arrays (token numbers and a mask), and so may its targets (several heads,
or targets with a weight for each position). All arrays have the same number of rows. :class:`RowTree` and
:class:`Observed` are taken apart into rows as one array is: ``x[begin:end]``, ``x[numbers]``, ``len(x)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.reprs import short
from credax.core.typing import Array


class _Together:
    """Arrays of one number of rows, indexed together; a subclass is a pytree of them."""

    def __len__(self) -> int:
        return jax.tree.leaves(self)[0].shape[0]

    def __getitem__(self, rows: Any) -> Self:
        return jax.tree.map(lambda leaf: leaf[rows], self)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))


@partial(jax.tree_util.register_dataclass, data_fields=["tree"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class RowTree(_Together):
    """A tree of arrays with the same number of rows, such as ``{"tokens": ..., "mask": ...}``.

    Attributes:
      tree: dictionaries, tuples and lists of arrays ``(rows, ...)``.
    """

    tree: Any

    def __repr__(self) -> str:
        return f"RowTree({jax.tree.map(_Shown, self.tree)})"


@partial(jax.tree_util.register_dataclass, data_fields=["values", "weights"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Observed(_Together):
    """The targets at the positions of each row, and how much each position counts.

    Attributes:
      values: the targets, ``(rows, positions)`` or ``(rows, positions, targets)``; all positions are along one
        axis.
      weights: the weight of each position, ``(rows, positions)``; ``None`` if every position counts once.
    """

    values: Array
    weights: Array | None = None

    @property
    def flat(self) -> Array:
        """The targets with each position as a row."""
        rows, positions, *rest = self.values.shape
        return self.values.reshape(rows * positions, *rest)

    @property
    def counts(self) -> Array:
        """The sum of the weights of each row's positions, ``(rows,)``."""
        if self.weights is not None:
            return jnp.sum(self.weights, axis=1)
        rows, positions = self.values.shape[:2]
        return jnp.full(rows, positions, jnp.result_type(float))

    def __repr__(self) -> str:
        return f"Observed(values={short(self.values)}, weights={short(self.weights)})"


class _Shown:
    """An array in a ``repr``, as its dtype and shape."""

    def __init__(self, array: Any):
        self._text = short(array)

    def __repr__(self) -> str:
        return self._text


def observations(y: Any) -> Array | None:
    """How many observations each row of the targets stands for, ``(rows,)``; ``None`` if each row is one.

    A row with positions has as many as its positions weigh. With several heads it is their mean over the heads.
    """
    if isinstance(y, Observed):
        return y.counts
    if not isinstance(y, RowTree):
        return None
    heads = jax.tree.leaves(y.tree, is_leaf=lambda part: isinstance(part, Observed))
    one = jnp.ones(len(y), jnp.result_type(float))
    each = [one if (found := observations(part)) is None else found for part in heads]
    return sum(each) / len(each)


def some_rows(x: Any, count: int) -> Any:
    """The shapes and dtypes of ``count`` rows like those of an array or a :class:`RowTree`."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype), x)


def on_host(x: Any) -> Any:
    """An array or a :class:`RowTree` with NumPy arrays."""
    return jax.tree.map(np.asarray, x)


def filled_up(x: Any, count: int) -> Any:
    """The rows, on the host, with the last one repeated until there are ``count``."""
    missing = count - len(x)
    if not missing:
        return x
    return jax.tree.map(lambda a: np.concatenate([a, np.repeat(a[-1:], missing, axis=0)]), x)
