"""How a network uses each of its weights, read off its program.

Local reparameterisation and flipout are right only for a weight that each row meets once, in a product. This
walks the jaxpr of the network for a single row and says, for every leaf of the parameters, whether that is so.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import jax

from credax.typing import Params

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


def usages(call: Callable[[Params, Any], Any], params: Params, row: Any) -> Params:
    """The usage of each leaf of ``params`` in ``call(params, row)``, ``row`` being a batch of one."""
    closed = jax.make_jaxpr(call)(params, row)
    leaves, tree = jax.tree.flatten(params)
    weights = dict(zip(closed.jaxpr.invars[: len(leaves)], range(len(leaves)), strict=True))
    found: dict[int, list[Usage]] = {i: [] for i in range(len(leaves))}
    _walk(closed.jaxpr, weights, set(), found)
    kinds = [uses[0] if len(uses) == 1 else Usage.OTHER for uses in found.values()]
    return jax.tree.unflatten(tree, kinds)


def _walk(
    jaxpr: Any, weights: dict[Any, int], repeated: set[Any], found: dict[int, list[Usage]]
) -> None:
    """Follows the weights through a program; ``repeated`` are those whose elements appear several times."""

    def is_weight(atom):
        return not hasattr(atom, "val") and atom in weights

    for equation in jaxpr.eqns:
        used = [atom for atom in equation.invars if is_weight(atom)]
        if not used:
            continue
        name = equation.primitive.name
        if name in LAYOUT or name in REPEATING:
            result = equation.outvars[0]
            weights[result] = weights[used[0]]
            if name in REPEATING or used[0] in repeated:
                repeated.add(result)
        elif name in ("jit", "pjit"):
            _enter(equation, equation.params["jaxpr"], weights, repeated, found)
        else:
            for atom in used:
                alone = len(used) == 1 and atom not in repeated
                found[weights[atom]].append(_use(equation, atom, alone, len(used)))
    for atom in jaxpr.outvars:
        if is_weight(atom):
            found[weights[atom]].append(Usage.OTHER)


def _enter(equation: Any, closed: Any, weights: dict, repeated: set, found: dict) -> None:
    """Follows the weights into a jitted function; one that comes out again counts as any other use."""
    inner = getattr(closed, "jaxpr", closed)
    pairs = [
        (variable, atom)
        for variable, atom in zip(inner.invars, equation.invars, strict=True)
        if not hasattr(atom, "val") and atom in weights
    ]
    inside = {variable: weights[atom] for variable, atom in pairs}
    _walk(inner, inside, {v for v, atom in pairs if atom in repeated}, found)


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
