"""A network of which only some weights are parameters; the others are fixed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

import jax

from credax.core.checks import must
from credax.core.reprs import brief
from credax.core.trees import named_leaves, tree_paths
from credax.core.typing import Array, Key, NetworkState, Params
from credax.core.weights import Weights, nested
from credax.model.networks.network import AbstractNetwork


def subset(
    network: AbstractNetwork, bayesian: str | Sequence[str], *, weights: Any = None
) -> Subset:
    """Make some weights of a network its parameters, and fix all other weights and the batch statistics.

    For a Bayesian last layer on trained features, fit the whole network first, then its last layer:

    >>> import numpy as np, credax as cx
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> whole = cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Gaussian(0.1))
    >>> trained = cx.fit(whole, (x, x[:, 0]), cx.MAP(num_steps=20), progress=False)
    >>> last = cx.networks.subset(whole.network, "layer_1/*", weights=trained)

    Args:
      network: any network.
      bayesian: one or more path patterns, as for priors; the weights that match one of them are the parameters.
      weights: the values of all weights: a posterior with a single draw (such as one of ``MAP``), or a pytree
        of the network's parameters. If ``None``, the weights of a pretrained network are used.
    """
    if not isinstance(network, AbstractNetwork):
        raise TypeError(must("subset", "network", "a network", network))
    several = isinstance(bayesian, Iterable) and not isinstance(bayesian, str)
    patterns: tuple[Any, ...] = tuple(bayesian) if several else (bayesian,)
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(must("subset", "bayesian", "one or more path patterns", bayesian))
    if weights is None:
        if not network.pretrained:
            allowed = "a posterior or a pytree of weights for a network that is not pretrained"
            raise ValueError(must("subset", "weights", allowed, weights))
        params, state = None, None
    else:
        params, state = _given(weights)
    return Subset(
        network,
        patterns,
        None if params is None else Weights.of(params),
        None if state is None else Weights.of(state),
    )


def _given(weights: Any) -> tuple[Any, Any]:
    """The network's parameters, and its state or ``None``, from a posterior or a pytree."""
    if not isinstance(weights, Trained):
        return weights, None
    point = weights.single_draw()
    if point is None:
        allowed = "a posterior of one draw, as of cx.MAP()"
        raise ValueError(must("subset", "weights", allowed, weights))
    return point


@runtime_checkable
class Trained(Protocol):
    """The part of a posterior's interface that is needed to take weights from it."""

    def single_draw(self) -> tuple[Params, NetworkState] | None:
        """The network's weights and state if the posterior has exactly one draw, otherwise ``None``."""
        ...


@dataclass(frozen=True)
class Subset(AbstractNetwork):
    """A network of which only some weights are parameters. Made by :func:`subset`.

    Attributes:
      network: the whole network.
      bayesian: patterns for the paths of the weights that are parameters.
      weights: the values of all weights, fixed ones and initial ones. If ``None``, those of ``network.init``.
      state: the fixed batch statistics. If ``None``, those of ``network.init_state``.
    """

    network: AbstractNetwork
    bayesian: tuple[str, ...]
    weights: Weights | None = None
    state: Weights | None = None

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network keeps integers."""
        return self.network.integer_inputs

    def __repr__(self):
        return brief(self)

    def build(self, input_shape, outputs):
        """The subset of the network completed for these rows, after checks of the patterns and the weights."""
        built = replace(self, network=self.network.build(input_shape, outputs))
        like = jax.eval_shape(built.network.init, jax.random.key(0))
        paths = tree_paths(like)
        for pattern in self.bayesian:
            if not any(fnmatchcase(path, pattern) for path in paths):
                near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.4) or paths[:3]
                raise ValueError(
                    f"subset(bayesian=...) must hold patterns that match parameters; {pattern!r} matches "
                    f"none. Similar paths: {', '.join(map(repr, near))}."
                )
        if self.weights is not None:
            wanted = {path: leaf.shape for path, leaf in named_leaves(like)}
            got = {path: array.shape for path, array in self.weights.arrays.items()}
            if wanted != got:
                raise ValueError(
                    f"subset(weights=...) must have the paths and shapes of the network's weights, {wanted}; "
                    f"got {got}."
                )
        return built

    def _free(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.bayesian)

    pretrained = True

    def _whole(self) -> Any:
        """All weights, at their given values."""
        if self.weights is None:  # then the network is pretrained, and no key changes its weights
            return self.network.init(jax.random.key(0))
        return self.weights.like(jax.eval_shape(self.network.init, jax.random.key(0)))

    def init(self, key: Key):
        """The weights that are parameters, at their given values, as nested dictionaries."""
        leaves = named_leaves(self._whole())
        return nested({path: leaf for path, leaf in leaves if self._free(path)})

    def call(self, params, x: Array, *, state, key, train):
        """The outputs of the whole network, with fixed batch statistics, and the unchanged state."""
        free = dict(named_leaves(params))
        whole = self._whole()
        leaves = [free.get(path, leaf) for path, leaf in named_leaves(whole)]
        whole = jax.tree.unflatten(jax.tree.structure(whole), leaves)
        held = self.network.init_state()
        held = held if self.state is None else self.state.like(held)
        return self.network.call(whole, x, state=held, key=key, train=False)[0], state
