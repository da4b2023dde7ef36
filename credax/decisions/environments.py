"""Bandit environments: contexts, actions and the distributions of their rewards."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from credax.core.checks import must
from credax.core.typing import Array
from credax.model.data import check_array


@dataclass(frozen=True, eq=False, repr=False)
class Bandit:
    """A contextual bandit with finitely many contexts and known reward distributions.

    The context of each interaction is drawn uniformly at random.

    Args:
      contexts: the features of each context, ``(rows, features)``.
      rewards: the reward of each action, ``(rows, actions)``; or, for random rewards, the values that it may
        take, ``(rows, actions, values)``.
      probabilities: the probability of each value, in the shape of ``rewards``. If ``None``, all values of an
        action are equally probable.
    """

    contexts: Any
    rewards: Any
    probabilities: Any = None

    def __post_init__(self):
        contexts = check_array("Bandit(contexts=...)", self.contexts)
        if contexts.ndim != 2:
            allowed = "of shape (rows, features)"
            raise ValueError(must("Bandit", "contexts", allowed, contexts))
        rewards = check_array("Bandit(rewards=...)", self.rewards)
        rewards = rewards[..., None] if rewards.ndim == 2 else rewards
        if rewards.ndim != 3 or len(rewards) != len(contexts) or rewards.shape[1] < 2:
            shape = f"({len(contexts)}, actions) or ({len(contexts)}, actions, values)"
            allowed = f"of shape {shape}, with at least 2 actions"
            raise ValueError(must("Bandit", "rewards", allowed, rewards))
        if self.probabilities is None:
            probabilities = np.full_like(rewards, 1 / rewards.shape[2])
        else:
            probabilities = check_array("Bandit(probabilities=...)", self.probabilities)
            probabilities = probabilities[..., None] if probabilities.ndim == 2 else probabilities
        if probabilities.shape != rewards.shape:
            allowed = f"of the same shape as rewards, {rewards.shape}"
            raise ValueError(must("Bandit", "probabilities", allowed, probabilities))
        total = probabilities.sum(2)
        if probabilities.min() < 0 or np.abs(total - 1).max() > 1e-5:
            raise ValueError(
                "Bandit(probabilities=...) must be non-negative and sum to one over the values; got sums from "
                f"{total.min():.6g} to {total.max():.6g} and a smallest entry of {probabilities.min():.6g}."
            )
        for name, value in zip(
            ("contexts", "rewards", "probabilities"),
            (contexts, rewards, probabilities),
            strict=True,
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        rows, features = self.contexts.shape
        return f"Bandit({rows:,} contexts with {features} features, {self.num_actions} actions)"

    @property
    def num_actions(self) -> int:
        """The number of actions."""
        return self.rewards.shape[1]

    @cached_property
    def expected(self) -> np.ndarray:
        """The expected reward of each action, ``(rows, actions)``."""
        return np.sum(self.rewards.astype(float) * self.probabilities, axis=2)

    @cached_property
    def gaps(self) -> np.ndarray:
        """The expected regret of each action against the best one, ``(rows, actions)``."""
        return self.expected.max(1, keepdims=True) - self.expected

    def inputs(self, rows: Any) -> np.ndarray:
        """The inputs of the network: each context followed by the one-hot code of each action.

        Args:
          rows: indices of contexts.

        Returns:
          An array of shape ``(rows, actions, features + actions)``.
        """
        contexts = self.contexts[np.asarray(rows)]
        shape = (len(contexts), self.num_actions)
        repeated = np.broadcast_to(contexts[:, None], (*shape, contexts.shape[1]))
        codes = np.broadcast_to(np.eye(self.num_actions, dtype=contexts.dtype), (*shape, shape[1]))
        return np.concatenate([repeated, codes], axis=2)


def mushrooms(path: str | Path) -> Bandit:
    """The mushroom bandit of Guez (2015) and Blundell et al. (2015).

    Action 0 leaves the mushroom and gives reward 0; action 1 eats it. Eating an edible mushroom gives 5; eating
    a poisonous one gives 5 or -35 with probability one half each.

    Args:
      path: the UCI file ``agaricus-lepiota.data``, plain or compressed (``.gz``). Each line describes one
        mushroom by 23 letters separated by commas, of which the first is ``e`` (edible) or ``p`` (poisonous).
    """
    path = Path(path)
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)  # noqa: SIM115
    with opened as file:
        lines = [line.strip().split(",") for line in file if line.strip()]
    if lines and lines[0][0] not in ("e", "p"):
        lines = lines[1:]  # the names of the columns
    if not lines or any(len(line) != 23 or line[0] not in ("e", "p") for line in lines):
        raise ValueError(
            "mushrooms(path=...) must be the UCI file agaricus-lepiota.data, with 23 letters per line, "
            f"separated by commas, of which the first is e or p; got {path}."
        )
    table = np.array(lines)
    columns = [column[:, None] == np.unique(column) for column in table.T[1:]]
    contexts = np.concatenate(columns, axis=1).astype(float)
    poisonous = table[:, 0] == "p"
    rewards = np.zeros((len(table), 2, 2))
    rewards[:, 1] = 5.0
    rewards[poisonous, 1] = 5.0, -35.0
    return Bandit(contexts, rewards)


class World(NamedTuple):
    """The arrays of a :class:`Bandit` on the device."""

    contexts: Array
    rewards: Array
    cumulative: Array  # cumulative probabilities over the values of a reward

    @classmethod
    def of(cls, bandit: Bandit) -> World:
        """Copy the arrays of a bandit to the device."""
        cumulative = np.cumsum(bandit.probabilities, axis=2)
        return cls(*map(jnp.asarray, (bandit.contexts, bandit.rewards, cumulative)))

    def meet(self, uniform: Array) -> tuple[Array, Array]:
        """A random context: its index, and the network's inputs for each action."""
        row = pick(uniform, self.contexts.shape[0])
        actions = self.rewards.shape[1]
        context = jnp.broadcast_to(self.contexts[row], (actions, self.contexts.shape[1]))
        return row, jnp.concatenate([context, jnp.eye(actions, dtype=context.dtype)], axis=1)

    def reward(self, uniform: Array, row: Array, action: Array) -> Array:
        """Sample the reward of an action."""
        # Rounding may leave the last cumulative probability below one; the last value takes the remainder.
        value = jnp.sum(uniform >= self.cumulative[row, action, :-1])
        return self.rewards[row, action, value]


def pick(uniform: Array, count: Any) -> Array:
    """Map uniform numbers in [0, 1) to integers from 0 to ``count - 1``.

    This compiles to far fewer operations than ``jax.random.randint``.
    """
    count = jnp.asarray(count, jnp.int32)
    return jnp.minimum((uniform * count.astype(uniform.dtype)).astype(jnp.int32), count - 1)
