"""Kept draws as a posterior: of a chain, the members of an ensemble, the one point of an optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from credax.core.typing import Draw, Key, NetworkState, Params
from credax.posterior.approximations.approximation import Approximation, Samples


@dataclass(frozen=True, eq=False)
class Draws(Approximation):
    """Kept draws: of a chain, the members of an ensemble, the one point of an optimiser.

    Attributes:
      params: the parameters, with leading axes (replica, draw).
      state: the network's state of each, likewise.
      log_weights: ``(replica, draw)``, up to a constant; ``None``: all weigh the same.
    """

    params: Params
    state: NetworkState = ()
    log_weights: np.ndarray | None = None

    like_params = ("params",)
    like_state = ("state",)

    @property
    def shape(self) -> tuple[int, int]:
        """How many replicas, and how many draws each."""
        return jax.tree.leaves(self.params)[0].shape[:2]

    def samples(self, key: Key, count: int | None) -> Samples:
        """All draws with their weights; fewer where asked, never the same one twice for its own sake."""
        total = self.shape[0] * self.shape[1]
        chosen, log_weights = np.arange(total), self._normalised()
        if count is not None and count < total:
            if self.log_weights is None:
                chosen = np.sort(np.asarray(jax.random.permutation(key, total))[:count])
            else:
                chosen = self._resample(key, count)
            log_weights = np.full(count, -np.log(count))

        def take(begin, end):
            return self._at(chosen[np.minimum(np.arange(begin, end), len(chosen) - 1)])

        return Samples(log_weights, take)

    def sample(self, key: Key, count: int) -> Draw:
        """Drawn anew from the kept ones, by their weights."""
        return self._at(self._resample(key, count))

    def starts(self, key: Key, replicas: int) -> Draw:
        """Where the replicas match, each goes on from its own last draw."""
        if self.log_weights is None and self.shape[0] == replicas:
            return jax.tree.map(lambda leaf: leaf[:, -1], Draw(self.params, self.state))
        return self.sample(key, replicas)

    def _normalised(self) -> np.ndarray:
        total = self.shape[0] * self.shape[1]
        if self.log_weights is None:
            return np.full(total, -np.log(total))
        flat = np.asarray(self.log_weights, np.float64).reshape(-1)
        total = logsumexp(flat)
        if not np.isfinite(total):
            raise ValueError(
                f"Draws(log_weights=...) must have a finite sum; its logarithm is {total}."
            )
        return flat - total

    def _resample(self, key: Key, count: int) -> np.ndarray:
        """Independent indices in proportion to the weights."""
        uniform = np.asarray(jax.random.uniform(key, (count,)), np.float64)
        cumulative = np.cumsum(np.exp(self._normalised()))
        return np.minimum(
            np.searchsorted(cumulative, uniform * cumulative[-1], side="right"), len(cumulative) - 1
        )

    def _at(self, chosen: np.ndarray) -> Draw:
        def pick(leaf: Any) -> Any:
            return leaf.reshape(-1, *leaf.shape[2:])[chosen]

        return jax.tree.map(pick, Draw(self.params, self.state))
