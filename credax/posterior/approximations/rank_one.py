r"""An ensemble whose members share their weights, up to a factor for each input and output of a layer.

.. math:: W_e = W \circ r_e s_e^\top, \qquad x\, W_e = \left((x \circ r_e)\, W\right) \circ s_e
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from credax.core.trees import as_leaf, as_matrix
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.posterior.approximations.approximation import Approximation, Samples
from credax.posterior.display import count

Layouts = tuple[tuple[int, ...], ...]
"""How each leaf is arranged as a matrix of inputs by outputs; ``()`` for a leaf that all members share."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "inputs", "outputs", "state"],
    meta_fields=["layouts"],
)
@dataclass(frozen=True, eq=False, repr=False)
class RankOne(Approximation):
    """Members of equal weight that share their weights, up to two vectors for each layer.

    Attributes:
      params: W, and the parameters that all members share unchanged.
      inputs: r of each leaf, ``(members, inputs)``; ``(members, 0)`` for a leaf that is shared unchanged.
      outputs: s of each leaf, ``(members, outputs)``; likewise.
      layouts: how each leaf is arranged as a matrix.
      state: the network's state for each member.
    """

    params: Params
    inputs: Params
    outputs: Params
    layouts: Layouts
    state: NetworkState = ()

    like_params = ("params", "inputs", "outputs")
    like_state = ("state",)

    @property
    def members(self) -> int:
        """The number of members."""
        return jax.tree.leaves(self.inputs)[0].shape[0]

    def _facts(self) -> list[str]:
        return [count(self.members, "members")]

    def samples(self, key: Key, count: int | None) -> Samples:
        """All members, or ``count`` of them, chosen at random, if that is fewer."""
        chosen = np.arange(self.members)
        if count is not None and count < self.members:
            chosen = np.sort(np.asarray(jax.random.permutation(key, self.members))[:count])

        def take(begin, end):
            return _at(self, chosen[np.minimum(np.arange(begin, end), len(chosen) - 1)])

        return Samples(np.full(len(chosen), -math.log(len(chosen))), take)

    def sample(self, key: Key, count: int) -> Draw:
        """``count`` members, chosen with replacement, stacked along a leading axis."""
        return _at(self, np.asarray(jax.random.randint(key, (count,), 0, self.members)))


def member_weights(params: Params, inputs: Params, outputs: Params, layouts: Layouts) -> Params:
    """The weights of one member, from its vectors ``(inputs,)`` and ``(outputs,)`` for each leaf."""

    def leaf(weight: Array, r: Array, s: Array, layout: tuple[int, ...]) -> Array:
        if not layout:
            return weight
        factors = (r[:, None] * s).astype(weight.dtype)
        return weight * as_leaf(factors, layout, weight.shape)

    leaves, tree = jax.tree.flatten(params)
    parts = zip(leaves, jax.tree.leaves(inputs), jax.tree.leaves(outputs), layouts, strict=True)
    return jax.tree.unflatten(tree, [leaf(*part) for part in parts])


def matrix_sides(shape: tuple[int, ...], layout: tuple[int, ...]) -> tuple[int, int]:
    """The numbers of inputs and outputs of a leaf; zero for a leaf that all members share."""
    if not layout:
        return 0, 0
    rows, columns = as_matrix(np.empty(shape, bool), layout).shape  # pyright: ignore[reportArgumentType]
    return rows, columns


@jax.jit
def _at(ensemble: RankOne, which: Array) -> Draw:
    def one(member):
        r, s, state = jax.tree.map(
            lambda leaf: leaf[member], (ensemble.inputs, ensemble.outputs, ensemble.state)
        )
        return Draw(member_weights(ensemble.params, r, s, ensemble.layouts), state)

    return jax.lax.map(one, which)
