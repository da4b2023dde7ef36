"""Any data set with ``len`` and square brackets as a source: those of Grain, PyTorch and Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from credax.core.checks import must
from credax.core.errors import SourceError
from credax.model.data import to_numpy
from credax.model.sources.source import Source, check_rows, digest

CHECKED = 64
"""The number of items whose content is part of the fingerprint."""


def dataset(items: Any, *, x: Any = 0, y: Any = 1) -> Source:
    """A data set with ``len(items)`` and ``items[i]`` as a source.

    PyTorch map-style data sets, Grain data sources and Hugging Face data sets have both. If there is a method
    ``__getitems__``, which reads several items at once, it is used.

    Args:
      items: the data set. ``items[i]`` is one row: a pair, a tuple or a mapping. It must always be the same for
        the same i; random augmentation would make a run depend on when it was killed.
      x: the position or the name of the inputs in a row.
      y: the position or the name of the target; ``None`` for rows that are only predicted.
    """
    if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
        allowed = "a data set with len(items) and items[i]"
        raise TypeError(must("dataset", "items", allowed, items))
    return Items(items, x, y)


class Items(Source):
    """Rows of a data set; see :func:`dataset`."""

    quick = False

    def __init__(self, items: Any, x: Any, y: Any):
        self._items, self._parts = items, (x, y)
        self.rows = check_rows(len(items))

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The items, one after the other, stacked."""
        asked = [int(number) for number in numbers]
        try:
            several = getattr(self._items, "__getitems__", None)
            found = list(several(asked)) if several is not None else None
        except (IndexError, KeyError, OSError, ValueError):
            found = None  # read one by one, to find the item that fails
        if found is None:
            found = [self._item(number) for number in asked]
        elif len(found) != len(asked):
            raise SourceError(
                f"{self!r} ended early: {len(asked)} items were asked for, and {len(found)} came."
            )
        return tuple(
            None if part is None else self._stacked(name, part, found, asked)
            for name, part in zip("xy", self._parts, strict=True)
        )  # pyright: ignore[reportReturnType]

    def _item(self, number: int) -> Any:
        try:
            return self._items[number]
        except (IndexError, KeyError, OSError, ValueError) as error:
            raise SourceError(
                f"{self.place(number)} could not be read: {type(error).__name__}: {error}."
            ) from error

    def _stacked(self, name: str, part: Any, found: list[Any], asked: list[int]) -> np.ndarray:
        """One part of all items as an array, if it has the same shape in all of them."""
        values = []
        for item, number in zip(found, asked, strict=True):
            if not isinstance(item, Mapping | tuple | list):
                raise SourceError(
                    f"{self.place(number)} must be a tuple or a mapping with an entry {part!r} for {name}; got "
                    f"a {type(item).__name__}."
                )
            try:
                value = item[part]
            except (IndexError, KeyError, TypeError):
                raise SourceError(
                    f"{self.place(number)} has no entry {part!r} for {name}."
                ) from None
            value = to_numpy(name, value)
            if value.dtype.kind not in "biuf":
                raise SourceError(
                    f"{name} must hold real numbers; got dtype {value.dtype} at {self.place(number)}."
                )
            if values and value.shape != values[0].shape:
                raise SourceError(
                    f"{name} must have the same shape in all rows, {values[0].shape} as at "
                    f"{self.place(asked[0])}; got {value.shape} at {self.place(number)}."
                )
            values.append(value)
        return np.stack(values)

    def check_unchanged(self) -> None:
        """Refuse a data set whose length has changed."""
        if len(self._items) != self.rows:
            raise SourceError(
                f"The data set had {self.rows} rows when it was made a source; now it has "
                f"{len(self._items)}."
            )

    def fingerprint(self) -> str:
        """Of the kind of the data set, its length and some of its items."""
        x, y = self.take(self.some(CHECKED))
        return digest(type(self._items).__name__, self.rows, self._parts, x, y)
