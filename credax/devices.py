"""How the CPU is used: what its compiler may do, and how many cores the replicas of a run are laid over."""

from __future__ import annotations

import os
from functools import cache
from threading import Lock
from typing import Any

import jax
from threadpoolctl import ThreadpoolController

from credax.checks import integer


def fuse_outputs() -> None:
    """Lets one loop of a compiled CPU program write several arrays; an experiment of XLA's, for JAX 0.10.

    Without it a step of Adam reads weights, gradient and both moments once for each array that it writes; with
    it Bayes by Backprop is a fifth faster. Call it first: once JAX has run anything, its flags are settled. It
    holds for the whole process, and is not for every program: XLA aborts on some (NumPyro's NUTS is one), and
    JAX 0.11 and 0.12 compile a chain of random keys for minutes, so they are refused.
    """
    if jax.__version_info__[:2] != (0, 10):
        raise RuntimeError(f"fuse_outputs is for JAX 0.10, not for {jax.__version__}.")
    flags, option = os.environ.get("XLA_FLAGS", ""), "xla_cpu_use_multi_output_fusion"
    if option not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={option}".strip()


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
