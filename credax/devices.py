"""How many CPU cores the replicas of a run are laid over."""

from __future__ import annotations

import os

import jax

from credax.checks import integer


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
