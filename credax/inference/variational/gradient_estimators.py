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

import jax
import jax.numpy as jnp

from credax.core import random
from credax.core.typing import Array, Key
from credax.model.networks.network import AbstractNetwork
from credax.posterior.approximations.families import Explicit, MeanField
from credax.tracing.random_weights import Weight, call_network, each_row
from credax.tracing.usage import Usage, usages


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
    kinds = usages(
        lambda params, row: call_network(network, params, row, network_key), probe, first
    )

    batch_key, row_key = jax.random.split(key)
    leaves, tree = jax.tree.flatten(kinds)
    means, variances = map(jax.tree.leaves, family.moments())
    sigmas, draws = map(jax.tree.leaves, (family.sigma, family.draw(batch_key)))

    def weights(key):
        keys = jax.random.split(key, len(leaves))
        parts = zip(leaves, means, sigmas, variances, draws, keys, strict=True)
        return jax.tree.unflatten(tree, [_weight(estimator, *part) for part in parts])

    return each_row(network, weights, x, row_key, network_key)


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
