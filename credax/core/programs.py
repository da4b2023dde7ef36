"""Compiled programs, of which a process keeps a limited number.

JAX compiles a function anew for every shape of its arguments, and keeps each program for as long as the
function exists. A loop that adds rows, as in active learning, would thus fill the memory with programs that
never run again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Settings with which the compiler of CPUs takes a third of the time, for programs that run once."""
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
        options = {**self._options, "compiler_options": _quick_options()}
        return Programs(self._function, options, self._also)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = self._jitted(*arguments, **named)
        # After the call, so that as many programs as are allowed can be used in turn.
        if self.count > MOST:
            self.drop()
        return result

    def __getattr__(self, name: str) -> Any:
        """``trace``, ``lower``, ``eval_shape`` and the other attributes of a function from ``jax.jit``."""
        if name == "_jitted":
            raise AttributeError(name)
        return getattr(self._jitted, name)

    @property
    def count(self) -> int:
        """The number of programs."""
        return self._jitted._cache_size()

    def drop(self) -> None:
        """Drop all programs; those that are needed again are compiled again."""
        for jitted in (self._jitted, *self._also):
            jitted.clear_cache()


@functools.cache
def _quick_options() -> dict[str, Any] | None:
    """Those of ``QUICK`` that this version of the compiler knows."""
    if jax.default_backend() != "cpu":
        return None
    known = {}
    for name, value in QUICK.items():
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except Exception:  # noqa: BLE001 - whatever it raises, it does not know this one
            continue
        known[name] = value
    return known
