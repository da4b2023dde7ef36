r"""Estimators of the expected log likelihood that draw separate weights for each row.

The estimator ``"weight"`` draws one set of weights per batch, so the errors of all rows are correlated. The two
estimators in this file draw separate weights for each row at the cost of a few more products. They work for
any network without a change to its code: its weights are replaced by array objects that define their own
product with the inputs.

Local reparameterisation (Kingma et al., 2015) draws the product of inputs and weights instead of the weights,

.. math:: x W \sim N\left(x \mu,\; x^2 \sigma^2\right),

and flipout (Wen et al., 2018) multiplies one shared perturbation by random signs s and r for each row,

.. math:: x W = x \mu + ((x \circ s)\, \Delta) \circ r, \qquad \Delta = \sigma \circ \epsilon.

For any network, the weights of each row are distributed exactly as q(w). A weight that a row uses at several
places (in a convolution, or for several tokens) must have the same value at all of them, so ``"local"`` uses
flipout there. A weight that is used in any other way is drawn as in ``"weight"``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from credax.core import random
from credax.core.rows import some_rows
from credax.core.typing import Array, Key
from credax.model.networks.network import AbstractNetwork
from credax.posterior.approximations.families import Explicit, MeanField
from credax.tracing.random_weights import Weight, call_network, each_row
from credax.tracing.usage import Usage, usages


def row_outputs(
    network: AbstractNetwork,
    family: MeanField | Explicit,
    x: Any,
    key: Key,
    estimator: str,
    network_key: Key | None = None,
    own_keys: Key | None = None,
) -> Array:
    """The network's outputs, with separately drawn weights for each row.

    Args:
      network: any network whose rows do not interact.
      family: q over the network's parameters.
      x: the rows.
      key: the key for the weights.
      estimator: ``"local"`` or ``"flipout"``.
      network_key: the key for randomness inside the network (dropout).
      own_keys: those of ``row_keys(key, ...)`` that belong to these rows, if they are a part of a batch.
    """
    probe = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), family.mean)
    kinds = usages(
        lambda params, row: call_network(network, params, row, network_key), probe, some_rows(x, 1)
    )

    batch_key, row_key = jax.random.split(key)
    row_key = row_key if own_keys is None else own_keys
    leaves, tree = jax.tree.flatten(kinds)
    means, variances = map(jax.tree.leaves, family.moments())
    sigmas, draws = map(jax.tree.leaves, (family.sigma, family.draw(batch_key)))

    def weights(key):
        keys = jax.random.split(key, len(leaves))
        parts = zip(leaves, means, sigmas, variances, draws, keys, strict=True)
        return jax.tree.unflatten(tree, [_weight(estimator, *part) for part in parts])

    return each_row(network, weights, x, row_key, network_key)


def row_keys(key: Key, rows: int) -> Key:
    """The keys from which :func:`row_outputs` draws the weights of each row of a batch."""
    return jax.random.split(jax.random.split(key)[1], rows)


def _weight(
    estimator: str,
    kind: Usage,
    mean: Array,
    sigma: Array,
    variance: Array,
    draw: Array,
    key: Key,
) -> Array | Weight:
    """The object that replaces a leaf of the parameters for one row."""
    if kind is Usage.SUM:
        return mean + sigma * random.noise(key, mean.shape, mean.dtype)
    if kind is Usage.PRODUCT and estimator == "local":
        return LocalWeight(mean, variance, key)
    if kind in (Usage.PRODUCT, Usage.PRODUCTS):
        return FlipoutWeight(mean, draw - mean, key)
    return draw


class LocalWeight(Weight):
    """A weight for local reparameterisation, with its mean and variance."""

    mean: Array
    variance: Array
    key: Key

    def product(self, multiply, x, input_axes, output_axes):
        """A draw of the product with the inputs of one row."""
        mean = multiply(x, self.mean)
        variance = multiply(jnp.square(x), self.variance)
        # If all inputs of a row are zero, the variance is zero, and the square root has no derivative there.
        positive = variance > 0
        sd = jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)
        return mean + sd * random.noise(self.key, mean.shape, mean.dtype)

    def moved(self, move):
        """The weight with ``move`` applied to mean and variance."""
        return LocalWeight(move(self.mean), move(self.variance), self.key)


class FlipoutWeight(Weight):
    """A weight for flipout, with its mean and the perturbation that all rows of a batch share."""

    mean: Array
    delta: Array
    key: Key

    def product(self, multiply, x, input_axes, output_axes):
        """The product with the inputs of one row, with random signs along the input and output axes."""
        input_key, output_key = jax.random.split(self.key)
        mean = multiply(x, self.mean)
        flipped = multiply(x * _signs(input_key, x, input_axes), self.delta)
        return mean + flipped * _signs(output_key, mean, output_axes)

    def moved(self, move):
        """The weight with ``move`` applied to mean and perturbation."""
        return FlipoutWeight(move(self.mean), move(self.delta), self.key)


def _signs(key: Key, like: Array, axes: tuple[int, ...]) -> Array:
    """Random signs that vary along ``axes`` of an array and are constant along the others."""
    shape = [n if i in axes else 1 for i, n in enumerate(like.shape)]
    return jax.random.rademacher(key, shape, like.dtype)
