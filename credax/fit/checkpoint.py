"""Checkpoints: a run that is killed continues from the last one, and ends with the same bits.

A folder contains ``state.credax`` (the last state, and what identifies the run) and, for each checkpoint, one
file ``part-BEGIN-END.credax`` with the infos and draws since the checkpoint before it. A part is written before
the state that lists it, so the state and the parts that it lists are consistent whenever the run is killed.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.errors import StorageError
from credax.core.typing import PyTree
from credax.fit.record import Record, kept_before
from credax.fit.stopping import EarlyStopping, Stopper
from credax.inference.method import Method
from credax.storage import read_file, write_file
from credax.storage.describe import describe_or_name

SHARE = 0.02
"""The largest fraction of the time that is spent on writing checkpoints."""


class Checkpoint:
    """The folder with the checkpoint of one run.

    Attributes:
      folder: the path of the folder.
      step: the number of steps at the last checkpoint.
    """

    def __init__(
        self,
        folder: str | Path,
        model: Any,
        method: Method,
        data: Any,
        key: Any,
        mesh: Any,
        starts: Any = None,
        stopping: EarlyStopping | None = None,
    ):
        self.folder, self.step = Path(folder), 0
        self._parts: list[tuple[int, int]] = []
        self._next_save = 0.0
        # The number of devices is part of it, since replicas batched in other sizes round differently.
        self._identity = {
            "model": describe_or_name(model),
            "method": describe_or_name(method),
            "data": None if data is None else _digest(data),
            "key": np.asarray(jax.random.key_data(key)).tolist(),
            "start": None if starts is None else _digest(starts),
            "early_stopping": None if stopping is None else _describe_stopping(stopping),
            "devices": 1 if mesh is None else mesh.size,
            "float": str(jnp.result_type(float)),
        }

    def restore(
        self, states: PyTree, record: Record, stopper: Stopper | None
    ) -> tuple[int, PyTree]:
        """The step and the states to continue from: those in the folder, or 0 and ``states`` if it is empty."""
        path = self.folder / "state.credax"
        if not path.exists():
            return 0, states
        header, tensors = read_file(path, "checkpoint")
        self._check_identity(header["identity"])
        leaves, tree = jax.tree.flatten(states)
        restored = [_like(leaf, tensors[f"state/{i}"]) for i, leaf in enumerate(leaves)]
        for begin, end in header["parts"]:
            _, part = read_file(self._part(begin, end), "part")
            _put(record, begin, end, part)
        self._parts = [(begin, end) for begin, end in header["parts"]]
        self.step = header["step"]
        if stopper is not None:
            stopper.steps, stopper.scores = header["stopper"]
            if stopper.steps:
                best = [_like(leaf, tensors[f"best/{i}"]) for i, leaf in enumerate(leaves)]
                stopper.best = jax.tree.unflatten(tree, best)
        return self.step, jax.tree.unflatten(tree, restored)

    def save(
        self, step: int, states: PyTree, record: Record, stopper: Stopper | None, *, final: bool
    ) -> None:
        """Write a checkpoint if enough time has passed since the last one, or if ``final``."""
        began = time.perf_counter()
        if step == self.step or (began < self._next_save and not final):
            return
        write_file(self._part(self.step, step), "part", {}, _take(record, self.step, step))
        self._parts.append((self.step, step))
        tensors = {f"state/{i}": _plain(leaf) for i, leaf in enumerate(jax.tree.leaves(states))}
        looks = None
        if stopper is not None:
            looks = (stopper.steps, stopper.scores)
            tensors |= {f"best/{i}": _plain(a) for i, a in enumerate(jax.tree.leaves(stopper.best))}
        header = {"identity": self._identity, "step": step, "parts": self._parts, "stopper": looks}
        write_file(self.folder / "state.credax", "checkpoint", header, tensors)
        self.step = step
        now = time.perf_counter()
        self._next_save = now + (now - began) / SHARE

    def _part(self, begin: int, end: int) -> Path:
        return self.folder / f"part-{begin}-{end}.credax"

    def _check_identity(self, stored: dict[str, Any]) -> None:
        different = [name for name in self._identity if stored.get(name) != self._identity[name]]
        if different:
            raise StorageError(
                f"{self.folder} holds another run: its {' and '.join(different)} differ. "
                "Use another folder, or remove this one to start over."
            )


def _digest(data: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _describe_stopping(stopping: EarlyStopping) -> list[Any]:
    rows = [np.asarray(part) for part in stopping.validation or ()]
    return [stopping.every, stopping.patience, _digest(rows)]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(leaf: Any, stored: np.ndarray) -> jax.Array:
    """The stored values as an array or keys like ``leaf``, on the same devices."""
    if _is_key(leaf):
        keys = jax.random.wrap_key_data(stored, impl=jax.random.key_impl(leaf))
        return jax.device_put(keys, leaf.sharding)
    return jax.device_put(stored, leaf.sharding)


def _take(record: Record, begin: int, end: int) -> dict[str, np.ndarray]:
    """The infos and draws that the run added to the record between two steps."""
    first, last = kept_before(record.method, begin), kept_before(record.method, end)
    infos = {f"info/{name}": room[:, begin:end] for name, room in record.infos.items()}
    rooms = jax.tree.leaves(record.draws)
    return infos | {f"draw/{i}": room[:, first:last] for i, room in enumerate(rooms)}


def _put(record: Record, begin: int, end: int, part: dict[str, np.ndarray]) -> None:
    first, last = kept_before(record.method, begin), kept_before(record.method, end)
    for name, room in record.infos.items():
        room[:, begin:end] = part[f"info/{name}"]
    for i, room in enumerate(jax.tree.leaves(record.draws)):
        room[:, first:last] = part[f"draw/{i}"]
