"""A network with dropout whose masks are fixed by a seed: each seed selects one function."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from credax.core import random
from credax.core.typing import Array, Key
from credax.model.networks.network import AbstractNetwork


def uses_key(network: AbstractNetwork, input_shape: tuple[int, ...], dtype) -> bool:
    """Whether the outputs in training depend on the key: whether there is dropout in the network."""

    def call(key, params, x):
        return network.call(params, x, state=network.init_state(), key=key, train=True)[0]

    key = random.key(0)
    rows = jax.ShapeDtypeStruct((2, *input_shape), dtype)
    jaxpr = jax.make_jaxpr(call)(key, jax.eval_shape(network.init, key), rows).jaxpr
    return any(_reached(jaxpr, {jaxpr.invars[0]}))


def _reached(jaxpr, marked: set) -> list[bool]:
    """Which results of a program depend on the marked variables."""

    def is_marked(atom):
        return not hasattr(atom, "val") and atom in marked

    for equation in jaxpr.eqns:
        inputs = [is_marked(atom) for atom in equation.invars]
        if not any(inputs):
            continue
        reached = [True] * len(equation.outvars)
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"].jaxpr
            reached = _reached(
                inner, {v for v, hit in zip(inner.invars, inputs, strict=True) if hit}
            )
        marked |= {v for v, hit in zip(equation.outvars, reached, strict=True) if hit}
    return [is_marked(atom) for atom in jaxpr.outvars]


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
