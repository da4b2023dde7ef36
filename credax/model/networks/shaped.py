"""Networks whose inputs are trees, or whose outputs have other shapes than ``(rows, outputs)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from credax.core.rows import RowTree
from credax.core.typing import Array
from credax.model.networks.network import AbstractNetwork


@dataclass(frozen=True)
class Around(AbstractNetwork):
    """Base class of networks that call another one, with its parameters and its state."""

    network: AbstractNetwork

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network keeps integers."""
        return self.network.integer_inputs

    @property
    def pretrained(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network is pretrained."""
        return self.network.pretrained

    @property
    def row_by_row(self) -> bool:
        """Whether the inner network treats each row by itself."""
        return self.network.row_by_row

    def build(self, input_shape, outputs):
        """The same wrapper around the network completed for these rows."""
        return replace(self, network=self.network.build(input_shape, outputs))

    def init(self, key):
        """The initial parameters of the inner network."""
        return self.network.init(key)

    def init_state(self):
        """The initial state of the inner network."""
        return self.network.init_state()


@dataclass(frozen=True)
class Shaped(Around):
    """A network as methods see it: rows of inputs, which may be trees, to outputs ``(rows, outputs)``.

    Args:
      network: the network, whose outputs are an array ``(rows, ..., outputs)``, or a dictionary of them.
      heads: the names of the outputs of a dictionary, in the order in which they are joined.
    """

    heads: tuple[str, ...] = ()

    def call(self, params, x, *, state, key, train):
        """The outputs of the inner network, with those of a row along one axis."""
        given = x.tree if isinstance(x, RowTree) else x
        outputs, state = self.network.call(params, given, state=state, key=key, train=train)
        return self._joined(outputs), state

    def _joined(self, outputs: Any) -> Array:
        if self.heads:
            return jnp.concatenate([_row_vectors(outputs[name]) for name in self.heads], axis=1)
        return _row_vectors(outputs)

    def shapes(self, rows):
        """The shapes of the parameters, and of the joined outputs."""
        given: Any = rows.tree if isinstance(rows, RowTree) else rows
        params, outputs = self.network.shapes(given)
        if not jax.tree.leaves(params):
            return params, None
        return params, jax.eval_shape(self._joined, outputs)


@dataclass(frozen=True)
class Part(Around):
    """Some of the outputs of a network, arranged as a table: those of one head, or one position per row.

    Args:
      network: a network with outputs ``(rows, outputs)``.
      begin: the first output.
      end: the output after the last one.
      width: the number of columns of the table; a row has as many rows of the table as it has positions.
    """

    begin: int
    end: int
    width: int

    def call(self, params, x, *, state, key, train):
        """The chosen outputs."""
        outputs, state = self.network.call(params, x, state=state, key=key, train=train)
        return outputs[:, self.begin : self.end].reshape(-1, self.width), state


def _row_vectors(outputs: Array) -> Array:
    return outputs if outputs.ndim == 2 else outputs.reshape(outputs.shape[0], -1)
