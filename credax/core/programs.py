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
    return Programs(jax.jit(function, **options), also)


class Programs:
    """A function from ``jax.jit`` whose programs are dropped when there are too many; see :func:`jit`."""

    def __init__(self, jitted: Any, also: tuple):
        functools.update_wrapper(self, jitted)
        self._jitted, self._also = jitted, also

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
