"""A deep ensemble of 32 members as one batched program, compared with 32 runs one after the other."""

import json
import subprocess
import sys

import jax
import numpy as np

import credax as cx
from benchmarks.timing import medians

MEMBERS = 32


def measure(steps: int = 1_000, repeats: int = 3) -> dict:
    """Times of both on a 20-64-64-1 network, without compilation.

    With 32 rows per batch a single run is limited by the dispatch of small operations; with 128 rows the matrix
    products already occupy two cores, and batching can only remove the remaining overhead. "A core each" is
    measured in a process that called ``cx.use_cores()``.
    """
    return {f"batch {batch}": _compare(batch, steps, repeats) for batch in (32, 128)}


def _compare(batch, steps, repeats):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2_000, 20)), rng.normal(size=2_000)
    model = cx.Model(cx.networks.mlp([64, 64]), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.1))

    def together():
        method = cx.DeepEnsemble(members=MEMBERS, num_steps=steps, batch_size=batch)
        return jax.tree.leaves(cx.fit(model, (x, y), method, progress=False).draws)

    def one_by_one():
        method = cx.MAP(num_steps=steps, batch_size=batch)
        return [
            jax.tree.leaves(cx.fit(model, (x, y), method, key=key, progress=False).draws)
            for key in range(MEMBERS)
        ]

    if len(jax.devices()) > 1:
        return medians({"together": together}, repeats)
    times = medians({"together": together, "one_by_one": one_by_one}, repeats)
    command = [sys.executable, "-m", "benchmarks.ensemble", str(batch), str(steps), str(repeats)]
    side_by_side = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    times["together_a_core_each"] = json.loads(side_by_side)["together"]
    return {
        **{f"{name}_seconds": value for name, value in times.items()},
        "together_over_one_by_one": times["together"] / times["one_by_one"],
        "a_core_each_over_one_by_one": times["together_a_core_each"] / times["one_by_one"],
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        cx.use_cores()
        print(json.dumps(_compare(*map(int, sys.argv[1:]))))
    else:
        print(json.dumps(measure(), indent=2))
