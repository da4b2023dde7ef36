"""The weights of a posterior, given back to the library whose module the network was made from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.checks import integer, must
from credax.core.typing import Draw
from credax.model.networks.along import TrainedAlong
from credax.model.networks.frozen import FrozenNetwork
from credax.model.networks.loaded import Loaded
from credax.model.networks.network import AbstractNetwork
from credax.model.networks.seeded import Seeded
from credax.model.networks.wandering import Wandering

AT_ONCE = 64
"""The number of draws that are on the device at the same time."""


def state_dict(posterior: Any, *, key: Any = None, num_samples: int = 100) -> dict[str, np.ndarray]:
    """The weights and batch statistics of a posterior's network, by the names that its library uses.

    For a PyTorch module they are those of its state dictionary, ``"layer.0.weight"``, also the tensors that are
    not trained; for any other network the paths of the parameters and of the state, ``"layer/kernel"``. All
    arrays have the layout of the library. After a fit of ``lora`` or ``subset``, they are those of the whole
    network.

    Args:
      posterior: a posterior of a model with a network.
      key: if ``None``, the posterior mean of every array is returned; otherwise one draw of all of them. The
        mean stands for the posterior only if its draws are close together: those of an ensemble are not.
      num_samples: the number of draws over which the mean is taken if the posterior keeps no draws.
    """
    network, draw = _whole("state_dict", posterior, key, num_samples)
    return network.named_values(draw.params, draw.state)


def to_module(posterior: Any, *, key: Any = None, num_samples: int = 100) -> Any:
    """The module of another library from which a posterior's network was made, with weights of the posterior.

    The result predicts as the posterior's network does at these weights. If the model standardises its data, it
    takes standardised inputs.

    Args:
      posterior: a posterior of a network from ``from_torch``, ``from_keras``, ``from_flax`` or
        ``from_equinox``, also within ``lora``, ``subset`` or ``load_weights``.
      key: if ``None``, the posterior mean of every array is used, otherwise one draw of all of them; see
        :func:`state_dict`.
      num_samples: the number of draws over which the mean is taken if the posterior keeps no draws.

    Returns:
      For PyTorch and Keras the module itself, whose tensors are overwritten. For Flax NNX a new module; for
      Flax Linen its variables, ``{"params": ..., "batch_stats": ...}``; for Equinox a new module, or a pair of
      module and state if it has a state. Modules that know whether they are in training are set to predict.
    """
    network, draw = _whole("to_module", posterior, key, num_samples)
    return network.module_with(draw.params, draw.state)


def _whole(owner: str, posterior: Any, key: Any, num_samples: Any) -> tuple[AbstractNetwork, Draw]:
    """The innermost network of a posterior, and its weights and state."""
    model = getattr(posterior, "model", None)
    network = getattr(model, "network", None)
    approximation = getattr(posterior, "approximation", None)
    if not isinstance(network, AbstractNetwork) or approximation is None:
        raise TypeError(
            must(owner, "posterior", "a posterior of a model with a network", posterior)
        )
    count = integer(owner, "num_samples", num_samples)

    def opened(draw):
        params: Any = model.split(draw.params)[0]  # pyright: ignore[reportOptionalMemberAccess]
        return _opened(network, params, draw.state)[1]

    inner = _innermost(network)
    if key is not None:
        draws = approximation.sample(random.key(key), 1)
        return inner, jax.device_get(jax.jit(opened)(jax.tree.map(lambda leaf: leaf[0], draws)))
    kept = getattr(posterior, "draws", None) is not None
    samples = approximation.samples(random.key(0), None if kept else count)
    return inner, jax.device_get(_mean(opened, samples))


def _innermost(network: AbstractNetwork) -> AbstractNetwork:
    wrappers = (FrozenNetwork, TrainedAlong, Loaded, Seeded, Wandering)
    while isinstance(network, wrappers):
        network = network.network
    return network


def _opened(network: AbstractNetwork, params: Any, state: Any) -> tuple[AbstractNetwork, Draw]:
    """The innermost network, with what the parameters and the state of a wrapper mean for it."""
    if isinstance(network, FrozenNetwork):
        held = network.network.init_state()
        held = held if network.state is None else network.state.like(held)
        return _opened(network.network, network.merged(params), held)
    if isinstance(network, Seeded | Wandering):
        return _opened(network.network, params, state[0])
    if isinstance(network, TrainedAlong | Loaded):
        return _opened(network.network, params, state)
    return network, Draw(params, state)


def _mean(opened: Any, samples: Any) -> Draw:
    """The weighted mean over samples, a few of which are on the device at a time.

    Integers, such as counts in a network's state, are not averaged: those of the last sample are returned.
    """

    def merge(total, new, weight):
        if not jnp.issubdtype(new.dtype, jnp.inexact):
            return new
        return total + weight.astype(new.dtype) * new

    @jax.jit
    def add(total, draws, weights):
        def one(total, each):
            draw, weight = each
            return jax.tree.map(lambda t, new: merge(t, new, weight), total, opened(draw)), None

        return jax.lax.scan(one, total, (draws, weights))[0]

    weights = np.exp(samples.log_weights)
    first = jax.tree.map(lambda leaf: leaf[0], samples.take(0, 1))
    shapes = jax.eval_shape(opened, first)
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    for begin in range(0, samples.count, AT_ONCE):
        end = min(begin + AT_ONCE, samples.count)
        shares = jnp.asarray(weights[begin:end], jnp.result_type(float))
        total = add(total, samples.take(begin, end), shares)
    return total
