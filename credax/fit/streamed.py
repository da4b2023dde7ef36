"""Runs on a source: the batches of the next steps are read while those before them are computed.

The steps of a run are cut into windows of equal length, the first of which begins at step 0. The batches of a
window are stacked and moved to the device in one go, and a thread reads the next window meanwhile. At any time
there are at most three windows: the one in use, the next one, and that part of it that is still on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.inference import METHODS
from credax.inference.method import Method
from credax.model.sources.source import host
from credax.model.sources.streamed import SourceData
from credax.model.sources.window import Asking, Elsewhere, NeedsAllRows, Window, request

WINDOW_BYTES = 64 << 20
"""The most bytes of the inputs of a window, unless a single step needs more."""
MOST_BATCHES = 4096
"""The most batches in a window: each step looks for its own among them."""


@contextmanager
def refusing(method: Method) -> Iterator[None]:
    """Say which methods run on a source if this one asks for all rows at once."""
    try:
        yield
    except NeedsAllRows:
        name = type(method).__name__
        takes_batches: Any = lambda cls: "batch_size" in {item.name for item in fields(cls)}  # noqa: E731
        batches = [
            cls.__name__
            for cls in METHODS.values()
            if takes_batches(cls) and not cls.needs_all_rows
        ]
        has = name in batches
        need = f"{name} with these settings needs all rows at once"
        hint = (
            f"Give {name}(batch_size=...) and no setting that looks at all rows, or use"
            if has
            else "Use"
        )
        raise TypeError(
            f"{need}, and a source does not hold them in memory. {hint} a method that takes batches, such as "
            f"{', '.join(batches[:-1])} or {batches[-1]}, with batch_size=...; or load the rows as arrays."
        ) from None


class Feeder:
    """The windows of a run.

    Args:
      method: the method.
      model: the model, bound to the source.
      data: the source.
    """

    def __init__(self, method: Method, model: Any, data: SourceData):
        self._method, self._model, self._data = method, model, data
        self._size = _batch_size(method, model, data)
        one = method.replicas * self._size * _bytes_of_row(data)
        most = min(WINDOW_BYTES // one, MOST_BATCHES // method.replicas, method.num_steps)
        self.steps = max(1, int(most))
        self._sample = jax.device_put(data.sample)
        self._words: np.ndarray | None = None
        self._now: tuple[int, Window] | None = None
        self._next: tuple[int, Future] | None = None
        self._reader = ThreadPoolExecutor(1, "credax-source")

    def empty(self, steps: int | None = None) -> Window:
        """A window without batches, for programs that only look at its shape; of ``steps`` steps, if given."""
        count = (steps or self.steps) * self._method.replicas
        zeros = lambda a: jnp.zeros((count, self._size, *a.shape[1:]), a.dtype)  # noqa: E731
        words, none = jnp.zeros((count, 2), np.uint32), jnp.full(count, -1, np.int32)
        x, y = zeros(self._data.sample.x), zeros(self._data.sample.y)
        return Window(words, none, x, y, self._sample, self._data.rows)

    def start(self, keys: Any) -> None:
        """Learn the keys of the replicas, with which they ask for rows."""
        self._words = np.asarray(jax.random.key_data(keys[:, 0]))

    def end(self, step: int) -> int:
        """The end of the window that contains a step."""
        return (step // self.steps + 1) * self.steps

    def window(self, step: int) -> Window:
        """The window that contains a step; the next one is then read in the background."""
        index = step // self.steps
        if self._now is None or self._now[0] != index:
            waiting = self._next
            if waiting is None or waiting[0] != index:
                waiting = index, self._reader.submit(self._read, index)
            self._now = self._next = (
                None  # before the next one comes, so that there are never three
            )
            self._now = index, waiting[1].result()
        if self._next is None and self.end(step) < self._method.num_steps:
            self._next = index + 1, self._reader.submit(self._read, index + 1)
        return self._now[1]

    def close(self) -> None:
        """End the thread; a window that is being read is completed first."""
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._now = self._next = None

    def _read(self, index: int) -> Window:
        """Read the batches of a window, and move them to the device."""
        asked = np.arange(index * self.steps, (index + 1) * self.steps, dtype=np.int32)
        data, row = self._data, partial(_shape, self._data)
        with jax.default_device(host()):
            shapes = (data.rows, row("x"), row("y"))
            words, steps = _requests(self._method, self._model, shapes, self._words, asked)
            words, steps = np.asarray(words), np.asarray(steps)
        used = int(np.sum(asked < self._method.num_steps)) * self._method.replicas
        x, y = data.batches(words[:used], steps[:used], self._size)
        missing = len(steps) - used
        if missing:
            fill = lambda a: np.concatenate([a, np.zeros((missing, *a.shape[1:]), a.dtype)])  # noqa: E731
            x, y = fill(x), fill(y)
            steps = np.where(np.arange(len(steps)) < used, steps, np.int32(-1))
        return jax.device_put(Window(words, steps, x, y, self._sample, data.rows))


def _shape(data: SourceData, name: str) -> tuple[tuple[int, ...], str]:
    found = getattr(data, name)
    return found.shape, str(found.dtype)


def _bytes_of_row(data: SourceData) -> int:
    return max(1, data.sample.x[0].nbytes + data.sample.y[0].nbytes)


def _batch_size(method: Method, model: Any, data: SourceData) -> int:
    """The number of rows that a method asks for in a step, found without computing anything."""
    sizes = []

    def ask(key, step):
        *_, size = request(method, model, data.asking(), key, step)
        sizes.append(size)
        return step

    jax.eval_shape(ask, random.key(0), np.int32(0))
    return sizes[0]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _requests(method, model, shapes, words, steps):
    """What all replicas ask for in some steps: the data of keys, and the numbers of steps."""
    rows, x, y = shapes
    keys = jax.random.wrap_key_data(words, impl=random.IMPLEMENTATION)

    def one(step, key):
        asking = Asking(rows, Elsewhere(*x), Elsewhere(*y))
        return request(method, model, asking, key, step)[:2]

    each = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))
    found, asked = each(steps, keys)
    return found.reshape(-1, 2), asked.reshape(-1)
