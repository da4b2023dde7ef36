"""Code that the adapters for other libraries share."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import must
from credax.core.reprs import labelled
from credax.core.settings import flag
from credax.core.typing import Key, NetworkState, Params
from credax.core.weights import Weights, shuffled
from credax.model.networks.network import AbstractNetwork

TRAIN = ("train", "training", "is_training")
"""Names that modules use for an argument that is true in training."""
STILL = ("deterministic",)
"""Names that modules use for an argument that turns dropout off."""


def library(name: str) -> Any:
    """Import a module of an optional package."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f'from_{package} needs the package {package}: pip install "credax[{package}]".'
        ) from error


@dataclass(frozen=True, eq=False)
class Same:
    """A wrapper that makes an object hashable, and equal only to itself."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self):
        return labelled(self, value=type(self.value))


@dataclass(frozen=True)
class MutableNetwork(AbstractNetwork):
    """A module of a library whose modules hold their own values, together with a copy of these values.

    Attributes:
      original: the module.
      weights: the values that are learned.
      carried: the other values that training changes, such as running statistics.
      fixed: the values that never change.
      pretrained: whether every replica starts from these weights.
    """

    original: Same
    weights: Weights
    carried: Weights
    fixed: Weights
    pretrained: bool = False

    integer_inputs = True

    def __repr__(self):
        kind = type(self.original.value)
        return labelled(self, module=kind, weights=self.weights, pretrained=self.pretrained)

    def init(self, key: Key):
        """The weights as nested dictionaries, by their paths."""
        return first_weights(self.weights, key, self.pretrained)

    def init_state(self):
        """The running statistics, and everything else besides the weights that training changes."""
        return self.carried.tree or ()


def first_weights(weights: Weights, key: Key, pretrained: bool) -> Params:
    """The given weights if the module is pretrained, otherwise the same weights shuffled within each array."""
    return weights.tree if pretrained else shuffled(key, weights.tree)


def finite_weights(owner: str, argument: str, tree: Any) -> Weights:
    """The weights of a module, which must be finite: those of a half-precision module may have overflowed."""
    weights = Weights.of(tree)
    for path, array in weights.arrays.items():
        bad = array[~np.isfinite(array)]
        if bad.size:
            raise ValueError(
                f"{owner}({argument}=...) must hold finite weights; {path!r} ({array.dtype}) holds "
                f"{float(bad[0])}. If they were cast to half precision, use them in float32."
            )
    return weights


def next_state(new: NetworkState, old: NetworkState) -> NetworkState:
    """The new state in the dtypes of the old one, with no gradient flowing through it."""
    cast = lambda new, old: jnp.asarray(new, old.dtype)  # noqa: E731
    return jax.lax.stop_gradient(jax.tree.map(cast, new, old))


def check_pretrained(owner: str, pretrained: Any, can: bool) -> bool:
    """Check that the value is True or False, and False if there are no trained weights; return it."""
    if flag(owner, "pretrained", pretrained) and not can:
        allowed = "False where a function makes the module, which has no trained weights"
        raise ValueError(must(owner, "pretrained", allowed, pretrained))
    return pretrained


def arguments(function: Callable, train: bool, key: Key | None, has_state: bool) -> dict[str, bool]:
    """The arguments of a module's call that switch between training and prediction, found by their names.

    Args:
      function: the call.
      train: whether batch statistics are updated.
      key: the key for dropout, or ``None`` for no dropout.
      has_state: whether the module has batch statistics.
    """
    names = inspect.signature(function).parameters
    training = [name for name in TRAIN if name in names]
    if training and key is not None and not train:
        if has_state:
            raise ValueError(
                f"Dropout in prediction needs a module that can drop units without an update of its batch "
                f"statistics; this one has a single argument {training[0]!r} for both. Give it an argument "
                "'deterministic' for dropout, or leave both to the layers' own attributes."
            )
        train = True
    flags = dict.fromkeys(training, train)
    return flags | {name: key is None for name in STILL if name in names}
