"""The format of every file of credax: one safetensors file with a JSON header and a digest.

The digest covers the whole content, so that damage is noticed. A file is written under a temporary name and
moved to its place when it is complete, so that a crash leaves the old file whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import operator
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors

from credax.core.errors import StorageError
from credax.core.mapped import pieces
from credax.core.version import __version__
from credax.storage.sparse import Sparse, pack, unpack
from credax.storage.tensors import mapped_tensors, tensors_in_pieces

FORMAT = 2
"""The newest format that this version reads. A file names the lowest format that a reader must know.

The number rises when older versions cannot read a new file. Format 1: every array is stored as it is. Format 2:
arrays that mostly hold one value are packed (:mod:`credax.storage.sparse`).
"""

DEEPEST = 200
"""The most levels of lists and dictionaries in a header."""
MAPPED = 64 << 20
"""The number of bytes from which the arrays of a file are mapped into memory instead of being read."""


def write_file(
    path: Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Any]
) -> None:
    """Write one file, and move it to its place when it is complete.

    Args:
      path: the file; folders that do not exist are made.
      kind: what the file holds, ``"posterior"``, ``"stack"`` or ``"checkpoint"``.
      header: what JSON can hold.
      tensors: the arrays by name.
    """
    arrays, shapes = _packed({k: _on_host(v) for k, v in tensors.items()})
    version = {"format": 2, "sparse": shapes} if shapes else {"format": 1}
    full = {**version, "kind": kind, "credax": __version__, **header}
    text = json.dumps(full, sort_keys=True, allow_nan=True)
    metadata = {"credax": text, "sha256": _digest(text, arrays)}
    replace_file(path, tensors_in_pieces(arrays, metadata))


def _on_host(array: Any) -> np.ndarray:
    if isinstance(array, np.memmap):
        return array  # which is written piece by piece, and never as a whole in memory
    # Not ascontiguousarray, which turns a scalar into an array with one axis.
    return np.asarray(jax.device_get(array), order="C")


def replace_file(path: Path, content: bytes | Iterable[Any]) -> None:
    """Write a file under a temporary name, and move it to its place when it is complete.

    A link is followed, and a file that is replaced keeps its mode. The content may come in pieces.

    Raises:
      OSError: the file cannot be written; the error names it.
    """
    place = Path(os.path.realpath(path))
    temporary = place.parent / f".{place.name}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        if place.exists() and not place.is_file():
            raise OSError(errno.EEXIST, "There is something else than a file")
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            if place.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
            for piece in (content,) if isinstance(content, bytes) else content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def temporary_files(folder: Path) -> list[Path]:
    """The files that a process left in a folder because it was killed while it wrote."""
    return [path for path in folder.glob(".*.credax-*") if path.is_file()]


def read_file(path: Path, *kinds: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the tensors of a file, checked against its digest.

    Args:
      path: the file.
      *kinds: what the file may hold.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not path.is_file():
        raise StorageError(f"{path} is not a file.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            large = path.stat().st_size > MAPPED
            arrays = (
                mapped_tensors(path, names) if large else {n: file.get_tensor(n) for n in names}
            )
    except (safetensors.SafetensorError, OSError, AttributeError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is not a credax file, or is cut short: {error}.") from error
    text = metadata.get("credax")
    if text is None:
        raise StorageError(f"{path} is a safetensors file, but not one of credax.")
    try:
        header = json.loads(text)
        _check_depth(header)
        version = operator.index(header["format"])
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged: its header cannot be read.") from error
    if version > FORMAT:
        raise StorageError(
            f"{path} was written by credax {header.get('credax')} in format {version}; this "
            f"version reads up to format {FORMAT}. Upgrade credax."
        )
    if metadata.get("sha256") != _digest(text, arrays):
        raise StorageError(f"{path} is damaged: its content does not match its digest.")
    if header.get("kind") not in kinds:
        raise StorageError(f"{path} holds a {header.get('kind')}, not a {' or a '.join(kinds)}.")
    try:
        return header, _unpacked(arrays, header.get("sparse", {}))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {error}.") from error


def _packed(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays, of which those that mostly hold one value are split in three parts; and their shapes."""
    result, shapes = {}, {}
    for name, array in arrays.items():
        parts = None if isinstance(array, np.memmap) else pack(array)
        if parts is None:
            result[name] = array
        else:
            shapes[name] = array.shape
            result |= {f"sparse/{part}/{name}": value for part, value in parts._asdict().items()}
    return result, shapes


def _unpacked(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    for name, shape in shapes.items():
        parts = [arrays.pop(f"sparse/{part}/{name}", None) for part in Sparse._fields]
        if any(part is None for part in parts):
            raise ValueError(f"parts of the sparse array {name} are missing")
        arrays[name] = unpack(Sparse(*parts), shape)  # pyright: ignore[reportArgumentType]
    return arrays


def _check_depth(header: Any) -> None:
    """Refuse a header that no program wrote; how deep Python follows one depends on its version."""
    level = [header]
    for _ in range(DEEPEST):
        inside = [
            v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)
        ]
        level = [item for items in inside for item in items]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        for piece in pieces(array):
            digest.update(piece.view(np.uint8).data)
    return digest.hexdigest()
