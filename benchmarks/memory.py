"""What ``cx.memory`` says that a fit needs, and what it used: the growth of the process's peak resident memory.

Each fit runs in a process of its own, on the CPU; on an accelerator, what was used is the peak of its
allocator. ``estimated_mb`` is the estimate with the compiled program, and ``used_mb`` the difference between
the largest resident memory during the fit and that before it, after a small fit of the same kind and the
compilation. ``from_shapes_mb`` is the lower bound before anything is compiled. ``ratio`` is the estimate
divided by what was used. The constant in it, ``overhead``, was chosen by the fits of MAP, DeepEnsemble and SGLD
below. What a method computes when the run is over is not estimated; BayesByBackprop and IVON give back what the
optimiser kept before they compute the lower bound. Run as ``python -m benchmarks memory``.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

import credax as cx


class Case(NamedTuple):
    """A fit: the widths of the network, the size of the data, the method, and settings of ``fit``."""

    hidden: tuple[int, ...]
    rows: int
    features: int
    method: Callable[[], Any]
    how: Mapping[str, Any] = MappingProxyType({})
    activation: str = "relu"


CASES = {
    "MAP, all rows": Case((1024, 1024), 20_000, 64, lambda: cx.MAP(num_steps=1)),
    "MAP, micro_batch": Case(
        (64, 64), 300_000, 256, lambda: cx.MAP(num_steps=2), {"micro_batch": 5_000}
    ),
    "MAP, rematerialise": Case(
        (512,) * 12, 10_000, 64, lambda: cx.MAP(num_steps=1), {"rematerialise": True}, "gelu"
    ),
    "MAP, bfloat16": Case(
        (1024, 1024), 20_000, 64, lambda: cx.MAP(num_steps=1), {"compute_dtype": "bfloat16"}
    ),
    "DeepEnsemble": Case(
        (1200, 1200), 2_000, 784, lambda: cx.DeepEnsemble(8, num_steps=2, batch_size=128)
    ),
    "BayesByBackprop": Case(
        (2400, 2400), 2_000, 784, lambda: cx.BayesByBackprop(num_steps=2, batch_size=128)
    ),
    "IVON": Case((2400, 2400), 2_000, 784, lambda: cx.IVON(num_steps=2, batch_size=128)),
    "MCDropout": Case((1024, 1024), 10_000, 64, lambda: cx.MCDropout(num_steps=1)),
    "SWAG": Case(
        (1200, 1200),
        2_000,
        784,
        lambda: cx.SWAG(2, num_warmup=10, num_steps=30, batch_size=128, thin=2),
    ),
    "SGLD": Case(
        (312, 312),
        500,
        8,
        lambda: cx.SGLD(chains=4, num_warmup=5, num_draws=250, batch_size=32),
    ),
    "HMC": Case((700, 700), 64, 8, lambda: cx.HMC(chains=4, num_warmup=2, num_draws=60)),
    "MCLMC": Case(
        (700, 700), 64, 8, lambda: cx.MCLMC(chains=4, num_warmup=5, num_draws=60, thin=1)
    ),
}


# The compiler tries products of a layer on the accelerator before the run, with as much memory as they take.
# Many layers make that small compared with the run.
DEEP = {
    "MAP, all rows": Case((1024,) * 12, 50_000, 64, lambda: cx.MAP(num_steps=3)),
    "MAP, micro_batch": Case(
        (1024,) * 12, 50_000, 64, lambda: cx.MAP(num_steps=2), {"micro_batch": 25_000}
    ),
    "MAP, rematerialise": Case(
        (1024,) * 24, 50_000, 64, lambda: cx.MAP(num_steps=2), {"rematerialise": True}, "gelu"
    ),
    "MAP, bfloat16": Case(
        (1024,) * 12, 50_000, 64, lambda: cx.MAP(num_steps=3), {"compute_dtype": "bfloat16"}
    ),
    "DeepEnsemble": Case(
        (2048,) * 12, 2_000, 784, lambda: cx.DeepEnsemble(4, num_steps=2, batch_size=128)
    ),
    "BayesByBackprop": Case(
        (4096,) * 12, 2_000, 784, lambda: cx.BayesByBackprop(num_steps=2, batch_size=128)
    ),
    "IVON": Case((4096,) * 12, 2_000, 784, lambda: cx.IVON(num_steps=2, batch_size=128)),
    "MCDropout": Case((1024,) * 12, 50_000, 64, lambda: cx.MCDropout(num_steps=2)),
    "SWAG": Case(
        (2048,) * 12,
        2_000,
        784,
        lambda: cx.SWAG(
            2, num_warmup=10, num_steps=30, batch_size=128, thin=2, sgd_learning_rate=1e-3
        ),
    ),
    "SGLD": Case(
        (1024,) * 8,
        500,
        8,
        lambda: cx.SGLD(chains=4, num_warmup=5, num_draws=40, batch_size=32),
    ),
    "HMC": Case((1024,) * 8, 64, 8, lambda: cx.HMC(chains=4, num_warmup=2, num_draws=40)),
    "MCLMC": Case(
        (1024,) * 8, 64, 8, lambda: cx.MCLMC(chains=4, num_warmup=5, num_draws=40, thin=1)
    ),
}
"""The cases on an accelerator."""


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--at-once", type=int, default=1, help="processes at the same time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each fit")
    parser.add_argument("--out", help="a file for the figures so far")
    return vars(parser.parse_args(arguments))


def measure(
    cases: list[str] | None = None,
    at_once: int = 1,
    limit: float = 600,
    out: str | None = None,
) -> dict:
    """The estimate and the growth of the peak memory of each fit, in megabytes."""
    found: dict[str, Any] = {}
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}

    def run(name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.memory", name]
        where = {"cwd": Path(__file__).parents[1], "env": environment, "timeout": limit}
        try:
            answer = subprocess.run(command, check=False, capture_output=True, text=True, **where)
            if answer.returncode:
                raise RuntimeError(answer.stderr[-1500:])
            found[name] = json.loads(answer.stdout.splitlines()[-1])
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found[name] = {"ended by": str(error)}
        print(name, found[name], flush=True)
        if out is not None:
            Path(out).write_text(json.dumps(found, indent=2) + "\n")

    names = cases or list(CASES)
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, names))
    ratios = [found[name]["ratio"] for name in names if "ratio" in found[name]]
    found = {name: found[name] for name in names}
    return {**found, "largest_error": max((abs(ratio - 1) for ratio in ratios), default=None)}


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def one(name: str) -> dict[str, float]:
    """The figures of one fit, measured in this process."""
    case = (CASES if jax.default_backend() == "cpu" else DEEP)[name]
    method = case.method()
    network = cx.networks.mlp(case.hidden, activation=case.activation)
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.5))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((case.rows, case.features), np.float32)
    y = x[:, 0] + generator.standard_normal(case.rows, np.float32)
    small = cx.Model(cx.networks.mlp([4]), likelihood=cx.likelihoods.Gaussian(0.5))
    cx.fit(small, (x[:300], y[:300]), method, progress=False, **case.how)
    shapes = cx.memory(model, (x, y), method, compile=False, **case.how)
    estimate = cx.memory(model, (x, y), method, **case.how)
    if not estimate.shared:
        return _on_device(model, (x, y), method, case, shapes, estimate)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    cx.fit(model, (x, y), method, progress=False, **case.how)
    used = _status("VmHWM") - before
    return {
        "estimated_mb": estimate.total / 1e6,
        "used_mb": used,
        "ratio": estimate.total / 1e6 / used,
        "from_shapes_mb": shapes.total / 1e6,
    }


def _on_device(model, data, method, case, shapes, estimate) -> dict[str, float]:
    """Likewise for an accelerator: the peak of its allocator, when the steps were made and at the end."""
    device, seen = jax.devices()[0], []
    peak = lambda: (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6  # noqa: E731
    before = peak()
    cx.fit(model, data, method, progress=False, callbacks=lambda _: seen.append(peak()), **case.how)
    used = seen[-1]
    return {
        "estimated_mb": estimate.on_device / 1e6,
        "used_mb": used,
        "ratio": estimate.on_device / 1e6 / used,
        "from_shapes_mb": shapes.on_device / 1e6,
        "used_at_end_mb": peak(),
        "used_before_mb": before,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(one(sys.argv[1])))
