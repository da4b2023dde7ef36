"""The contract of the distributions over parameters that represent a posterior: draw from them, save them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from credax.core.typing import Draw, Key
from credax.posterior.display import count

NUM_SAMPLES = 100
"""The default number of samples of a prediction if the distribution generates its draws."""


@dataclass(frozen=True, eq=False)
class Samples:
    """A finite set of weighted draws, generated in pieces so that not all of them need be in memory.

    Attributes:
      log_weights: the normalised log weight of each sample.
      take: ``take(begin, end)`` returns the samples in this range, stacked; the last sample is repeated for
        indices beyond it.
      centre: the draw at which predictions replace the network by its linear expansion. If ``None``, they use
        the network itself.
    """

    log_weights: np.ndarray
    take: Callable[[int, int], Draw]
    centre: Draw | None = None

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.log_weights)

    def __repr__(self) -> str:
        return f"Samples({count(self.count, 'samples')}{', linearised' if self.centre else ''})"


class Approximation(abc.ABC):
    """A distribution over parameters: a frozen dataclass whose fields are its arrays and settings.

    Fields named in ``like_params`` and ``like_state`` hold pytrees with the structure of the parameters and
    of the network's state; their leaves may have further leading axes. Every other field is an array, a number
    or text.
    """

    like_params: tuple[str, ...] = ()
    like_state: tuple[str, ...] = ()
    leading_axes: int = 0
    """The number of axes that leaves of the first field of ``like_params`` have before those of a parameter."""

    @property
    def num_weights(self) -> int:
        """The number of scalars in one draw of the parameters."""
        leaves = jax.tree.leaves(getattr(self, self.like_params[0])) if self.like_params else []
        return sum(math.prod(np.shape(leaf)[self.leading_axes :]) for leaf in leaves)

    def __repr__(self) -> str:
        parts = [
            *self._facts(),
            *([count(self.num_weights, "weights")] if self.like_params else []),
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _facts(self) -> list[str]:
        """The parts of ``repr`` before the number of weights."""
        return []

    @abc.abstractmethod
    def samples(self, key: Key, count: int | None) -> Samples:
        """The samples that a prediction averages over.

        Args:
          key: a JAX key.
          count: the number of samples. If ``None``, the default of this approximation.
        """

    @abc.abstractmethod
    def sample(self, key: Key, count: int) -> Draw:
        """``count`` independent draws of equal weight, stacked along a leading axis."""

    def starts(self, key: Key, replicas: int) -> Draw:
        """Starting points for the replicas of another run, stacked along a leading axis."""
        return self.sample(key, replicas)


class Generated(Approximation):
    """A distribution whose draws are generated from keys when they are needed; a pytree of its arrays."""

    @abc.abstractmethod
    def generate(self, key: Key) -> Draw:
        """One draw; called in compiled code."""

    @property
    def centre(self) -> Draw | None:
        """The draw at which predictions linearise the network; ``None`` if they use the network itself."""
        return None

    def samples(self, key: Key, count: int | None) -> Samples:
        """``count`` independent draws, by default 100, generated when they are needed."""
        count = NUM_SAMPLES if count is None else count
        keys = jax.random.split(key, count)

        def take(begin, end):
            return _generate(self, keys[np.minimum(np.arange(begin, end), count - 1)])

        return Samples(np.full(count, -np.log(count)), take, self.centre)

    def sample(self, key: Key, count: int) -> Draw:
        """``count`` independent draws, stacked along a leading axis."""
        return _generate(self, jax.random.split(key, count))


@jax.jit
def _generate(approximation: Any, keys: Key) -> Draw:
    return jax.lax.map(approximation.generate, keys)
