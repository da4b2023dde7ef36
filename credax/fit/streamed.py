"""Runs on a source: the batches of the next steps are read while those before them are computed.

The steps of a run are cut into windows of equal length, the first of which begins at step 0. The batches of a
window are stacked and moved to the device in one go, and a thread reads the next window meanwhile. At any time
there are at most three windows: the one in use, the next one, and that part of it that is still on the host.

Of a run on several hosts, each reads what its own devices need: the batches of its replicas, and the rows of
each batch that are placed there. Which these are follows from the keys and the steps, so nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from credax.core import hosts, random
from credax.fit.mesh import REPLICA, everywhere, on_host, padded, put, sizes
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
            if takes_batches(cls) and "all rows" not in cls().needs
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
        self._replicas, self._mesh = method.replicas, None
        self._sample = jax.device_put(data.sample)
        self._words: Any = None
        self._now: tuple[int, Window] | None = None
        self._next: tuple[int, Future] | None = None
        self._reader = ThreadPoolExecutor(1, "credax-source")

    def spread(self, mesh: Mesh | None) -> None:
        """Learn the devices of the run, among which the batches are divided."""
        self._mesh, self._replicas = mesh, padded(mesh, self._method.replicas)
        self._sample = everywhere(mesh, self._sample)

    def empty(self) -> Window:
        """A window without batches, for programs that only look at its shape."""
        count = self.steps * self._replicas
        zeros = lambda a: np.zeros((count, self._size, *a.shape[1:]), a.dtype)  # noqa: E731
        words, none = np.zeros((count, 2), np.uint32), np.full(count, -1, np.int32)
        return self._placed(words, none, zeros(self._data.sample.x), zeros(self._data.sample.y))

    def shape(self) -> Window:
        """The shape of a window of one step, whatever its devices are: by it, a run is told from others."""
        found, count = self.empty(), self._method.replicas
        first = lambda a: jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype)  # noqa: E731
        words, steps, x, y = map(first, (found.words, found.steps, found.inputs, found.targets))
        return Window(words, steps, x, y, self._sample, self._data.rows)

    def start(self, keys: Any) -> None:
        """Learn the keys of the replicas, with which they ask for rows."""
        self._words = on_host(jax.random.key_data(keys[:, 0]))

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
        needed = np.tile(asked < self._method.num_steps, self._replicas)
        batches, part = self._own(len(steps))
        read = np.flatnonzero(needed & batches)
        found = data.batches(words[read], steps[read], self._size, part)

        def whole(a):
            room = np.zeros((len(steps), self._size, *a.shape[2:]), a.dtype)
            room[read, part] = a
            return room

        return self._placed(words, np.where(needed, steps, np.int32(-1)), *map(whole, found))

    def _own(self, count: int) -> tuple[np.ndarray, slice]:
        """Which of ``count`` batches, and which of their rows, the devices of this host need."""
        mine = np.ones(count, bool)
        if self._mesh is None or hosts.count() == 1:
            return mine, slice(None)
        grid = self._mesh.devices.reshape(*sizes(self._mesh), -1)
        own = np.vectorize(lambda device: device.process_index == jax.process_index())(grid)
        mine = np.repeat(own.any((1, 2)), count // len(grid))
        places = np.flatnonzero(own.any((0, 2)))
        if not self._divides():
            return mine, slice(None)
        each = self._size // grid.shape[1]
        return mine, slice(int(places[0]) * each, (int(places[-1]) + 1) * each)

    def _divides(self) -> bool:
        """Whether the rows of a batch are placed on hosts in equal parts."""
        rows = sizes(self._mesh)[1]
        return hosts.count() > 1 and rows > 1 and self._size % rows == 0

    def _placed(self, words: Any, steps: Any, x: Any, y: Any) -> Window:
        """The window on the devices of the run."""
        divided, mesh = self._divides(), self._mesh
        parts = (words, steps, x, y)
        if mesh is None or hosts.count() == 1:
            words, steps, x, y = jax.device_put(parts)
            return Window(words, steps, x, y, self._sample, self._data.rows)
        batches = NamedSharding(mesh, REPLICA)
        rows = NamedSharding(mesh, PartitionSpec("replica", "data")) if divided else batches
        words, steps, x, y = map(put, parts, (batches, batches, rows, rows))
        return Window(words, steps, x, y, self._sample, self._data.rows, divided=divided)


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

    # Those of one replica after those of another, so that they can be divided among devices.
    each = jax.vmap(jax.vmap(one, in_axes=(0, None)), in_axes=(None, 0))
    found, asked = each(steps, keys)
    return found.reshape(-1, 2), asked.reshape(-1)
