"""Functions to read a jaxpr, the program that JAX makes of a traced function.

While the equations of a program are visited in order, a variable can carry a mark: which weight it holds, or
that it depends on some input.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeVar

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

Mark = TypeVar("Mark")


def is_literal(atom: Any) -> bool:
    """Whether an argument of an equation is a constant; otherwise it is a variable."""
    return isinstance(atom, Literal)


def is_marked(atom: Any, marks: Container[Any]) -> bool:
    """Whether an argument of an equation is a variable that carries a mark."""
    return not is_literal(atom) and atom in marks


def every_equation(program: Any) -> Iterator[Any]:
    """The equations of a program, and those of all programs inside it."""
    for equation in getattr(program, "jaxpr", program).eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from every_equation(inner)


def called(equation: Any) -> ClosedJaxpr | None:
    """The program of the jitted function that an equation calls; ``None`` if it calls none."""
    return equation.params["jaxpr"] if equation.primitive.name in ("jit", "pjit") else None


def marks_inside(equation: Any, program: ClosedJaxpr, marks: Mapping[Any, Mark]) -> dict[Any, Mark]:
    """The marks of an equation's arguments, carried by the variables of the program that it calls."""
    pairs = zip(program.jaxpr.invars, equation.invars, strict=True)
    return {inner: marks[outer] for inner, outer in pairs if is_marked(outer, marks)}


def evaluate(jaxpr: Any, equation: Any, given: list[Any]) -> list[Any]:
    """Evaluate one equation of a program, as a program that consists of this equation only."""
    variables = {a: v for a, v in zip(equation.invars, given, strict=True) if not is_literal(a)}
    debug_info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    alone = Jaxpr((), tuple(variables), equation.outvars, [equation], debug_info=debug_info)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*variables.values())
