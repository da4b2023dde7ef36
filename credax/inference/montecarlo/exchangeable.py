"""Weights of a network whose posterior is the same because hidden units can be exchanged."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from credax.core.trees import Flat, tree_paths
from credax.model import Model
from credax.model.networks import MLP

LAYER = re.compile(r"(?:network/)?layer_(\d+)/(kernel|bias)")


def groups(model: Any, position: Flat) -> np.ndarray | None:
    """The number of the group of each entry of a position; ``None`` where no hidden units are known.

    Two hidden units of a layer of an ``MLP`` can be exchanged together with all their weights without a
    change of the network's outputs. Under a prior that does not tell units apart, corresponding weights of
    all units of a layer therefore have the same marginal posterior, and belong to one group. Inputs and
    outputs cannot be exchanged.

    Args:
      model: what is sampled from.
      position: the parameters as one vector.
    """
    network = getattr(model, "network", None)
    if not isinstance(model, Model) or not isinstance(network, MLP) or not network.hidden:
        return None
    last, taken, numbers = len(network.hidden), 0, []
    for path, (shape, _) in zip(tree_paths(position.tree), position.leaves, strict=True):
        found = LAYER.fullmatch(path)
        own = np.arange(int(np.prod(shape))).reshape(shape)
        if found:
            layer = int(found[1])
            if layer < last:
                own = own[..., :1] + np.zeros_like(own)
            if layer > 0 and found[2] == "kernel":
                own = own[:1] + np.zeros_like(own)
        numbers.append(taken + own.ravel())
        taken += own.size
    return np.unique(np.concatenate(numbers), return_inverse=True)[1]
