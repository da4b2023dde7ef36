"""The fan-in of the weights of any network: the number of inputs over which the product of a weight sums."""

from __future__ import annotations

import jax

from credax.core.contractions import Uses, contractions
from credax.core.trees import named_leaves
from credax.model.networks.network import AbstractNetwork


def fan_in(network: AbstractNetwork, rows: jax.ShapeDtypeStruct) -> dict[str, int]:
    """The fan-in of each weight by its path.

    It is one for a bias or a scale. Arrays of two or more axes for which no product is found are left out.

    Args:
      network: a network that is built.
      rows: the shape and dtype of a few rows of inputs.
    """
    found = {}
    for (path, leaf), uses in zip(*_weights(network, rows), strict=False):
        # A weight of several products, such as an embedding that is also the last layer, keeps the outputs of
        # the widest at the scale of its inputs.
        sums = [count for count in uses if count is not None]
        if sums or leaf.ndim < 2:
            found[path] = max([1, *sums])
    return found


def multiplies_inputs(network: AbstractNetwork, rows: jax.ShapeDtypeStruct) -> bool:
    """Whether the network does nothing with its inputs before it multiplies them by weights."""
    return all(count is not None for count in _weights(network, rows)[1][-1])


def _weights(network: AbstractNetwork, rows: jax.ShapeDtypeStruct) -> tuple[list, list[Uses]]:
    """The weights and their paths; and the uses of each of them, followed by those of the inputs."""
    params = jax.eval_shape(network.init, jax.random.key(0))
    call = lambda params, rows: network.apply(params, rows, network.init_state())  # noqa: E731
    return named_leaves(params), contractions(call, params, rows)
