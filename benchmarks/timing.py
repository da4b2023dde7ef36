"""How the benchmarks measure: alternatives take turns in one process, and medians are compared."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def seconds(function: Callable[[], Any]) -> float:
    """The time of one call, its device work included."""
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def medians(alternatives: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """The median time of each alternative; they take turns, so that a noisy machine hits all alike."""
    for function in alternatives.values():
        seconds(function)
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, function in alternatives.items():
            times[name].append(seconds(function))
    return {name: statistics.median(values) for name, values in times.items()}
