"""How many steps of training fit into a given time on this machine."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

COMPILING = 5.0
"""Seconds that tracing, compiling and the first predictions of a candidate take, about."""
EFFICIENCY = 0.5
"""The speed of a training step, as a part of the speed of plain matrix products of the same size."""
LEAST = 200
"""The fewest steps that train a network."""


@functools.cache
def multiplications_per_second() -> float:
    """How many multiplications of matrix products of a small network this machine makes per second."""
    key = jax.random.key(0)
    rows = jax.random.normal(key, (8, 256, 128), jnp.float32)
    kernel = jax.random.normal(key, (8, 128, 128), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(rows, kernel).block_until_ready()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        product(rows, kernel).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return rows.size * kernel.shape[-1] / float(np.median(seconds))


def steps_within(seconds: float, multiplications: int, most: int) -> int:
    """The number of steps that take this time, compilation included.

    Args:
      seconds: the time.
      multiplications: the multiplications of one forward pass over the rows of a step; its gradient needs twice
        as many again.
      most: the most steps that are of use.
    """
    rate = EFFICIENCY * multiplications_per_second() / (3 * multiplications)
    return int(np.clip(rate * max(seconds - COMPILING, 0.5), LEAST, most))
