"""Fits on a file that is larger than the memory they use: their peak memory, and their rate relative to arrays.

A ``.npy`` file of some gigabytes is written for the measurement and removed afterwards. The network
784-1200-1200-10 is trained by MAP with batches of 128 rows, from the file and from arrays of 20,000 rows in
memory, which alternate. ``gib_peak`` is the most resident memory of the process after fits on the file, before
the arrays were made; Python, JAX and the compiler take ``gib_before`` of it. Steps are timed without
compilation. ``seconds_until_first_step`` is what precedes them on a file: reading all rows once to check them,
and compilation.
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import credax as cx

FEATURES, BATCH = 784, 128


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks streaming")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    return vars(parser.parse_args(arguments))


def measure(gigabytes: float = 4.0, steps: int = 500, repeats: int = 3, hidden: int = 1200) -> dict:
    """The peak memory of fits on a file, and their time per step relative to that of arrays."""
    likelihood = cx.likelihoods.Categorical(10)
    model = cx.Model(cx.networks.mlp([hidden, hidden]), cx.priors.Normal(1.0), likelihood)
    method = cx.MAP(num_steps=steps, batch_size=BATCH, learning_rate=1e-3)
    warm = np.random.default_rng(0).normal(size=(2 * BATCH, FEATURES)).astype(np.float32)
    labels = np.arange(2 * BATCH) % 10
    cx.fit(model, (warm, labels), method, progress=False, callbacks=lambda event: True)
    before = _peak()
    with tempfile.TemporaryDirectory() as folder:
        rows = _write(Path(folder), int(gigabytes * 1e9))
        began = time.perf_counter()
        first = _seconds(model, _source(folder), method)
        whole = time.perf_counter() - began
        peak = _peak()
        x = np.load(Path(folder) / "x.npy", mmap_mode="r")[:20_000].copy()
        y = np.load(Path(folder) / "y.npy")[:20_000]
        times: dict[str, list[float]] = {"file": [], "arrays": []}
        for _ in range(repeats):
            times["arrays"].append(_seconds(model, (x, y), method))
            times["file"].append(_seconds(model, _source(folder), method))
    found = {name: statistics.median(values) for name, values in times.items()}
    return {
        "file": {"gigabytes": gigabytes, "rows": rows},
        "gib_before": before,
        "gib_peak": peak,
        "seconds_until_first_step": whole - first,
        **{f"ms_per_step_{name}": 1e3 * value / steps for name, value in found.items()},
        "rate_over_arrays": found["arrays"] / found["file"],
    }


def _source(folder: str) -> cx.sources.Source:
    return cx.sources.arrays(Path(folder) / "x.npy", Path(folder) / "y.npy")


def _seconds(model, data, method) -> float:
    posterior = cx.fit(model, data, method, progress=False)
    jax.block_until_ready(jax.tree.leaves(posterior.draws))
    return float(posterior.info["seconds"])


def _peak() -> float:
    """The most resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _write(folder: Path, size: int) -> int:
    """Write the inputs and the labels, piece by piece; return the number of rows."""
    generator = np.random.default_rng(1)
    piece = generator.normal(size=(8192, FEATURES)).astype(np.float32)
    rows = max(4 * BATCH, size // (4 * FEATURES))
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, FEATURES)}
    with open(folder / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for begin in range(0, rows, len(piece)):
            part = np.roll(piece, begin // len(piece), axis=1)[: rows - begin]
            file.write(np.ascontiguousarray(part).data)
    np.save(folder / "y.npy", generator.integers(10, size=rows))
    return rows
