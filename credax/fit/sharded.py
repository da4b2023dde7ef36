"""Checkpoints whose states are written in parts, by Orbax: each host writes what its devices hold.

The parts are written in the background, while the run goes on, to a folder ``shards-STEP-RUN`` of its own,
which gets this name when it is complete. They can be read to any other division of the arrays among devices and
hosts.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from credax.core import hosts
from credax.core.checks import must
from credax.core.errors import StorageError
from credax.core.settings import Settings
from credax.core.typing import PyTree
from credax.fit.mesh import model_size, refilled

LARGE = 1 << 30
"""The bytes of the states from which they are written in parts if nothing else is said."""


@dataclass(frozen=True)
class Checkpoint(Settings):
    """A folder for the checkpoints of a run, and how its states are written there.

    Args:
      folder: the folder. All hosts of a run must see the same one.
      sharded: whether the states are written in parts and in the background, by Orbax (``credax[scale]``). If
        ``None``, they are if Orbax is installed and they are divided over the axis ``model`` of the mesh or
        take more than a gibibyte. Otherwise they are written as one file.
    """

    folder: str | os.PathLike[str]
    sharded: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.folder, str | os.PathLike):
            raise TypeError(must("Checkpoint", "folder", "the path of a folder", self.folder))
        if not str(self.folder).strip():
            raise ValueError(must("Checkpoint", "folder", "the path of a folder", self.folder))
        if self.sharded not in (None, True, False):
            raise TypeError(must("Checkpoint", "sharded", "True, False or None", self.sharded))
        if self.sharded and not is_installed():
            raise ImportError("Checkpoint(sharded=True) needs Orbax: pip install 'credax[scale]'.")

    @staticmethod
    def of(value: Any) -> Checkpoint:
        """The settings for the argument ``checkpoint`` of ``fit``."""
        return value if isinstance(value, Checkpoint) else Checkpoint(value)

    def in_parts(self, mesh: Any, states: PyTree) -> bool:
        """Whether the states of a run are written in parts."""
        if self.sharded is not None:
            return self.sharded
        large = sum(leaf.nbytes for leaf in jax.tree.leaves(states)) >= LARGE
        return (large or model_size(mesh) > 1) and is_installed()


def is_installed() -> bool:
    """Whether there is Orbax."""
    from importlib.util import find_spec

    return find_spec("orbax") is not None and find_spec("orbax.checkpoint") is not None


class Shards:
    """The states of a run in a folder, in parts."""

    def __init__(self, folder: Path):
        self._folder = Path(os.path.abspath(folder))

    @cached_property
    def _orbax(self) -> Any:
        if not is_installed():
            raise StorageError(
                f"The states in {self._folder} were written by Orbax, which is not installed: pip install "
                "'credax[scale]'."
            )
        import orbax.checkpoint

        return orbax.checkpoint.StandardCheckpointer()

    def path(self, name: str) -> Path:
        """The folder of a state."""
        return self._folder / f"shards-{name}"

    def write(self, name: str, states: PyTree) -> None:
        """Begin to write; when this returns, the states may change."""
        if self.path(name).exists() and hosts.is_first():
            shutil.rmtree(self.path(name))  # of a run that was killed before it listed the folder
        self._orbax.save(self.path(name), _named(states, copied=jax.default_backend() == "cpu"))

    def is_written(self, name: str) -> bool:
        """Whether the state is complete, without waiting for it."""
        return self.path(name).exists()

    def wait(self) -> None:
        """Wait until the state is complete, or raise what went wrong."""
        self._orbax.wait_until_finished()

    def read(self, name: str, like: PyTree, replicas: int) -> PyTree:
        """The states, placed as ``like``, which may have another number of replicas beyond those kept."""
        leaves, tree = jax.tree.flatten(like)
        wanted = {str(i): _wanted(leaf, replicas) for i, leaf in enumerate(leaves)}
        try:
            found = self._orbax.restore(self.path(name), wanted)
        except (OSError, ValueError, KeyError) as error:
            raise StorageError(f"{self.path(name)} cannot be read: {error}.") from error
        read = [_as(leaf, found[str(i)], replicas) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(tree, read)

    def sweep(self, listed: str | None) -> None:
        """Remove all states but one, also those that a killed process left incomplete."""
        for path in self._folder.glob("shards-*"):
            if listed is None or path != self.path(listed):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """End the threads of Orbax."""
        if "_orbax" in vars(self):
            self._orbax.close()


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named(states: PyTree, copied: bool) -> dict[str, Any]:
    """The arrays by number; keys as plain numbers.

    On a CPU, what is written would be the memory of the arrays, which the next chunk uses again.
    """
    plain = lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf  # noqa: E731
    copy = jnp.copy if copied else lambda leaf: leaf
    return {str(i): copy(plain(leaf)) for i, leaf in enumerate(jax.tree.leaves(states))}


def _wanted(leaf: Any, replicas: int) -> jax.ShapeDtypeStruct:
    plain = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    sharding = leaf.sharding
    if len(leaf) != replicas and isinstance(sharding, NamedSharding):
        # Replicas are added below, before they are divided among the devices.
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *tuple(sharding.spec)[1:]))
    return jax.ShapeDtypeStruct((replicas, *plain.shape[1:]), plain.dtype, sharding=sharding)


def _as(leaf: Any, read: Any, replicas: int) -> Any:
    def made(read):
        whole = refilled(read, replicas, len(leaf))
        return (
            jax.random.wrap_key_data(whole, impl=jax.random.key_impl(leaf))
            if _is_key(leaf)
            else whole
        )

    if len(leaf) == replicas and not _is_key(leaf):
        return read
    return jax.jit(made, out_shardings=leaf.sharding)(read)
