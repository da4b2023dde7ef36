"""The Kronecker-factored Laplace approximation here and in laplace-torch, on the CPU, in one run.

784-1200-1200-10 network, 60,000 rows of 10 classes: the exact generalised Gauss-Newton factors of all rows
and their eigenvectors, at given weights (no training). It needs an environment with ``torch`` and
``laplace-torch``; its default backend (``CurvlinopsGGN``) is measured at several batch sizes, and the fastest
is compared.
Run as ``python -m benchmarks.laplace_peers [rows]``.
"""

import itertools
import json
import sys
import time
import warnings

import jax
import numpy as np

import credax as cx
from credax.inference.laplace import Laplace

SIZES, ROWS = (784, 1200, 1200, 10), 60_000
BATCHES = (500, 2_000)


def measure(rows: int = ROWS, repeats: int = 3) -> dict:
    """Seconds of each, after warming up; they take turns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, SIZES[0])).astype(np.float32)
    y = rng.integers(SIZES[-1], size=rows)
    runs, result = {"credax": _credax(x, y)}, {}
    try:
        runs |= {f"laplace-torch, batches of {size}": _torch(x, y, size) for size in BATCHES}
    except ImportError as error:
        result["absent"] = str(error.name)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(run())
    medians = {name: float(np.median(values)) for name, values in times.items()}
    result |= {"rows": rows, "seconds": medians}
    peers = [seconds for name, seconds in medians.items() if name != "credax"]
    if peers:
        result["fastest peer over credax"] = min(peers) / medians["credax"]
    return result


def _credax(x, y):
    network = cx.networks.mlp(SIZES[1:-1])
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Categorical(SIZES[-1]))
    bound = model.bind((x, y))
    params = bound.init(cx.random.key(0))
    point = cx.approximations.Draws(jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], params))
    start = cx.Posterior(bound, point)

    def run():
        began = time.perf_counter()
        with warnings.catch_warnings(action="ignore"):  # random weights are no mode
            cx.fit(model, (x, y), Laplace("kronecker"), start=start, progress=False)
        return time.perf_counter() - began

    run()  # compiles
    return run


def _torch(x, y, size):
    import torch
    from laplace import Laplace as Peer
    from torch.utils.data import DataLoader, TensorDataset

    layers = []
    for a, b in itertools.pairwise(SIZES):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    loader = DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=size)

    def run():
        peer = Peer(network, "classification", subset_of_weights="all", hessian_structure="kron")
        began = time.perf_counter()
        peer.fit(loader)
        return time.perf_counter() - began

    return run


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=2))
