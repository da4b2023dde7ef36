"""Arrays that mostly hold one value, as a mask of one bit an entry and the entries that differ.

The comparison is that of bits, so that what comes back is what was given: minus zero stays minus zero, and
every NaN keeps its bits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

LOOKS = 1_001
"""Entries that are looked at to guess the common value; odd, so that one is in the middle."""
WORTH = 1_024
"""Bytes that must be saved; fewer are spent on the names of the parts."""


class Sparse(NamedTuple):
    """An array that mostly holds one value.

    Attributes:
      common: that value, an array of one entry.
      mask: a bit an entry, in C order: whether it differs.
      rest: the entries that do.
    """

    common: np.ndarray
    mask: np.ndarray
    rest: np.ndarray


def pack(array: np.ndarray) -> Sparse | None:
    """The sparse form of an array; ``None`` where less than half of it is one value, or little is saved."""
    flat, kind = array.reshape(-1), f"u{array.dtype.itemsize}"
    if array.nbytes < WORTH or array.dtype.itemsize not in (1, 2, 4, 8):
        return None
    bits = flat.view(kind)
    # More than half of the entries hold the median, if any value fills more than half.
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
    """The array again; a ``ValueError`` where the parts do not belong together."""
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
