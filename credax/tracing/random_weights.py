"""Array types that replace the weights of a network and define their own products with its inputs.

A network is run with these types instead of some of its weights, with separate weights for each row. The
network's code is not changed: Quax calls the rules below wherever the network multiplies, transposes or
reshapes such a weight.
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
    x: Any,
    key: Key,
    network_key: Key | None = None,
) -> Array:
    """The outputs of a network whose parameters are drawn by ``weights(key)``, separately for each row.

    Args:
      network: any network whose rows do not interact.
      weights: a function from a key to the parameters, in which some leaves are a :class:`Weight`.
      x: the inputs.
      key: the key, which is split into one key per row, or these keys.
      network_key: the key for the network's own randomness (dropout), or ``None``.
    """

    def one(key, row, network_key):
        call = quax.quaxify(partial(call_network, network))
        return call(weights(key), row[None], network_key)[0]

    rows = len(x)
    network_keys = None if network_key is None else jax.random.split(network_key, rows)
    axes = (0, 0, None if network_key is None else 0)
    keys = key if key.ndim else jax.random.split(key, rows)
    return jax.vmap(one, in_axes=axes)(keys, x, network_keys)


def call_network(network: AbstractNetwork, params: Params, rows: Array, key: Key | None) -> Array:
    """The outputs in training of a network without state."""
    return network.call(params, rows, state=(), key=key, train=True)[0]


class Weight(quax.ArrayValue):
    """A random weight, which is represented by its mean and whatever else its products need."""

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
          multiply: a function of the inputs and a plain array with the shape of the weight, which returns their
            product.
          x: the inputs.
          input_axes: the axes of ``x`` that are paired with axes of the weight, in the order of :class:`Site`.
          output_axes: the axes of the product that belong to the weight only.
        """

    @abc.abstractmethod
    def moved(self, move: Callable[[Array], Array]) -> Self:
        """The weight after an operation that only rearranges its elements."""

    def aval(self) -> jax.core.ShapedArray:
        """The shape and dtype that the network sees."""
        return jax.core.ShapedArray(self.mean.shape, self.mean.dtype)

    def materialise(self) -> Any:
        """Raise an error: a weight whose use has no rule must be drawn before the network runs."""
        raise TypeError("A random weight is used in an operation for which it has no rule.")


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
    """Register the rule of a primitive that only rearranges elements."""

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
