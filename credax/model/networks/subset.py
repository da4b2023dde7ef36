"""A network of which only some weights are uncertain; the others are fixed, or trained along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from credax.core.checks import must
from credax.core.trees import named_leaves, tree_paths
from credax.core.typing import Key
from credax.core.weights import Weights, nested
from credax.model.networks.along import TrainedAlong
from credax.model.networks.frozen import (
    FrozenNetwork,
    check_network,
    check_patterns,
    check_weights,
    matching,
    path_patterns,
    replaced,
    trained_values,
)
from credax.model.networks.network import AbstractNetwork

RESTS = ("frozen", "first", "trained")


def subset(
    network: AbstractNetwork,
    bayesian: str | Sequence[str],
    *,
    weights: Any = None,
    rest: Any = "frozen",
) -> Subset | TrainedAlong:
    """Make only some weights of a network uncertain.

    For a Bayesian last layer on trained features, fit the whole network first, then its last layer:

    >>> import numpy as np, credax as cx
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> whole = cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Gaussian(0.1))
    >>> trained = cx.fit(whole, (x, x[:, 0]), cx.MAP(num_steps=20), progress=False)
    >>> last = cx.networks.subset(whole.network, "layer_1/*", weights=trained)

    Args:
      network: any network.
      bayesian: one or more path patterns, as for priors; the weights that match one of them are uncertain.
      weights: the values of all weights: a posterior with a single draw (such as one of ``MAP``), or a pytree
        of the network's parameters. If ``None``, the weights of a pretrained network are used.
      rest: what becomes of the other weights: ``"frozen"`` keeps them, and the batch statistics, at
        ``weights``; ``"first"`` lets ``cx.fit`` train the whole network by ``cx.MAP()`` before it runs the
        method, on the same rows and under the same prior. Instead of ``"first"``, give the method of this
        training, such as ``cx.MAP(num_steps=500)``. ``"trained"`` trains them along: the method optimises a
        point estimate of them together with the distribution of the uncertain weights. This needs
        ``BayesByBackprop``, ``MAP`` or ``MaximumLikelihood``. Except with ``"frozen"``, ``weights`` must be
        left out.
    """
    check_network("subset", network)
    patterns = path_patterns("subset", "bayesian", bayesian)
    # A method is recognised by what fit calls, since networks know nothing of methods.
    if not (isinstance(rest, str) and rest in RESTS) and not hasattr(rest, "num_steps"):
        allowed = "'frozen', 'first', 'trained' or a method such as cx.MAP()"
        raise ValueError(must("subset", "rest", allowed, rest))
    if rest == "frozen":
        return Subset(network, patterns, *trained_values("subset", network, weights))
    if weights is not None:
        raise ValueError(must("subset", "weights", f"None with rest={rest!r}", weights))
    if rest == "trained":
        return TrainedAlong(network, patterns)
    return Subset(network, patterns, rest=rest)


@dataclass(frozen=True, repr=False)
class Subset(FrozenNetwork):
    """A network of which only some weights are parameters. Made by :func:`subset`.

    Attributes:
      network: the whole network.
      bayesian: patterns for the paths of the weights that are parameters.
      weights: the values of all weights, fixed ones and initial ones. If ``None``, those of ``network.init``.
      state: the fixed batch statistics. If ``None``, those of ``network.init_state``.
      rest: ``"frozen"``; or how ``fit`` trains the whole network first.
    """

    network: AbstractNetwork
    bayesian: tuple[str, ...]
    weights: Weights | None = None
    state: Weights | None = None
    rest: Any = "frozen"

    pretrained = True

    def build(self, input_shape, outputs):
        """The subset of the network completed for these rows, after checks of the patterns and the weights."""
        built = replace(self, network=self.network.build(input_shape, outputs))
        like = jax.eval_shape(built.network.init, jax.random.key(0))
        check_patterns("subset", "bayesian", self.bayesian, tree_paths(like))
        check_weights("subset", self.weights, like)
        return built

    def trained(self):
        """All weights at their trained values, which must be known."""
        if self.rest != "frozen":
            raise ValueError(
                f"subset(rest={self.rest!r}) has no trained weights yet. Pass the model to cx.fit, which "
                "trains the whole network first, or train it yourself and pass subset(weights=...)."
            )
        return super().trained()

    def init(self, key: Key):
        """The weights that are parameters, at their given values, as nested dictionaries."""
        leaves = named_leaves(self.trained())
        return nested({path: leaf for path, leaf in leaves if matching(self.bayesian, path)})

    def merged(self, params):
        """The fixed weights and those of the parameters."""
        return replaced(self.trained(), dict(named_leaves(params)))
