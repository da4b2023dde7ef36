"""Training the whole network before a method runs on a part of its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from credax.core import random
from credax.core.checks import must
from credax.inference.method import Method
from credax.inference.point import MAP
from credax.model import Model
from credax.model.networks import Subset
from credax.model.networks.frozen import trained_values

OWN_KEY = 0x66697273
"""Makes the key of the training differ from those of the run that follows."""


def trained_first(fit: Callable, model: Any, data: Any, key: Any, early_stopping: Any) -> Any:
    """The model with all weights trained, if its network is a subset whose rest is to be trained first.

    Args:
      fit: the function ``cx.fit``, without callbacks and checkpoints.
      model: any model.
      data: the data of the run.
      key: the key of the run.
      early_stopping: the early stopping of the run, which must be ``None`` if the rest is trained here.
    """
    network = getattr(model, "network", None)
    if not isinstance(model, Model) or not isinstance(network, Subset) or network.rest == "frozen":
        return model
    method = MAP() if network.rest == "first" else network.rest
    if not isinstance(method, Method) or method.kind != "point":
        allowed = "'frozen', 'first', 'trained' or a method that returns a point, such as cx.MAP()"
        raise ValueError(must("subset", "rest", allowed, network.rest))
    if early_stopping not in (None, False):
        allowed = (
            "None for a subset whose rest is trained first: the rows held out would be used there"
        )
        raise ValueError(must("fit", "early_stopping", allowed, early_stopping))
    own = jax.random.fold_in(random.key(key), OWN_KEY)
    point = fit(replace(model, network=network.network), data, method, key=own)
    weights, state = trained_values("subset", network.network, point)
    return replace(model, network=replace(network, weights=weights, state=state, rest="frozen"))
