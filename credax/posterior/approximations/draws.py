"""Kept draws as a posterior: those of a chain, the members of an ensemble, or the one point of an optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from credax.core.mapped import release
from credax.core.special import logsumexp
from credax.core.typing import Draw, Key, NetworkState, Params
from credax.posterior.approximations.approximation import Approximation, Samples
from credax.posterior.display import draws_text


@dataclass(frozen=True, eq=False, repr=False)
class Draws(Approximation):
    """Kept draws: those of a chain, the members of an ensemble, or the one point of an optimiser.

    Attributes:
      params: the parameters, with leading axes (replica, draw).
      state: the network's state for each draw, with the same leading axes.
      log_weights: the log weight of each draw up to a constant, ``(replica, draw)``. If ``None``, all draws
        have the same weight.
    """

    params: Params
    state: NetworkState = ()
    log_weights: np.ndarray | None = None

    like_params = ("params",)
    like_state = ("state",)
    leading_axes = 2

    @property
    def shape(self) -> tuple[int, int]:
        """The number of replicas, and the number of draws per replica."""
        return jax.tree.leaves(self.params)[0].shape[:2]

    def _facts(self) -> list[str]:
        return [draws_text(*self.shape, weighted=self.log_weights is not None)]

    def samples(self, key: Key, count: int | None) -> Samples:
        """All draws with their weights, or ``count`` of them if that is fewer.

        Draws of equal weight are chosen without replacement; weighted ones with replacement, in proportion to
        their weights, and then have equal weights.
        """
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
        """``count`` of the kept draws, chosen with replacement in proportion to their weights, stacked."""
        return self._at(self._resample(key, count))

    def starts(self, key: Key, replicas: int) -> Draw:
        """The last draw of each replica if there are as many, without weights; otherwise random draws."""
        if self.log_weights is None and self.shape[0] == replicas:
            return jax.tree.map(lambda leaf: leaf[:, -1], Draw(self.params, self.state))
        return self.sample(key, replicas)

    def probs(self) -> np.ndarray:
        """The weight of each draw, ``(replica x draw,)``; they add up to one."""
        return np.exp(self._normalised())

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
        """Indices of draws, chosen independently in proportion to the weights."""
        uniform = np.asarray(jax.random.uniform(key, (count,)), np.float64)
        cumulative = np.cumsum(np.exp(self._normalised()))
        return np.minimum(
            np.searchsorted(cumulative, uniform * cumulative[-1], side="right"), len(cumulative) - 1
        )

    def _at(self, chosen: np.ndarray) -> Draw:
        replica, draw = np.divmod(chosen, self.shape[1])

        def pick(leaf: Any) -> Any:
            # Not through a reshaped leaf, which would be a copy of all draws if they are a part of a file.
            found = leaf[replica, draw]
            release(leaf)
            return found

        return jax.tree.map(pick, Draw(self.params, self.state))
