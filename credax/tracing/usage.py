"""How a network uses each of its weights, found from its program.

Local reparameterisation, flipout and masks on the inputs of a weight are correct only if each row uses the
weight once, in a product. The functions below visit the equations of the network's jaxpr for a single row and
determine, for every leaf of the parameters, whether this holds and in which product.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.typing import Array, Params
from credax.tracing.jaxprs import called, is_marked, marks_inside

LAYOUT = {"transpose", "reshape", "squeeze", "convert_element_type", "copy"}
"""Primitives that rearrange the elements of a weight without repeating or combining them."""
REPEATING = {"broadcast_in_dim"}
"""Primitives that may repeat the elements of a weight: allowed before a sum, but not before a product."""


class Usage(Enum):
    """How one row uses a weight."""

    PRODUCT = "one product, at one place"
    PRODUCTS = "one product, at several places that share the weight"
    SUM = "one sum"
    OTHER = "anything else"


class Site(NamedTuple):
    """The product in which a row uses a weight.

    Attributes:
      shape: the shape of the weight in the product.
      axes: the axes of the weight in the product that run over the inputs.
      moves: the rearrangements of the weight before the product: for each the shape before it, and the
        permutation if it was a transposition (otherwise ``None``).
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    moves: tuple[tuple[tuple[int, ...], tuple[int, ...] | None], ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one row's inputs to the product."""
        return tuple(self.shape[axis] for axis in self.axes)

    def over_weight(self, values: Array) -> Array:
        """Broadcast one value per input to the shape that the weight has as a parameter."""
        result = jnp.broadcast_to(along(values, self.axes, len(self.shape)), self.shape)
        for shape, permutation in reversed(self.moves):
            if permutation is None:
                result = result.reshape(shape)
            else:
                result = result.transpose(np.argsort(permutation))
        return result


def along(values: Array, axes: tuple[int, ...], ndim: int) -> Array:
    """Reshape an array to ``ndim`` axes, so that its axes become ``axes`` and all others have length one."""
    shape = [1] * ndim
    for axis, length in zip(axes, values.shape, strict=True):
        shape[axis] = length
    return values.transpose(np.argsort(axes)).reshape(shape)


def usages(call: Callable[[Params, Any], Any], params: Params, row: Any) -> Params:
    """The usage of each leaf of ``params`` in ``call(params, row)``, where ``row`` is a batch of one row."""
    uses = [use for use, _ in _uses(call, params, row)]
    return jax.tree.unflatten(jax.tree.structure(params), uses)


def sites(call: Callable[[Params, Any], Any], params: Params, row: Any) -> list[Site | None]:
    """The product in which each leaf of ``params`` is used; ``None`` for a leaf without a single product."""
    return [site for _, site in _uses(call, params, row)]


class _Followed(NamedTuple):
    """The weight that a variable of a program holds."""

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
    """Follow the weights through a program and add their uses to ``found``."""
    for equation in jaxpr.eqns:
        used = [atom for atom in equation.invars if is_marked(atom, weights)]
        if not used:
            continue
        name = equation.primitive.name
        if name in LAYOUT or name in REPEATING:
            leaf, moves, repeated = weights[used[0]]
            move = used[0].aval.shape, equation.params.get("permutation")
            repeated = repeated or name in REPEATING
            weights[equation.outvars[0]] = _Followed(leaf, (*moves, move), repeated)
        elif (program := called(equation)) is not None:
            # A weight that is returned from the jitted function counts as a use of another kind.
            _walk(program.jaxpr, marks_inside(equation, program, weights), found)
        else:
            for atom in used:
                alone = len(used) == 1 and not weights[atom].repeated
                kind = _use(equation, atom, alone, len(used))
                site = _site(equation, atom, weights[atom].moves) if kind in _PRODUCTS else None
                found[weights[atom].leaf].append((kind, site))
    for atom in jaxpr.outvars:
        if is_marked(atom, weights):
            found[weights[atom].leaf].append((Usage.OTHER, None))


_PRODUCTS = (Usage.PRODUCT, Usage.PRODUCTS)


def _site(equation: Any, atom: Any, moves: tuple) -> Site:
    """The product of an equation and a weight, with its axes in the order of the inputs paired with them."""
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
