"""How the CPU is used: what its compiler may do, and how many cores the replicas of a run are laid over."""

from __future__ import annotations

import os

import jax

from credax.checks import integer


def fuse_outputs() -> None:
    """Lets one loop of a compiled CPU program write several arrays.

    XLA has this off. Without it a step of Adam reads weights, gradient and both moments once for each array
    that it writes; with it Bayes by Backprop is a fifth faster. It takes effect where JAX has not run anything
    yet; ``CREDAX_FUSE_OUTPUTS=0`` in the environment leaves it off.
    """
    flags, option = os.environ.get("XLA_FLAGS", ""), "xla_cpu_use_multi_output_fusion"
    # JAX 0.11 and 0.12 compile a chain of random keys for minutes under it.
    quick = jax.__version_info__[:2] == (0, 10)
    if quick and option not in flags and os.environ.get("CREDAX_FUSE_OUTPUTS", "1") != "0":
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
