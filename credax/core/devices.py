"""How the CPU is used: how many cores the replicas of a run are laid over, and the threads of each."""

from __future__ import annotations

import os
from functools import cache
from threading import Lock
from typing import Any

import jax
from threadpoolctl import ThreadpoolController

from credax.core.checks import integer


def use_cores(count: int | None = None) -> None:
    """Lets replicas (chains, members) run side by side, each core a device of its own.

    Call it first: once JAX has run anything, its devices are settled. Replicas are laid over the devices where
    they divide evenly. Another number of devices is another width of the batched program, which rounds
    differently, so a run is repeated bit for bit only with the same count.

    Args:
      count: how many; ``None``: all that the process may use.
    """
    if count is None:
        every = hasattr(os, "sched_getaffinity")
        count = len(os.sched_getaffinity(0)) if every else os.cpu_count() or 1
    count = integer("use_cores", "count", count)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        raise RuntimeError(
            "use_cores must be called before JAX has run anything: put it right after the imports."
        ) from None


class OneBlasThread:
    """A context in which the linear algebra of the CPU keeps to the core that asks for it.

    Compiled programs factorise small matrices by the thousand; threads on cores that are taken make each three
    to twenty times slower. The limit is the process's: of runs in several threads the first sets it, the last
    takes it back.
    """

    def __init__(self):
        self._lock, self._runs, self._limit = Lock(), 0, None

    def __enter__(self):
        with self._lock:
            if self._runs == 0:
                self._limit = _blas().limit(limits=1)
            self._runs += 1

    def __exit__(self, *_: object):
        with self._lock:
            self._runs -= 1
            if self._runs == 0 and self._limit is not None:
                self._limit.restore_original_limits()


one_blas_thread = OneBlasThread()


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")
