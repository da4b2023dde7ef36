"""How the log likelihood of a batch is computed: in parts, with less kept for its gradient, in fewer digits.

These are settings of ``fit``, which the model carries to every method: a method asks the model for the log
likelihood of a batch, and gets it computed in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp

from credax.core.checks import integer
from credax.core.segments import rematerialised
from credax.core.settings import Settings, flag, one_among, optional, setting
from credax.core.typing import Array, Key, NetworkState
from credax.model.data import Batch
from credax.model.networks.network import AbstractNetwork

DTYPES = ("bfloat16", "float32")
"""The float types in which a network may be computed. Half precision of five exponent bits would overflow."""

OfBatch = Callable[[Batch, NetworkState, "Key | None"], tuple[Array, NetworkState]]
"""The log likelihood of a batch and the next state of the network."""


@dataclass(frozen=True)
class Compute(Settings):
    """How the log likelihood of a batch is computed.

    Attributes:
      micro_batch: the number of rows that are computed at once. The log likelihood of a batch is the sum over
        its parts, and so is its gradient; only what one part needs is in memory. If ``None``, the whole batch.
      rematerialise: whether the gradient computes activations again instead of keeping them.
      compute_dtype: the float type of the network: its inputs, weights and activations are rounded to it in
        each evaluation. The weights themselves, the prior, the likelihood and all sums over rows keep theirs.
    """

    micro_batch: int | None = setting(None, optional(integer))
    rematerialise: bool = setting(False, flag)
    compute_dtype: str | None = setting(None, optional(one_among(*DTYPES)))

    @property
    def _owner(self) -> str:
        return "fit"

    @property
    def given(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        each = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in each.items() if value not in (None, False)}

    @property
    def precise(self) -> Compute | None:
        """The same in full precision; ``None`` if nothing else is set."""
        result = replace(self, compute_dtype=None)
        return result if result.given else None

    def network(self, network: AbstractNetwork) -> AbstractNetwork:
        """The network as batches are computed with it."""
        return network if self.compute_dtype is None else Rounded(network, self.compute_dtype)

    def summed(
        self, of_batch: OfBatch, batch: Batch, state: NetworkState, key: Key | None
    ) -> tuple[Array, NetworkState]:
        """``of_batch(batch, state, key)``, summed over the parts of the batch.

        Each part has its own key. A network whose state changes with every batch is refused: its batch
        statistics would be those of a part.
        """
        rows, size = len(jax.tree.leaves(batch.y)[0]), self.micro_batch
        if size is None or size >= rows:
            return self._whole(of_batch)(batch, state, key)
        first = _part(batch, slice(0, size))
        _check_state(of_batch, first, state, key)
        count = rows // size
        cut = lambda a: a[: count * size].reshape(count, size, *a.shape[1:])  # noqa: E731
        keys = None if key is None else jax.random.split(key, count + 1)

        def add(total, part):
            taken, own = part
            here = replace(batch, x=taken[0], y=taken[1], weights=taken[2])
            return total + self._whole(of_batch)(here, state, own)[0], None

        parts = jax.tree.map(cut, (batch.x, batch.y, batch.weights))
        zero = jnp.zeros((), jax.eval_shape(of_batch, first, state, key)[0].dtype)
        # Nothing of a part is kept but its rows, which are there anyway.
        add_part = jax.checkpoint(add, prevent_cse=False)
        total, _ = jax.lax.scan(add_part, zero, (parts, None if keys is None else keys[:-1]))
        if rows > count * size:
            rest = _part(batch, slice(count * size, None))
            last = jax.checkpoint(self._whole(of_batch))
            total = total + last(rest, state, None if keys is None else keys[-1])[0]
        return total, state

    def _whole(self, of_batch: OfBatch) -> OfBatch:
        return rematerialised(of_batch) if self.rematerialise else of_batch


def _part(batch: Batch, rows: slice) -> Batch:
    x, y, weights = jax.tree.map(lambda a: a[rows], (batch.x, batch.y, batch.weights))
    return replace(batch, x=x, y=y, weights=weights)


def _check_state(of_batch: OfBatch, batch: Batch, state: NetworkState, key: Key | None) -> None:
    """Refuse a network that returns another state than it was given."""
    if not jax.tree.leaves(state):
        return
    program = jax.make_jaxpr(lambda state: of_batch(batch, state, key)[1])(state).jaxpr
    if list(program.outvars) != list(program.invars):
        raise ValueError(
            "fit(micro_batch=...) must be None for a network with batch statistics, which would be those of a "
            "part of the batch. Lower batch_size, or use a network that treats each row by itself."
        )


@dataclass(frozen=True)
class Rounded(AbstractNetwork):
    """A network computed in another float type.

    Args:
      network: any network.
      dtype: the float type.
    """

    network: AbstractNetwork
    dtype: str

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the network keeps integers."""
        return self.network.integer_inputs

    def rows_last(self, rows: int) -> bool:
        """As the network."""
        return self.network.rows_last(rows)

    def init(self, key: Key) -> Any:
        """The initial parameters of the network, in their own float type."""
        return self.network.init(key)

    def init_state(self) -> NetworkState:
        """The initial state of the network."""
        return self.network.init_state()

    def call(self, params, x, *, state, key, train):
        """The outputs in the float type, and the next state in that of the state."""
        params, x = jax.tree.map(self._rounded, (params, x))
        outputs, after = self.network.call(params, x, state=state, key=key, train=train)
        after = jax.tree.map(
            lambda new, old: new if new.dtype == old.dtype else new.astype(old.dtype), after, state
        )
        return outputs, after

    def _rounded(self, leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return leaf.astype(self.dtype)
