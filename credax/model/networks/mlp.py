"""The multilayer perceptron; with no hidden layer, the linear model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from credax.core.checks import integer, must, number
from credax.model.networks.layers import (
    Activation,
    activate,
    batch_norm,
    check_activation,
    dense,
    dropout,
    kernel_and_bias,
    no_statistics,
    scale_and_shift,
)
from credax.model.networks.network import AbstractNetwork

NARROW, MANY = 32, 128
"""Units of a layer up to which, and rows from which, a batch is computed with its rows along the last axis.

Sums over rows then run along memory, which on a CPU halves the time of a gradient of a 16-16 network; from some
50 units on it changes nothing.
"""


def check_widths(owner: str, name: str, widths) -> tuple[int, ...]:
    """Layer widths as a tuple of positive whole numbers."""
    if isinstance(widths, str) or not isinstance(widths, Sequence):
        raise TypeError(must(owner, name, "a sequence of layer widths", widths))
    return tuple(integer(owner, name, width) for width in widths)


def check_rate(owner: str, rate) -> float:
    """A dropout rate: 0 turns it off."""
    rate = number(owner, "dropout", rate, "at least 0 and below 1")
    if not 0 <= rate < 1:
        raise ValueError(must(owner, "dropout", "at least 0 and below 1", rate))
    return rate


def check_flag(owner: str, name: str, value) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(must(owner, name, "True or False", value))
    return value


@dataclass(frozen=True)
class MLP(AbstractNetwork):
    """Layers of ``activation(x W + b)``, then a linear one. Made by :func:`mlp` and :func:`linear`."""

    hidden: tuple[int, ...] = ()
    activation: Activation = "relu"
    dropout: float = 0.0
    batch_norm: bool = False
    inputs: int | None = None
    outputs: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "hidden", check_widths("mlp", "hidden", self.hidden))
        object.__setattr__(self, "dropout", check_rate("mlp", self.dropout))
        check_activation("mlp", self.activation)
        check_flag("mlp", "batch_norm", self.batch_norm)

    def build(self, input_shape, outputs):
        """The perceptron for rows of ``input_shape = (features,)``."""
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
        """The running statistics of each batch normalisation; ``()`` where there is none."""
        return self._norms(no_statistics) or ()

    def _norms(self, of_width):
        widths = self.hidden if self.batch_norm else ()
        return {f"norm_{i}": of_width(width) for i, width in enumerate(widths)}

    def call(self, params, x, *, state, key, train):
        """The outputs; dropout after each hidden layer where a key is given."""
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
        """For narrow layers; an activation of the user's own may mix units, and expects them last."""
        plain = isinstance(self.activation, str) and not self.dropout and not self.batch_norm
        return plain and 0 < max(self.hidden, default=0) <= NARROW and rows >= MANY

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
    """A multilayer perceptron; its input and output widths come from the data.

    Args:
      hidden: the widths of the hidden layers.
      activation: a name (``"relu"``, ``"tanh"``, ``"gelu"``, ...) or a function of an array. A network with
        a function can be saved, but must be passed again to ``cx.load``.
      dropout: the probability that a hidden unit is zero in training.
      batch_norm: whether hidden units are normalised over the batch before their activation.
    """
    widths: tuple[int, ...] = tuple(hidden) if isinstance(hidden, list) else hidden  # pyright: ignore[reportAssignmentType]
    return MLP(widths, activation, dropout, batch_norm)


def linear() -> MLP:
    """The linear model ``x W + b``."""
    return MLP()
