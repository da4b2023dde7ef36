"""A convolutional network with the architecture of LeNet-5 (LeCun et al., 1998)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from credax.core.reprs import brief
from credax.core.settings import at_least, flag, setting
from credax.model.networks.layers import (
    Activation,
    activate,
    batch_norm,
    convolution,
    dense,
    dropout,
    dropout_rate,
    kernel_and_bias,
    known_activation,
    max_pool,
    no_statistics,
    scale_and_shift,
    widths,
)
from credax.model.networks.network import AbstractNetwork, one_array


@dataclass(frozen=True)
class CNN(AbstractNetwork):
    """Convolutions with max pooling, followed by dense layers. Made by :func:`cnn`."""

    channels: tuple[int, ...] = setting((6, 16), widths)
    hidden: tuple[int, ...] = setting((120, 84), widths)
    kernel_size: int = setting(5, at_least(1))
    pool: int = setting(2, at_least(1))
    activation: Activation = setting("relu", known_activation)
    dropout: float = setting(0.0, dropout_rate)
    batch_norm: bool = setting(False, flag)
    image: tuple[int, ...] | None = None
    outputs: int | None = None

    @property
    def _owner(self) -> str:
        return "cnn"

    def __repr__(self):
        return brief(self, "channels", "hidden", "activation")

    def build(self, input_shape, outputs):
        """The network completed for images of ``(height, width)`` or ``(height, width, channels)``."""
        one_array("a cnn", input_shape)
        if len(input_shape) not in (2, 3):
            shape = ", ".join(["rows", *map(str, input_shape)])
            raise ValueError(
                "x must be 3-D, (rows, height, width), or 4-D, (rows, height, width, channels), for a cnn; "
                f"got shape ({shape})."
            )
        if len(input_shape) == 3 and input_shape[2] == 0:
            raise ValueError("x must have at least 1 channel; got 0.")
        smallest = self.pool ** len(self.channels)
        if min(input_shape[:2]) < smallest:
            raise ValueError(
                f"x must hold images of at least {smallest} x {smallest} pixels for {len(self.channels)} "
                f"poolings by {self.pool}; got {input_shape[0]} x {input_shape[1]}."
            )
        return replace(self, image=tuple(input_shape), outputs=outputs)

    def init(self, key):
        """``{"conv_0": {"kernel", "bias"}, ..., "dense_0": ..., "conv_norm_0": {"scale", "shift"}, ...}``."""
        if self.image is None or self.outputs is None:
            raise ValueError(
                "This cnn does not know the shape of x and y yet: fit it, or call model.bind((x, y)) first."
            )
        depth, size = (*self.image, 1)[2], self.kernel_size
        shapes = {}
        for i, channels in enumerate(self.channels):
            shapes[f"conv_{i}"] = (size, size, depth, channels)
            depth = channels
        shrink = self.pool ** len(self.channels)
        width = (self.image[0] // shrink) * (self.image[1] // shrink) * depth
        for i, outputs in enumerate((*self.hidden, self.outputs)):
            shapes[f"dense_{i}"] = (width, outputs)
            width = outputs
        keys = jax.random.split(key, len(shapes))
        layers = {name: kernel_and_bias(keys[i], shapes[name]) for i, name in enumerate(shapes)}
        return layers | self._norms(scale_and_shift)

    def init_state(self):
        """The initial running statistics of each batch normalisation; ``()`` if there is none."""
        return self._norms(no_statistics) or ()

    def _norms(self, of_width):
        widths = {"conv": self.channels, "dense": self.hidden} if self.batch_norm else {}
        return {
            f"{kind}_norm_{i}": of_width(width)
            for kind, of_kind in widths.items()
            for i, width in enumerate(of_kind)
        }

    def call(self, params, x, *, state, key, train):
        """The outputs and the next state. With a key, dropout is applied after each hidden dense layer."""
        state = dict(state) if self.batch_norm else state

        def activated(x, kind, i):
            if self.batch_norm:
                name = f"{kind}_norm_{i}"
                x, state[name] = batch_norm(params[name], state[name], x, train)
            return activate(self.activation, x)

        x = x[..., None] if x.ndim == 3 else x
        for i in range(len(self.channels)):
            x = max_pool(activated(convolution(params[f"conv_{i}"], x), "conv", i), self.pool)
        x = x.reshape(x.shape[0], -1)
        for i in range(len(self.hidden)):
            x = activated(dense(params[f"dense_{i}"], x), "dense", i)
            layer_key = None if key is None else jax.random.fold_in(key, i)
            x = dropout(layer_key, self.dropout, x)
        return dense(params[f"dense_{len(self.hidden)}"], x), state


def cnn(
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
    *,
    kernel_size: int = 5,
    pool: int = 2,
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> CNN:
    """A convolutional network for images; the default is LeNet-5 with rectified units.

    Args:
      channels: the number of channels of each convolution; each convolution is followed by max pooling.
      hidden: the widths of the hidden dense layers after the convolutions.
      kernel_size: the height and width of each convolution's window.
      pool: the height and width of each pooling window.
      activation: a name (``"relu"``, ``"tanh"``, ``"gelu"``, ...) or a function of an array.
      dropout: the probability that a unit of a hidden dense layer is set to zero in training.
      batch_norm: whether units are normalised over the batch (and the pixels) before their activation.
    """
    return CNN(channels, hidden, kernel_size, pool, activation, dropout, batch_norm)  # pyright: ignore[reportArgumentType]
