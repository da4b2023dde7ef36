"""A network with dropout whose masks are fixed by a seed: each seed selects one function."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from credax.core import random
from credax.core.typing import Array, Key
from credax.model.networks.network import AbstractNetwork


@dataclass(frozen=True)
class Seeded(AbstractNetwork):
    """A network with dropout as a deterministic function of its inputs, selected by a seed.

    The seed, which is the raw data of a key, is part of the state: ``(state of the network, seed)``. In
    prediction the same dropout masks apply to every row. A random seed therefore gives a random function,
    whose values do not depend on how the rows are divided into batches.

    Args:
      network: a network with dropout.
    """

    network: AbstractNetwork

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network keeps integers."""
        return self.network.integer_inputs

    def build(self, input_shape, outputs):
        """The same wrapper around the network completed for these rows."""
        return Seeded(self.network.build(input_shape, outputs))

    def init(self, key: Key):
        """The initial parameters of the network."""
        return self.network.init(key)

    def init_state(self):
        """The initial state of the network, and the seed zero."""
        return self.network.init_state(), jnp.zeros(2, jnp.uint32)

    def call(self, params, x: Array, *, state, key, train):
        """Call the network itself if a key is given or in training; otherwise the function of the seed."""
        own, seed = state
        if key is not None or train:
            outputs, own = self.network.call(params, x, state=own, key=key, train=train)
            return outputs, (own, seed)

        def one(row):
            fixed = random.key(seed)
            return self.network.call(params, row[None], state=own, key=fixed, train=False)[0][0]

        return jax.vmap(one)(x), state
