"""Safetensors files whose arrays need not fit in memory: written piece by piece, and mapped when read.

The ``safetensors`` package holds the whole content of a file in memory when it writes one. The format is
simple: eight bytes with the length of a header, the header in JSON, and the entries of all arrays one after
another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from credax.core.mapped import mapped, pieces

CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""The names of types in a file."""
SMALL = 1 << 20
"""Arrays of fewer bytes are read rather than mapped."""


def tensors_in_pieces(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> Iterator[Any]:
    """The content of a safetensors file."""
    # Large entries come first, so that all of them are aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        array, begin = arrays[name], end
        if array.dtype.name not in CODES:
            raise TypeError(f"{name} has entries of type {array.dtype}, which a file cannot hold")
        end += array.nbytes
        code = CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        for piece in pieces(arrays[name]):
            yield piece.view(np.uint8).data


def mapped_tensors(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file whose header was checked; large ones are mapped, and read-only.

    Raises:
      ValueError: the file holds types that NumPy does not know.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    types = {code: jnp.dtype(name) for name, code in CODES.items()}
    found = {}
    for name in names:
        entry = header[name]
        if entry["dtype"] not in types:
            raise ValueError(f"{name} has the unknown type {entry['dtype']}")
        offset = 8 + length + entry["data_offsets"][0]
        array = mapped(path, types[entry["dtype"]], tuple(entry["shape"]), offset)
        found[name] = np.array(array) if array.nbytes < SMALL else array
    return found
