"""Part of a network's weights: the others keep the values that they have."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

import jax

from credax.core.checks import must
from credax.core.trees import named_leaves, tree_paths
from credax.core.typing import Array, Key, NetworkState, Params
from credax.core.weights import Weights, nested
from credax.model.networks.network import AbstractNetwork


def subset(
    network: AbstractNetwork, bayesian: str | Sequence[str], *, weights: Any = None
) -> Subset:
    """The network with some of its weights as parameters, all others and its batch statistics fixed.

    A Bayesian last layer on trained features: fit the whole network, then its last layer.

    >>> import numpy as np, credax as cx
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> whole = cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Gaussian(0.1))
    >>> trained = cx.fit(whole, (x, x[:, 0]), cx.MAP(num_steps=20), progress=False)
    >>> last = cx.networks.subset(whole.network, "layer_1/*", weights=trained)

    Args:
      network: any network.
      bayesian: one or more path patterns, as in priors; the weights that match one of them are the parameters.
      weights: the values of the others: a posterior of one draw (of ``MAP``), or the network's parameters as
        a pytree. ``None``: the network's own, where it is pretrained.
    """
    if not isinstance(network, AbstractNetwork):
        raise TypeError(must("subset", "network", "a network", network))
    patterns = (bayesian,) if isinstance(bayesian, str) else tuple(bayesian)
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
    """The parameters of a network, and its state where there is one, of a posterior or a pytree."""
    if not isinstance(weights, Trained):
        return weights, None
    point = weights.single_draw()
    if point is None:
        allowed = "a posterior of one draw, as of cx.MAP()"
        raise ValueError(must("subset", "weights", allowed, weights))
    return point


@runtime_checkable
class Trained(Protocol):
    """What a posterior offers to a network that takes over its weights."""

    def single_draw(self) -> tuple[Params, NetworkState] | None:
        """The network's weights and state, where there is exactly one set of them."""
        ...


@dataclass(frozen=True)
class Subset(AbstractNetwork):
    """A network some of whose weights are fixed. Made by :func:`subset`.

    Attributes:
      network: the whole.
      bayesian: patterns of the paths of the weights that are free.
      weights: those to hold (and those to begin at); ``None``: what ``network.init`` returns.
      state: the batch statistics to hold; ``None``: what ``network.init_state`` returns.
    """

    network: AbstractNetwork
    bayesian: tuple[str, ...]
    weights: Weights | None = None
    state: Weights | None = None

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the network's."""
        return self.network.integer_inputs

    def build(self, input_shape, outputs):
        """Of the network for these rows; the patterns must match, the weights must fit."""
        built = replace(self, network=self.network.build(input_shape, outputs))
        like = jax.eval_shape(built.network.init, jax.random.key(0))
        paths = tree_paths(like)
        for pattern in self.bayesian:
            if not any(fnmatchcase(path, pattern) for path in paths):
                near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.4) or paths[:3]
                raise ValueError(
                    f"subset(bayesian=...) must hold patterns that match parameters; {pattern!r} matches "
                    f"none. Near it: {', '.join(map(repr, near))}."
                )
        if self.weights is not None:
            wanted = {path: leaf.shape for path, leaf in named_leaves(like)}
            got = {path: array.shape for path, array in self.weights.arrays.items()}
            if wanted != got:
                raise ValueError(
                    f"subset(weights=...) must be those of the network, {wanted}; got {got}."
                )
        return built

    def _free(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.bayesian)

    pretrained = True

    def _whole(self) -> Any:
        """All weights, at the values given; no key changes those of a pretrained network."""
        if self.weights is None:
            return self.network.init(jax.random.key(0))
        return self.weights.like(jax.eval_shape(self.network.init, jax.random.key(0)))

    def init(self, key: Key):
        """The free weights as nested dictionaries, at the values given."""
        leaves = named_leaves(self._whole())
        return nested({path: leaf for path, leaf in leaves if self._free(path)})

    def call(self, params, x: Array, *, state, key, train):
        """The whole network's, its batch statistics as they are."""
        free = dict(named_leaves(params))
        whole = self._whole()
        leaves = [free.get(path, leaf) for path, leaf in named_leaves(whole)]
        whole = jax.tree.unflatten(jax.tree.structure(whole), leaves)
        held = self.network.init_state()
        held = held if self.state is None else self.state.like(held)
        return self.network.call(whole, x, state=held, key=key, train=False)[0], state
