"""Folders that one process at a time may write to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from credax.core.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"


class Folder(NamedTuple):
    """A folder in use.

    Attributes:
      path: where it is.
      locked: whether no other process can use it at the same time. Some network file systems have no locks,
        and nobody can lock a folder that is read-only.
    """

    path: Path
    locked: bool


@contextlib.contextmanager
def locked_folder(path: str | os.PathLike[str], needed: str) -> Iterator[Folder]:
    """A folder for this process alone, which is made if it does not exist.

    The operating system releases the lock when the process ends, however it ends; so the file ``.lock`` alone,
    which stays behind, locks nothing.

    Args:
      path: the folder.
      needed: a file in it without which the folder must be writable.

    Raises:
      StorageError: another process uses the folder, or it cannot be written to and lacks the file ``needed``.
    """
    path, file = Path(path), None
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if not _exists(path / needed):
            reason = error.strerror or error
            raise StorageError(
                f"{path} is not a folder that can be written to: {reason}."
            ) from error
    try:
        yield Folder(path, file is not None and _lock(file, path))
    finally:
        if file is not None:
            os.close(file)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no right to look into the folder, or a name that is too long
        return False


def _lock(file: int, path: Path) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"{path} is in use by another run. Wait until it ends, or use another folder."
        ) from None
    except OSError:
        return False
    return True
