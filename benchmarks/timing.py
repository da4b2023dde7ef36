"""Timing of alternatives that alternate in one process, so that their medians can be compared."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def seconds(function: Callable[[], Any]) -> float:
    """The seconds of one call, including its work on the device."""
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def medians(alternatives: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """The median time of each alternative, after one warm-up call of each.

    The alternatives alternate, so that a change of the load on the machine affects all of them.
    """
    for function in alternatives.values():
        seconds(function)
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, function in alternatives.items():
            times[name].append(seconds(function))
    return {name: statistics.median(values) for name, values in times.items()}
