"""Arrays that stand in for the weights of a network, and know how to be multiplied.

A network is run with these in the place of some of its weights, one set for each row. Its code is not touched:
Quax calls the rules below wherever the network multiplies, moves or reshapes such a weight.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import equinox as eqx
import jax
import numpy as np
import quax
from jax import lax

from credax.core.typing import Array, Key, Params
from credax.model.networks.network import AbstractNetwork


def each_row(
    network: AbstractNetwork,
    weights: Callable[[Key], Params],
    x: Array,
    key: Key,
    network_key: Key | None = None,
) -> Array:
    """The network's outputs where ``weights(key)`` stands in for the parameters, anew for each row.

    Args:
      network: any whose rows do not interact.
      weights: the parameters, with a :class:`Weight` in the place of some leaves.
      x: the rows.
      key: split into one a row.
      network_key: for the network's own randomness (dropout).
    """

    def one(key, row, network_key):
        call = quax.quaxify(partial(call_network, network))
        return call(weights(key), row[None], network_key)[0]

    rows = x.shape[0]
    network_keys = None if network_key is None else jax.random.split(network_key, rows)
    axes = (0, 0, None if network_key is None else 0)
    return jax.vmap(one, in_axes=axes)(jax.random.split(key, rows), x, network_keys)


def call_network(network: AbstractNetwork, params: Params, rows: Array, key: Key | None) -> Array:
    """The outputs in training, of a network without state."""
    return network.call(params, rows, state=(), key=key, train=True)[0]


class Weight(quax.ArrayValue):
    """A random weight: its mean, and what its product with the inputs of one row needs beside it."""

    mean: eqx.AbstractVar[Array]

    @abc.abstractmethod
    def product(
        self,
        multiply: Callable,
        x: Array,
        input_axes: tuple[int, ...],
        output_axes: tuple[int, ...],
    ) -> Array:
        """The product with the inputs of one row.

        Args:
          multiply: the product itself, of inputs and a plain array in the place of the weight.
          x: the inputs.
          input_axes: those axes of ``x`` that the weight shares, in the order of :class:`Site`.
          output_axes: those axes of the product that are the weight's own.
        """

    @abc.abstractmethod
    def moved(self, move: Callable[[Array], Array]) -> Self:
        """The weight after an operation that only moves its elements about."""

    def aval(self) -> jax.core.ShapedArray:
        """Shape and type, as the network sees them."""
        return jax.core.ShapedArray(self.mean.shape, self.mean.dtype)

    def materialise(self) -> Any:
        """Never needed: a weight with a use that has no rule is drawn before the network runs."""
        raise TypeError("A random weight met an operation that its usage did not foresee.")


# -- the rules ------------------------------------------------------------------------------------

Plain = quax.ArrayValue | jax.Array | np.ndarray


@quax.register(lax.dot_general_p)
def _(lhs: Plain, rhs: Weight, *, dimension_numbers, **options):
    contracted, batch = (tuple(part[0]) for part in dimension_numbers)
    free = lhs.ndim - len(contracted) - len(batch)
    outputs = rhs.mean.ndim - len(contracted) - len(batch)
    multiply = partial(lax.dot_general_p.bind, dimension_numbers=dimension_numbers, **options)
    last = tuple(range(len(batch) + free, len(batch) + free + outputs))
    return rhs.product(multiply, lhs, (*contracted, *batch), last)


@quax.register(lax.dot_general_p)
def _(lhs: Weight, rhs: Plain, *, dimension_numbers, **options):
    contracted, batch = (tuple(part[1]) for part in dimension_numbers)
    outputs = lhs.mean.ndim - len(contracted) - len(batch)

    def multiply(x, w):
        return lax.dot_general_p.bind(w, x, dimension_numbers=dimension_numbers, **options)

    first = tuple(range(len(batch), len(batch) + outputs))
    return lhs.product(multiply, rhs, (*contracted, *batch), first)


@quax.register(lax.conv_general_dilated_p)
def _(lhs: Plain, rhs: Weight, *, dimension_numbers, **options):
    multiply = partial(
        lax.conv_general_dilated_p.bind, dimension_numbers=dimension_numbers, **options
    )
    channels = (dimension_numbers.lhs_spec[1],)
    return rhs.product(multiply, lhs, channels, (dimension_numbers.out_spec[1],))


def _register_layout(primitive):
    """A primitive that only moves elements about."""

    @quax.register(primitive)
    def _(weight: Weight, **options):
        return weight.moved(partial(primitive.bind, **options))


for _primitive in (
    lax.transpose_p,
    lax.reshape_p,
    lax.squeeze_p,
    lax.convert_element_type_p,
    lax.copy_p,
):
    _register_layout(_primitive)
