"""Compiled programs, of which a process keeps a limited number.

JAX compiles a function anew for every shape of its arguments, and keeps each program for as long as the
function exists. A loop that adds rows, as in active learning, would thus fill the memory with programs that
never run again.

A setting such as a model may hold arrays, those of a prior around given weights. It is a static argument, and
with other arrays it would be another one, for which everything is compiled again: at every update of a
posterior that goes on learning. Such arrays are therefore lifted: taken out of the setting and passed on as
arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Settings with which the compiler of CPUs takes a third of the time, for programs that run once."""
LEAN = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "cse_barrier_expander",
}
"""Settings with which the compiler of CPUs computes again what ``jax.checkpoint`` tells it to.

By default it drops these orders before it looks for what is computed twice, and arranges the rest for many
threads rather than for little memory.
"""
MOST = 32
"""The most programs that are kept per function. One that fits a small network takes some megabytes."""


def jit(function: Callable[..., Any] | None = None, *, also: tuple = (), **options: Any) -> Any:
    """``jax.jit`` for a function of a module; once it has more than ``MOST`` programs, all of them are dropped.

    Args:
      function: the function to compile. If ``None``, a decorator is returned.
      also: functions from ``jax.jit`` that are traced inside, whose traces are dropped at the same time.
      options: passed on to ``jax.jit``.
    """
    if function is None:
        return functools.partial(jit, also=also, **options)
    return Programs(function, options, also)


@runtime_checkable
class Lifting(Protocol):
    """A static argument whose arrays are passed on as arguments."""

    @property
    def lifted(self) -> tuple[Any, Any] | None:
        """The argument without its arrays, and a pytree of them; ``None`` if it holds none."""
        ...

    def filled(self, arrays: Any) -> Any:
        """The argument without its arrays, with these as them."""
        ...


def _lift(arguments: tuple, named: dict[str, Any]) -> tuple[dict, tuple, dict[str, Any]] | None:
    """The arrays by the place of their argument, and the arguments without them; ``None`` if there are none."""
    each = {**dict(enumerate(arguments)), **named}
    found = {k: v.lifted for k, v in each.items() if isinstance(v, Lifting)}
    found = {k: v for k, v in found.items() if v is not None}
    if not found:
        return None
    hollow = {k: found[k][0] if k in found else v for k, v in each.items()}
    arrays = {str(k): arrays for k, (_, arrays) in found.items()}
    count = len(arguments)
    return arrays, tuple(hollow[i] for i in range(count)), {k: hollow[k] for k in named}


class Programs:
    """A function from ``jax.jit`` whose programs are dropped when there are too many; see :func:`jit`."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], also: tuple):
        self._jitted: Any = jax.jit(function, **options)
        self._also = also
        self._function, self._options = function, options
        functools.update_wrapper(self, self._jitted)

    @functools.cached_property
    def quick(self) -> Programs:
        """The same function, compiled in less time to programs that may take longer."""
        options = {**self._options, "compiler_options": known_options("QUICK")}
        return Programs(self._function, options, self._also)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = self._call("__call__", *arguments, **named)
        # After the call, so that as many programs as are allowed can be used in turn.
        if self.count > MOST:
            self.drop()
        return result

    def __getattr__(self, name: str) -> Any:
        """``trace``, ``lower``, ``eval_shape`` and the other attributes of a function from ``jax.jit``."""
        if name == "_jitted":
            raise AttributeError(name)
        if name in ("trace", "lower", "eval_shape"):
            return functools.partial(self._call, name)
        return getattr(self._jitted, name)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the function from ``jax.jit``, with the arrays of its settings lifted."""
        lifted = _lift(arguments, named)
        if lifted is None:
            return getattr(self._jitted, name)(*arguments, **named)
        arrays, arguments, named = lifted
        return getattr(self._lifted, name)(arrays, *arguments, **named)

    @functools.cached_property
    def _lifted(self) -> Any:
        """The function from ``jax.jit`` with the arrays of its settings as a first argument."""
        function = self._function

        def opened(lifted_arrays, *arguments, **named):
            places = {int(k): v for k, v in lifted_arrays.items() if k.isdecimal()}
            whole = [a.filled(places[i]) if i in places else a for i, a in enumerate(arguments)]
            return function(
                *whole,
                **{
                    k: v.filled(lifted_arrays[k]) if k in lifted_arrays else v
                    for k, v in named.items()
                },
            )

        signature = inspect.signature(function)
        first = inspect.Parameter("lifted_arrays", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        opened.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # pyright: ignore[reportFunctionMemberAccess]
        return jax.jit(opened, **self._options)

    @property
    def count(self) -> int:
        """The number of programs."""
        lifted = self.__dict__.get("_lifted")
        return self._jitted._cache_size() + (0 if lifted is None else lifted._cache_size())

    def drop(self) -> None:
        """Drop all programs; those that are needed again are compiled again."""
        lifted = self.__dict__.get("_lifted")
        for jitted in (self._jitted, *self._also, *(() if lifted is None else (lifted,))):
            jitted.clear_cache()

    clear_cache = drop


@functools.cache
def known_options(name: str) -> dict[str, Any] | None:
    """Those of ``QUICK`` or ``LEAN`` that this compiler knows; ``None`` if it is not one for CPUs."""
    if jax.default_backend() != "cpu":
        return None
    known = {}
    for option, value in {"QUICK": QUICK, "LEAN": LEAN}[name].items():
        try:
            jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
        except Exception:  # noqa: BLE001 - whatever it raises, it does not know this one
            continue
        known[option] = value
    return known
