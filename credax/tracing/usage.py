"""How a network uses each of its weights, read off its program.

Local reparameterisation, flipout and the masking of a weight's inputs are right only for a weight that each row
meets once, in a product. This walks the jaxpr of the network for a single row and says, for every leaf of the
parameters, whether that is so, and where.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.typing import Array, Params

LAYOUT = {"transpose", "reshape", "squeeze", "convert_element_type", "copy"}
"""Primitives that move a weight's elements about without repeating or mixing them."""
REPEATING = {"broadcast_in_dim"}
"""As above, but one element may appear several times: fine for a sum, not for a product."""


class Usage(Enum):
    """What a row does with a weight."""

    PRODUCT = "one product, at one place"
    PRODUCTS = "one product, at several places that share the weight"
    SUM = "one sum"
    OTHER = "anything else"


class Site(NamedTuple):
    """The product in which a row meets a weight.

    Attributes:
      shape: of the weight there.
      axes: those of its axes there that run over the inputs.
      moves: how it got there: the shape before each move, and the permutation where it was a transposition.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    moves: tuple[tuple[tuple[int, ...], tuple[int, ...] | None], ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one row's inputs, as the weight sees them."""
        return tuple(self.shape[axis] for axis in self.axes)

    def over_weight(self, values: Array) -> Array:
        """One value an input, laid over the weight as it was before it moved."""
        result = jnp.broadcast_to(along(values, self.axes, len(self.shape)), self.shape)
        for shape, permutation in reversed(self.moves):
            if permutation is None:
                result = result.reshape(shape)
            else:
                result = result.transpose(np.argsort(permutation))
        return result


def along(values: Array, axes: tuple[int, ...], ndim: int) -> Array:
    """An array whose axes become these ones of ``ndim``; the others have length one."""
    shape = [1] * ndim
    for axis, length in zip(axes, values.shape, strict=True):
        shape[axis] = length
    return values.transpose(np.argsort(axes)).reshape(shape)


def usages(call: Callable[[Params, Any], Any], params: Params, row: Any) -> Params:
    """The usage of each leaf of ``params`` in ``call(params, row)``, ``row`` being a batch of one."""
    uses = [use for use, _ in _uses(call, params, row)]
    return jax.tree.unflatten(jax.tree.structure(params), uses)


def sites(call: Callable[[Params, Any], Any], params: Params, row: Any) -> list[Site | None]:
    """Where each leaf of ``params`` meets its inputs; ``None`` for one that has no single product."""
    return [site for _, site in _uses(call, params, row)]


class _Followed(NamedTuple):
    """A weight on its way through a program."""

    leaf: int
    moves: tuple = ()
    repeated: bool = False  # whether one element appears several times


_Use = tuple[Usage, Site | None]


def _uses(call: Callable, params: Params, row: Any) -> list[_Use]:
    jaxpr = jax.make_jaxpr(call)(params, row).jaxpr
    count = len(jax.tree.leaves(params))
    weights = {jaxpr.invars[i]: _Followed(i) for i in range(count)}
    found: list[list[_Use]] = [[] for _ in range(count)]
    _walk(jaxpr, weights, found)
    return [uses[0] if len(uses) == 1 else (Usage.OTHER, None) for uses in found]


def _walk(jaxpr: Any, weights: dict[Any, _Followed], found: list[list[_Use]]) -> None:
    """Follows the weights through a program, and notes their uses."""

    def is_weight(atom):
        return not hasattr(atom, "val") and atom in weights

    for equation in jaxpr.eqns:
        used = [atom for atom in equation.invars if is_weight(atom)]
        if not used:
            continue
        name = equation.primitive.name
        if name in LAYOUT or name in REPEATING:
            leaf, moves, repeated = weights[used[0]]
            move = used[0].aval.shape, equation.params.get("permutation")
            repeated = repeated or name in REPEATING
            weights[equation.outvars[0]] = _Followed(leaf, (*moves, move), repeated)
        elif name in ("jit", "pjit"):
            _enter(equation, equation.params["jaxpr"], weights, found)
        else:
            for atom in used:
                alone = len(used) == 1 and not weights[atom].repeated
                kind = _use(equation, atom, alone, len(used))
                site = _site(equation, atom, weights[atom].moves) if kind in _PRODUCTS else None
                found[weights[atom].leaf].append((kind, site))
    for atom in jaxpr.outvars:
        if is_weight(atom):
            found[weights[atom].leaf].append((Usage.OTHER, None))


def _enter(equation: Any, closed: Any, weights: dict, found: list) -> None:
    """Follows the weights into a jitted function; one that comes out again counts as any other use."""
    inner = getattr(closed, "jaxpr", closed)
    inside = {
        variable: weights[atom]
        for variable, atom in zip(inner.invars, equation.invars, strict=True)
        if not hasattr(atom, "val") and atom in weights
    }
    _walk(inner, inside, found)


_PRODUCTS = (Usage.PRODUCT, Usage.PRODUCTS)


def _site(equation: Any, atom: Any, moves: tuple) -> Site:
    """Where a product meets a weight; the axes in the order in which it pairs them with those of the inputs."""
    numbers = equation.params["dimension_numbers"]
    if equation.primitive.name == "conv_general_dilated":
        return Site(atom.aval.shape, (numbers.rhs_spec[1],), moves)
    side = [a is atom for a in equation.invars].index(True)
    contracted, batch = (tuple(part[side]) for part in numbers)
    return Site(atom.aval.shape, (*contracted, *batch), moves)


def _use(equation: Any, atom: Any, alone: bool, count: int) -> Usage:
    name = equation.primitive.name
    if name == "add" and count == 1:
        return Usage.SUM
    if not alone:
        return Usage.OTHER
    side = [a is atom for a in equation.invars].index(True)
    other = equation.invars[1 - side].aval.shape if len(equation.invars) == 2 else ()
    if name == "dot_general":
        contracted, batch = (part[1 - side] for part in equation.params["dimension_numbers"])
        free = [n for i, n in enumerate(other) if i not in (*contracted, *batch)]
        return Usage.PRODUCT if all(n == 1 for n in free) else Usage.PRODUCTS
    if name == "conv_general_dilated" and side == 1:
        spec = equation.params["dimension_numbers"].out_spec
        places = [equation.outvars[0].aval.shape[i] for i in (spec[0], *spec[2:])]
        grouped = (
            equation.params["feature_group_count"] > 1 or equation.params["batch_group_count"] > 1
        )
        if grouped:
            return Usage.OTHER
        return Usage.PRODUCT if all(n == 1 for n in places) else Usage.PRODUCTS
    return Usage.OTHER
