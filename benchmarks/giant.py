"""Fits of networks of billions of weights on one accelerator: what ``cx.memory`` says, and what they used.

The networks have square layers of 8192 units, 16 of them for 1.07 billion weights and 30 for 2.01 billion;
BayesByBackprop and IVON have a standard deviation for each weight besides. Products are computed in bfloat16
(``compute_dtype``), with 512 rows per step. ``estimated_gb`` is the estimate for the device, ``used_gb`` the
peak of its allocator when the steps were done, and ``used_at_end_gb`` the peak when the posterior was made.
Each fit has a process of its own. Run as ``python -m benchmarks giant``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx

HERE = Path(__file__).parent
CLASSES = 10


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks giant")
    methods = ("MAP", "IVON", "BayesByBackprop")
    parser.add_argument("--methods", nargs="*", default=list(methods), choices=methods)
    parser.add_argument("--layers", nargs="*", type=int, default=[16, 30])
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--optimiser-dtype", default=None, choices=[None, "bfloat16"])
    parser.add_argument("--limit", type=float, default=180, help="seconds for each fit")
    parser.add_argument("--out", help="a file for the figures so far")
    return vars(parser.parse_args(arguments))


def measure(
    methods: list[str], layers: list[int], limit: float, out: str | None = None, **how: Any
) -> dict:
    """The figures of each fit, or what ended it."""
    figures: dict[str, Any] = {}
    # One region for the whole run: what is free in it does not fall into pieces that are too small.
    environment = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.96",
        **os.environ,
    }
    for count in layers:
        for name in methods:
            settings = json.dumps({**how, "layers": count, "name": name})
            there = Path(out or HERE / "results" / "giant.json").with_suffix(".partial")
            there.unlink(missing_ok=True)
            command = [sys.executable, "-m", "benchmarks.giant", str(there), settings]
            ended = None
            try:
                answer = subprocess.run(
                    command,
                    check=False,
                    capture_output=True,
                    text=True,
                    cwd=HERE.parent,
                    env=environment,
                    timeout=limit,
                )
                ended = answer.stderr[-1500:] if answer.returncode else None
            except subprocess.TimeoutExpired:
                ended = f"ended after {limit:.0f} seconds"
            found = json.loads(there.read_text()) if there.exists() else {}
            there.unlink(missing_ok=True)
            if ended is not None:
                found["ended by"] = ended
            weights = count * how["width"] ** 2
            figures[f"{name}, {weights / 1e9:.3g} billion weights"] = found
            print(name, weights, json.dumps(found), flush=True)
            if out is not None:
                Path(out).write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def network(width: int, layers: int) -> Any:
    """Square layers without biases; the first outputs of the last one are the classes."""

    def init(key):
        keys = jax.random.split(key, layers)
        return [width**-0.5 * jax.random.normal(k, (width, width), jnp.float32) for k in keys]

    def apply(weights, x):
        for kernel in weights[:-1]:
            x = jax.nn.relu(x @ kernel)
        return x @ weights[-1][:, :CLASSES]

    return cx.networks.from_function(init, apply)


def one(
    file: Path, name: str, width: int, layers: int, batch: int, steps: int, optimiser_dtype: Any
) -> None:
    """Write the figures of one fit to a file, as they come."""
    method = getattr(cx, name)(num_steps=steps, batch_size=batch, learning_rate=1e-4)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * batch, width), np.float32)
    y = rng.integers(CLASSES, size=2 * batch)
    model = cx.Model(
        network(width, layers), cx.priors.Normal(1.0), cx.likelihoods.Categorical(CLASSES)
    )
    how: dict[str, Any] = {"compute_dtype": "bfloat16"}
    if optimiser_dtype is not None and name != "IVON":
        how["optimiser_dtype"] = optimiser_dtype
    device = jax.devices()[0]
    figures: dict[str, Any] = {"settings": how}

    def note(**more: Any) -> None:
        figures.update(more)
        file.write_text(json.dumps(figures))

    def peak() -> float:
        return ((device.memory_stats() or {}).get("peak_bytes_in_use", 0)) / 1e9

    began = time.perf_counter()
    shapes = cx.memory(model, (x, y), method, compile=False, **how)
    note(from_shapes_gb=shapes.on_device / 1e9)
    estimate = cx.memory(model, (x, y), method, **how)
    parts = {n: size / 1e9 for n, size in estimate.figures().items()}
    note(
        estimated_gb=estimate.on_device / 1e9,
        of_which=parts,
        available=str(estimate),
        compile_seconds=time.perf_counter() - began,
        peak_after_compiling_gb=peak(),
    )
    seen: list[tuple[int, float]] = []

    def look(event: Any) -> None:
        seen.append((event.step, time.perf_counter()))
        note(steps=event.step, used_gb=peak(), ratio=estimate.on_device / 1e9 / max(peak(), 1e-9))
        if len(seen) > 1:
            (first, early), (last, late) = seen[0], seen[-1]
            note(milliseconds_per_step=1e3 * (late - early) / max(last - first, 1))

    posterior = cx.fit(
        model,
        (x, y),
        method,
        progress=False,
        callbacks=look,
        chunk_steps=max(1, steps // 4),
        **how,
    )
    note(
        milliseconds_per_step_of_all=1e3 * posterior.info["seconds"] / steps,
        used_at_end_gb=peak(),
        seconds=time.perf_counter() - began,
    )


if __name__ == "__main__":
    one(Path(sys.argv[1]), **json.loads(sys.argv[2]))
