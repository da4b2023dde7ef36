"""How much memory the host and a device have left, and how a number of bytes is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MEMINFO = Path("/proc/meminfo")
GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""The limit of a container, what it uses, and of which kind, under versions 2 and 1 of control groups."""


def free_on_host() -> int | None:
    """The bytes that this process can still get without swapping; ``None`` if they are not known."""
    found = [free for free in (_of_the_machine(), *map(_of_a_group, GROUPS)) if free is not None]
    return min(found, default=None)


def free_on(device: Any) -> int | None:
    """The bytes that a device of JAX has left; those of the host for a CPU. ``None`` if they are not known."""
    if device.platform == "cpu":
        return free_on_host()
    stats: Mapping[str, int] = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


def _of_the_machine() -> int | None:
    """Free memory and what the system gives back when it is asked; elsewhere than on Linux, all there is."""
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_a_group(files: tuple[str, str, str]) -> int | None:
    """What a container may still use; pages of files, which are dropped when memory is short, do not count."""
    try:
        limit, used = (int(Path(file).read_text()) for file in files[:2])
        stat = dict(line.split() for line in Path(files[2]).read_text().splitlines())
        return max(0, limit - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):  # no such group, or one without a limit ("max")
        return None


def bytes_of(tree: Any) -> int:
    """The bytes of all arrays, or shapes of arrays, of a pytree.

    >>> bytes_of({"a": np.zeros((2, 3), np.float32), "b": np.zeros(())})
    32
    """
    import jax

    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _bytes(leaf: Any) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize


def in_words(size: float) -> str:
    """A number of bytes for people, in powers of 1000.

    >>> in_words(52_400_000_000), in_words(1_500), in_words(0)
    ('52 GB', '1.5 kB', '0 B')
    """
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while abs(size) >= 999.5 and power < len(units) - 1:
        size, power = size / 1000, power + 1
    digits = 0 if power == 0 or size >= 9.95 else 1
    return f"{size:.{digits}f} {units[power]}"
