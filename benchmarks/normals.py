"""How fast credax draws normals on the CPU, against JAX's default generator.

Run as ``python benchmarks/normals.py``; prints one JSON object.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from credax.core import random


def measure(size: int = 2_400_000, repeats: int = 31) -> dict[str, Any]:
    """Median milliseconds per draw of ``size`` float32 normals, and how many times faster.

    They take turns, so that a change of load on the machine meets all of them alike. JAX's
    default generator needs 12 bytes of scratch memory per normal, credax none: how readily the
    allocator serves them moves the ratios from one process to the next.

    Args:
      size: normals per draw; the default is one draw of the weights of a 784-1200-1200-10 network.
      repeats: draws of each, besides the first, which compiles.
    """
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        keys = dict.fromkeys(("credax_key", "credax", "noise"), random.key(0))
        keys["jax"] = jax.random.key(0)
        normal = jax.jit(lambda key: jax.random.normal(key, (size,), "float32"))
        own = jax.jit(lambda key: random.normal(key, (size,), "float32"))
        noise = jax.jit(lambda key: random.noise(key, (size,), "float32"))
        draws = {"jax": normal, "credax_key": normal, "credax": own, "noise": noise}
        seconds = {name: [] for name in draws}
        for name, draw in draws.items():
            _timed(draw, keys[name])
        for _ in range(repeats):
            for name, draw in draws.items():
                seconds[name].append(_timed(draw, keys[name]))
    medians = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    return {
        "size": size,
        "repeats": repeats,
        "jax.random.normal, default key, ms": medians["jax"],
        "jax.random.normal, credax key, ms": medians["credax_key"],
        "credax.core.random.normal, ms": medians["credax"],
        "credax.core.random.noise, ms": medians["noise"],
        "credax key, times faster": medians["jax"] / medians["credax_key"],
        "normal, times faster": medians["jax"] / medians["credax"],
        "noise, times faster": medians["jax"] / medians["noise"],
    }


def _timed(draw: Callable[[jax.Array], jax.Array], key: jax.Array) -> float:
    start = time.perf_counter()
    draw(key).block_until_ready()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
