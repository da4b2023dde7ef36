"""A network for tables: each column has an embedding of its own, followed by a multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from credax.core.checks import integer
from credax.core.reprs import brief
from credax.core.settings import setting
from credax.core.typing import Array
from credax.model.networks.layers import (
    Activation,
    activate,
    dense,
    dropout,
    dropout_rate,
    kernel_and_bias,
    known_activation,
    widths,
)
from credax.model.networks.network import AbstractNetwork


@dataclass(frozen=True)
class Tabular(AbstractNetwork):
    """Embeddings of the columns, followed by dense layers. Made by :func:`tabular`."""

    hidden: tuple[int, ...] = setting((), widths)
    bins: int = setting(32, integer)
    embedding: int = setting(8, integer)
    activation: Activation = setting("silu", known_activation)
    dropout: float = setting(0.0, dropout_rate)
    columns: int | None = None
    outputs: int | None = None

    @property
    def _owner(self) -> str:
        return "tabular"

    @property
    def quantiles(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of bins."""
        return self.bins

    def __repr__(self):
        return brief(self, "hidden", "bins")

    def build(self, input_shape, outputs):
        """The network completed for rows of positions and standardised values, ``(2 columns,)``."""
        return replace(self, columns=input_shape[0] // 2, outputs=outputs)

    @property
    def _features(self) -> tuple[int, int]:
        if self.columns is None or self.outputs is None:
            raise ValueError(
                "This network does not know the width of x and y yet: fit it, or call model.bind((x, y)) first."
            )
        return self.columns * (self.embedding + 1), self.outputs

    def init(self, key):
        """``{"embedding": {"kernel", "bias"}, "layer_0": {"kernel", "bias"}, ...}``."""
        features, outputs = self._features
        shapes = list(zip((features, *self.hidden), (*self.hidden, outputs), strict=True))
        kernel_key, bias_key, *keys = jax.random.split(key, len(shapes) + 2)
        dtype = jnp.result_type(float)
        shape = (self.columns, self.bins, self.embedding)
        # The sum over the bins that a value has passed varies by about one over the column.
        kernel = jax.random.normal(kernel_key, shape, dtype) * (2 / math.sqrt(self.bins))
        bias = 0.3 * jax.random.normal(bias_key, (self.columns, self.embedding), dtype)
        layers = {f"layer_{i}": kernel_and_bias(keys[i], shape) for i, shape in enumerate(shapes)}
        # A first prediction that hardly depends on x: the first steps learn its level.
        last = layers[f"layer_{len(shapes) - 1}"]
        last["kernel"] = 0.1 * last["kernel"]
        return {"embedding": {"kernel": kernel, "bias": bias}, **layers}

    def call(self, params, x, *, state, key, train):
        """The outputs and the unchanged state. With a key, dropout is applied after each hidden layer."""
        x = self._embedded(params["embedding"], x)
        for i in range(len(self.hidden)):
            x = activate(self.activation, dense(params[f"layer_{i}"], x))
            layer_key = None if key is None else jax.random.fold_in(key, i)
            x = dropout(layer_key, self.dropout, x)
        return dense(params[f"layer_{len(self.hidden)}"], x), state

    def _embedded(self, params: dict[str, Array], x: Array) -> Array:
        """The embeddings of all columns, and their standardised values."""
        positions, values = jnp.split(x, 2, axis=1)
        bins = jnp.arange(self.bins, dtype=x.dtype)
        # With the columns first, the products of all columns are one batch without a transposed copy.
        passed = jnp.clip(positions.T[:, :, None] - bins, 0, 1) - 0.5
        embedded = passed @ params["kernel"] + params["bias"][:, None]
        flat = jnp.moveaxis(activate("relu", embedded), 0, 1).reshape(x.shape[0], -1)
        return jnp.concatenate([flat, values], axis=1)


def tabular(
    hidden: Sequence[int] = (128, 128),
    *,
    bins: int = 32,
    embedding: int = 8,
    activation: Activation = "silu",
    dropout: float = 0.0,
) -> Tabular:
    r"""A multilayer perceptron over piecewise linear embeddings of the columns of a table.

    The range of each column is divided into bins. A value of column c that lies in bin b has passed all bins
    before b and a part of b; :math:`p_{cb}(x) \in [0, 1]` is the part of bin b that it has passed. The
    embedding of the column is a learned piecewise linear function of the value:

    .. math:: e_c(x) = \operatorname{relu}\Big(b_c + \sum_b \big(p_{cb}(x) - \tfrac12\big)\, w_{cb}\Big)

    The dense layers take the embeddings and the standardised values of all columns. So the network can change
    quickly where a column has many values, and it treats whole numbers that stand for categories as such.

    The bins are learned from the rows of a fit, which needs ``cx.Model(..., standardise=True)``.

    Args:
      hidden: the widths of the hidden layers.
      bins: the number of bins of each column. A column with fewer distinct values has a limit at each of them.
      embedding: the number of numbers in the embedding of a column.
      activation: a name (``"silu"``, ``"relu"``, ...) or a function of an array.
      dropout: the probability that a hidden unit is set to zero in training.

    Reference: Gorishniy, Rubachev & Babenko, On embeddings for numerical features in tabular deep learning,
    2022.
    """
    return Tabular(hidden, bins, embedding, activation, dropout)  # pyright: ignore[reportArgumentType]
