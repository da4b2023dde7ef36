"""What memory a fit needs: from the shapes before anything is compiled, and from the compiled program.

On the device there are the states of all replicas, the data, the space for the infos and draws of a chunk, and
the temporaries of a step: gradients and activations. Of these, shapes show a lower bound, in which a step needs
one gradient; the compiler knows the rest. On the host there are the draws and infos of the whole run. On a CPU,
device and host are the same memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from credax.core.checks import must, number
from credax.core.errors import MemoryLimitError
from credax.core.memory import bytes_of, free_on, free_on_host, in_words
from credax.fit import program
from credax.fit.mesh import REPLICA, model_size, sizes, state_shardings
from credax.fit.record import Capacity, kept_before
from credax.inference.method import Method

OVERHEAD = 55_000_000
"""What the process takes besides: small programs, checks of the data, free space between arrays.

Fits of some hundred megabytes took 40 to 70 MB more than the sum of the other figures: see
``benchmarks/memory.py``.
"""
REPLICAS = ("members", "chains", "particles")
"""The settings of methods that say how many replicas there are."""
PARTS = ("state", "data", "chunk", "temporary", "draws", "records", "overhead")
"""The parts of the memory of a fit."""


@dataclass(frozen=True)
class Memory:
    """The memory that a fit needs, in bytes, and what there is.

    Attributes:
      state: the states of all replicas: weights, what the optimiser keeps, batch statistics.
      data: the rows.
      chunk: the space on the device for the infos and draws of the steps between two looks at the run.
      temporary: what a step needs besides, such as gradients and activations. Before the program is compiled,
        one gradient alone.
      draws: the draws of the whole run, on the host; 0 if they go to disk.
      records: the figures of every step of the run, on the host.
      overhead: what the process takes besides, a constant; 0 before the program is compiled.
      compiled: whether ``temporary`` is that of the compiled program.
      device: the name of the device.
      available: what the device has left for the fit, the data included; ``None`` if it is not known.
      host_available: likewise for the host.
      finish: what the method computes once from all rows when the run is over, such as the curvature of
        ``Laplace``, needs besides the states and the data; 0 if this is little, or before it is compiled.

    With several devices, all figures of devices are those of one of them.
    """

    state: int
    data: int
    chunk: int
    temporary: int
    draws: int
    records: int
    overhead: int
    compiled: bool
    device: str
    available: float | None
    host_available: float | None
    finish: int = 0

    @property
    def on_device(self) -> int:
        """The most bytes on the device: while the run lasts, or when it is over."""
        return self.state + self.data + max(self.chunk + self.temporary, self.finish)

    @property
    def on_host(self) -> int:
        """The bytes on the host; those on the device are not counted, even if it is a CPU."""
        return self.draws + self.records + self.overhead

    @property
    def total(self) -> int:
        """The bytes on device and host together."""
        return self.on_device + self.on_host

    @property
    def shared(self) -> bool:
        """Whether device and host are the same memory, as on a CPU."""
        return self.device.startswith("cpu")

    @property
    def fits(self) -> bool:
        """Whether there is enough memory, as far as is known."""
        return not self._lacking

    @property
    def _lacking(self) -> list[tuple[int, float, str]]:
        """What is needed and what there is, wherever there is too little."""
        places = [(self.on_device, self.available, f"the device {self.device}")]
        places += [(self.on_host, self.host_available, "the host")]
        if self.shared:
            places = [(self.total, self.available, "the host")]
        return [(n, has, where) for n, has, where in places if has is not None and n > has]

    def __str__(self) -> str:
        exactly = "about" if self.compiled else "at least"
        texts = [f"needs {exactly} {in_words(self.total if self.shared else self.on_device)}"]
        where = "the host" if self.shared else f"the device {self.device}"
        texts.append(f"{where} has {_shown(self.available)}")
        if not self.shared:
            texts.append(
                f"{in_words(self.on_host)} on the host, which has {_shown(self.host_available)}"
            )
        return ", ".join(texts)

    def __repr__(self) -> str:
        parts = [f"{name} {in_words(getattr(self, name))}" for name in PARTS]
        parts += [f"finish {in_words(self.finish)}"] if self.finish else []
        return f"Memory({self}: {', '.join(parts)})"

    def figures(self) -> dict[str, Any]:
        """The bytes by name, as ``posterior.info`` records them."""
        return {name: getattr(self, name) for name in PARTS}

    def check(self, method: Method) -> None:
        """Refuse a fit that needs more than there is, and name the settings that would change it."""
        for needed, has, where in self._lacking:
            exactly = "about" if self.compiled else "at least"
            raise MemoryLimitError(
                f"{type(method).__name__} needs {exactly} {in_words(needed)} on {where}, which has "
                f"{in_words(has)}: {self._shares()}. {_advice(self, method)}"
            )

    def _shares(self) -> str:
        named = {
            "the states": self.state,
            "the data": self.data,
            "a chunk of the run": self.chunk,
            "a step": self.temporary,
            "the end of the run": self.finish,
            "the draws": self.draws,
            "the records": self.records,
            "the process": self.overhead,
        }
        return ", ".join(f"{name} {in_words(size)}" for name, size in named.items() if size)


def _shown(size: float | None) -> str:
    return "an unknown amount" if size is None else in_words(size)


def _advice(memory: Memory, method: Method) -> str:
    """Which settings make the largest share smaller."""
    own = [item.name for item in fields(method)]  # pyright: ignore[reportArgumentType]
    replicas = [f"{name}=" for name in REPLICAS if name in own]
    parts = {
        "temporary": [
            *(["batch_size="] if "batch_size" in own else []),
            *("fit(micro_batch=...)", "fit(rematerialise=True)", "fit(compute_dtype='bfloat16')"),
            *replicas,
        ],
        "draws": [
            *(f"{name}=" for name in ("num_draws", "snapshots") if name in own),
            *(["a larger thin="] if "thin" in own else []),
            "fit(draws='a folder')",
        ],
        "state": [*replicas, "fit(optimiser_dtype='bfloat16')", "a smaller network"],
        "chunk": [*replicas, "a smaller network"],
        "data": ["fewer rows, or a source from cx.sources, with batch_size="],
        "records": ["num_steps="],
    }
    parts["finish"] = [name for name in ("rank=", "structure=") if name[:-1] in own]
    parts["finish"] += ["fewer rows", "a smaller network"]
    largest = max(parts, key=lambda name: getattr(memory, name))
    return f"To need less, change {', '.join(parts[largest])}."


def limit(value: Any) -> float | None:
    """Check the argument ``memory_limit`` of ``fit``: a number of bytes, infinity, or ``None``."""
    if value is None or value == math.inf:
        return value
    found = number("fit", "memory_limit", value, "a number of bytes, or None")
    if found <= 0:
        raise ValueError(must("fit", "memory_limit", "a positive number of bytes, or None", value))
    return found


@dataclass(frozen=True)
class Parts:
    """What a fit consists of, as arrays or as shapes of arrays.

    Attributes:
      states: those of all replicas, and their keys.
      rows: the data as the program takes them.
      info, draw: of one step of all replicas.
      on_disk: whether the draws go to disk.
    """

    method: Method
    model: Any
    mesh: Any
    states: Any
    keys: Any
    rows: Any
    info: Any
    draw: Any
    on_disk: bool
    limit: float | None

    @classmethod
    def of_shapes(cls, method, model, mesh, key, rows, starts, on_disk, limit) -> Parts:
        """The shapes, which JAX finds by tracing."""
        keys, states = program.first_shapes(method, model, mesh, key, rows, starts)
        if mesh is not None:
            placed = lambda a, to: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=to)  # noqa: E731
            keys = placed(keys, NamedSharding(mesh, REPLICA))
            states = jax.tree.map(placed, states, state_shardings(mesh, states))
        shapes: Any = program.shapes
        info, draw = shapes.eval_shape(method, model, mesh, states, keys, rows, np.int32(0))
        return cls(method, model, mesh, states, keys, rows, info, draw, on_disk, limit)

    def memory(self, compile: bool) -> Memory:
        """What the fit needs; with the temporaries of the compiled program if it is to be compiled."""
        method, capacity = self.method, Capacity.of(self.method, self.info, self.draw)
        replica, along_rows = sizes(self.mesh)
        parts_of_state = replica * model_size(self.mesh)
        draws = kept_before(method, method.num_steps)
        # Of one replica: several of them may take turns.
        gradient = bytes_of(_params(self.model)) if "gradient" in method.needs else 0
        chunk = capacity.steps * bytes_of(self.info) + (capacity.draws + 1) * bytes_of(self.draw)
        data = bytes_of(self.rows)
        parts = method.batch_size is None and along_rows > 1
        device = jax.local_devices()[0] if self.mesh is None else self.mesh.devices.flat[0]
        free, on_host = free_on(device), free_on_host()
        here = -(-data // along_rows) if parts else data
        result = Memory(
            state=-(-bytes_of(self.states) // parts_of_state),
            data=here,
            chunk=-(-chunk // replica),
            temporary=-(-gradient // model_size(self.mesh)),
            draws=0 if self.on_disk else draws * bytes_of(self.draw),
            records=method.num_steps * bytes_of(self.info),
            overhead=0,
            compiled=False,
            device=f"{device.platform}:{device.id}",
            # The rows are on the device already.
            available=(None if free is None else free + here) if self.limit is None else self.limit,
            host_available=on_host if self.limit is None else self.limit,
        )
        if device.platform == "cpu" and replica > 1:
            # All devices are the same memory.
            each = {
                name: getattr(result, name) * replica for name in ("state", "chunk", "temporary")
            }
            result = replace(result, **each)
        return self._compiled(result, capacity) if compile else result

    def _compiled(self, before: Memory, capacity: Capacity) -> Memory:
        room = lambda a: jax.ShapeDtypeStruct((a.shape[0], 1, *a.shape[1:]), a.dtype)  # noqa: E731
        draws = jax.tree.map(room, self.draw)
        steps: Any = program.compiled(
            self.method, self.model, self.mesh, capacity, self.states, draws
        )
        bounds = np.int32(0), np.int32(0)
        lowered = steps.func.lower(*steps.args, self.states, self.keys, self.rows, *bounds)
        found = lowered.compile().memory_analysis()  # JAX keeps the program for the run itself
        if found is None:
            return before
        several = sizes(self.mesh)[0] if before.shared else 1
        temporary = int(found.temp_size_in_bytes) * several
        return replace(before, temporary=temporary, overhead=OVERHEAD, compiled=True)


def _params(model: Any) -> Any:
    return jax.eval_shape(model.init, jax.random.key(0))
