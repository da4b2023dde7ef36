"""How many steps of training fit into a given time on this machine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

COMPILING = 5.0
"""Seconds that tracing, compiling and the first predictions of a candidate take, about."""
EFFICIENCY = 0.5
"""The speed of a training step, as a part of the speed of plain matrix products of the same size."""
BYTES = 28
"""The bytes that an optimiser with two moments moves for each weight in a step."""
LEAST = 200
"""The fewest steps that train a network."""


@functools.cache
def multiplications_per_second() -> float:
    """How many multiplications of matrix products of a small network this machine makes per second."""
    key = jax.random.key(0)
    rows = jax.random.normal(key, (8, 256, 128), jnp.float32)
    kernel = jax.random.normal(key, (8, 128, 128), jnp.float32)
    return rows.size * kernel.shape[-1] / _seconds(jnp.matmul, rows, kernel)


@functools.cache
def bytes_per_second() -> float:
    """How many bytes of large arrays this machine reads and writes per second."""
    large = jnp.ones(1 << 22, jnp.float32)
    return 3 * large.nbytes / _seconds(jnp.add, large, large)


def _seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """The median time of a compiled function."""
    compiled = jax.jit(function)
    compiled(*arguments).block_until_ready()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        compiled(*arguments).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def steps_within(seconds: float, multiplications: int, most: int, weights: int = 0) -> int:
    """The number of steps that take this time, compilation included.

    Args:
      seconds: the time.
      multiplications: the multiplications of one forward pass over the rows of a step; its gradient needs twice
        as many again.
      most: the most steps that are of use.
      weights: the number of weights that a step updates, which matters if there are few rows for each.
    """
    products = 3 * multiplications / (EFFICIENCY * multiplications_per_second())
    one = products + BYTES * weights / bytes_per_second()
    return int(np.clip(max(seconds - COMPILING, 0.5) / one, LEAST, most))
