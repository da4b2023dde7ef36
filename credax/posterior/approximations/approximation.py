"""What a posterior is made of: a distribution over the parameters that can be drawn from and saved."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from credax.core.typing import Draw, Key

NUM_SAMPLES = 100
"""What a prediction averages over where draws are made for it, and nothing else is asked for."""


@dataclass(frozen=True, eq=False)
class Samples:
    """A finite set of weighted draws, made piece by piece so that all need never be in memory.

    Attributes:
      log_weights: normalised, one a sample.
      take: ``take(begin, end)`` gives these samples, stacked; beyond the last it repeats the last.
      centre: where predictions replace the network by its linear expansion; ``None``: nowhere.
    """

    log_weights: np.ndarray
    take: Callable[[int, int], Draw]
    centre: Draw | None = None

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.log_weights)


class Approximation(abc.ABC):
    """A distribution over parameters, as a frozen dataclass whose fields are its arrays and settings.

    Fields named in ``like_params`` and ``like_state`` hold pytrees in the structure of the parameters and
    of the network's state, with whatever leading axes; all other fields are single arrays, numbers or text.
    """

    like_params: tuple[str, ...] = ()
    like_state: tuple[str, ...] = ()

    @abc.abstractmethod
    def samples(self, key: Key, count: int | None) -> Samples:
        """What a prediction averages over; ``None``: what serves this approximation best."""

    @abc.abstractmethod
    def sample(self, key: Key, count: int) -> Draw:
        """So many independent, equally weighted draws, stacked."""

    def starts(self, key: Key, replicas: int) -> Draw:
        """Starting points for so many replicas, stacked."""
        return self.sample(key, replicas)


class Generated(Approximation):
    """A distribution that makes draws from keys when they are asked for; a pytree of its arrays."""

    @abc.abstractmethod
    def generate(self, key: Key) -> Draw:
        """One draw, in compiled code."""

    @property
    def centre(self) -> Draw | None:
        """Where predictions replace the network by its linear expansion; ``None``: nowhere."""
        return None

    def samples(self, key: Key, count: int | None) -> Samples:
        """Independent draws, made when they are asked for."""
        count = NUM_SAMPLES if count is None else count
        keys = jax.random.split(key, count)

        def take(begin, end):
            return _generate(self, keys[np.minimum(np.arange(begin, end), count - 1)])

        return Samples(np.full(count, -np.log(count)), take, self.centre)

    def sample(self, key: Key, count: int) -> Draw:
        """So many independent draws, stacked."""
        return _generate(self, jax.random.split(key, count))


@jax.jit
def _generate(approximation: Any, keys: Key) -> Draw:
    return jax.lax.map(approximation.generate, keys)
