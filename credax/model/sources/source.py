"""The contract of a source: a number of rows, any of which can be read, and what identifies them."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.checks import must
from credax.core.errors import SourceError
from credax.model.data import rows_of_step


class Rows(NamedTuple):
    """Some rows of a source.

    Attributes:
      x: the inputs.
      y: the targets; ``None`` if the source has none.
      place: the place of a row for messages, such as its file, from its index among these rows.
    """

    x: np.ndarray
    y: np.ndarray | None
    place: Callable[[int], str]


class Source(abc.ABC):
    """Rows that are read when they are needed. ``cx.fit``, ``predict`` and ``evaluate`` take it as data.

    The rows of a batch depend only on the key of the run and the number of the step, exactly as for arrays. A
    run that was killed therefore continues with the same rows.

    Attributes:
      rows: the number of rows.
      x_names: the names of the columns of the inputs; ``None`` if they have none.
      y_names: the names of the columns of the targets; ``None`` if they have none.
      quick: whether all rows can be read in a time that is short compared to that of a fit.
      countable: whether the rows have numbers, so that each can be read once.
    """

    rows: int
    x_names: tuple[str, ...] | None = None
    y_names: tuple[str, ...] | None = None
    quick: bool = True
    countable: bool = True

    @abc.abstractmethod
    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The inputs and the targets of the rows with these numbers, which increase."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes if the rows do. A run is only continued with the same one."""

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"row {row}"

    def check_unchanged(self) -> None:
        """Raise a ``SourceError`` if the source has changed since it was made, as far as this can be seen."""
        return

    def read(self, numbers: Any) -> Rows:
        """The rows with these numbers, in any order and any number of times."""
        numbers = np.asarray(numbers, np.int64)
        self.check_unchanged()
        wanted, order = np.unique(numbers, return_inverse=True)
        x, y = self.take(wanted)
        for name, part in (("x", x), ("y", y)):
            if part is not None and len(part) != len(wanted):
                raise SourceError(
                    f"{self!r} ended early: {len(wanted)} rows were asked for, and {len(part)} rows of {name} "
                    "came."
                )
        # Blocks of all rows are already in order, and need no copy.
        sort = len(wanted) != len(numbers) or not np.array_equal(order, np.arange(len(order)))
        if sort:
            x, y = x[order], None if y is None else y[order]
        return Rows(x, y, lambda at: self.place(int(numbers[at])))

    def batches(
        self, words: np.ndarray, steps: np.ndarray, size: int, part: slice = slice(None)
    ) -> Rows:
        """The batches of several steps, one after the other.

        Args:
          words: the data of the key of each batch, ``(batches, 2)``.
          steps: the number of the step of each batch.
          size: the number of rows of a batch.
          part: which rows of each batch are needed on this host.
        """
        with jax.default_device(host()):
            numbers = np.asarray(_numbers(words, steps, size, self.rows))[:, part]
        return self.read(numbers.reshape(-1))

    def some(self, count: int) -> np.ndarray:
        """The numbers of at most ``count`` random rows, which increase; always the same for the same source."""
        if count >= self.rows:
            return np.arange(self.rows)
        with jax.default_device(host()):
            drawn = random.shuffled(
                random.key(0), np.arange(count, dtype=np.int32), check_rows(self.rows)
            )
            return np.sort(np.asarray(drawn)).astype(np.int64)

    def blocks(self, size: int) -> Iterator[Rows]:
        """All rows in order, ``size`` at a time."""
        for begin in range(0, self.rows, size):
            yield self.read(np.arange(begin, min(begin + size, self.rows)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rows:,} rows)"


def host() -> Any:
    """The CPU, on which the numbers of the rows are computed."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves out the CPU
        return jax.local_devices()[0]


@partial(jax.jit, static_argnums=(2, 3))
def _numbers(words: Any, steps: Any, size: int, rows: int) -> Any:
    """The numbers of the rows of each batch, ``(batches, size)``: those that ``ArrayData.batch`` chooses."""
    keys = jax.random.wrap_key_data(jnp.asarray(words), impl=random.IMPLEMENTATION)
    return jax.vmap(lambda key, step: rows_of_step(key, step, size, rows)[0])(keys, steps)


def refuse_source(function: str, value: Any) -> None:
    """Refuse a source where rows in memory are needed."""
    if isinstance(value, Source):
        allowed = "rows in memory, such as the x of source.read(source.some(1000))"
        raise TypeError(must(function, "x", allowed, value))


def check_rows(rows: int) -> int:
    """Refuse a source without rows, or with more than the shuffling of rows can count."""
    if rows < 1:
        raise SourceError("A source must have at least 1 row; got none.")
    if rows >= 2**31:
        raise SourceError(f"A source must have fewer than 2**31 rows; got {rows:,}.")
    return rows


def digest(*parts: Any) -> str:
    """The SHA-256 digest of texts, numbers and arrays."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        else:
            total.update(repr(part).encode())
    return total.hexdigest()
