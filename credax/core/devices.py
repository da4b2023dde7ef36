"""How a run uses the CPU: over how many cores its replicas are spread, and how many threads each core uses."""

from __future__ import annotations

import os
from functools import cache
from threading import Lock
from typing import Any

import jax
from threadpoolctl import ThreadpoolController

from credax.core.checks import integer


def use_cores(count: int | None = None) -> None:
    """Make each CPU core a separate JAX device, so that replicas (chains, members) run in parallel.

    Call this before JAX has run anything, because its devices cannot change afterwards. The replicas are spread
    over the devices if their number is a multiple of the number of devices. A different number of devices
    changes how many replicas each batched program holds, and hence how results are rounded: a run is
    reproduced bit for bit only with the same ``count``.

    Args:
      count: the number of cores to use. If ``None``, all cores that the process may use.
    """
    if count is None:
        count = usable_cores()
    count = integer("use_cores", "count", count)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        raise RuntimeError(
            "use_cores must be called before JAX has run anything: put it right after the imports."
        ) from None


def usable_cores() -> int:
    """The number of cores that the process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OneBlasThread:
    """A context in which the BLAS library of the CPU uses a single thread.

    Compiled programs factorise thousands of small matrices. If BLAS starts threads for them on cores that are
    busy already, each factorisation becomes three to twenty times slower. The limit applies to the whole
    process: when several threads enter the context, the first sets the limit and the last to leave restores it.
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
