"""``fit_each``: many small data sets of the same shape, each fitted once, all of them in one program."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.devices import one_blas_thread
from credax.core.programs import jit
from credax.fit import checking, program
from credax.fit.fit import finish
from credax.fit.progress import Bar
from credax.fit.record import Record
from credax.fit.run import Run
from credax.inference.method import Method, Starting
from credax.model import Model
from credax.model.data import ArrayData
from credax.posterior import Posterior


def fit_each(
    model: Model,
    data: tuple[Any, Any],
    method: Method,
    *,
    key: Any = 0,
    progress: bool = True,
) -> list[Posterior]:
    """Fit a model to each of several sets of targets at the same inputs; return one posterior for each.

    The replicas of all fits run as one batch, so hundreds of small fits take little longer than one. Each of
    them has keys of its own. Its bits are not those of ``fit``, since a batch of another width rounds
    differently. No problems are looked for in the posteriors; ``posterior.diagnose()`` does so.

    Args:
      model: a ``Model``.
      data: ``(x, ys)``: the inputs, and the targets with a leading axis, one entry for each data set.
      method: how to approximate each posterior.
      key: an int or a JAX key.
      progress: whether to show a progress bar with the figures of the method.
    """
    checking.check_arguments(model, method, progress, None, None, None)
    x, ys = data
    bound, first = model.prepare((x, ys[0]))
    if bound.divided:
        raise TypeError(
            "fit_many takes one array of targets per row, without positions or heads; use fit."
        )
    ys = np.stack([bound.check_targets(y, first.rows) for y in ys])
    method.check(bound, first)
    checking.check_state(bound, method, None)
    keys = jax.random.split(random.key(key), (len(ys), 2))
    fits = _Fits(bound, method, first.x, jnp.asarray(ys), keys[:, 0], keys[:, 1])
    fits.run(progress)
    return [finish(run) for run in fits.runs()]


class _Fits:
    """The states of all fits, stacked along a leading axis, and the record of each."""

    def __init__(self, model: Model, method: Method, x, ys, keys, posterior_keys):
        self.model, self.method, self.x, self.ys = model, method, x, ys
        self.posterior_keys = posterior_keys
        self.keys, self.states = program.begin_each(method, model, keys, x, ys)
        if isinstance(method, Starting):
            starts = jax.device_get(self.states)
            for i in range(len(ys)):
                method.check_start(jax.tree.map(lambda leaf: leaf[i], starts))  # noqa: B023
        keys, states = jax.tree.map(lambda leaf: leaf[0], (self.keys, self.states))
        shapes: Any = program.shapes
        info, draw = shapes.eval_shape(method, model, None, states, keys, self.data(0), np.int32(0))
        self.records = [Record.of(method, info, draw, shared_by=len(ys)) for _ in ys]
        self.step, self.seconds, self.compile_seconds = 0, 0.0, 0.0

    def data(self, i: int) -> ArrayData:
        """The data set of one fit."""
        return ArrayData(self.x, self.ys[i])

    def run(self, progress: bool) -> None:
        """All steps of all fits, in compiled chunks; the infos of each are checked after each chunk."""
        clock = time.perf_counter()
        finished = False
        with one_blas_thread, Bar(self.method, progress, done=0) as bar:
            self.states, *_ = jax.block_until_ready(self._to(self.step))
            bar.compiled()
            compiled, length = time.perf_counter(), 1
            while self.step < self.method.num_steps and not finished:
                began, first = time.perf_counter(), self.step
                end = self.records[0].end(first, length)
                self.states, reached, infos, draws = self._to(end)
                infos, draws = jax.device_get((infos, draws))
                self.step, finished = int(reached), int(reached) < end
                if self.step == first:
                    break  # all fits had finished at the end of the chunk before
                for i, record in enumerate(self.records):
                    mine = jax.tree.map(lambda leaf: leaf[:, i], (infos, draws))  # noqa: B023
                    record.add(first, self.step, *mine)
                    checking.check_finite(record, self.step, self.model, self.method, None)
                length = program.next_length(self.step - first, time.perf_counter() - began)
                bar.update(self.step, self.records[0].figures())
        self.seconds, self.compile_seconds = time.perf_counter() - compiled, compiled - clock

    def _to(self, end: int) -> tuple[Any, Any, Any, Any]:
        bounds = np.int32(self.step), np.int32(end)
        capacity = self.records[0].capacity
        return program.advance_each(
            self.method, self.model, capacity, self.states, self.keys, self.x, self.ys, *bounds
        )

    def runs(self):
        """Each fit as a run that has reached its last step; its seconds are its share of the time."""
        share = len(self.records)
        for i, record in enumerate(self.records):
            keys, states = _entry((self.keys, self.states), i)
            yield Run(
                *(self.model, self.method, self.data(i), self.posterior_keys[i], keys, states),
                *(record, None, None, self._to),
                step=self.step,
                seconds=self.seconds / share,
                compile_seconds=self.compile_seconds / share,
            )


@jit
def _entry(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)
