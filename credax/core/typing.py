"""Type aliases that the whole package uses."""

from typing import Any, NamedTuple, TypeAlias

import jax

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
"""A typed JAX random key."""
PyTree: TypeAlias = Any
Params: TypeAlias = Any
"""A pytree of weights."""
NetworkState: TypeAlias = Any
"""What a network carries besides its weights, such as batch statistics; ``()`` if it carries nothing."""


class Draw(NamedTuple):
    """One set of parameters with the network state that belongs to it, or many of them, stacked."""

    params: Params
    state: NetworkState = ()
