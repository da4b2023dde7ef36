"""Arrays as a source: in memory, or in NumPy files of which only the rows of a batch are read."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from credax.core.checks import must
from credax.core.errors import SourceError
from credax.model.data import check_lengths, to_numpy
from credax.model.sources.source import Source, check_rows, digest

PIECE = 512
"""The number of rows after which pages of a file are released: mapped pages count as memory of the process."""
CHECKED = 1024
"""The number of rows of a file whose content is part of the fingerprint."""


def arrays(x: Any, y: Any = None) -> Source:
    """Arrays as a source: in memory, or in ``.npy`` files that are larger than it.

    Args:
      x: the inputs, ``(rows, ...)``: an array, a ``np.memmap``, or the path of a ``.npy`` file. Of a file, only
        the rows of a batch are read.
      y: the targets, in the same forms; ``None`` for rows that are only predicted.
    """
    first = _opened("x", x)
    second = None if y is None else _opened("y", y)
    if second is not None:
        check_lengths(first, second)
    return Arrays(first, second)


def _opened(name: str, value: Any) -> np.ndarray:
    """The array, mapped from its file if it is in one."""
    if isinstance(value, str | os.PathLike):
        path = Path(value)
        if path.suffix != ".npy":
            raise ValueError(must("arrays", name, "an array or the path of a .npy file", value))
        try:
            value = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise SourceError(f"{path} cannot be read as a .npy file: {error}.") from error
    elif isinstance(value, np.memmap) and value.mode != "c" and value.filename is not None:
        whole = value.base is None or isinstance(value.base, mmap.mmap)
        if whole:  # opened anew, to be released without an effect on the caller's own array
            order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
            value.flush()
            value = np.memmap(
                value.filename, value.dtype, "r", value.offset, value.shape, order=order
            )
    array = value if isinstance(value, np.memmap) else to_numpy(name, value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}.")
    if array.ndim == 0:
        raise ValueError(f"{name} must have rows; got a single value.")
    return array


class Arrays(Source):
    """Rows of arrays in memory or in files; see :func:`arrays`."""

    def __init__(self, x: np.ndarray, y: np.ndarray | None):
        self._x, self._y = x, y
        self.rows = check_rows(len(x))
        self._files = {path: _seen(path) for path in map(_path, (x, y)) if path is not None}

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The rows, copied piece by piece."""
        return _taken(self._x, numbers), None if self._y is None else _taken(self._y, numbers)

    def check_unchanged(self) -> None:
        """Refuse files that were written to: a file that has become shorter would end the process."""
        for path, seen in self._files.items():
            if _seen(path) != seen:
                raise SourceError(f"{path} has changed while it was being read.")

    def place(self, row: int) -> str:
        """The row, and the file of the inputs if there is one."""
        path = _path(self._x)
        return f"row {row}" if path is None else f"row {row} of {path}"

    def fingerprint(self) -> str:
        """Of files, their names, sizes, times and some of their rows; of arrays in memory, all numbers."""
        files = [(path.name, *seen) for path, seen in self._files.items()]
        numbers = self.some(CHECKED) if files else slice(None)
        parts = [None if a is None else np.asarray(a[numbers]) for a in (self._x, self._y)]
        shapes = [None if a is None else (a.shape, str(a.dtype)) for a in (self._x, self._y)]
        return digest(files, shapes, *parts)


def _path(array: Any) -> Path | None:
    """The file that an array is mapped from, if there is one."""
    return Path(array.filename) if isinstance(array, np.memmap) and array.filename else None


def _seen(path: Path) -> tuple[int, int]:
    """The size of a file, and the time at which it was last written to."""
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"{path} can no longer be read: {error}.") from error
    return found.st_size, found.st_mtime_ns


def _taken(array: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Some rows of an array; the pages of a mapped file are released after each piece."""
    held: Any = getattr(array, "_mmap", None)
    if held is None:
        return np.asarray(array[numbers])
    result = np.empty((len(numbers), *array.shape[1:]), array.dtype)
    for begin in range(0, len(numbers), PIECE):
        piece = numbers[begin : begin + PIECE]
        if piece[-1] - piece[0] + 1 == len(piece):
            result[begin : begin + PIECE] = array[piece[0] : piece[-1] + 1]
        else:
            np.take(array, piece, axis=0, out=result[begin : begin + PIECE], mode="clip")
        if hasattr(mmap, "MADV_DONTNEED"):
            held.madvise(mmap.MADV_DONTNEED)
    return result
