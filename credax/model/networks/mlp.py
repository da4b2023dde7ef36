"""The multilayer perceptron; without hidden layers it is the linear model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from credax.core.reprs import brief
from credax.core.settings import flag, setting
from credax.model.networks.layers import (
    Activation,
    activate,
    batch_norm,
    dense,
    dropout,
    dropout_rate,
    kernel_and_bias,
    known_activation,
    no_statistics,
    scale_and_shift,
    widths,
)
from credax.model.networks.network import AbstractNetwork, one_array

NARROW, MANY = 32, 128
"""With at most ``NARROW`` units per layer and at least ``MANY`` rows, a batch has its rows along the last axis.

Sums over rows then read contiguous memory, which on a CPU halves the time of a gradient of a network with two
layers of 16 units; with about 50 units or more it makes no difference.
"""


@dataclass(frozen=True)
class MLP(AbstractNetwork):
    """Layers of ``activation(x W + b)``, followed by a linear layer. Made by :func:`mlp` and :func:`linear`."""

    hidden: tuple[int, ...] = setting((), widths)
    activation: Activation = setting("relu", known_activation)
    dropout: float = setting(0.0, dropout_rate)
    batch_norm: bool = setting(False, flag)
    inputs: int | None = None
    outputs: int | None = None

    @property
    def _owner(self) -> str:
        return "mlp"

    def __repr__(self):
        return brief(self, "hidden", "activation")

    @property
    def row_by_row(self) -> bool:
        """Unless there is dropout or batch normalisation."""
        return not self.dropout and not self.batch_norm

    def build(self, input_shape, outputs):
        """The network completed for rows of ``input_shape = (features,)``."""
        one_array("an mlp", input_shape)
        if len(input_shape) != 1:
            shape = ", ".join(["rows", *map(str, input_shape)])
            hint = " A single feature is x[:, None]." if not input_shape else ""
            raise ValueError(
                f"x must be 2-D, (rows, features), for an mlp; got shape ({shape}).{hint}"
            )
        if input_shape[0] == 0:
            raise ValueError("x must have at least 1 column; got 0.")
        return replace(self, inputs=input_shape[0], outputs=outputs)

    def init(self, key):
        """``{"layer_0": {"kernel", "bias"}, ..., "norm_0": {"scale", "shift"}, ...}``."""
        if self.inputs is None or self.outputs is None:
            raise ValueError(
                "This mlp does not know the width of x and y yet: fit it, or call model.bind((x, y)) first."
            )
        widths = (self.inputs, *self.hidden, self.outputs)
        shapes = itertools.pairwise(widths)
        keys = jax.random.split(key, len(widths) - 1)
        layers = {f"layer_{i}": kernel_and_bias(keys[i], shape) for i, shape in enumerate(shapes)}
        return layers | self._norms(scale_and_shift)

    def init_state(self):
        """The initial running statistics of each batch normalisation; ``()`` if there is none."""
        return self._norms(no_statistics) or ()

    def _norms(self, of_width):
        widths = self.hidden if self.batch_norm else ()
        return {f"norm_{i}": of_width(width) for i, width in enumerate(widths)}

    def call(self, params, x, *, state, key, train):
        """The outputs and the next state. With a key, dropout is applied after each hidden layer."""
        if self.rows_last(x.shape[0]):
            return self._transposed(params, x), state
        state = dict(state) if self.batch_norm else state
        for i in range(len(self.hidden)):
            x = dense(params[f"layer_{i}"], x)
            if self.batch_norm:
                name = f"norm_{i}"
                x, state[name] = batch_norm(params[name], state[name], x, train)
            x = activate(self.activation, x)
            layer_key = None if key is None else jax.random.fold_in(key, i)
            x = dropout(layer_key, self.dropout, x)
        return dense(params[f"layer_{len(self.hidden)}"], x), state

    def rows_last(self, rows):
        """Whether rows are the last axis: only if layers are narrow and operations act on each unit separately.

        An activation given as a function might combine units, and then expects them along the last axis.
        """
        plain = isinstance(self.activation, str) and not self.dropout and not self.batch_norm
        many = isinstance(rows, int) and rows >= MANY  # an exported program has any number of rows
        return plain and many and 0 < max(self.hidden, default=0) <= NARROW

    def _transposed(self, params, x):
        x = x.T
        for i in range(len(self.hidden) + 1):
            layer = params[f"layer_{i}"]
            x = layer["kernel"].T @ x + layer["bias"][:, None]
            x = activate(self.activation, x) if i < len(self.hidden) else x
        return x.T


def mlp(
    hidden: Sequence[int] = (50,),
    *,
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> MLP:
    """A multilayer perceptron. Its input and output widths are taken from the data.

    Args:
      hidden: the widths of the hidden layers.
      activation: a name (``"relu"``, ``"tanh"``, ``"gelu"``, ...) or a function of an array. If it is a
        function, a posterior can be saved, but the network must be passed again to ``cx.load``.
      dropout: the probability that a hidden unit is set to zero in training.
      batch_norm: whether hidden units are normalised over the batch before their activation.
    """
    return MLP(hidden, activation, dropout, batch_norm)  # pyright: ignore[reportArgumentType]


def linear() -> MLP:
    """The linear model ``x W + b``."""
    return MLP()
