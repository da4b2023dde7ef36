"""Whether a network uses its random key, found from its program."""

from __future__ import annotations

from typing import Any

import jax

from credax.core import random
from credax.model.networks.network import AbstractNetwork
from credax.tracing.jaxprs import called, is_marked, marks_inside


def uses_key(network: AbstractNetwork, input_shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether the outputs in training depend on the random key, that is, whether the network has dropout.

    Args:
      network: any network.
      input_shape: the shape of one row.
      dtype: the dtype of the rows.
    """

    def call(key, params, x):
        return network.call(params, x, state=network.init_state(), key=key, train=True)[0]

    key = random.key(0)
    rows = jax.ShapeDtypeStruct((2, *input_shape), dtype)
    program: Any = jax.make_jaxpr(call)(key, jax.eval_shape(network.init, key), rows).jaxpr
    return any(_dependent(program, {program.invars[0]: True}))


def _dependent(jaxpr: Any, marks: dict[Any, bool]) -> list[bool]:
    """Whether each result of a program depends on a marked variable."""
    for equation in jaxpr.eqns:
        if not any(is_marked(atom, marks) for atom in equation.invars):
            continue
        program = called(equation)
        results = [True] * len(equation.outvars)
        if program is not None:
            results = _dependent(program.jaxpr, marks_inside(equation, program, marks))
        marks |= {v: True for v, hit in zip(equation.outvars, results, strict=True) if hit}
    return [is_marked(atom, marks) for atom in jaxpr.outvars]
