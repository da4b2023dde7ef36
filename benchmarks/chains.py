"""Many small chains at once: gradients per second of ``HMC`` and of NumPyro, and what layouts of them give.

The model is the 8-50-1 tanh network of the benchmark ``sampling`` with 500 rows. ``HMC`` and NumPyro's HMC with
vectorised chains take the same number of leapfrog steps of a given size, with a unit mass. Neither time
contains compiling: that of ``HMC`` is its ``info["seconds"]``, that of NumPyro the second run of a compiled
loop over its kernel. The medians of runs that alternate are compared. ``layouts`` has the microseconds of the
gradients of all chains in leapfrog loops that are written by hand in JAX, and ``kernel`` those of a kernel that
keeps the activations on the chip (``benchmarks/chain_layouts.py``); ``groups`` is ``HMC`` with all chains at
once and in groups; ``error`` is the largest difference of a gradient from that of ``vmap`` in full precision,
relative to the largest entry.

Each part runs in a process of its own, and its figures are stored as soon as it is done. NumPyro's part needs
``numpyro``, and the kernel a GPU. Run as ``python -m benchmarks chains``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from benchmarks.chain_layouts import TILES, gradients, kernel, layouts, starts, trajectory
from benchmarks.sampling import data, log_joint, model
from benchmarks.timing import medians, seconds

PARTS = ("samplers", "layouts", "kernel", "groups")
HERE = Path(__file__).parent


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks chains")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--chains", nargs="*", type=int, default=[16, 128, 1024])
    parser.add_argument("--leapfrogs", type=int, default=32, help="per trajectory")
    parser.add_argument("--draws", type=int, default=100, help="per run of a sampler")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=240, help="seconds for each part")
    parser.add_argument("--dump", help="a file for the optimised program of HMC")
    parser.add_argument("--out", help="a file for the figures so far")
    return vars(parser.parse_args(arguments))


def measure(parts: list[str], out: str | None = None, limit: float = 240, **how: Any) -> dict:
    """The figures of each part, or what ended it."""
    figures: dict[str, Any] = {}
    for part in parts:
        there = Path(out or HERE / "results" / "chains.partial.json").with_suffix(
            f".{part.replace(' ', '_')}"
        )
        there.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.chains", part, str(there), json.dumps(how)]
        ended = None
        try:
            answer = subprocess.run(
                command, check=False, capture_output=True, text=True, cwd=HERE.parent, timeout=limit
            )
            ended = answer.stderr[-1500:] if answer.returncode else None
        except subprocess.TimeoutExpired:
            ended = f"ended after {limit:.0f} seconds"
        figures[part] = json.loads(there.read_text()) if there.exists() else {}
        there.unlink(missing_ok=True)
        if ended is not None:
            figures[part]["ended by"] = ended
        if out is not None:
            Path(out).write_text(json.dumps(figures, indent=2) + "\n")
        print(part, json.dumps(figures[part], indent=1), flush=True)
    return figures


class Found(dict):
    """Figures that are written to a file whenever one is added."""

    def __init__(self, file: str):
        super().__init__()
        self.file, self.began = Path(file), time.perf_counter()

    def add(self, name: str, measured: Callable[[], Any]) -> None:
        """Measure a figure, or note the error."""
        try:
            self[name] = measured()
        except Exception as error:  # noqa: BLE001 - one that fails must not end the others
            self[name] = f"{type(error).__name__}: {str(error)[:400]}"
        self["seconds"] = round(time.perf_counter() - self.began, 1)
        self.file.write_text(json.dumps(self))


# -- samplers ---------------------------------------------------------------------------------------


def samplers(found: Found, chains, leapfrogs, draws, repeats, dump) -> None:
    """Millions of gradients per second."""
    if dump:
        found.add("dump", lambda: _dump(dump, max(chains), leapfrogs, draws))
    for count in sorted(chains, reverse=True):
        found.add(f"{count} chains", lambda n=count: _samplers(n, leapfrogs, draws, repeats))


def _samplers(count: int, leapfrogs: int, draws: int, repeats: int) -> dict[str, Any]:
    runs, failed = {"credax": _credax(cx.HMC, count, leapfrogs, draws)}, {}
    for name, make in {"NumPyro": _numpyro, "hand-written": _by_hand}.items():
        try:
            runs[name] = make(count, leapfrogs, draws)
        except Exception as error:  # noqa: BLE001 - NumPyro need not be installed
            failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return {**_rates(runs, count * leapfrogs * draws, repeats), **failed}


def _rates(runs: dict[str, Callable[[], float]], number: int, repeats: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            times[name].append(run())
    middle = {name: float(np.median(values[1:])) for name, values in times.items()}
    rates = {name: number / value / 1e6 for name, value in middle.items()}
    figures: dict[str, Any] = {
        "millions of gradients per second": rates,
        "seconds": {name: [round(value, 4) for value in values] for name, values in times.items()},
        "microseconds per 1,024 gradients": {name: 1024 / rate for name, rate in rates.items()},
    }
    first = next(iter(rates))
    return {**figures, f"{first} over": {n: rates[first] / r for n, r in rates.items()}}


def _settings(count: int, leapfrogs: int, draws: int) -> dict[str, Any]:
    return {
        "chains": count, "num_warmup": 0, "num_draws": 1, "thin": draws, "step_size": 1e-3,
        "mass": "unit", "num_leapfrog": leapfrogs, "jitter": 0.0,
    }  # fmt: skip


def _credax(method: Any, count: int, leapfrogs: int, draws: int) -> Callable[[], float]:
    x, y = data()
    made = method(**_settings(count, leapfrogs, draws))
    return lambda: cx.fit(model(), (x, y), made, progress=False).info["seconds"]


def _by_hand(count: int, leapfrogs: int, draws: int) -> Callable[[], float]:
    """HMC written by hand for one chain, under ``vmap``."""
    x, y = data()
    value_and_grad = jax.value_and_grad(partial(log_joint, x=x, y=y))
    add = lambda a, b, c: jax.tree.map(lambda a, b: a + c * b, a, b)  # noqa: E731
    kinetic = lambda p: 0.5 * sum(jnp.sum(leaf**2) for leaf in p)  # noqa: E731

    def draw(carry, key):
        position, value, gradient = carry
        momentum_key, accept_key = jax.random.split(key)
        keys = jax.random.split(momentum_key, len(position))
        normal = lambda k, leaf: jax.random.normal(k, leaf.shape)  # noqa: E731
        momentum = [normal(k, leaf) for k, leaf in zip(keys, position, strict=True)]

        def leapfrog(_, carry):
            position, momentum, _, gradient = carry
            half = add(momentum, gradient, 0.5e-3)
            position = add(position, half, 1e-3)
            value, gradient = value_and_grad(position)
            return position, add(half, gradient, 0.5e-3), value, gradient

        end = jax.lax.fori_loop(0, leapfrogs, leapfrog, (position, momentum, value, gradient))
        log_ratio = end[2] - kinetic(end[1]) - value + kinetic(momentum)
        accept = jnp.log(jax.random.uniform(accept_key)) < log_ratio
        new, old = (end[0], end[2], end[3]), carry
        return jax.tree.map(lambda a, b: jnp.where(accept, a, b), new, old), None

    def chain(key, position):
        start = (position, *value_and_grad(position))
        return jax.lax.scan(draw, start, jax.random.split(key, draws))[0]

    run = jax.jit(jax.vmap(chain))
    keys, position = jax.random.split(jax.random.key(1), count), starts(count)
    return lambda: seconds(lambda: run(keys, position))


def _numpyro(count: int, leapfrogs: int, draws: int) -> Callable[[], float]:
    """A compiled loop over NumPyro's kernel for all chains, as ``chain_method="vectorized"`` runs it."""
    from numpyro.infer import HMC

    from benchmarks.sampling_peers import _network

    x, y = (jnp.asarray(array) for array in data())
    sampler = HMC(
        _network,
        step_size=1e-3,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        trajectory_length=None,
        num_steps=leapfrogs,
    )
    keys = jax.random.split(jax.random.PRNGKey(0), count)
    state = sampler.init(keys, 0, None, (x, y), {})
    step = lambda _, state: sampler.sample(state, (x, y), {})  # noqa: E731
    run = jax.jit(lambda state: jax.lax.fori_loop(0, draws, step, state))
    steps = np.asarray(run(state).num_steps)
    if not (steps == leapfrogs).all():
        raise RuntimeError(f"NumPyro took {steps} leapfrog steps instead of {leapfrogs}")
    return lambda: seconds(lambda: run(state))


def _dump(file: str, count: int, leapfrogs: int, draws: int) -> str:
    """Write the optimised program of HMC to a file."""
    from credax.fit import program
    from credax.fit.needs import Parts
    from credax.fit.record import Capacity
    from credax.fit.run import model_and_data

    method = cx.HMC(**_settings(count, leapfrogs, draws))
    bound, rows = model_and_data(model(), data(), None, None)
    rows = jax.tree.map(jnp.asarray, rows)
    parts = Parts.of_shapes(method, bound, None, jax.random.key(0), rows, None, False, None)
    capacity = Capacity.of(method, parts.info, parts.draw)
    steps: Any = program.compiled(method, bound, None, capacity, parts.states, parts.draw)
    bounds = np.int32(0), np.int32(0)
    lowered = steps.func.lower(*steps.args, parts.states, parts.keys, rows, *bounds)
    Path(file).write_text(lowered.compile().as_text())
    return file


# -- layouts ------------------------------------------------------------------------------------------


def by_layout(found: Found, chains, leapfrogs, repeats, made, **_) -> None:
    """Microseconds per 1,024 gradients and the error, for the largest number of chains."""
    count = max(chains)
    x, y = data()
    params = starts(count)
    exact = gradients(layouts(x, y, count)["vmap"]._replace(precision="highest"))(params)
    largest = [jnp.max(jnp.abs(leaf)) for leaf in exact]
    steps = 2 * leapfrogs

    def one(layout):
        found_there = gradients(layout)(params)
        away = [
            float(jnp.max(jnp.abs(a - b)) / scale)
            for a, b, scale in zip(found_there, exact, largest, strict=True)
        ]
        run = trajectory(layout, steps)
        taken = medians({"run": lambda: run(params)}, repeats)["run"]
        return {"microseconds": round(1e6 * taken / steps * 1024 / count, 2), "error": max(away)}

    for name, layout in made(x, y, count).items():
        found.add(name, lambda layout=layout: one(layout))


def kernels(x: Any, y: Any, _: int) -> dict[str, Any]:
    """The kernel with each of its settings; on a CPU, one of them interpreted."""
    if jax.default_backend() == "cpu":
        tiles = list(TILES.items())
        return {
            name: kernel(x, y, tile._replace(interpret=True))
            for name, tile in (tiles[0], tiles[10])
        }
    return {name: kernel(x, y, tile) for name, tile in TILES.items()}


# -- groups of chains in HMC ---------------------------------------------------------------------------


@dataclass(frozen=True)
class InGroups32(cx.HMC):
    """``HMC`` whose chains run in groups, one after the other."""

    layout = 32


@dataclass(frozen=True)
class InGroups64(cx.HMC):
    layout = 64


@dataclass(frozen=True)
class InGroups128(cx.HMC):
    layout = 128


@dataclass(frozen=True)
class InGroups256(cx.HMC):
    layout = 256


def groups(found: Found, chains, leapfrogs, draws, repeats, **_) -> None:
    """``HMC`` as it is, and in groups of chains."""
    count = max(chains)
    methods = {"all at once": cx.HMC}
    for method in (InGroups32, InGroups64, InGroups128, InGroups256):
        if method.layout < count:
            methods[f"groups of {method.layout}"] = method
    runs = {name: _credax(method, count, leapfrogs, draws) for name, method in methods.items()}
    number = count * leapfrogs * draws
    found.add(f"{count} chains", lambda: _rates(runs, number, repeats))


def _part(name: str, file: str, how: dict[str, Any]) -> None:
    found = Found(file)
    if name == "samplers":
        samplers(found, **how)
    elif name == "groups":
        groups(found, **how)
    else:
        by_layout(found, made=layouts if name == "layouts" else kernels, **how)


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    _part(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
