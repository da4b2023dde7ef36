"""The weights of a whole network, from a posterior over a part of them or over low-rank changes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.checks import integer, must
from credax.core.typing import Params
from credax.model.networks.frozen import FrozenNetwork
from credax.model.networks.shaped import Shaped


def merge(posterior: Any, *, key: Any = None, num_samples: int = 100) -> Params:
    """The weights of the whole network after a fit of ``cx.networks.lora`` or ``cx.networks.subset``.

    The result has the structure of the whole network's parameters, as ``network.apply`` and the argument
    ``weights`` of ``lora`` and ``subset`` take it. For a PyTorch module, the paths are those of its state
    dictionary, with ``/`` instead of a dot.

    Args:
      posterior: a posterior of a model whose network was made by ``lora`` or ``subset``.
      key: if ``None``, the posterior mean of every weight is returned, otherwise one draw of all weights. The
        mean of low-rank changes is the mean of the products, not the product of the factors' means.
      num_samples: the number of draws over which the mean is taken if the posterior keeps no draws.
    """
    model = getattr(posterior, "model", None)
    network = getattr(model, "network", None)
    network = network.network if isinstance(network, Shaped) else network
    if not isinstance(network, FrozenNetwork):
        allowed = "a posterior of a network made by cx.networks.lora or subset"
        raise TypeError(must("merge", "posterior", allowed, posterior))
    count = integer("merge", "num_samples", num_samples)
    if key is not None:
        one = jax.tree.map(lambda leaf: leaf[0], posterior.sample(random.key(key), 1))
        return jax.jit(lambda params: network.merged(_network(model, params)))(one)
    draws = getattr(posterior, "draws", None)
    if draws is None:
        draws, weights = posterior.sample(random.key(0), count), np.full(count, 1 / count)
    else:
        draws = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws)
        logs = posterior.log_weights
        total = len(jax.tree.leaves(draws)[0])
        logs = np.zeros(total) if logs is None else np.float64(np.ravel(logs))
        weights = np.exp(logs - np.max(logs))
        weights = weights / np.sum(weights)
    return _mean(network, _network(model, draws), weights)


def _network(model: Any, params: Params) -> Params:
    return model.split(params)[0]


def _mean(network: FrozenNetwork, draws: Params, weights: np.ndarray) -> Params:
    """The weighted mean of the merged weights, one draw at a time, so that memory does not grow with draws."""

    def add(total, each):
        draw, weight = each
        merged = network.merged(draw)
        return jax.tree.map(lambda t, leaf: t + weight.astype(t.dtype) * leaf, total, merged), None

    @jax.jit
    def mean(draws, weights):
        shapes = jax.eval_shape(network.merged, jax.tree.map(lambda leaf: leaf[0], draws))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, zeros, (draws, weights))[0]

    return mean(draws, jnp.asarray(weights, jnp.result_type(float)))
