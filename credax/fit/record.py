"""What a run leaves on the host: the info of every step and the kept draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from credax.core.typing import PyTree
from credax.fit.disk import Disk, DrawFile
from credax.fit.mesh import on_host
from credax.inference.method import Method, Trace

# Space on the device for one chunk: cheap to clear at every chunk, and enough for half a second.
INFO_BYTES, DRAW_BYTES = 4 << 20, 64 << 20


class Capacity(NamedTuple):
    """The largest number of steps and of draws in one chunk."""

    steps: int
    draws: int

    @classmethod
    def of(cls, method: Method, info: PyTree, draw: PyTree, shared_by: int = 1) -> Capacity:
        """What fits into the space for a chunk, given the shapes of the infos and draws of one step.

        ``shared_by`` is the number of runs between which the space on the device is divided.
        """
        total = kept_before(method, method.num_steps)
        size = lambda tree: sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))  # noqa: E731
        steps = max(1, min(method.num_steps, INFO_BYTES // max(shared_by * size(info), 1)))
        return cls(steps, max(1, min(total, DRAW_BYTES // max(shared_by * size(draw), 1))))


def kept_before(method: Method, step: int) -> int:
    """The number of draws of a replica after ``step`` steps."""
    return max(0, step - method.num_warmup) // method.thin


@dataclass(eq=False)
class Record:
    """The infos and draws of a run so far, on the host.

    The arrays are allocated for the whole run, with axes (replica, step) and (replica, draw). If the draws go
    to disk, there are files instead of their arrays.
    """

    method: Method
    capacity: Capacity
    infos: dict[str, np.ndarray]
    draws: PyTree
    disk: Disk | None = None
    _seen: tuple[int, int] = field(default=(0, 0))

    @classmethod
    def of(
        cls,
        method: Method,
        info: PyTree,
        draw: PyTree,
        shared_by: int = 1,
        folder: Path | None = None,
    ) -> Record:
        """An empty record of a whole run, given the shapes of the infos and draws of one step.

        ``shared_by`` is the number of runs between which the space on the device is divided, and ``folder``
        that of the draws if they go to disk.
        """
        names = {name: _host_room(leaf, method.num_steps) for name, leaf in _named(info).items()}
        total = kept_before(method, method.num_steps)
        capacity = Capacity.of(method, info, draw, shared_by)
        if folder is not None and jax.tree.leaves(draw) and total:
            disk = Disk(folder, draw, total)
            return cls(method, capacity, names, disk.draws, disk)
        return cls(method, capacity, names, jax.tree.map(lambda a: _host_room(a, total), draw))

    @property
    def keeps(self) -> bool:
        """Whether the method keeps draws during the run."""
        return bool(jax.tree.leaves(self.draws))

    def end(self, begin: int, length: int) -> int:
        """The end of a chunk that starts at ``begin`` and has at most ``length`` steps, within the capacity."""
        end = min(begin + min(length, self.capacity.steps), self.method.num_steps)
        if self.keeps:
            draws = kept_before(self.method, begin) + self.capacity.draws
            end = min(end, self.method.num_warmup + draws * self.method.thin)
        return end

    def add(self, begin: int, end: int, infos: PyTree, draws: PyTree) -> None:
        """Copy the infos and draws of a chunk from the device."""
        for name, chunk in _named(infos).items():
            self.infos[name][:, begin:end] = np.swapaxes(on_host(chunk)[: end - begin], 0, 1)
        first, last = kept_before(self.method, begin), kept_before(self.method, end)

        def copy(room, chunk):
            draws = np.swapaxes(on_host(chunk)[: last - first], 0, 1)
            if isinstance(room, DrawFile):
                room.write(first, draws)
            else:
                room[:, first:last] = draws

        if last > first:
            jax.tree.map(copy, self.draws, draws)
        self._seen = (begin, end)

    def figures(self) -> dict[str, float]:
        """The mean of each info over the last steps (at most 100) of the last chunk, as shown to users."""
        begin, end = max(self._seen[0], self._seen[1] - 100), self._seen[1]
        # In double precision, since an energy change may be close to the largest number in single precision.
        mean = lambda room: float(np.mean(room[:, begin:end], dtype=np.float64))  # noqa: E731
        return {name: mean(room) for name, room in self.infos.items()}

    def first_not_finite(self, step: int) -> tuple[int, int, str, float] | None:
        """Step, replica, name and value of the first NaN or infinity in the last chunk."""
        begin, found = self._seen[0], []
        for name, room in self.infos.items():
            places = np.argwhere(~np.isfinite(room[:, begin:step]))
            if len(places):
                replica, at, *rest = min(places.tolist(), key=lambda place: (place[1], place[0]))
                value = float(room[(replica, begin + at, *rest)])
                found.append((begin + at, replica, name, value))
        return min(found, key=lambda place: place[:2], default=None)

    def usable(self, step: int) -> bool:
        """Whether a posterior can be made of the first ``step`` steps."""
        return step > 0 and (not self.keeps or kept_before(self.method, step) > 0)

    def history(self, step: int) -> dict[str, np.ndarray]:
        """Each info, with axes (replica, step), for the first ``step`` steps."""
        return {name: room[:, :step] for name, room in self.infos.items()}

    def kept_steps(self, step: int) -> np.ndarray:
        """The index of the step after which each draw was kept."""
        kept = kept_before(self.method, step) if self.keeps else 0
        return self.method.num_warmup + self.method.thin * np.arange(1, kept + 1) - 1

    def trace(self, step: int, state: PyTree, *, data: Any, key: Any) -> Trace:
        """The trace from which a method builds its posterior."""
        kept = kept_before(self.method, step)
        read = lambda room: room.read(kept) if isinstance(room, DrawFile) else room[:, :kept]  # noqa: E731
        draws = jax.tree.map(read, self.draws) if self.keeps else None
        return Trace(state, draws, self.history(step), data, key, step)


def _host_room(leaf: Any, length: int) -> np.ndarray:
    return np.zeros((leaf.shape[0], length, *leaf.shape[1:]), leaf.dtype)


def _named(info: Any) -> dict[str, Any]:
    return info._asdict() if hasattr(info, "_asdict") else dict(info or {})
