"""A digest of a traced program, by which a later process recognises the same arithmetic.

Two functions of the same name, or two schedules with other numbers inside, differ in their programs. The text
that JAX prints of a program leaves out its constants and can contain addresses in memory, so the equations are
read here one by one: each counts with its primitive, its parameters, the shapes and types of its results and
the places where its arguments come from; constants count bit by bit. Names of functions that are part of the
program do not count.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import types
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def program_digest(*programs: ClosedJaxpr) -> str:
    """A digest of these programs, which is the same in every process with the same version of JAX."""
    reader = _Reader()
    return _hash(*(reader.value(program) for program in programs))


class _Reader:
    """Reads programs; the digest of a program that is called in several places is computed once."""

    def __init__(self):
        self._digests: dict[int, str] = {}

    def value(self, value: Any) -> str:
        """A text or a digest for anything that a program contains."""
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, ClosedJaxpr | Jaxpr):
            return self._program(value)
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return _array(value)
        if isinstance(value, dict):
            return _hash(*sorted(f"{key}={self.value(item)}" for key, item in value.items()))
        if isinstance(value, tuple | list):
            return _hash(type(value).__name__, *map(self.value, value))
        if isinstance(value, set | frozenset):
            return _hash(*sorted(map(self.value, value)))
        if isinstance(value, functools.partial):
            return self.value((value.func, value.args, value.keywords))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [getattr(value, item.name) for item in dataclasses.fields(value)]
            return _hash(type(value).__name__, *map(self.value, fields))
        return ADDRESS.sub("", repr(value))

    def _program(self, program: Any) -> str:
        """The equations and the constants; since JAX 0.11, a closed program and its inside are one object."""
        inside = getattr(program, "jaxpr", program)
        # The program that contains this one keeps it alive, so that its id is not used again.
        if id(inside) not in self._digests:
            self._digests[id(inside)] = self._equations(inside)
        return _hash(self._digests[id(inside)], *map(self.value, getattr(program, "consts", ())))

    def _equations(self, program: Any) -> str:
        places = {}

        def place(atom: Any) -> str:
            if isinstance(atom, Literal):
                return self.value(atom.val)
            return str(places.setdefault(atom, len(places)))

        inputs = [f"{place(a)}:{a.aval}" for a in (*program.constvars, *program.invars)]
        lines = []
        for equation in program.eqns:
            arguments = [place(atom) for atom in equation.invars]
            results = [f"{place(a)}:{a.aval}" for a in equation.outvars]
            lines += [equation.primitive.name, *arguments, "=", *results, self._settings(equation)]
        return _hash(*inputs, *lines, *map(place, program.outvars))

    def _settings(self, equation: Any) -> str:
        settings = equation.params
        if equation.primitive.name in ("jit", "pjit"):
            settings = {k: v for k, v in settings.items() if k != "name"}
        elif equation.primitive.name.startswith(("custom_jvp", "custom_vjp")):
            # Where a derivative is taken, its equations are in the program; elsewhere it does not matter.
            programs = ClosedJaxpr | Jaxpr
            settings = {k: v for k, v in settings.items() if isinstance(v, programs)}
        return self.value(settings)

    def _function(self, function: types.FunctionType) -> str:
        """A function that the program calls in Python: its code, and what it holds on to."""
        cells = function.__closure__ or ()
        held = [c.cell_contents for c in cells if not _is_empty(c)] + [
            *(function.__defaults__ or ())
        ]
        known = (*PLAIN, np.ndarray, np.generic, jax.Array)
        texts = [self.value(v) if isinstance(v, known) else type(v).__name__ for v in held]
        return _hash(function.__qualname__, _code(function.__code__), *texts)


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _code(code: types.CodeType) -> str:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return _hash(code.co_code.hex(), *code.co_names, *constants)


def _array(array: Any) -> str:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    entries = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _hash(str(array.dtype), str(array.shape), hashlib.sha256(entries.data).hexdigest())


def _hash(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
