"""Laplace approximations of a vision transformer of 22 million weights: time and memory on one accelerator.

The network is a ViT-small (12 layers, 384 channels, 6 heads) with random weights, 100 classes and
random images. Each run makes a few steps of MAP, then the curvature from the point that was reached, then
predictions for some rows. ``stated_gb`` is what the compiler says of the largest program before it runs, the
steps and the curvature apart; ``used_gb`` is the peak of the device's allocator after each part. Each
structure has a process of its own, and they may run at the same time.
Run as ``python -m benchmarks vit``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx

HERE = Path(__file__).parent
STRUCTURES = ("low_rank", "kronecker", "diagonal", "last layer, kronecker", "last layer, diagonal")


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks vit")
    parser.add_argument("--structures", nargs="*", default=list(STRUCTURES), choices=STRUCTURES)
    parser.add_argument("--size", type=int, default=64, help="of the square images")
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument(
        "--scan", action="store_true", help="blocks in a loop, which compiles faster"
    )
    parser.add_argument("--at-once", type=int, default=2, help="processes at the same time")
    parser.add_argument("--limit", type=float, default=200, help="seconds for each structure")
    parser.add_argument("--out", help="a file for the figures so far")
    return vars(parser.parse_args(arguments))


def measure(
    structures: list[str], at_once: int, limit: float, out: str | None = None, **how: Any
) -> dict:
    """The figures of each structure, or what ended it."""
    figures: dict[str, Any] = {}
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    base = Path(out or HERE / "results" / "vit.json")

    def run(structure: str) -> None:
        there = base.with_suffix(f".{structure.replace(', ', '_').replace(' ', '_')}.partial")
        there.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.vit", str(there), structure, json.dumps(how)]
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
        figures[structure] = found
        print(structure, json.dumps(found), flush=True)
        if out is not None:
            base.write_text(json.dumps(figures, indent=2) + "\n")

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, structures))
    return figures


def vit(size: int, patch: int, width: int, depth: int, heads: int, classes: int, scan: bool) -> Any:
    """The network, as functions: patches, blocks of attention and a perceptron, the mean, a linear layer."""
    side = size // patch
    shapes: dict[str, tuple[int, int]] = {"embed": (patch * patch * 3, width)}
    for block in range(depth):
        shapes[f"block_{block}/qkv"] = (width, 3 * width)
        shapes[f"block_{block}/out"] = (width, width)
        shapes[f"block_{block}/up"] = (width, 4 * width)
        shapes[f"block_{block}/down"] = (4 * width, width)
    shapes["head"] = (width, classes)
    norms = [f"block_{block}/norm_{i}" for block in range(depth) for i in (1, 2)] + ["norm"]

    def init(key):
        keys = jax.random.split(key, len(shapes) + 1)
        params: dict[str, Any] = {"position": 0.02 * jax.random.normal(keys[0], (side**2, width))}
        for k, (name, shape) in zip(keys[1:], shapes.items(), strict=True):
            kernel = shape[0] ** -0.5 * jax.random.normal(k, shape)
            params[name] = {"kernel": kernel, "bias": jnp.zeros(shape[1])}
        for name in norms:
            params[name] = {"scale": jnp.ones(width), "bias": jnp.zeros(width)}
        if not scan:
            return params
        blocks = [
            {
                n.partition("/")[2]: params.pop(n)
                for n in list(params)
                if n.startswith(f"block_{i}/")
            }
            for i in range(depth)
        ]
        return {**params, "blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}

    def apply(params, x):
        def linear(name, x, params=params):
            return x @ params[name]["kernel"] + params[name]["bias"]

        def norm(name, x, params=params):
            x = x - x.mean(-1, keepdims=True)
            x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
            return x * params[name]["scale"] + params[name]["bias"]

        def block(x, params, here=""):
            normed = norm(here + "norm_1", x, params)
            qkv = jnp.split(linear(here + "qkv", normed, params), 3, -1)
            q, k, v = (a.reshape(rows, side**2, heads, -1) for a in qkv)
            shares = jax.nn.softmax(jnp.einsum("rqhd,rkhd->rhqk", q, k) * q.shape[-1] ** -0.5)
            mixed = jnp.einsum("rhqk,rkhd->rqhd", shares, v).reshape(x.shape)
            x = x + linear(here + "out", mixed, params)
            up = jax.nn.gelu(linear(here + "up", norm(here + "norm_2", x, params), params))
            return x + linear(here + "down", up, params)

        rows = x.shape[0]
        x = x.reshape(rows, side, patch, side, patch, 3)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(rows, side**2, -1)
        x = linear("embed", x) + params["position"]
        if scan:
            x = jax.lax.scan(lambda x, own: (block(x, own), None), x, params["blocks"])[0]
        else:
            for i in range(depth):
                x = block(x, params, f"block_{i}/")
        return linear("head", norm("norm", x).mean(1))

    return cx.networks.from_function(init, apply)


def one(file: Path, structure: str, how: dict[str, Any]) -> None:
    """Write the figures of one structure to a file, as they come."""
    rows, batch, steps, rank = (how.pop(name) for name in ("rows", "batch", "steps", "rank"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, how["size"], how["size"], 3), np.float32)
    y = rng.integers(how["classes"], size=rows)
    network = vit(**how)
    likelihood = cx.likelihoods.Categorical(how["classes"])
    model = cx.Model(network, cx.priors.Normal(0.1), likelihood)
    device, figures = jax.devices()[0], {}

    def peak() -> float:
        return (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9

    def part(name: str, run: Callable[[], Any]) -> Any:
        began, result = time.perf_counter(), None
        try:
            result = run()
            ended = {}
        except Exception as error:  # noqa: BLE001 - what came before is still worth writing
            trace = traceback.format_exc()[-1200:]
            ended = {"error": f"{type(error).__name__}: {str(error)[:500]}", "trace": trace}
        seconds = time.perf_counter() - began
        figures[name] = {"seconds": round(seconds, 2), "used_gb": peak(), **ended}
        file.write_text(json.dumps(figures))
        return result

    def state(name: str, size: Any) -> None:
        figures.setdefault("stated_gb", {})[name] = size
        file.write_text(json.dumps(figures))

    ascent = cx.MAP(num_steps=steps, batch_size=batch, learning_rate=1e-4)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    figures["weights"] = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    stated = part("memory of the steps", lambda: cx.memory(model, (x, y), ascent))
    if stated is not None:
        state("steps", stated.on_device / 1e9)
    mode = part("steps", lambda: cx.fit(model, (x, y), ascent, progress=False))
    kind = structure.removeprefix("last layer, ")
    if kind != structure:
        network = cx.networks.subset(network, "head/*", weights=mode)
        model = cx.Model(network, cx.priors.Normal(0.1), likelihood)
        mode = None
    method = cx.Laplace(structure=kind, rank=rank, num_steps=steps, batch_size=batch)
    stated = part("memory of the curvature", lambda: cx.memory(model, (x, y), method))
    if stated is not None:
        state("curvature", (stated.state + stated.data + stated.finish) / 1e9)
        state("all", stated.on_device / 1e9)
    posterior = part("curvature", lambda: cx.fit(model, (x, y), method, start=mode, progress=False))
    if posterior is None:
        return
    figures["evidence"] = float(posterior.log_evidence.value)
    few = x[: min(64, rows)]
    part("prediction", lambda: np.asarray(posterior.predict(few).mean))


if __name__ == "__main__":
    one(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
