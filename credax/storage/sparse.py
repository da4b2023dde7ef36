"""Arrays that mostly hold one value, stored as a mask with one bit per entry and the entries that differ.

Entries are compared bit by bit, so that unpacking gives exactly the array that was packed: minus zero stays
minus zero, and every NaN keeps its bits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

LOOKS = 1_001
"""The number of random entries from which the common value is guessed; odd, so that they have a median."""
WORTH = 1_024
"""The least number of bytes that packing must save; a smaller gain is spent on the names of the parts."""


class Sparse(NamedTuple):
    """An array that mostly holds one value.

    Attributes:
      common: the common value, an array with one entry.
      mask: for each entry, in C order, one bit: whether the entry differs from the common value.
      rest: the entries that differ.
    """

    common: np.ndarray
    mask: np.ndarray
    rest: np.ndarray


def pack(array: np.ndarray) -> Sparse | None:
    """The sparse form of an array; ``None`` if no value fills half of it, or if packing saves little."""
    flat, kind = array.reshape(-1), f"u{array.dtype.itemsize}"
    if array.nbytes < WORTH or array.dtype.itemsize not in (1, 2, 4, 8):
        return None
    bits = flat.view(kind)
    # If one value fills more than half of the entries, it is their median.
    looks = bits[np.random.default_rng(0).integers(len(bits), size=LOOKS)]
    common = np.sort(looks)[LOOKS // 2]
    if 3 * np.count_nonzero(looks == common) < LOOKS:
        return None
    differs = bits != common
    count = int(np.count_nonzero(differs))
    packed = array.dtype.itemsize * (count + 1) + -(-len(bits) // 8)
    if 2 * count >= len(bits) or packed + WORTH > array.nbytes:
        return None
    return Sparse(np.array([common], kind).view(array.dtype), np.packbits(differs), flat[differs])


def unpack(parts: Sparse, shape: Any) -> np.ndarray:
    """The array that was packed.

    Raises:
      ValueError: the parts do not belong together.
    """
    if not isinstance(shape, list | tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"the shape of a sparse array must be whole numbers; got {shape!r}")
    size = math.prod(shape)
    common, mask, rest = parts
    if common.shape != (1,) or common.dtype != rest.dtype or rest.ndim != 1:
        raise ValueError("a sparse array must have one common value, and others of its type")
    if mask.dtype != np.uint8 or mask.shape != (-(-size // 8),):
        raise ValueError(f"the mask of a sparse array of shape {tuple(shape)} has the wrong size")
    differs = np.unpackbits(mask)
    if differs[size:].any() or np.count_nonzero(differs) != len(rest):
        raise ValueError(f"the mask of a sparse array does not fit its {len(rest)} values")
    flat = np.repeat(common, size)
    flat[differs[:size].astype(bool)] = rest
    return flat.reshape(shape)
