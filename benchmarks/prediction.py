"""Prediction that accumulates over the draws, compared with ``vmap`` over all draws: time and peak memory."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from benchmarks.timing import medians

ROWS = 100_000


def measure(repeats: int = 3) -> dict:
    """Times for 100 draws of a 20-64-64-1 network at 100,000 rows, and peak memory for 10 and 100 draws."""
    posterior, x = _posterior(100), _rows()

    def streamed():
        return posterior.predict(x).variance

    @jax.jit
    def reduce(draws, x):
        outputs = jax.vmap(lambda params: posterior.model.network.apply(params, x))(draws)
        return outputs.mean(0), outputs.var(0)

    draws = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), posterior.draws)
    times = medians({"streamed": streamed, "vmapped": lambda: reduce(draws, x)}, repeats)
    peaks = {count: _peak(count) for count in (10, 100)}
    return {
        **{f"{name}_seconds": value for name, value in times.items()},
        "vmapped_over_streamed": times["vmapped"] / times["streamed"],
        "peak_mib_10_draws": peaks[10],
        "peak_mib_100_draws": peaks[100],
    }


def _rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 20)).astype(np.float32)


def _posterior(draws: int) -> cx.Posterior:
    model = cx.Model(cx.networks.mlp([64, 64]), likelihood=cx.likelihoods.Gaussian(0.1))
    x = _rows()[:100]
    model = model.bind((x, x[:, 0]))
    keys = jax.random.split(cx.random.key(0), draws)
    params = jax.vmap(model.init)(keys)
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[None], params)
    return cx.Posterior(model, cx.approximations.Draws(params))


def _peak(draws: int) -> float:
    """The peak resident memory, in MiB, of a new process that predicts with this many draws."""
    command = [sys.executable, "-m", "benchmarks.prediction", "--peak", str(draws)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        variance = _posterior(int(sys.argv[2])).predict(_rows()).variance
        assert np.isfinite(variance).all()
        # getrusage would report a peak that is inherited from the parent process.
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")))
    else:
        print(json.dumps(measure(), indent=2))
