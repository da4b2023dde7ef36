"""Arrays in files, of which the operating system reads the parts that are used (memory mapping)."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PIECE = 16 << 20
"""The number of bytes of an array that are looked at together."""


def mapped(path: Path, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
    """The array in a file, which cannot be written to."""
    if 0 in shape:
        return np.zeros(shape, dtype)  # there is nothing to map
    return np.memmap(path, dtype, "r", offset, shape)


def release(array: Any) -> None:
    """Give back the memory of the parts of a mapped array that were read; they are read again when needed.

    Other arrays stay as they are.
    """
    found = getattr(array, "_mmap", None)
    if isinstance(found, mmap.mmap) and hasattr(found, "madvise"):
        found.madvise(mmap.MADV_DONTNEED)


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """The entries of an array in C order, in flat pieces of at most ``PIECE`` bytes or one entry."""
    if array.flags.c_contiguous:
        flat, step = array.reshape(-1), max(1, PIECE // max(array.itemsize, 1))
        for begin in range(0, flat.size, step):
            yield flat[begin : begin + step]
            release(array)
        return
    for part in array:
        yield from pieces(part)
        release(array)
