"""The world of a bandit: contexts, actions and the distributions of their rewards."""

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


@dataclass(frozen=True, eq=False)
class Bandit:
    """Contexts, and how the reward of every action is distributed in each of them.

    Every interaction meets a context drawn at random, each as likely as any other.

    Args:
      contexts: ``(rows, features)``.
      rewards: ``(rows, actions)``, or ``(rows, actions, values)`` where a reward takes one of several values.
      probabilities: of these values, in the shape of ``rewards``; ``None``: each is as likely as any other.
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
            allowed = f"of shape {shape}, with 2 actions or more"
            raise ValueError(must("Bandit", "rewards", allowed, rewards))
        if self.probabilities is None:
            probabilities = np.full_like(rewards, 1 / rewards.shape[2])
        else:
            probabilities = check_array("Bandit(probabilities=...)", self.probabilities)
            probabilities = probabilities[..., None] if probabilities.ndim == 2 else probabilities
        if probabilities.shape != rewards.shape:
            allowed = f"of the shape of rewards, {rewards.shape}"
            raise ValueError(must("Bandit", "probabilities", allowed, probabilities))
        total = probabilities.sum(2)
        if probabilities.min() < 0 or np.abs(total - 1).max() > 1e-5:
            raise ValueError(
                "Bandit(probabilities=...) must be non-negative and add up to one over the values; got "
                f"sums from {total.min():.6g} to {total.max():.6g}, the least {probabilities.min():.6g}."
            )
        for name, value in zip(
            ("contexts", "rewards", "probabilities"),
            (contexts, rewards, probabilities),
            strict=True,
        ):
            object.__setattr__(self, name, value)

    @property
    def num_actions(self) -> int:
        """How many actions there are."""
        return self.rewards.shape[1]

    @cached_property
    def expected(self) -> np.ndarray:
        """The expected reward of each action, ``(rows, actions)``."""
        return np.sum(self.rewards.astype(float) * self.probabilities, axis=2)

    @cached_property
    def gaps(self) -> np.ndarray:
        """What an action loses on average to the best one, ``(rows, actions)``."""
        return self.expected.max(1, keepdims=True) - self.expected

    def inputs(self, rows: Any) -> np.ndarray:
        """What a network sees: contexts with codes of actions, ``(rows, actions, features + actions)``."""
        contexts = self.contexts[np.asarray(rows)]
        shape = (len(contexts), self.num_actions)
        repeated = np.broadcast_to(contexts[:, None], (*shape, contexts.shape[1]))
        codes = np.broadcast_to(np.eye(self.num_actions, dtype=contexts.dtype), (*shape, shape[1]))
        return np.concatenate([repeated, codes], axis=2)


def mushrooms(path: str | Path) -> Bandit:
    """The mushroom task of Guez (2015) and Blundell et al. (2015): leave it (action 0) or eat it (action 1).

    An edible mushroom eaten gives 5, a poisonous one 5 or -35, each half of the time; leaving it gives 0.

    Args:
      path: the UCI file ``agaricus-lepiota.data``, or the same compressed (``.gz``): a mushroom a line, 23
        letters with commas between them, the first of which is ``e`` or ``p``.
    """
    path = Path(path)
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)  # noqa: SIM115
    with opened as file:
        lines = [line.strip().split(",") for line in file if line.strip()]
    if lines and lines[0][0] not in ("e", "p"):
        lines = lines[1:]  # the names of the columns
    if not lines or any(len(line) != 23 or line[0] not in ("e", "p") for line in lines):
        raise ValueError(
            "mushrooms(path=...) must be the UCI file agaricus-lepiota.data: 23 letters a line with commas "
            f"between them, the first one e or p; got {path}."
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
    """A bandit on the device."""

    contexts: Array
    rewards: Array
    cumulative: Array  # probabilities of this value or one before it

    @classmethod
    def of(cls, bandit: Bandit) -> World:
        """As the bandit."""
        cumulative = np.cumsum(bandit.probabilities, axis=2)
        return cls(*map(jnp.asarray, (bandit.contexts, bandit.rewards, cumulative)))

    def meet(self, uniform: Array) -> tuple[Array, Array]:
        """A random context: its row, and what a network sees of it with each action."""
        row = pick(uniform, self.contexts.shape[0])
        actions = self.rewards.shape[1]
        context = jnp.broadcast_to(self.contexts[row], (actions, self.contexts.shape[1]))
        return row, jnp.concatenate([context, jnp.eye(actions, dtype=context.dtype)], axis=1)

    def reward(self, uniform: Array, row: Array, action: Array) -> Array:
        """A draw of the reward."""
        # Rounding may leave the last sum below one: the last value takes what is beyond it.
        value = jnp.sum(uniform >= self.cumulative[row, action, :-1])
        return self.rewards[row, action, value]


def pick(uniform: Array, count: Any) -> Array:
    """Numbers in [0, 1) as whole numbers below the count: far fewer operations than ``randint`` to compile."""
    count = jnp.asarray(count, jnp.int32)
    return jnp.minimum((uniform * count.astype(uniform.dtype)).astype(jnp.int32), count - 1)
