"""The cost of a step of variational inference in credax and in PyTorch libraries, on the CPU, in one run.

All train a 784-1200-1200-10 network with batches of 128 rows, Adam and one draw of the weights per step. It
needs an environment with ``torch``, ``bayesian-torch``, ``blitz-bayesian-pytorch``, ``torchbnn`` and
``ivon-opt``; libraries that are not installed are left out and listed as absent. Run as ``python -m
benchmarks.variational_peers``.
"""

import itertools
import json
import time

import numpy as np

import credax as cx

SIZES, BATCH, ROWS = (784, 1200, 1200, 10), 128, 10_000


def measure(steps: int = 40, repeats: int = 5) -> dict:
    """Milliseconds per step, after a warm-up run; the alternatives alternate."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, SIZES[0])).astype(np.float32)
    y = rng.integers(SIZES[-1], size=ROWS)
    shared = {"num_steps": steps, "batch_size": BATCH, "learning_rate": 1e-3}
    runs = {
        f"credax {name}": _credax(method, x, y)
        for name, method in {
            "MAP": cx.MAP(**shared),
            "weight": cx.BayesByBackprop(**shared),
            "flipout": cx.BayesByBackprop(estimator="flipout", **shared),
            "IVON": cx.IVON(**shared),
        }.items()
    }
    absent = []
    for name, make in TORCH.items():
        try:
            runs[name] = make(x, y, steps)
        except ImportError as error:
            absent.append(f"{name} ({error.name})")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            times[name].append(run())
    medians = {name: 1e3 * float(np.median(values[1:])) for name, values in times.items()}
    peers = [medians[name] for name in PEERS if name in medians]
    result = {"milliseconds per step": medians, "absent": ", ".join(absent) or "none"}
    if peers:
        result["fastest peer over credax weight"] = min(peers) / medians["credax weight"]
    if "ivon-opt" in medians:
        result["ivon-opt over credax IVON"] = medians["ivon-opt"] / medians["credax IVON"]
    return result


def _credax(method, x, y):
    hidden = SIZES[1:-1]
    model = cx.Model(cx.networks.mlp(hidden), cx.priors.Normal(1.0), cx.likelihoods.Categorical())

    def run():
        posterior = cx.fit(model, (x, y), method, progress=False)
        return posterior.info["seconds"] / method.num_steps

    return run


def _torch_loop(network, kl, x, y, steps, optimiser=None, sampled=None):
    """A function that times a plain training loop.

    ``sampled`` is a context manager for the loss, used by an optimiser that perturbs the weights.
    """
    import contextlib

    import torch

    x, y = torch.tensor(x), torch.tensor(y)
    optimiser = optimiser or torch.optim.Adam(network.parameters(), lr=1e-3)
    sampled = sampled or contextlib.nullcontext

    def run():
        began = time.perf_counter()
        for _ in range(steps):
            rows = torch.randint(ROWS, (BATCH,))
            optimiser.zero_grad()
            with sampled():
                outputs = network(x[rows])
                outputs = outputs[0] if isinstance(outputs, tuple) else outputs
                loss = torch.nn.functional.cross_entropy(outputs, y[rows]) + kl(network) / ROWS
                loss.backward()
            optimiser.step()
        return (time.perf_counter() - began) / steps

    return run


def _sequential(layer):
    import torch

    layers = []
    for a, b in itertools.pairwise(SIZES):
        layers += [layer(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def _deterministic(x, y, steps):
    import torch

    return _torch_loop(_sequential(torch.nn.Linear), lambda network: 0.0, x, y, steps)


def _torchbnn(x, y, steps):
    import torchbnn

    def layer(a, b):
        return torchbnn.BayesLinear(prior_mu=0, prior_sigma=1.0, in_features=a, out_features=b)

    divergence = torchbnn.BKLLoss(reduction="sum", last_layer_only=False)
    return _torch_loop(_sequential(layer), lambda network: divergence(network).sum(), x, y, steps)


def _bayesian_torch(flipout):
    def make(x, y, steps):
        if flipout:
            from bayesian_torch.layers.flipout_layers.linear_flipout import LinearFlipout as Layer
        else:
            from bayesian_torch.layers.variational_layers.linear_variational import (
                LinearReparameterization as Layer,
            )
        import torch

        class Network(torch.nn.Module):
            def __init__(self):
                super().__init__()
                shapes = itertools.pairwise(SIZES)
                self.layers = torch.nn.ModuleList([Layer(a, b) for a, b in shapes])

            def forward(self, z):
                self.kl = 0.0
                for i, layer in enumerate(self.layers):
                    z, kl = layer(z)
                    self.kl = self.kl + kl
                    z = torch.relu(z) if i + 1 < len(self.layers) else z
                return z

        return _torch_loop(Network(), lambda network: network.kl, x, y, steps)

    return make


def _blitz(x, y, steps):
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianLinear

    return _torch_loop(_sequential(BayesianLinear), kl_divergence_from_nn, x, y, steps)


def _ivon(x, y, steps):
    import ivon
    import torch

    network = _sequential(torch.nn.Linear)
    optimiser = ivon.IVON(network.parameters(), lr=0.1, ess=ROWS)

    def sampled():
        return optimiser.sampled_params(train=True)

    return _torch_loop(network, lambda network: 0.0, x, y, steps, optimiser, sampled)


TORCH = {
    "torch deterministic": _deterministic,
    "torchbnn": _torchbnn,
    "bayesian-torch": _bayesian_torch(flipout=False),
    "bayesian-torch flipout": _bayesian_torch(flipout=True),
    "BLiTZ": _blitz,
    "ivon-opt": _ivon,
}
PEERS = ("torchbnn", "bayesian-torch", "BLiTZ")


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
