"""A run: prepared from the arguments of ``fit``, advanced in chunks, and saved."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credax.core.checks import must
from credax.core.errors import DataWarning, StorageError
from credax.core.hosts import Group
from credax.core.typing import PyTree
from credax.fit import checking, program, scales
from credax.fit.checkpoint import STATE, SavedRun
from credax.fit.disk import DESCRIPTION, folder_of
from credax.fit.identity import Identity, arguments_of
from credax.fit.mesh import check_divisible, everywhere, here, mesh_for, model_size, placed
from credax.fit.needs import Memory, Parts
from credax.fit.padding import padded
from credax.fit.record import Record
from credax.fit.sharded import Checkpoint, Shards
from credax.fit.stopping import EarlyStopping, Stopper
from credax.fit.streamed import Feeder, refusing
from credax.inference.method import Method, Starting, Trace
from credax.model import LogDensity, Model
from credax.model.continuation import FromPosterior
from credax.model.priors import Prior
from credax.model.sources import Source
from credax.model.sources.streamed import SourceData
from credax.model.sources.survey import prepare as prepare_source
from credax.storage.folders import Folder, locked_folder


@dataclass(eq=False)
class Run:
    """The states of all replicas, the record of their infos and draws, and the number of steps so far.

    Attributes:
      key: the key for random numbers that the posterior needs.
      keys: for each replica, one key for its rows and one for its steps.
      padded: the data with rows of weight zero, on which the program runs; ``None`` if it runs on the data.
      unsuitable: what in the scale of the data does not suit the model; ``None`` if all does.
      ended: why the run was ended before its last step; ``None`` if it was not.
      finished: whether all replicas have finished before the last step.
      feeder: reads the batches of a source; ``None`` if the data are arrays.
      group: the hosts of the run; ``None`` if nothing is agreed with others.
      due: whether a run on several hosts writes a checkpoint after the next chunk.
      needs: what the memory that the run needs is estimated from, until it is compiled.
      memory: the memory that the run needs, known once it is compiled.
    """

    model: Any
    method: Method
    data: Any
    key: Any
    keys: Any
    states: PyTree
    record: Record
    stopper: Stopper | None
    saved: SavedRun | None
    program: Callable[..., Any]
    unsuitable: str | None = None
    step: int = 0
    ended: str | None = None
    padded: Any = None
    finished: bool = False
    seconds: float = 0.0
    compile_seconds: float = 0.0
    feeder: Feeder | None = None
    group: Group | None = None
    due: bool = True
    needs: Parts | None = None
    memory: Memory | None = None

    def compile(self) -> None:
        """Compile the program, and run a chunk of zero steps if there is enough memory for it."""
        if self.needs is not None:
            self.memory = replace(self.needs, states=self.states, keys=self.keys).memory(
                compile=True
            )
            self.memory.check(self.method)
            self.needs = None  # which may hold an empty window of a source
        self.states, *_ = jax.block_until_ready(self._to(self.step))

    def advance(self, length: int) -> None:
        """Take at most ``length`` steps."""
        end = self.record.end(self.step, length)
        end = end if self.stopper is None else self.stopper.next_look(self.step, end)
        end = end if self.feeder is None else min(end, self.feeder.end(self.step))
        ahead, reached, infos, draws = self._to(end)
        reached = int(reached)
        self.finished = reached < end
        if reached > self.step:
            self.record.add(self.step, reached, infos, draws)
        # In one statement, so that an interrupt cannot leave the states and the step inconsistent.
        self.states, self.step = ahead, reached

    def _to(self, end: int) -> tuple[PyTree, Any, PyTree, PyTree]:
        bounds = np.int32(self.step), np.int32(end)
        rows = self.data if self.padded is None else self.padded
        if self.feeder is not None:
            rows = self.feeder.window(self.step)
        return self.program(self.states, self.keys, rows, *bounds)

    @property
    def alone(self) -> bool:
        """Whether there is only this host."""
        return self.group is None or self.group.count == 1

    def save(self, *, final: bool) -> None:
        """Write a checkpoint if there is a folder for it, and either it is time or the run is over."""
        if self.saved is None:
            return
        final = final or self.step == self.method.num_steps
        if final or (self.saved.due() if self.alone else self.due):
            states = program.kept(self.method, self.states)
            self.saved.save(self.step, states, self.record, self.stopper, final=final)
        else:
            self.saved.look(self.record)

    def agree(self, length: int) -> int:
        """Agree with all hosts whether the run ends or saves; return the length of the next chunk."""
        if self.alone or self.group is None:
            return length
        due = self.saved is not None and self.saved.due()
        everyone = self.group.exchange(f"step {self.step}", [length, self.ended, due])
        length, _, self.due = everyone[0]
        self.ended = next((ended for _, ended, _ in everyone if ended), None)
        return length

    def release(self) -> None:
        """Give back the memory of the states, once the run is over."""
        self.states = None
        if self.stopper is not None:
            self.stopper.best = None

    def trace(self) -> Trace:
        """The trace from which the method builds the posterior."""
        states = program.kept(self.method, here(self.states))
        return self.record.trace(self.step, states, data=self.data, key=self.key)


def continued(model: Any, prior: Any) -> tuple[FromPosterior | None, Any]:
    """What an earlier posterior hands on, and the model with the prior of ``fit`` if it is another one."""
    if prior is None:
        return None, model
    if not isinstance(model, Model):
        raise TypeError(must("fit", "prior", "None for a LogDensity", prior))
    if isinstance(prior, FromPosterior):
        return prior, model
    if not isinstance(prior, Prior | Mapping):
        allowed = (
            "a prior, a mapping of path patterns to priors, posterior.as_prior() for new rows, or "
            "posterior.prior for the same rows"
        )
        raise TypeError(must("fit", "prior", allowed, prior))
    return None, replace(model, prior=prior)


def prepare(
    model,
    data,
    method: Method,
    key,
    checkpoint,
    start,
    early_stopping,
    weights,
    held: ExitStack,
    earlier: FromPosterior | None = None,
    pad_rows: bool = False,
    mesh: Any = None,
    group: Group | None = None,
    memory_limit: float | None = None,
    draws: Path | None = None,
) -> Run:
    """Check the data, and make or restore the states, up to the first step.

    The folder of the checkpoint stays locked until ``held`` is closed.
    """
    key, start_key, posterior_key, split_key = jax.random.split(key, 4)
    stopping = EarlyStopping.of(early_stopping)
    if stopping is not None:
        if isinstance(model, LogDensity):
            allowed = "None for a LogDensity, which has no rows to hold out"
            raise TypeError(must("fit", "early_stopping", allowed, early_stopping))
        parts = stopping.held_out_weights(split_key, data, weights)
        data, stopping = stopping.held_out(split_key, data)
        weights, stopping = parts[0], replace(stopping, weights=parts[1])
    bound: Any
    bound, data = model_and_data(model, data, weights, earlier)
    if stopping is not None:
        stopping.check(bound)
    feeder = None
    with refusing(method):
        method.check(bound, data)
        if isinstance(data, SourceData):
            feeder = Feeder(method, bound, data)
            held.callback(feeder.close)
    checking.check_state(bound, method, start)
    unsuitable = scales.unsuitable(bound, data)
    if unsuitable is not None:
        warnings.warn(unsuitable, DataWarning, stacklevel=3)

    folder = None
    if checkpoint is not None:
        checkpoint = Checkpoint.of(checkpoint)
        folder = _folder(checkpoint, held, group)
    if draws is not None:
        if group is not None and group.count > 1:
            raise ValueError(must("fit", "draws", "None for a run on several hosts", str(draws)))
        place = folder_of(draws, None if folder is None else folder.path)
        draws = held.enter_context(locked_folder(place, DESCRIPTION)).path
    mesh = mesh_for(mesh, method, data, program.endless(method))
    starts = None if start is None else start.starts(start_key, method.replicas, bound)
    several = group is not None and group.count > 1
    if group is not None and several:
        given = arguments_of(bound, method, data, key, starts, stopping)
        shape = {} if mesh is None else dict(mesh.shape)
        group.compare({**given, "mesh": shape, "checkpoint": folder is not None})
    spread = data if feeder is not None else placed(mesh, method, data)
    # What is computed after the run is computed by each host for itself.
    data = data if several else spread
    rows = placed(mesh, method, padded(bound, method, data)) if pad_rows else spread
    if feeder is not None:
        feeder.spread(mesh)
        rows = feeder.empty()
    begun = everywhere(mesh, (key, starts))
    with refusing(method):
        needs = Parts.of_shapes(
            *(method, bound, mesh, begun[0], rows, begun[1], draws is not None, memory_limit)
        )
        needs.memory(compile=False).check(method)
        keys, states = program.begin(method, bound, mesh, begun[0], rows, begun[1])
    check_divisible(mesh, states)
    if isinstance(method, Starting):
        method.check_start(program.kept(method, here(states)))
    record = Record.of(method, needs.info, needs.draw, folder=draws)
    stopper = None if stopping is None else Stopper(stopping, bound, method)
    if stopper is not None and group is not None:
        stopper.share = lambda score: group.from_first("the held-out log likelihood", score)
    step, saved = 0, None
    if checkpoint is not None and folder is not None:
        # The size of the windows does not belong to the identity of a run, nor do its devices.
        shown = rows if feeder is None else feeder.shape()
        traced = program.traced(method, bound, key, shown, starts, states, keys)
        identity = Identity.of(bound, method, data, key, mesh, starts, stopping, traced)
        shards = Shards(folder.path) if checkpoint.in_parts(mesh, states) else None
        name = secrets.token_hex(4)
        name = name if group is None else group.from_first("the name of the run", name)
        saved = SavedRun(folder, identity, shards, name)
        held.callback(saved.close)
        step, states = saved.restore(states, record, stopper)
        if group is not None:
            _check_same(folder, group.exchange("the restored step", step))
    if record.disk is not None and step == 0:
        record.disk.begin()
    if feeder is not None:
        feeder.start(keys)
    steps = program.compiled(method, bound, mesh, record.capacity, states, record.draws)
    # A run that was stopped early stays stopped when it is restored.
    ended = "early stopping" if stopper is not None and stopper.finished else None
    return Run(
        *(bound, method, data, posterior_key, keys, states),
        *(record, stopper, saved, steps, unsuitable, step, ended),
        padded=None if rows is data or feeder is not None else rows,
        feeder=feeder,
        group=group,
        # The program of a part of a mesh says nothing about the others.
        needs=None if several or model_size(mesh) > 1 else needs,
    )


def _folder(checkpoint: Checkpoint, held: ExitStack, group: Group | None) -> Folder:
    """The folder for checkpoints, which host 0 locks for as long as the run lasts."""
    if group is None or group.first:
        return held.enter_context(locked_folder(checkpoint.folder, STATE))
    return Folder(Path(checkpoint.folder), False)


def _check_same(folder: Folder, steps: list[int]) -> None:
    if len(set(steps)) > 1:
        raise StorageError(
            f"All hosts must see the same folder {folder.path}; they find checkpoints at the steps {steps}."
        )


def model_and_data(
    model: Any, data: Any, weights: Any, earlier: FromPosterior | None
) -> tuple[Any, Any]:
    """The model bound to the data, and the data as the program or a feeder takes them."""
    if not isinstance(data, Source):
        return (
            model.prepare(data, weights)
            if earlier is None
            else earlier.prepare(model, data, weights)
        )
    if isinstance(model, LogDensity):
        raise TypeError(must("fit", "data", "None for a LogDensity", data))
    if weights is not None:
        raise TypeError(must("fit", "weights", "None for a source, whose rows count once", weights))
    if earlier is not None:
        raise TypeError(must("fit", "prior", "the prior of a model for a source", earlier))
    return prepare_source(model, data)
