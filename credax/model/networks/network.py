"""The base class of networks, and the network that consists of two plain functions."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np

from credax.core.checks import must
from credax.core.evaluation import shapes_from
from credax.core.reprs import labelled
from credax.core.settings import REQUIRED, Settings, function, setting
from credax.core.trees import named_leaves
from credax.core.typing import Array, Key, NetworkState, Params


class AbstractNetwork(Settings, abc.ABC):
    """A function from parameters and inputs to outputs.

    A network is hashable, compares by value and does not hold its parameters. Method ``build`` tells it the
    shape of one row and the number of outputs that the likelihood needs; only then can it make initial
    parameters.
    """

    integer_inputs: bool = False
    """Whether integers in ``x``, such as token ids, are kept instead of being converted to floats."""

    quantiles: int | None = None
    """The number of bins among whose limits a value of ``x`` has its position, if the network takes positions.

    Its rows then hold the positions of all columns, followed by their standardised values."""

    pretrained: bool = False
    """Whether ``init`` returns the same trained weights for every key."""

    @property
    def row_by_row(self) -> bool:
        """Whether each output depends on its own row alone, without noise and without statistics of a batch."""
        return False

    def is_point(self, path: str) -> bool:
        """Whether the weight at a path gets a point estimate, whatever the method does with the others."""
        return False

    def rows_last(self, rows: int) -> bool:
        """Whether a batch with this number of rows is computed with its rows along the last axis.

        If it is, several replicas computed as one batch are faster on a CPU than one after another.
        """
        return False

    def build(self, input_shape: Any, outputs: int) -> Self:
        """The same network, completed for rows of shape ``input_shape`` and for ``outputs`` outputs.

        The shape is a tuple of lengths, or an ``InputTree`` if a row is a tree of arrays.
        """
        return self

    @abc.abstractmethod
    def init(self, key: Key) -> Params:
        """Initial parameters for an optimiser."""

    def init_state(self) -> NetworkState:
        """The initial state, such as batch statistics; ``()`` if the network has none."""
        return ()

    @abc.abstractmethod
    def call(
        self, params: Params, x: Array, *, state: NetworkState, key: Key | None, train: bool
    ) -> tuple[Array, NetworkState]:
        """The outputs, ``(rows, outputs)`` or of another shape (see ``cx.Model``), and the next state.

        Args:
          params: the parameters.
          x: the inputs, ``(rows, ...)``.
          state: the state.
          key: the key for randomness such as dropout. If ``None``, there is no randomness.
          train: whether the state is updated.
        """

    def named_values(self, params: Params, state: NetworkState) -> dict[str, np.ndarray]:
        """All arrays of the network, by the names that its library uses for them."""
        leaves = [*named_leaves(params), *named_leaves(state)]
        return {path: np.asarray(leaf) for path, leaf in leaves}

    def module_with(self, params: Params, state: NetworkState) -> Any:
        """The module from which the network was made, with these weights and this state."""
        made = "a network from from_torch, from_keras, from_flax or from_equinox"
        raise TypeError(must("to_module", "posterior", f"that of {made}", self))

    def shapes(self, rows: jax.ShapeDtypeStruct) -> tuple[Params, Any]:
        """The shapes of the initial parameters and of the outputs for these rows; nothing is compiled.

        The outputs are ``None`` if there are no parameters.
        """
        params = jax.eval_shape(self.init, jax.random.key(0))
        if not jax.tree.leaves(params):
            return params, None
        return params, jax.eval_shape(self.apply, params, rows, self.init_state())

    def apply(self, params: Params, x: Array, state: NetworkState = ()) -> Array:
        """The outputs in prediction, without randomness and without an update of the state."""
        return self.call(params, x, state=state, key=None, train=False)[0]


def one_array(owner: str, input_shape: Any) -> None:
    """Refuse inputs that are a tree of arrays, for a network that takes one array."""
    if not isinstance(input_shape, tuple):
        raise TypeError(f"x must be one array for {owner}; got a tree of arrays, {input_shape}.")


def _function(owner: str, name: str, value: Any) -> Callable:
    return function(owner, name.removesuffix("_function"), value)


@dataclass(frozen=True)
class Network(AbstractNetwork):
    """A network that consists of two functions, ``Network(init, apply)``.

    Two networks are equal if they have the same two function objects. Define the functions at module level, or
    reuse the network, so that a second fit does not compile again.
    """

    init_function: Callable[[Key], Params] = setting(REQUIRED, _function)
    apply_function: Callable[[Params, Array], Array] = setting(REQUIRED, _function)

    integer_inputs = True

    def __repr__(self):
        return labelled(self, init=self.init_function, apply=self.apply_function)

    def init(self, key):
        """The parameters that the first function returns."""
        return self.init_function(key)

    def call(self, params, x, *, state, key, train):
        """The outputs of the second function. There is no state and no randomness."""
        return self.apply_function(params, x), state

    def shapes(self, rows):
        """The shapes of parameters and outputs; errors name the function and what it was given."""
        hint = " from_function takes init(key) first and apply(params, x) second."
        key = jax.random.key(0)
        params = shapes_from("from_function: init(key)", self.init_function, key, hint=hint)
        if not jax.tree.leaves(params):
            return params, None
        given = (self.apply_function, params, rows)
        return params, shapes_from("from_function: apply(params, x)", *given, hint=hint)


def from_function(
    init: Callable[[Key], Params], apply: Callable[[Params, Array], Array]
) -> Network:
    """Make a network from two functions.

    Args:
      init: ``init(key) -> params``, which returns any pytree of floating-point arrays.
      apply: ``apply(params, x) -> outputs``, which returns an array ``(rows, outputs)``; or one with positions,
        ``(rows, positions..., outputs)``, or a dictionary of arrays for several heads. ``x`` is what ``fit``
        was given: an array, or a dictionary or tuple of arrays.

    >>> import jax.numpy as jnp
    >>> line = from_function(lambda key: jnp.zeros(1), lambda slope, x: x * slope)
    >>> line.apply(jnp.ones(1), jnp.ones((3, 1))).shape
    (3, 1)
    """
    return Network(init, apply)
