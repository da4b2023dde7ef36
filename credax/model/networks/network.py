"""The contract of a network, and the network that is a pair of plain functions."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from credax.core.checks import must
from credax.core.typing import Array, Key, NetworkState, Params


class AbstractNetwork(abc.ABC):
    """Parameters and inputs to outputs.

    A network is static (hashable, equal by value) and holds no arrays. ``build`` tells it the shape of one
    row and how many outputs the likelihood wants; only then can it make parameters.
    """

    integer_inputs: bool = False
    """Whether whole numbers in ``x`` stay whole (token ids) instead of becoming floats."""

    pretrained: bool = False
    """Whether ``init`` returns the same trained weights for every key."""

    def rows_last(self, rows: int) -> bool:
        """Whether a batch of so many rows is computed with its rows along the last axis.

        Where it is, several replicas as one batch are faster on a CPU than one after the other.
        """
        return False

    def build(self, input_shape: tuple[int, ...], outputs: int) -> Self:
        """The same network, complete for rows of ``input_shape`` and ``outputs`` outputs."""
        return self

    @abc.abstractmethod
    def init(self, key: Key) -> Params:
        """Parameters from which an optimiser can start."""

    def init_state(self) -> NetworkState:
        """What the network carries beside its parameters, at its start; ``()`` where nothing."""
        return ()

    @abc.abstractmethod
    def call(
        self, params: Params, x: Array, *, state: NetworkState, key: Key | None, train: bool
    ) -> tuple[Array, NetworkState]:
        """Outputs of shape ``(rows, outputs)`` and the next state.

        ``key=None`` turns randomness (dropout) off; ``train=False`` leaves the state as it is.
        """

    def apply(self, params: Params, x: Array, state: NetworkState = ()) -> Array:
        """The outputs as they are in prediction: no randomness, the state untouched."""
        return self.call(params, x, state=state, key=None, train=False)[0]


@dataclass(frozen=True)
class Network(AbstractNetwork):
    """A network that is a pair of functions, ``Network(init, apply)``.

    Two networks of the same two function objects are equal: keep the functions at module level, or keep
    the network, and a second fit compiles nothing.
    """

    init_function: Callable[[Key], Params]
    apply_function: Callable[[Params, Array], Array]

    integer_inputs = True

    def __post_init__(self):
        for name in ("init", "apply"):
            function = getattr(self, f"{name}_function")
            if not callable(function):
                raise TypeError(must("Network", name, "a function", function))

    def init(self, key):
        """The parameters that the first function makes."""
        return self.init_function(key)

    def call(self, params, x, *, state, key, train):
        """The outputs of the second function; there is no state and no randomness."""
        return self.apply_function(params, x), state


def from_function(
    init: Callable[[Key], Params], apply: Callable[[Params, Array], Array]
) -> Network:
    """A network from two functions.

    Args:
      init: ``init(key) -> params``, any pytree of floating point arrays.
      apply: ``apply(params, x) -> outputs`` of shape ``(rows, outputs)``.

    >>> import jax.numpy as jnp
    >>> line = from_function(lambda key: jnp.zeros(1), lambda slope, x: x * slope)
    >>> line.apply(jnp.ones(1), jnp.ones((3, 1))).shape
    (3, 1)
    """
    return Network(init, apply)
