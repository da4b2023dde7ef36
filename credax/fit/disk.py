"""Draws on disk: a run writes its draws to files, and the posterior reads the parts that it needs.

A folder contains ``draws.json``, which describes the draws, and for each leaf of the parameters a file
``draw-N.bin`` with the entries of all draws, the replicas one after the other. The files have their final size
from the beginning, and take as much space as there are draws. What a run has written before a checkpoint is on
disk before the checkpoint is; so a run that was killed continues from there and writes the same draws again.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credax.core.errors import StorageError
from credax.core.mapped import mapped
from credax.core.trees import tree_paths
from credax.core.typing import PyTree
from credax.core.version import __version__
from credax.storage.files import replace_file

DESCRIPTION = "draws.json"


class DrawFile:
    """The draws of one leaf, with the axes (replica, draw, ...).

    Args:
      path: the file.
      shape: the shape of all draws of the run.
      dtype: their type.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any):
        self.path, self.shape, self.dtype = path, shape, np.dtype(dtype)
        self._draw = int(np.prod(shape[2:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of the complete file."""
        return self.shape[0] * self.shape[1] * self._draw

    def create(self) -> None:
        """Make a new file, of which nothing is written yet."""
        with self.path.open("wb") as file:
            file.truncate(self.nbytes)

    def write(self, first: int, draws: np.ndarray) -> None:
        """Write draws with the axes (replica, draw, ...), from the number ``first`` on."""
        # Not through a mapped array: a disk that is full would end the process instead of raising an error.
        with self.path.open("r+b") as file:
            for replica, own in enumerate(draws):
                file.seek((replica * self.shape[1] + first) * self._draw)
                file.write(np.ascontiguousarray(own).reshape(-1).view(np.uint8).data)

    def read(self, count: int) -> np.ndarray:
        """The first ``count`` draws of each replica, as a mapped array."""
        return mapped(self.path, self.dtype, self.shape)[:, :count]

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())


class Disk:
    """The folder with the draws of one run.

    Attributes:
      folder: its path.
      draws: a :class:`DrawFile` for each leaf, in the structure of a draw.
      run: a random name of the run.
    """

    def __init__(self, folder: Path, draw: PyTree, total: int):
        self.folder, self.run = folder, secrets.token_hex(4)
        leaves, tree = jax.tree.flatten(draw)
        files = [
            DrawFile(folder / f"draw-{i}.bin", (leaf.shape[0], total, *leaf.shape[1:]), leaf.dtype)
            for i, leaf in enumerate(leaves)
        ]
        self._files, self._names = files, tree_paths(draw)
        self.draws = jax.tree.unflatten(tree, files)

    def begin(self) -> None:
        """Make the files of a run that begins."""
        found = self._described()
        if found is not None and found.get("complete"):
            raise StorageError(
                f"{self.folder} holds the draws of another fit, which a posterior may still read. Use another "
                "folder, or remove this one."
            )
        # The description comes last: without it, files are left from a run that was killed.
        (self.folder / DESCRIPTION).unlink(missing_ok=True)
        for file in self._files:
            file.create()
        self._describe(complete=False)

    def resume(self, run: Any) -> None:
        """Continue to write to the files of a run, given its name from a checkpoint."""
        found = self._described()
        if found is None or found.get("run") != run or found.get("leaves") != self._leaves():
            raise StorageError(
                f"{self.folder} does not hold the draws of the run in the checkpoint."
            )
        for file in self._files:
            if not file.path.exists() or file.path.stat().st_size != file.nbytes:
                raise StorageError(
                    f"{file.path} is missing, or does not have its {file.nbytes} bytes."
                )
        self.run = run

    def sync(self) -> None:
        """Wait until all draws so far are on the disk."""
        for file in self._files:
            file.sync()

    def finish(self) -> None:
        """Note that there is a posterior that reads the files, so that no later run writes over them."""
        found = self._described() or {}
        if not (found.get("run") == self.run and found.get("complete")):
            self.sync()
            self._describe(complete=True)

    def _described(self) -> dict[str, Any] | None:
        path = self.folder / DESCRIPTION
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict):
                raise ValueError("it is not an object")
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} does not describe draws: {error}.") from error
        return found

    def _leaves(self) -> list[dict[str, Any]]:
        return [
            {"name": n, "file": f.path.name, "shape": list(f.shape), "dtype": str(f.dtype)}
            for n, f in zip(self._names, self._files, strict=True)
        ]

    def _describe(self, *, complete: bool) -> None:
        content = {"credax": __version__, "run": self.run, "complete": complete}
        text = json.dumps({**content, "leaves": self._leaves()}, indent=1)
        replace_file(self.folder / DESCRIPTION, text.encode())


def folder_of(draws: Path, checkpoint: Path | None) -> Path:
    """The folder for the draws: below that of the checkpoints if they are given as the same."""
    if checkpoint is not None and os.path.realpath(draws) == os.path.realpath(checkpoint):
        return draws / "draws"
    return draws
