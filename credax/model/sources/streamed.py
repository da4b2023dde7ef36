"""A source bound to a model: its rows as the network gets them, checked as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from credax.core.errors import SourceError
from credax.model.data import ArrayData
from credax.model.sources.generated import Generated
from credax.model.sources.source import Rows, Source
from credax.model.sources.window import Asking, EachRowOnce, Elsewhere, Sample

BLOCK = 8192
"""The number of rows that are read at once in a sum over all rows."""


class SourceData(EachRowOnce):
    """A source as the data of a fit. It has the shape of ``ArrayData``, but not its rows.

    Attributes:
      model: the model, bound to the rows.
      source: the source.
      sample: a random sample of the rows, as the network gets them.
      numbers: the numbers of the rows of the sample.
    """

    def __init__(self, model: Any, source: Source, sample: Sample, numbers: np.ndarray):
        self.model, self.source, self.sample, self.numbers = model, source, sample, numbers

    @property
    def rows(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """N, the number of rows."""
        return self.source.rows

    @property
    def x(self) -> Any:
        """The shape and the dtype of all inputs."""
        return Elsewhere((self.rows, *self.sample.x.shape[1:]), self.sample.x.dtype)

    @property
    def y(self) -> Any:
        """The shape and the dtype of all targets."""
        return Elsewhere((self.rows, *self.sample.y.shape[1:]), self.sample.y.dtype)

    def asking(self) -> Asking:
        """Stands for the data where a method says which rows it will ask for."""
        return Asking(self.rows, self.x, self.y)

    def batches(
        self, words: np.ndarray, steps: np.ndarray, size: int, part: slice = slice(None)
    ) -> tuple[Any, Any]:
        """The inputs and targets of several steps, ``(batches, size, ...)``; of each batch, only ``part``."""
        x, y = as_arrays(self.model, self.source.batches(words, steps, size, part))
        stack = lambda a: a.reshape(len(steps), -1, *a.shape[1:])  # noqa: E731
        return stack(x), stack(y)

    def chunks(self, count: int | None = None) -> Iterator[ArrayData]:
        """All rows in order, or ``count`` random ones, a block at a time."""
        if isinstance(self.source, Generated):
            found = self.source.draw(self.rows if count is None else count, BLOCK)
        elif count is None or count >= self.rows:
            found = self.source.blocks(BLOCK)
        else:
            chosen = self.source.some(count)
            found = (
                self.source.read(chosen[begin : begin + BLOCK]) for begin in range(0, count, BLOCK)
            )
        for rows in found:
            yield ArrayData(*map(jnp.asarray, as_arrays(self.model, rows)))


def as_arrays(model: Any, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The rows as the network and the likelihood get them; a bad one is named by its place."""
    if rows.y is None:
        raise SourceError("This source has no targets, which a fit needs.")
    check_rows_of(rows)
    try:
        x = model.network_inputs(rows.x)
        return x, model.likelihood_targets(rows.y, len(x))
    except (TypeError, ValueError) as error:
        raise SourceError(f"{error} It is among the rows from {rows.place(0)}.") from error


def check_rows_of(rows: Rows) -> None:
    """Refuse numbers that are not finite, with the place of the first."""
    for name, part in (("x", rows.x), ("y", rows.y)):
        if part is None or part.dtype.kind != "f" or np.isfinite(np.sum(part, dtype=np.float64)):
            continue
        bad = ~np.isfinite(part)
        if bad.any():
            at: Any = tuple(int(i) for i in np.argwhere(bad)[0])
            column = f", column {at[1]}" if len(at) > 1 else ""
            raise SourceError(
                f"{name} must hold finite numbers; got {part[at]} at {rows.place(at[0])}{column}."
            )


def in_memory(data: Any) -> Any:
    """The rows of a data set that are in memory: all rows of arrays, and a random sample of a source."""
    return getattr(data, "sample", data)
