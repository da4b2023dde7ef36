"""Over how many numbers the products of a program sum, found from the program that JAX traces.

In a product ``x W`` every output is a sum over the inputs; their number is the fan-in of W. Which axes of W run
over the inputs is a convention that differs between libraries, so it is read from the product itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Literal

REARRANGING = {"transpose", "reshape", "squeeze", "slice", "convert_element_type", "copy"}
"""Primitives after which an array is still the same array, or a part of it."""
INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The names under which an equation holds a program that takes its arguments in the same order."""

Uses = list[int | None]
"""For each use of an array: the number of its entries over which a product sums; ``None`` for any other use."""


def contractions(call: Callable, *arguments: Any) -> list[Uses]:
    """How ``call(*arguments)`` uses each leaf of its arguments, which may be shapes and dtypes.

    >>> import jax.numpy as jnp
    >>> contractions(lambda w, x: x @ w.T + 1, jnp.ones((5, 3)), jnp.ones((2, 3)))
    [[3], [3]]
    """
    program = jax.make_jaxpr(call)(*arguments).jaxpr
    found: list[Uses] = [[] for _ in program.invars]
    _follow(program, dict(zip(program.invars, range(len(found)), strict=True)), found)
    return found


def _follow(jaxpr: Any, arrays: dict[Any, int], found: list[Uses]) -> None:
    """Add the uses of the arrays that the variables of a program hold to ``found``."""
    held = lambda atom: None if isinstance(atom, Literal) else arrays.get(atom)  # noqa: E731
    for equation in jaxpr.eqns:
        given = [held(atom) for atom in equation.invars]
        if all(which is None for which in given):
            continue
        inner = _inner(equation)
        if inner is not None:
            pairs = zip(inner.invars, given, strict=True)
            inside = {variable: which for variable, which in pairs if which is not None}
            _follow(inner, inside, found)
            for outer, returned in zip(equation.outvars, inner.outvars, strict=False):
                if not isinstance(returned, Literal) and returned in inside:
                    arrays[outer] = inside[returned]
            continue
        for side, which in enumerate(given):
            if which is None:
                continue
            if equation.primitive.name in REARRANGING:
                arrays[equation.outvars[0]] = which
            else:
                found[which].append(_summed(equation, side))


def _inner(equation: Any) -> Any:
    """The program that an equation runs with its own arguments; ``None`` if there is none."""
    for name in INNER:
        program = equation.params.get(name)
        program = getattr(program, "jaxpr", program)
        if program is not None and len(program.invars) == len(equation.invars):
            return program
    return None


def _summed(equation: Any, side: int) -> int | None:
    """The number of entries of one argument over which the equation sums; ``None`` if it is not a product."""
    name, shape = equation.primitive.name, equation.invars[side].aval.shape
    if name == "dot_general":
        return math.prod(shape[axis] for axis in equation.params["dimension_numbers"][0][side])
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        outputs = equation.params["dimension_numbers"].rhs_spec[0]
        return math.prod(kernel) // max(kernel[outputs], 1)
    # Looking up a row of a table sums over one row.
    return 1 if name == "gather" and side == 0 else None
