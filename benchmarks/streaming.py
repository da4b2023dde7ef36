"""Fits on a file that is larger than the memory they use: their peak memory, and their rate relative to arrays.

A ``.npy`` file of some gigabytes is written for the measurement and removed afterwards. The network
784-1200-1200-10 is trained by MAP with batches of 128 rows, from the file and from arrays of 20,000 rows in
memory, which alternate. ``gib_peak`` is the most resident memory of the process after fits on the file, before
the arrays were made; Python, JAX and the compiler take ``gib_before`` of it. Steps are timed without
compilation. ``seconds_until_first_step`` is what precedes them on a file: reading all rows once to check them,
and compilation. The file has just been written, so the system may still hold most of it in memory: the times
are not those of a cold disk. Resident memory includes pages of the file, which the system takes back when
others need them. ``gib_anonymous_before`` and ``gib_anonymous_peak`` leave them out: they are ``RssAnon``
of ``/proc/self/status``, read twenty times per second.

For ``killed``, another process begins the same fit with checkpoints, and is ended by SIGKILL at half of its
steps. A third one goes on from its folder; the first step that it completes is ``resumed_at_step``.
``same_bits`` says whether its weights equal those of the fit that was not interrupted, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import credax as cx
from credax.fit import pace

FEATURES, BATCH = 784, 128


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks streaming")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    return vars(parser.parse_args(arguments))


def measure(gigabytes: float = 4.0, steps: int = 500, repeats: int = 3, hidden: int = 1200) -> dict:
    """The peak memory of fits on a file, and their time per step relative to that of arrays."""
    model, method = _model(hidden), _method(steps)
    warm = np.random.default_rng(0).normal(size=(2 * BATCH, FEATURES)).astype(np.float32)
    labels = np.arange(2 * BATCH) % 10
    cx.fit(model, (warm, labels), method, progress=False, callbacks=lambda event: True)
    before, anonymous_before = _peak(), _anonymous()
    with tempfile.TemporaryDirectory() as folder:
        rows = _write(Path(folder), int(gigabytes * 1e9))
        began = time.perf_counter()
        with _Largest() as anonymous:
            posterior = _fit(model, _source(folder), method)
        first = float(posterior.info["seconds"])
        whole = time.perf_counter() - began
        peak = _peak()
        killed = _killed(Path(folder), steps, hidden, _bytes(posterior))
        x = np.load(Path(folder) / "x.npy", mmap_mode="r")[:20_000].copy()
        y = np.load(Path(folder) / "y.npy")[:20_000]
        times: dict[str, list[float]] = {"file": [], "arrays": []}
        for _ in range(repeats):
            for name, data in (("arrays", (x, y)), ("file", _source(folder))):
                times[name].append(float(_fit(model, data, method).info["seconds"]))
    found = {name: statistics.median(values) for name, values in times.items()}
    return {
        "file": {"gigabytes": gigabytes, "rows": rows},
        "gib_before": before,
        "gib_peak": peak,
        "gib_anonymous_before": anonymous_before,
        "gib_anonymous_peak": anonymous.found,
        "seconds_until_first_step": whole - first,
        **{f"ms_per_step_{name}": 1e3 * value / steps for name, value in found.items()},
        "rate_over_arrays": found["arrays"] / found["file"],
        "killed": killed,
    }


def _model(hidden: int) -> cx.Model:
    likelihood = cx.likelihoods.Categorical(10)
    return cx.Model(cx.networks.mlp([hidden, hidden]), cx.priors.Normal(1.0), likelihood)


def _method(steps: int) -> cx.MAP:
    return cx.MAP(num_steps=steps, batch_size=BATCH, learning_rate=1e-3)


def _source(folder: str | Path) -> cx.sources.Source:
    return cx.sources.arrays(Path(folder) / "x.npy", Path(folder) / "y.npy")


def _fit(model, data, method, **settings: Any) -> cx.Posterior:
    posterior = cx.fit(model, data, method, key=0, progress=False, **settings)
    jax.block_until_ready(jax.tree.leaves(posterior.draws))
    return posterior


def _bytes(posterior: cx.Posterior) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(posterior.draws)]


def _peak() -> float:
    """The most resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _anonymous() -> float:
    """The resident memory of this process without pages of files, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 2**20


class _Largest:
    """The most resident memory without pages of files while a block runs."""

    def __enter__(self) -> _Largest:
        self.found, self._over = _anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.found = max(self.found, _anonymous())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _killed(folder: Path, steps: int, hidden: int, expected: list[bytes]) -> dict[str, Any]:
    """Kill a fit at half of its steps, go on with it, and compare its weights with those expected."""
    killed = _in_process(folder, steps, hidden, until=steps // 2)
    resumed = _in_process(folder, steps, hidden, until=None)
    with np.load(folder / "weights.npz") as file:
        found = [file[name].tobytes() for name in file.files]
    same = found == expected
    return {"at_step": killed[-1], "resumed_at_step": resumed[0], "same_bits": same}


def _in_process(folder: Path, steps: int, hidden: int, until: int | None) -> list[int]:
    """Fit in another process, and kill it at a step; return the steps that it reported."""
    arguments = [str(folder), str(steps), str(hidden)]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.streaming", *arguments]
    seen = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(int(line))
            if until is not None and seen[-1] >= until:
                os.kill(process.pid, signal.SIGKILL)
                break
    if process.returncode != (0 if until is None else -signal.SIGKILL):
        raise RuntimeError(f"the fit in another process ended with status {process.returncode}")
    return seen


def _child(folder: Path, steps: int, hidden: int) -> None:
    """A fit with a checkpoint after every chunk of steps, each of which is printed."""
    pace.SHARE = 1e9

    def tell(event: Any) -> None:
        print(event.step, flush=True)

    posterior = _fit(
        _model(hidden),
        _source(folder),
        _method(steps),
        checkpoint=folder / "checkpoint",
        chunk_steps=max(1, steps // 10),
        callbacks=tell,
    )
    np.savez(folder / "weights.npz", *jax.tree.leaves(posterior.draws))


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


if __name__ == "__main__":
    _child(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
