"""What networks with frozen weights have in common: trained values, and patterns that choose weights."""

from __future__ import annotations

import abc
import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

import jax

from credax.core.checks import must
from credax.core.reprs import brief
from credax.core.trees import named_leaves
from credax.core.typing import Array, NetworkState, Params
from credax.core.weights import Weights
from credax.model.networks.network import AbstractNetwork


@runtime_checkable
class Trained(Protocol):
    """The part of a posterior's interface that is needed to take weights from it."""

    def single_draw(self) -> tuple[Params, NetworkState] | None:
        """The network's weights and state if the posterior has exactly one draw, otherwise ``None``."""
        ...


class FrozenNetwork(AbstractNetwork):
    """A network that computes its own weights from its parameters and from trained, frozen weights.

    The batch statistics are frozen too, so it has no state.

    Attributes:
      network: the whole network.
      weights: the values of all weights. If ``None``, those of ``network.init``.
      state: the batch statistics. If ``None``, those of ``network.init_state``.
    """

    network: AbstractNetwork
    weights: Weights | None
    state: Weights | None

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network keeps integers."""
        return self.network.integer_inputs

    def __repr__(self):
        return brief(self)

    @abc.abstractmethod
    def merged(self, params: Params) -> Params:
        """All weights of the inner network that these parameters stand for."""

    def trained(self) -> Params:
        """All weights at their trained values."""
        if self.weights is None:  # then the network is pretrained, and no key changes its weights
            return self.network.init(jax.random.key(0))
        return self.weights.like(jax.eval_shape(self.network.init, jax.random.key(0)))

    def call(self, params, x: Array, *, state, key, train):
        """The outputs of the whole network, with fixed batch statistics, and the unchanged state."""
        held = self.network.init_state()
        held = held if self.state is None else self.state.like(held)
        outputs, _ = self.network.call(self.merged(params), x, state=held, key=key, train=False)
        return outputs, state


def replaced(tree: Params, leaves: Mapping[str, Any]) -> Params:
    """A pytree in which the leaves at some paths are replaced."""
    new = [leaves.get(path, leaf) for path, leaf in named_leaves(tree)]
    return jax.tree.unflatten(jax.tree.structure(tree), new)


# -- arguments ---------------------------------------------------------------------------------------


def check_network(owner: str, network: Any) -> AbstractNetwork:
    """Check that the value is a network; return it."""
    if not isinstance(network, AbstractNetwork):
        raise TypeError(must(owner, "network", "a network", network))
    return network


def path_patterns(owner: str, name: str, value: Any) -> tuple[str, ...]:
    """Check one path pattern or several; return them as a tuple."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    patterns: tuple[Any, ...] = tuple(value) if several else (value,)
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(must(owner, name, "one or more path patterns", value))
    return patterns


def trained_values(
    owner: str, network: AbstractNetwork, weights: Any
) -> tuple[Weights | None, Weights | None]:
    """The network's weights and state from a posterior or a pytree; ``None`` for its own."""
    if weights is None:
        if not network.pretrained:
            allowed = "a posterior or a pytree of weights for a network that is not pretrained"
            raise ValueError(must(owner, "weights", allowed, weights))
        return None, None
    if not isinstance(weights, Trained):
        return Weights.of(weights), None
    point = weights.single_draw()
    if point is None:
        allowed = "a posterior of one draw, as of cx.MAP()"
        raise ValueError(must(owner, "weights", allowed, weights))
    return Weights.of(point[0]), Weights.of(point[1])


def matching(patterns: tuple[str, ...], path: str) -> bool:
    """Whether a path matches one of the patterns."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def check_patterns(owner: str, name: str, patterns: tuple[str, ...], paths: list[str]) -> None:
    """Refuse a pattern that matches no path, and name paths that are similar to it."""
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in paths):
            near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.4) or paths[:3]
            raise ValueError(
                f"{owner}({name}=...) must hold patterns that match parameters; {pattern!r} matches "
                f"none. Similar paths: {', '.join(map(repr, near))}."
            )


def check_weights(owner: str, weights: Weights | None, like: Params) -> None:
    """Refuse trained weights whose paths or shapes differ from those of the network."""
    if weights is None:
        return
    wanted = {path: leaf.shape for path, leaf in named_leaves(like)}
    got = {path: array.shape for path, array in weights.arrays.items()}
    if wanted != got:
        raise ValueError(
            f"{owner}(weights=...) must have the paths and shapes of the network's weights, {wanted}; "
            f"got {got}."
        )
