"""Whether a network uses its random key, found from its program."""

from __future__ import annotations

from typing import Any

import jax

from credax.core import random
from credax.core.rows import some_rows
from credax.model.networks.network import AbstractNetwork
from credax.tracing.jaxprs import called, is_marked, marks_inside


def uses_key(network: AbstractNetwork, x: Any) -> bool:
    """Whether the outputs in training depend on the random key, that is, whether the network has dropout.

    Args:
      network: any network.
      x: the inputs, or their shapes and dtypes.
    """

    def call(key, params, x):
        return network.call(params, x, state=network.init_state(), key=key, train=True)[0]

    key = random.key(0)
    params = jax.eval_shape(network.init, key)
    program: Any = jax.make_jaxpr(call)(key, params, some_rows(x, 2)).jaxpr
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
