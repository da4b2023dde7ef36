"""Bayes by Backprop on a 784-1200-1200-10 network, compared with the same algorithm in compiled PyTorch.

Both draw one set of weights per batch of 128 rows, compute the KL divergence to a normal prior in closed
form, and take steps of Adam. Run it where PyTorch is installed: ``python -m benchmarks.torch_peer``.
"""

import itertools
import json
import time

import numpy as np

import credax as cx

SIZES, BATCH, ROWS = (784, 1200, 1200, 10), 128, 10_000


def measure(steps: int = 2_000, repeats: int = 3) -> dict:
    """Milliseconds per step of both, after a warm-up run, and their ratio."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, SIZES[0])).astype(np.float32)
    y = rng.integers(SIZES[-1], size=ROWS)
    torch_step = _torch(x, y)
    times: dict[str, list[float]] = {"credax": [], "torch compiled": []}
    for _ in range(repeats + 1):
        times["credax"].append(_credax(x, y, steps))
        times["torch compiled"].append(torch_step(steps))
    medians = {name: 1e3 * float(np.median(values[1:])) for name, values in times.items()}
    return {
        "milliseconds per step": medians,
        "torch over credax": medians["torch compiled"] / medians["credax"],
    }


def _credax(x, y, steps):
    model = cx.Model(
        cx.networks.mlp(SIZES[1:-1]), cx.priors.Normal(1.0), cx.likelihoods.Categorical()
    )
    method = cx.BayesByBackprop(num_steps=steps, batch_size=BATCH, learning_rate=1e-3)
    return cx.fit(model, (x, y), method, progress=False).info["seconds"] / steps


def _torch(x, y):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.tensor(x, device=device), torch.tensor(y, device=device)
    shapes = list(itertools.pairwise(SIZES))
    means = [0.05 * torch.randn(shape, device=device) for shape in shapes]
    means += [torch.zeros(b, device=device) for _, b in shapes]
    rhos = [torch.full_like(mean, -4.0) for mean in means]
    leaves = [leaf.requires_grad_() for leaf in means + rhos]
    optimiser = torch.optim.Adam(leaves, lr=1e-3, fused=device == "cuda")

    def loss(rows):
        kl, draws = 0.0, []
        for mean, rho in zip(means, rhos, strict=True):
            sigma = torch.nn.functional.softplus(rho)
            draws.append(mean + sigma * torch.randn_like(mean))
            kl = kl + (0.5 * (sigma**2 + mean**2) - torch.log(sigma) - 0.5).sum()
        z = x[rows]
        for i in range(len(shapes)):
            z = z @ draws[i] + draws[len(shapes) + i]
            z = torch.relu(z) if i + 1 < len(shapes) else z
        return torch.nn.functional.cross_entropy(z, y[rows]) + kl / ROWS

    compiled = torch.compile(loss)

    def run(steps):
        began = time.perf_counter()
        for _ in range(steps):
            optimiser.zero_grad(set_to_none=True)
            compiled(torch.randint(ROWS, (BATCH,), device=device)).backward()
            optimiser.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    return run


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
