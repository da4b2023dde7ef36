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

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import quax
from jax import lax

from credax import random
from credax.inference.variational.families import MeanField
from credax.inference.variational.usage import Usage, usages
from credax.networks.network import AbstractNetwork
from credax.typing import Array, Key


def row_outputs(
    network: AbstractNetwork,
    family: MeanField,
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

    def call(params, row, key):
        return network.call(params, row, state=(), key=key, train=True)[0]

    probe = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), family.mean)
    first = jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)
    kinds = usages(lambda params, row: call(params, row, network_key), probe, first)

    batch_key, row_key = jax.random.split(key)
    shared = family.draw(batch_key)
    leaves, tree = jax.tree.flatten(kinds)
    means, sigmas = jax.tree.leaves(family.mean), jax.tree.leaves(family.sigma)
    draws = jax.tree.leaves(shared)

    def one(key, row, network_key):
        keys = jax.random.split(key, len(leaves))
        parts = zip(leaves, means, sigmas, draws, keys, strict=True)
        weights = [_weight(estimator, *part) for part in parts]
        params = jax.tree.unflatten(tree, weights)
        return quax.quaxify(call)(params, row[None], network_key)[0]

    rows = x.shape[0]
    network_keys = None if network_key is None else jax.random.split(network_key, rows)
    axes = (0, 0, None if network_key is None else 0)
    return jax.vmap(one, in_axes=axes)(jax.random.split(row_key, rows), x, network_keys)


def _weight(
    estimator: str, kind: Usage, mean: Array, sigma: Array, draw: Array, key: Key
) -> Array | Weight:
    """What stands in for a leaf of the parameters in one row."""
    if kind is Usage.SUM:
        return mean + sigma * random.noise(key, mean.shape, mean.dtype)
    if kind is Usage.PRODUCT and estimator == "local":
        return LocalWeight(mean, jnp.square(sigma), key)
    if kind in (Usage.PRODUCT, Usage.PRODUCTS):
        return FlipoutWeight(mean, draw - mean, key)
    return draw


class Weight(quax.ArrayValue):
    """A Gaussian weight: its mean, and another array of the same shape that moves with it."""

    mean: eqx.AbstractVar[Array]

    def aval(self) -> jax.core.ShapedArray:
        """Shape and type, as the network sees them."""
        return jax.core.ShapedArray(self.mean.shape, self.mean.dtype)

    def materialise(self) -> Any:
        """Never needed: a weight with a use that has no rule is drawn before the network runs."""
        raise TypeError("A Gaussian weight met an operation that its usage did not foresee.")


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
    """A primitive that only moves elements about moves both arrays of a weight alike."""

    @quax.register(primitive)
    def _(weight: Weight, **options):
        moved = [primitive.bind(leaf, **options) for leaf in (weight.mean, _second(weight))]
        return type(weight)(*moved, weight.key)


def _second(weight: Any) -> Array:
    return weight.variance if isinstance(weight, LocalWeight) else weight.delta


for _primitive in (
    lax.transpose_p,
    lax.reshape_p,
    lax.squeeze_p,
    lax.convert_element_type_p,
    lax.copy_p,
):
    _register_layout(_primitive)
