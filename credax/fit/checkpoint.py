"""Checkpoints: a run that is killed continues from the last one, and ends with the same bits.

A folder contains ``state.credax`` (the last state, and what identifies the run) and, for each checkpoint, one
file ``part-BEGIN-END-RUN.credax`` with the infos and draws since the checkpoint before it. A part is written
before the state that lists it, so the state and the parts that it lists are consistent whenever the run is
killed. RUN is a random name that a run gets when it starts at step 0: the parts of two runs never mix, even
on a file system without locks. The arrays of the state may be in a folder beside it, which is complete before
the state that names it is written (:mod:`credax.fit.sharded`).

Of a run on several hosts, host 0 writes; all hosts read.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import hosts
from credax.core.errors import StorageError, StorageWarning
from credax.core.typing import PyTree
from credax.fit.identity import Identity
from credax.fit.mesh import here, put, refilled
from credax.fit.pace import Pace
from credax.fit.record import Record, kept_before
from credax.fit.sharded import Shards
from credax.fit.stopping import Stopper
from credax.storage import read_file, write_file
from credax.storage.files import temporary_files
from credax.storage.folders import Folder

VERSION = 2
"""The version of the folder's content. It rises when a checkpoint of an older version cannot be continued."""
STATE = "state.credax"


class Written(NamedTuple):
    """A state that is being written in the background, and what belongs to it."""

    step: int
    looks: Any
    best: dict[str, np.ndarray]


class SavedRun:
    """The folder with the checkpoint of one run.

    Args:
      folder: the folder, in use.
      identity: what makes the run the same run.
      shards: where the states are written in parts; ``None`` if they are written as one file.
      run: a random name, the same on all hosts.

    Attributes:
      folder: the path of the folder.
      step: the number of steps at the last checkpoint.
    """

    def __init__(
        self, folder: Folder, identity: Identity, shards: Shards | None = None, run: str = ""
    ):
        self.folder, self.step = folder.path, 0
        self._locked, self._identity = folder.locked, identity
        self._run, self._parts = run or secrets.token_hex(4), []
        self._places, self._pace, self._failed = [identity.here], Pace(), False
        self._shards, self._listed = shards, None
        self._written: Written | None = None

    def restore(
        self, states: PyTree, record: Record, stopper: Stopper | None
    ) -> tuple[int, PyTree]:
        """The step and the states to continue from: those in the folder, or 0 and ``states`` if it is empty."""
        path = self.folder / STATE
        if path.exists():
            header, tensors = read_file(path, "checkpoint")
            self._check(header)
            self._resume_draws(header, record)
            try:
                states = self._read(header, tensors, states, record, stopper)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                if isinstance(error, StorageError):
                    raise
                raise StorageError(f"{path} does not describe a checkpoint: {error}.") from error
            if record.method.num_steps > self.step:
                self._tell_of_another_place()
        if self._locked:
            self._sweep()
        return self.step, states

    def _resume_draws(self, header: dict[str, Any], record: Record) -> None:
        """Continue to write the draws to disk if the run did so."""
        if record.disk is None and header.get("draws") is None:
            return
        if record.disk is None or header.get("draws") is None:
            then, now = ("in memory", "left out") if record.disk else ("on disk", "their folder")
            raise StorageError(
                f"{self.folder} holds a run whose draws were kept {then}: fit(draws=...) must be {now}."
            )
        record.disk.resume(header["draws"])

    def _check(self, header: dict[str, Any]) -> None:
        version = header.get("version", 1)
        if version != VERSION:
            raise StorageError(
                f"{self.folder} holds a run that was begun by credax {header.get('credax')}, whose checkpoints "
                "this version cannot continue. Finish it with that version, or remove the folder to start over."
            )
        try:
            self._identity.check(header["identity"], header["places"])
        except StorageError as error:
            raise StorageError(
                f"{self.folder} holds another run: {error}. Use another folder, or remove this one to start "
                "over."
            ) from None
        except (AttributeError, LookupError, TypeError) as error:
            raise StorageError(f"{self.folder / STATE} does not describe a checkpoint.") from error

    def _read(self, header, tensors, states, record, stopper) -> PyTree:
        leaves, tree = jax.tree.flatten(states)
        replicas, self._listed = record.method.replicas, header.get("shards")
        self._run, self._places = header["run"], list(header["places"])
        if not re.fullmatch("[0-9a-f]{8}", self._run):
            raise ValueError(f"a run must be named by eight digits; got {self._run!r}")
        self._parts = [(int(begin), int(end)) for begin, end in header["parts"]]
        self.step = int(header["step"])
        ends = [0, *(end for _, end in self._parts)]
        if [begin for begin, _ in self._parts] != ends[:-1] or ends[-1] != self.step:
            raise ValueError(f"its parts {self._parts} do not add up to {self.step} steps")
        for begin, end in self._parts:
            name, part = read_file(self._part(begin, end), "part")
            if name.get("run") != self._run:
                raise StorageError(f"{self._part(begin, end)} belongs to another run.")
            _put(record, begin, end, part)
        if stopper is not None:
            stopper.steps, stopper.scores = header["stopper"]
            if stopper.steps:
                best = [_best(leaf, tensors[f"best/{i}"]) for i, leaf in enumerate(leaves)]
                stopper.best = jax.tree.unflatten(tree, best)
        if self._listed is not None:
            name = f"{self.step}-{self._run}"
            if self._listed != name:
                raise ValueError(f"its states must be named {name!r}; got {self._listed!r}")
            return (self._shards or Shards(self.folder)).read(name, states, replicas)
        stored = [tensors[f"state/{i}"] for i in range(len(leaves))]
        restored = [_like(*each, replicas) for each in zip(leaves, stored, strict=True)]
        return jax.tree.unflatten(tree, restored)

    def _tell_of_another_place(self) -> None:
        moved = self._identity.moved(self._places)
        if moved:
            warnings.warn(
                f"The run in {self.folder} goes on with {moved}. Its result is as good as that of a run that "
                "was not interrupted, but its last digits may differ.",
                StorageWarning,
                stacklevel=2,
            )
        if self._identity.here not in self._places:
            self._places.append(self._identity.here)

    def _sweep(self) -> None:
        """Remove the files that killed processes left in the folder, and parts that the state does not list."""
        listed = {self._part(begin, end) for begin, end in self._parts}
        for path in [*temporary_files(self.folder), *self.folder.glob("part-*.credax")]:
            if path not in listed:
                path.unlink(missing_ok=True)
        Shards(self.folder).sweep(self._listed)

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._pace.due(time.perf_counter())

    def save(
        self, step: int, states: PyTree, record: Record, stopper: Stopper | None, *, final: bool
    ) -> None:
        """Write a checkpoint. A failure is a warning, and the run goes on. All hosts must call this.

        Args:
          step: the number of steps so far.
          states: the states of the replicas that are kept.
          record: the infos and draws of the run.
          stopper: the evaluations of early stopping.
          final: whether the run is over; then the checkpoint is complete when this returns.
        """
        began = time.perf_counter()
        if step == (self.step if self._written is None else self._written.step) and not final:
            return
        if self._shards is None:
            states = here(states)  # in every case, since all hosts take part
        try:
            self._complete(record)
            if step != self.step:
                self._begin(step, states, record, stopper)
            if final:
                self._complete(record)
            self._failed = False
        except OSError as error:
            self._written = None
            if final or not self._failed:
                self._failed = True
                outlook = "is over" if final else "goes on, and later checkpoints are tried"
                warnings.warn(
                    f"The checkpoint at step {step} could not be written: {error}. The last good one is at "
                    f"step {self.step}; the run {outlook}.",
                    StorageWarning,
                    stacklevel=2,
                )
        self._pace.written(began, time.perf_counter())

    def _begin(self, step: int, states: PyTree, record: Record, stopper: Stopper | None) -> None:
        looks, best = None, {}
        if stopper is not None:
            looks = (list(stopper.steps), list(stopper.scores))
            best = {f"best/{i}": _plain(a) for i, a in enumerate(jax.tree.leaves(stopper.best))}
        written = Written(step, looks, best)
        if self._shards is not None:
            self._shards.write(f"{step}-{self._run}", states)
            self._written = written
            return
        leaves = jax.tree.leaves(states)
        self._list(written, record, {f"state/{i}": _plain(leaf) for i, leaf in enumerate(leaves)})

    def _complete(self, record: Record) -> None:
        """Wait for the state that is being written, and list it."""
        if self._written is None or self._shards is None:
            return
        written, self._written = self._written, None
        self._shards.wait()
        self._list(written, record, {})

    def look(self, record: Record) -> None:
        """List a state that was written in the background, if it is complete."""
        alone = (
            hosts.count() == 1
        )  # several hosts do so when they write the next one, all at the same step
        if self._written is None or self._shards is None or not alone:
            return
        if self._shards.is_written(f"{self._written.step}-{self._run}"):
            with contextlib.suppress(OSError):  # the next checkpoint meets it again, and warns
                self._complete(record)

    def _list(self, written: Written, record: Record, tensors: dict[str, np.ndarray]) -> None:
        """Write the state, which names all else that belongs to the checkpoint."""
        step = written.step
        parts, part = [*self._parts, (self.step, step)], self._part(self.step, step)
        listed = None if self._shards is None else f"{step}-{self._run}"
        header = {
            "version": VERSION,
            "identity": self._identity.arguments,
            "places": self._places,
            "run": self._run,
            "step": step,
            "parts": parts,
            "stopper": written.looks,
            **({} if listed is None else {"shards": listed}),
        }
        if record.disk is not None:
            record.disk.sync()
            header["draws"] = record.disk.run
        if hosts.is_first():
            write_file(part, "part", {"run": self._run}, dict(_rooms(record, self.step, step)))
            try:
                write_file(self.folder / STATE, "checkpoint", header, tensors | written.best)
            except OSError:
                part.unlink(missing_ok=True)
                raise
            if listed != self._listed:
                Shards(self.folder).sweep(listed)
        self._parts, self.step, self._listed = parts, step, listed

    def close(self) -> None:
        """End what writes in the background."""
        if self._shards is not None:
            self._shards.close()

    def _part(self, begin: int, end: int) -> Path:
        return self.folder / f"part-{begin}-{end}-{self._run}.credax"


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(leaf: Any, stored: np.ndarray, replicas: int) -> jax.Array:
    """The stored values as an array or keys like ``leaf``, on the same devices."""
    plain = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    short = len(stored) < replicas if stored.ndim else True
    if short or stored.shape[1:] != plain.shape[1:] or stored.dtype != plain.dtype:
        raise ValueError(f"a state of shape {plain.shape} was stored with shape {stored.shape}")
    return put(_value(leaf, refilled(stored, replicas, len(leaf))), leaf.sharding)


def _best(leaf: Any, stored: np.ndarray) -> jax.Array:
    return jnp.asarray(_value(leaf, stored))


def _value(leaf: Any, stored: np.ndarray) -> Any:
    if not _is_key(leaf):
        return stored
    return jax.random.wrap_key_data(stored, impl=jax.random.key_impl(leaf))


def _rooms(record: Record, begin: int, end: int) -> Iterator[tuple[str, np.ndarray]]:
    """The places in the record for the infos and draws between two steps, by their names in a part."""
    first, last = kept_before(record.method, begin), kept_before(record.method, end)
    for name, room in record.infos.items():
        yield f"info/{name}", room[:, begin:end]
    if record.disk is not None:
        return
    for i, room in enumerate(jax.tree.leaves(record.draws)):
        yield f"draw/{i}", room[:, first:last]


def _put(record: Record, begin: int, end: int, part: dict[str, np.ndarray]) -> None:
    for name, room in _rooms(record, begin, end):
        if part[name].shape != room.shape:
            raise ValueError(f"{name} of steps {begin} to {end} has shape {part[name].shape}")
        room[:] = part[name]
