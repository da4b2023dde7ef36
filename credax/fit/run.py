"""A run: prepared from the arguments of ``fit``, advanced in chunks, and saved."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from credax.core.checks import must
from credax.core.errors import DataWarning
from credax.core.typing import PyTree
from credax.fit import checking, program, scales
from credax.fit.checkpoint import STATE, Checkpoint
from credax.fit.identity import Identity
from credax.fit.record import Record
from credax.fit.stopping import EarlyStopping, Stopper
from credax.inference.method import Method, Starting, Trace
from credax.model import LogDensity
from credax.storage.folders import locked_folder


@dataclass(eq=False)
class Run:
    """The states of all replicas, the record of their infos and draws, and the number of steps so far.

    Attributes:
      key: the key for random numbers that the posterior needs.
      keys: for each replica, one key for its rows and one for its steps.
      unsuitable: what in the scale of the data does not suit the model; ``None`` if all does.
      ended: why the run was ended before its last step; ``None`` if it was not.
      finished: whether all replicas have finished before the last step.
    """

    model: Any
    method: Method
    data: Any
    key: Any
    keys: Any
    states: PyTree
    record: Record
    stopper: Stopper | None
    saved: Checkpoint | None
    program: Callable[..., Any]
    unsuitable: str | None = None
    step: int = 0
    ended: str | None = None
    finished: bool = False
    seconds: float = 0.0
    compile_seconds: float = 0.0

    def compile(self) -> None:
        """Compile the program, by running a chunk of zero steps."""
        self.states, *_ = jax.block_until_ready(self._to(self.step))

    def advance(self, length: int) -> None:
        """Take at most ``length`` steps."""
        end = self.record.end(self.step, length)
        end = end if self.stopper is None else self.stopper.next_look(self.step, end)
        ahead, reached, infos, draws = self._to(end)
        reached = int(reached)
        self.finished = reached < end
        if reached > self.step:
            self.record.add(self.step, reached, infos, draws)
        # In one statement, so that an interrupt cannot leave the states and the step inconsistent.
        self.states, self.step = ahead, reached

    def _to(self, end: int) -> tuple[PyTree, Any, PyTree, PyTree]:
        bounds = np.int32(self.step), np.int32(end)
        return self.program(self.states, self.keys, self.data, *bounds)

    def save(self, *, final: bool) -> None:
        """Write a checkpoint if there is a folder for it, and either it is time or the run is over."""
        if self.saved is not None:
            final = final or self.step == self.method.num_steps
            self.saved.save(self.step, self.states, self.record, self.stopper, final=final)

    def trace(self) -> Trace:
        """The trace from which the method builds the posterior."""
        return self.record.trace(self.step, self.states, data=self.data, key=self.key)


def prepare(
    model, data, method: Method, key, checkpoint, start, early_stopping, held: ExitStack
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
        data, stopping = stopping.held_out(split_key, data)
    bound: Any
    bound, data = model.prepare(data)
    if stopping is not None:
        stopping.check(bound)
    method.check(bound, data)
    checking.check_state(bound, method, start)
    unsuitable = scales.unsuitable(bound, data)
    if unsuitable is not None:
        warnings.warn(unsuitable, DataWarning, stacklevel=3)

    folder = None
    if checkpoint is not None:
        folder = held.enter_context(locked_folder(checkpoint, STATE))
    mesh = program.mesh_of(method)
    starts = None if start is None else start.starts(start_key, method.replicas, bound)
    keys, states = program.begin(method, bound, mesh, key, data, starts)
    if isinstance(method, Starting):
        method.check_start(states)
    shapes: Any = program.shapes  # a jitted function, which caches its shapes
    info, draw = shapes.eval_shape(method, bound, mesh, states, keys, data, np.int32(0))
    record = Record.of(method, info, draw)
    stopper = None if stopping is None else Stopper(stopping, bound, method)
    step, saved = 0, None
    if folder is not None:
        traced = program.traced(method, bound, mesh, key, data, starts, states, keys)
        identity = Identity.of(bound, method, data, key, mesh, starts, stopping, traced)
        saved = Checkpoint(folder, identity)
        step, states = saved.restore(states, record, stopper)
    steps = program.compiled(method, bound, mesh, record.capacity, states)
    # A run that was stopped early stays stopped when it is restored.
    ended = "early stopping" if stopper is not None and stopper.finished else None
    return Run(
        *(bound, method, data, posterior_key, keys, states),
        *(record, stopper, saved, steps, unsuitable, step, ended),
    )
