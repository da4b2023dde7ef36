"""What the adapters of other libraries share."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from credax.core.checks import must
from credax.core.typing import Key, NetworkState, Params
from credax.core.weights import Weights, shuffled
from credax.model.networks.network import AbstractNetwork

TRAIN = ("train", "training", "is_training")
"""Names of an argument that is true in training."""
STILL = ("deterministic",)
"""Names of an argument that turns dropout off."""


def library(name: str) -> Any:
    """A module of an optional package."""
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
    """An object, equal to itself only: keep it, and a second fit compiles nothing."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True)
class MutableNetwork(AbstractNetwork):
    """An object of a library whose objects hold their own values, and these values, by their paths.

    Attributes:
      original: the object.
      weights: what is learned.
      carried: what training changes beside it.
      fixed: what nothing changes.
      pretrained: whether replicas begin at these weights.
    """

    original: Same
    weights: Weights
    carried: Weights
    fixed: Weights
    pretrained: bool = False

    integer_inputs = True

    def init(self, key: Key):
        """The weights in nested dictionaries, by their paths."""
        return first_weights(self.weights, key, self.pretrained)

    def init_state(self):
        """Running statistics, and all else that training changes but for the weights."""
        return self.carried.tree or ()


def first_weights(weights: Weights, key: Key, pretrained: bool) -> Params:
    """A module's own weights, or its first ones drawn anew."""
    return weights.tree if pretrained else shuffled(key, weights.tree)


def next_state(new: NetworkState, old: NetworkState) -> NetworkState:
    """In the dtypes of the old one; no gradient may find its way back through it."""
    cast = lambda new, old: jnp.asarray(new, old.dtype)  # noqa: E731
    return jax.lax.stop_gradient(jax.tree.map(cast, new, old))


def check_pretrained(owner: str, pretrained: Any, can: bool) -> bool:
    """True or False; true needs weights."""
    if not isinstance(pretrained, bool):
        raise TypeError(must(owner, "pretrained", "True or False", pretrained))
    if pretrained and not can:
        allowed = "False where a function makes the module, which has no trained weights"
        raise ValueError(must(owner, "pretrained", allowed, pretrained))
    return pretrained


def arguments(function: Callable, train: bool, key: Key | None, has_state: bool) -> dict[str, bool]:
    """The flags that a module's call takes for training, by their names in its signature."""
    names = inspect.signature(function).parameters
    training = [name for name in TRAIN if name in names]
    if training and key is not None and not train:
        if has_state:
            raise ValueError(
                f"Dropout in prediction needs a module that can drop units and leave its batch statistics "
                f"alone; this one has a single argument {training[0]!r} for both. Give it an argument "
                "'deterministic' for dropout, or leave both to the layers' own attributes."
            )
        train = True
    flags = dict.fromkeys(training, train)
    return flags | {name: key is None for name in STILL if name in names}
