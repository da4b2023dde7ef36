"""The speed of credax's normal random numbers on the CPU, compared with JAX's default generator.

Run as ``python -m benchmarks.normals``, which prints one JSON object.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

import credax as cx


def measure(size: int = 2_400_000, repeats: int = 31) -> dict[str, Any]:
    """Median milliseconds per call that draws ``size`` float32 normals, and the speed-ups.

    The generators alternate, so that a change of the load on the machine affects all of them. JAX's default
    generator needs 12 bytes of scratch memory per normal and credax none, so the ratios vary between processes
    with the speed of the memory allocator.

    Args:
      size: the number of normals per call; by default the number of weights of a 784-1200-1200-10 network.
      repeats: the number of measured calls of each generator, after the first one, which compiles.
    """
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        keys = dict.fromkeys(("credax_key", "credax", "noise"), cx.random.key(0))
        keys["jax"] = jax.random.key(0)
        normal = jax.jit(lambda key: jax.random.normal(key, (size,), "float32"))
        own = jax.jit(lambda key: cx.random.normal(key, (size,), "float32"))
        noise = jax.jit(lambda key: cx.random.noise(key, (size,), "float32"))
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
        "credax.random.normal, ms": medians["credax"],
        "credax.random.noise, ms": medians["noise"],
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
