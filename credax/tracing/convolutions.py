"""Convolutions in the one arrangement of axes that XLA computes fast inside a loop on CPUs.

XLA for CPUs has fast code for convolutions whose axes are ordered (rows, places, channels), with kernels
(places, inputs, outputs). It brings other arrangements into this form, but only outside of loops
(``ConvCanonicalization`` visits the entry computation alone). In the body of a loop they fall back to plain
nested loops, which can take forty times as long. The gradient of every convolution with respect to its kernel
has another arrangement, and so have all convolutions of PyTorch and Equinox. The functions below rearrange the
convolutions of a traced program beforehand; the numbers are the same, up to rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from credax.tracing.jaxprs import evaluate, every_equation, is_literal

NAME = "conv_general_dilated"


def has_convolutions(program: Any) -> bool:
    """Whether a jaxpr, or one that it calls, contains a convolution."""
    return any(True for _ in _convolutions(program))


def rearranged(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, to be traced, with the axes of its convolutions in the order that is fast.

    A function without convolutions, and any function on another backend than the CPU, is called as it is.
    """

    def run(*arguments: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*arguments)
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        given = jax.tree.leaves(arguments)
        if all(map(_in_order, _convolutions(program))):
            results = jaxpr_as_fun(program)(*given)  # without tracing the function again
        else:
            results = _run(program.jaxpr, program.consts, given)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def _convolutions(program: Any) -> Iterator[Any]:
    """The equations with convolutions, also in the programs that a program calls."""
    return (equation for equation in every_equation(program) if equation.primitive.name == NAME)


def _in_order(equation: Any) -> bool:
    """Whether a convolution has the arrangement that is fast."""
    numbers = equation.params["dimension_numbers"]
    return numbers == _fast(len(numbers.lhs_spec))


def _fast(ndim: int) -> lax.ConvDimensionNumbers:
    """(rows, places, channels) for inputs and outputs, (places, inputs, outputs) for kernels."""
    channels_last = (0, ndim - 1, *range(1, ndim - 1))
    return lax.ConvDimensionNumbers(
        channels_last, (ndim - 1, ndim - 2, *range(ndim - 2)), channels_last
    )


def _run(jaxpr: Any, consts: Any, arguments: Any) -> list[Any]:
    """Evaluate a program with its convolutions rearranged."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        given = [atom.val if is_literal(atom) else values[atom] for atom in equation.invars]
        if equation.primitive.name == NAME:
            x, kernel = given
            results = [_convolved(x, kernel, equation.params)]
        else:
            results = evaluate(jaxpr, _with_inner(equation), given)
        values.update(zip(equation.outvars, results, strict=True))
    return [atom.val if is_literal(atom) else values[atom] for atom in jaxpr.outvars]


def _convolved(x: Any, kernel: Any, settings: dict[str, Any]) -> Any:
    """A convolution between transpositions of its inputs and of its result."""
    numbers, fast = settings["dimension_numbers"], _fast(x.ndim)
    x = lax.transpose(x, _order(numbers.lhs_spec, fast.lhs_spec))
    kernel = lax.transpose(kernel, _order(numbers.rhs_spec, fast.rhs_spec))
    result = lax.conv_general_dilated_p.bind(x, kernel, **{**settings, "dimension_numbers": fast})
    return lax.transpose(result, _order(fast.out_spec, numbers.out_spec))


def _order(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that moves the axes from where ``old`` says they are to where ``new`` says."""
    places = dict(zip(new, old, strict=True))
    return tuple(places[axis] for axis in range(len(new)))


def _with_inner(equation: Any) -> Any:
    """An equation with the convolutions of the programs that it calls rearranged."""

    def mended(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(mended, value)) if any(map(_has_slow, value)) else value
        return _rewritten(value) if _has_slow(value) else value

    params = {name: mended(value) for name, value in equation.params.items()}
    changed = any(params[name] is not value for name, value in equation.params.items())
    return equation.replace(params=params) if changed else equation


def _has_slow(value: Any) -> bool:
    is_program = isinstance(value, ClosedJaxpr | Jaxpr)
    return is_program and not all(map(_in_order, _convolutions(value)))


def _rewritten(program: Any) -> Any:
    """A program with its convolutions rearranged, of the same kind: with constants or without."""
    inner, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    shapes = [_shape(variable.aval) for variable in inner.invars]
    new: Any = jax.make_jaxpr(lambda *arguments: _run(inner, consts, arguments))(*shapes)
    return new if isinstance(program, ClosedJaxpr) else new.jaxpr


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
