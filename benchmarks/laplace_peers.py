"""The Kronecker-factored Laplace approximation of credax and of laplace-torch, on the CPU, in one run.

A 784-1200-1200-10 network is trained on the 60,000 images of MNIST (``MAP``, 3,000 steps of 128 rows). Both
libraries then compute the generalised Gauss-Newton factors of all rows and their eigenvectors at these
weights. credax skips terms that are lost in rounding, of which there are many at a mode, so it is also
measured at random weights, where there are none. The benchmark needs an environment with ``torch`` and
``laplace-torch``, whose default backend (``CurvlinopsGGN``) is measured at two batch sizes; the faster one is
compared.

Run as ``python -m benchmarks laplace_peers``. ``CREDAX_DATA`` is the folder that contains ``mnist/``.
"""

import itertools
import json
import os
import time
import warnings
from pathlib import Path

import jax
import numpy as np

import credax as cx
from benchmarks.pruning import mnist

SIZES, ROWS = (784, 1200, 1200, 10), 60_000
BATCHES = (500, 2_000)


def measure(repeats: int = 2) -> dict:
    """Seconds of each alternative, after a warm-up run; the alternatives alternate."""
    folder = Path(os.environ.get("CREDAX_DATA", "../shared/data")) / "mnist"
    (x, y), _ = mnist(folder, ROWS)
    model = cx.Model(
        cx.networks.mlp(SIZES[1:-1]), cx.priors.Normal(1.0), cx.likelihoods.Categorical(SIZES[-1])
    )
    ascent = cx.MAP(num_steps=3_000, batch_size=128, learning_rate=1e-3)
    mode = cx.fit(model, (x, y), ascent, progress=False)
    first = mode.model.init(cx.random.key(0))
    point = cx.approximations.Draws(jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], first))
    runs = {
        "credax": _credax(model, x, y, mode),
        "credax, random weights": _credax(model, x, y, cx.Posterior(mode.model, point)),
    }
    result: dict = {"rows": len(x)}
    try:
        runs |= {
            f"laplace-torch, batches of {size}": _torch(x, y, mode.draws, size) for size in BATCHES
        }
    except ImportError as error:
        result["absent"] = str(error.name)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(run())
    medians = {name: float(np.median(values)) for name, values in times.items()}
    result["seconds"] = medians
    peers = [seconds for name, seconds in medians.items() if "torch" in name]
    for name in runs:
        if peers and "credax" in name:
            result[f"fastest peer over {name}"] = min(peers) / medians[name]
    return result


def _credax(model, x, y, start):
    def run():
        began = time.perf_counter()
        with warnings.catch_warnings(action="ignore"):  # random weights are not a mode
            cx.fit(model, (x, y), cx.Laplace("kronecker"), start=start, progress=False)
        return time.perf_counter() - began

    run()  # compiles
    return run


def _torch(x, y, draws, size):
    import torch
    from laplace import Laplace as Peer
    from torch.utils.data import DataLoader, TensorDataset

    layers = []
    for (a, b), weights in zip(itertools.pairwise(SIZES), draws.values(), strict=True):
        layer = torch.nn.Linear(a, b)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(np.asarray(weights["kernel"])[0, 0].T))
            layer.bias.copy_(torch.tensor(np.asarray(weights["bias"])[0, 0]))
        layers += [layer, torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    loader = DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y).long()), batch_size=size)

    def run():
        peer = Peer(network, "classification", subset_of_weights="all", hessian_structure="kron")
        began = time.perf_counter()
        peer.fit(loader)
        return time.perf_counter() - began

    return run


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
