"""Names for what travels between the files."""

from typing import Any, NamedTuple, TypeAlias

import jax

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
"""A typed JAX random key."""
PyTree: TypeAlias = Any
Params: TypeAlias = Any
"""A pytree of weights."""
NetworkState: TypeAlias = Any
"""What a network carries beside its weights (batch statistics); ``()`` where it carries nothing."""


class Draw(NamedTuple):
    """One set of parameters, and the state of the network that belongs to it; or many, stacked."""

    params: Params
    state: NetworkState = ()
