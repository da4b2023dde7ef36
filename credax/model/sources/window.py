"""The batches of some steps on the device, from which a compiled program takes them.

A method asks its data for ``batch(key, step, size)``. For a source, the host finds out beforehand what will be
asked for in the next steps, reads the rows, and puts the answers into a table: the window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.typing import Array, Key
from credax.model.data import ArrayData, Batch


class NeedsAllRows(TypeError):
    """A method asked for all rows of a source at once."""


class Elsewhere:
    """The inputs or the targets of a source: their shape and dtype are known, but they are not in memory."""

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)

    def _refuse(self, *_: Any) -> NoReturn:
        raise NeedsAllRows("all rows")

    __getitem__ = __array__ = __jax_array__ = __iter__ = __len__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NeedsAllRows("all rows")


class EachRowOnce:
    """Data whose rows have no weights: every row counts once."""

    rows: int
    weights: ClassVar[None] = None
    mean_weight: ClassVar[None] = None

    @property
    def total(self) -> int:
        """N, the number of rows."""
        return self.rows

    def numbered(self) -> NoReturn:
        """The rows cannot be chosen by their numbers: they are not in memory."""
        raise NeedsAllRows("all rows")


@partial(jax.tree_util.register_dataclass, data_fields=["x", "y"], meta_fields=["rows"])
@dataclass(frozen=True)
class Sample(EachRowOnce):
    """A random sample of the rows of a source, as the network gets them.

    Attributes:
      x: the inputs of the sample.
      y: the targets of the sample.
      rows: N, the number of rows of the source.
    """

    x: Any
    y: Any
    rows: int

    def take(self, rows: Any) -> ArrayData:
        """Some rows of the sample."""
        return ArrayData(self.x[rows], self.y[rows])

    def batch(self, key: Key, step: Array, size: int) -> Batch:
        """Rows of the sample, of which there may be fewer than ``size``, that represent all rows."""
        held = ArrayData(self.x, self.y)
        batch = held.batch(key, step, min(size, held.rows))
        return replace(batch, scale=batch.scale * (self.rows / held.rows))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["words", "steps", "inputs", "targets", "sample", "replica"],
    meta_fields=["rows", "divided"],
)
@dataclass(frozen=True)
class Window(EachRowOnce):
    """The batches of some steps of all replicas. It stands for the whole source in compiled programs.

    Attributes:
      words: the data of the key with which each batch is asked for, ``(batches, 2)``.
      steps: the number of the step of each batch; -1 for a place that is not filled.
      inputs: the inputs of each batch, ``(batches, size, ...)``.
      targets: the targets of each batch.
      sample: a random sample of all rows.
      rows: N, the number of rows of the source.
      replica: the number of the replica whose first state is being made; ``None`` at all other times.
      divided: whether the rows of each batch are divided among devices of several hosts.
    """

    words: Any
    steps: Any
    inputs: Any
    targets: Any
    sample: Sample
    rows: int
    replica: Array | None = None
    divided: bool = False

    @property
    def x(self) -> Any:
        """The shape and the dtype of all inputs."""
        return Elsewhere((self.rows, *self.inputs.shape[2:]), self.inputs.dtype)

    @property
    def y(self) -> Any:
        """The shape and the dtype of all targets."""
        return Elsewhere((self.rows, *self.targets.shape[2:]), self.targets.dtype)

    def everything(self) -> NoReturn:
        """All rows are not in memory."""
        raise NeedsAllRows("all rows")

    def batch(self, key: Key, step: Array, size: int | None) -> Batch:
        """The batch of one step, as of ``ArrayData``."""
        # The window has one batch for each step. The object is a new one whenever a step is traced.
        if size is None or self.replica is not None or "_asked" in vars(self):
            raise NeedsAllRows("all rows")
        object.__setattr__(self, "_asked", True)
        words = jax.random.key_data(key)
        found = (self.steps == step) & jnp.all(self.words == words, axis=1)
        at = jnp.argmax(found).astype(jnp.int32)
        chosen = at * size + jnp.arange(size, dtype=jnp.int32)

        def take(batches):
            if self.divided:  # no row moves to another host
                return jax.lax.dynamic_index_in_dim(batches, at, keepdims=False)
            # Row by row, as from ``ArrayData``, so that the compiler rounds in the same way.
            rows = batches.reshape(-1, *batches.shape[2:])
            return rows.at[chosen].get(mode="promise_in_bounds")

        count = self.rows // size
        scale = jnp.asarray(self.rows / size, jnp.result_type(float))
        return Batch(take(self.inputs), take(self.targets), scale, step % count, count)


@dataclass(frozen=True)
class Asking(EachRowOnce):
    """Stands for the data where a method says which rows it will ask for; notes the requests."""

    rows: int
    x: Elsewhere
    y: Elsewhere
    requests: list[tuple[Array, Array, int]] = field(default_factory=list)

    def everything(self) -> NoReturn:
        """All rows are not in memory."""
        raise NeedsAllRows("all rows")

    def batch(self, key: Key, step: Array, size: int | None) -> Batch:
        """Note what is asked for; the rows are zeros."""
        if size is None:
            raise NeedsAllRows("all rows")
        self.requests.append((jax.random.key_data(key), jnp.asarray(step, jnp.int32), size))
        zeros = lambda a: jnp.zeros((size, *a.shape[1:]), a.dtype)  # noqa: E731
        one = jnp.ones((), jnp.result_type(float))
        return Batch(zeros(self.x), zeros(self.y), one, step, self.rows // size)


def request(method: Any, model: Any, asking: Asking, key: Key, step: Array) -> tuple[Any, Any, int]:
    """What a method asks for in a step: the data of the key, the number of the step, and the size."""
    method.batch(key, model, asking, step)
    if len(asking.requests) != 1:
        raise NeedsAllRows("more than one batch")
    return asking.requests[0]
