"""A network of which some weights are uncertain, while all others get point estimates in the same run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from credax.core.reprs import brief
from credax.core.trees import tree_paths
from credax.core.typing import Array, Key
from credax.model.networks.frozen import check_patterns, matching
from credax.model.networks.network import AbstractNetwork


@dataclass(frozen=True, repr=False)
class TrainedAlong(AbstractNetwork):
    """A network of which only some weights are uncertain. Made by :func:`subset` with ``rest="trained"``.

    All weights are parameters, and the batch statistics are updated as in the whole network. Methods that
    support it hold the other weights at a point, which they optimise along with the distribution.

    Attributes:
      network: the whole network.
      bayesian: patterns for the paths of the weights that are uncertain.
    """

    network: AbstractNetwork
    bayesian: tuple[str, ...]

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network keeps integers."""
        return self.network.integer_inputs

    @property
    def quantiles(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As for the inner network."""
        return self.network.quantiles

    @property
    def pretrained(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network begins at trained weights."""
        return self.network.pretrained

    def __repr__(self):
        return brief(self)

    def is_point(self, path):
        """Whether a weight is not among those that are uncertain."""
        return not matching(self.bayesian, path)

    def rows_last(self, rows):
        """As the inner network computes."""
        return self.network.rows_last(rows)

    def build(self, input_shape, outputs):
        """The network completed for these rows, after a check of the patterns."""
        built = replace(self, network=self.network.build(input_shape, outputs))
        like = jax.eval_shape(built.network.init, jax.random.key(0))
        check_patterns("subset", "bayesian", self.bayesian, tree_paths(like))
        return built

    def init(self, key: Key):
        """All weights of the inner network."""
        return self.network.init(key)

    def init_state(self):
        """The state of the inner network."""
        return self.network.init_state()

    def call(self, params, x: Array, *, state, key, train):
        """The outputs of the inner network and its next state."""
        return self.network.call(params, x, state=state, key=key, train=train)
