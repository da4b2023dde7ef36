r"""Estimators of the expected log likelihood that differ in whose noise the rows share.

``"weight"`` draws one set of weights a batch; then all rows err together. Both others give each row weights of
its own, at the cost of a few products, on any network: its weights are replaced by arrays that know how to be
multiplied, and its code is not touched.

Local reparameterisation (Kingma et al., 2015) draws the product instead of the weights,

.. math:: x W \sim N\left(x \mu,\; x^2 \sigma^2\right),

flipout (Wen et al., 2018) flips signs of one shared perturbation,

.. math:: x W = x \mu + ((x \circ s)\, \Delta) \circ r, \qquad \Delta = \sigma \circ \epsilon,

with random signs s and r.

Each row's weights are exactly distributed as q(w), whatever the network does with them: a weight that a row
meets at several places (a convolution, a token) is the same at all of them, so ``"local"`` uses flipout there;
and a weight with any other use is drawn as in ``"weight"``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import quax
from jax import lax

from credax import random
from credax.inference.variational.families import Explicit, MeanField
from credax.inference.variational.usage import Usage, usages
from credax.networks.network import AbstractNetwork
from credax.typing import Array, Key, Params


def row_outputs(
    network: AbstractNetwork,
    family: MeanField | Explicit,
    x: Array,
    key: Key,
    estimator: str,
    network_key: Key | None = None,
) -> Array:
    """The network's outputs with weights of its own for each row.

    Args:
      network: any whose rows do not interact.
      family: q over the network's parameters.
      x: the rows.
      key: for the weights.
      estimator: ``"local"`` or ``"flipout"``.
      network_key: for the network's own randomness (dropout).
    """
    probe = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), family.mean)
    first = jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)
    kinds = usages(lambda params, row: _call(network, params, row, network_key), probe, first)

    batch_key, row_key = jax.random.split(key)
    leaves, tree = jax.tree.flatten(kinds)
    means, variances = map(jax.tree.leaves, family.moments())
    sigmas, draws = map(jax.tree.leaves, (family.sigma, family.draw(batch_key)))

    def weights(key):
        keys = jax.random.split(key, len(leaves))
        parts = zip(leaves, means, sigmas, variances, draws, keys, strict=True)
        return jax.tree.unflatten(tree, [_weight(estimator, *part) for part in parts])

    return each_row(network, weights, x, row_key, network_key)


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
        call = quax.quaxify(partial(_call, network))
        return call(weights(key), row[None], network_key)[0]

    rows = x.shape[0]
    network_keys = None if network_key is None else jax.random.split(network_key, rows)
    axes = (0, 0, None if network_key is None else 0)
    return jax.vmap(one, in_axes=axes)(jax.random.split(key, rows), x, network_keys)


def _call(network: AbstractNetwork, params: Params, rows: Array, key: Key | None) -> Array:
    return network.call(params, rows, state=(), key=key, train=True)[0]


def _weight(
    estimator: str,
    kind: Usage,
    mean: Array,
    sigma: Array,
    variance: Array,
    draw: Array,
    key: Key,
) -> Array | Weight:
    """What stands in for a leaf of the parameters in one row."""
    if kind is Usage.SUM:
        return mean + sigma * random.noise(key, mean.shape, mean.dtype)
    if kind is Usage.PRODUCT and estimator == "local":
        return LocalWeight(mean, variance, key)
    if kind in (Usage.PRODUCT, Usage.PRODUCTS):
        return FlipoutWeight(mean, draw - mean, key)
    return draw


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


class LocalWeight(Weight):
    """For local reparameterisation: mean and variance."""

    mean: Array
    variance: Array
    key: Key

    def product(self, multiply, x, input_axes, output_axes):
        """The product with the inputs of one row, drawn."""
        mean = multiply(x, self.mean)
        variance = multiply(jnp.square(x), self.variance)
        # Where a row's inputs are all zero the product is certain, and the root has no derivative.
        positive = variance > 0
        sd = jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)
        return mean + sd * random.noise(self.key, mean.shape, mean.dtype)

    def moved(self, move):
        """Mean and variance move alike."""
        return LocalWeight(move(self.mean), move(self.variance), self.key)


class FlipoutWeight(Weight):
    """For flipout: mean and the batch's shared perturbation."""

    mean: Array
    delta: Array
    key: Key

    def product(self, multiply, x, input_axes, output_axes):
        """The product with the inputs of one row; signs along the weight's input and output axes."""
        input_key, output_key = jax.random.split(self.key)
        mean = multiply(x, self.mean)
        flipped = multiply(x * _signs(input_key, x, input_axes), self.delta)
        return mean + flipped * _signs(output_key, mean, output_axes)

    def moved(self, move):
        """Mean and perturbation move alike."""
        return FlipoutWeight(move(self.mean), move(self.delta), self.key)


def _signs(key: Key, like: Array, axes: tuple[int, ...]) -> Array:
    """Random signs along some axes of an array, the same along the others."""
    shape = [n if i in axes else 1 for i, n in enumerate(like.shape)]
    return jax.random.rademacher(key, shape, like.dtype)


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
