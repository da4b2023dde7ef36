r"""Functions computed in segments, of which only the ends are kept for the gradient.

The gradient of a function needs what was computed on the way: the activations of every layer of a network. If
the program of the function is cut into :math:`\sqrt{n}` segments, then only what passes from one segment to the
next is kept, and the inside of a segment is computed again when its gradient is. The memory falls from n layers
to about :math:`2 \sqrt{n}` of them, for at most one more evaluation of the function (Chen et al., Training deep
nets with sublinear memory cost, 2016). The results are the same numbers, computed in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun


def rematerialised(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose gradient computes the inside of each segment again instead of keeping it."""

    def call(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        values = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        values |= dict(zip(program.jaxpr.invars, jax.tree.leaves(arguments), strict=True))
        for segment, inputs in _segments(program):
            found = jax.checkpoint(jaxpr_as_fun(segment))(*(values[var] for var in inputs))
            values |= dict(zip(segment.jaxpr.outvars, found, strict=True))
        outputs = [
            atom.val if isinstance(atom, Literal) else values[atom]
            for atom in program.jaxpr.outvars
        ]
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return call


def _segments(program: ClosedJaxpr) -> Iterator[tuple[ClosedJaxpr, list[Any]]]:
    """The parts of a program, each of which returns what later parts need; and the inputs of each part."""
    equations = program.jaxpr.eqns
    later = [_variables(program.jaxpr.outvars)]
    for equation in reversed(equations):
        later.append(later[-1] | _variables(equation.invars))
    later.reverse()  # later[i]: the variables that the equations from i on, or the result, use
    for begin, end in _ranges(equations):
        part = equations[begin:end]
        made = [var for equation in part for var in equation.outvars]
        inside = set(made)
        used = dict.fromkeys(v for e in part for v in e.invars if not isinstance(v, Literal))
        inputs = [var for var in used if var not in inside]
        outputs = [var for var in made if var in later[end]]
        names = program.jaxpr.debug_info.with_unknown_names()
        jaxpr = program.jaxpr.replace(
            constvars=[], invars=inputs, outvars=outputs, eqns=part, debug_info=names
        )
        yield ClosedJaxpr(jaxpr, []), inputs


def _variables(atoms: Any) -> set[Any]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def _ranges(equations: list[Any]) -> list[tuple[int, int]]:
    """Where to cut: segments whose results have about the same size, as many as the root of the products."""
    products = sum(_products(equation) for equation in equations)
    count = max(1, round(math.sqrt(products)))
    sizes = [sum(_size(var.aval) for var in equation.outvars) for equation in equations]
    share, cuts, filled = sum(sizes) / count, [0], 0
    for i, size in enumerate(sizes):
        filled += size
        if filled >= share * len(cuts) and i + 1 < len(sizes):
            cuts.append(i + 1)
    ends = [*cuts[1:], len(equations)]
    return [(begin, end) for begin, end in zip(cuts, ends, strict=True) if end > begin]


def _products(equation: Any) -> int:
    """The number of matrix products and convolutions of an equation, those of a function it calls included."""
    if equation.primitive.name in ("dot_general", "conv_general_dilated"):
        return 1
    inner = equation.params.get("jaxpr")
    inner = getattr(inner, "jaxpr", inner)
    return sum(map(_products, inner.eqns)) if hasattr(inner, "eqns") else 0


def _size(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))
