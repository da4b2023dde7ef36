"""The cost of a step of Bayes by Backprop and IVON relative to ``MAP`` on an accelerator.

The network has six layers of 4096 units and multiplies in bfloat16. Run it on the machine to be measured:
``python -m benchmarks.accelerator``.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx

WIDTH, DEPTH = 4096, 6


def init(key):
    keys = jax.random.split(key, DEPTH)
    shape = (WIDTH, WIDTH)
    return [0.02 * jax.random.normal(k, shape, jnp.float32) for k in keys]


def apply(weights, x):
    z = x.astype(jnp.bfloat16)
    for w in weights[:-1]:
        z = jax.nn.relu(z @ w.astype(jnp.bfloat16))
    return (z @ weights[-1].astype(jnp.bfloat16)[:, :10]).astype(jnp.float32)


def measure(steps: int = 60, repeats: int = 5, batches: tuple[int, ...] = (1024, 8192)) -> dict:
    """Milliseconds per step and the ratio to ``MAP``, for each batch size; the methods alternate."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16_384, WIDTH)).astype(np.float32)
    y = rng.integers(10, size=16_384)
    network = cx.networks.from_function(init, apply)
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Categorical(10))

    result = {}
    for batch in batches:
        shared = {"num_steps": steps, "batch_size": batch, "learning_rate": 1e-4}
        methods = {
            "map": cx.MAP(**shared),
            "weight": cx.BayesByBackprop(**shared),
            "ivon": cx.IVON(**shared),
        }
        times: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(repeats + 1):
            for name, method in methods.items():
                posterior = cx.fit(model, (x, y), method, progress=False)
                times[name].append(1e3 * posterior.info["seconds"] / steps)
        medians = {name: float(np.median(values[1:])) for name, values in times.items()}
        ratios = {name: value / medians["map"] for name, value in medians.items()}
        result[f"batch {batch}"] = {"milliseconds per step": medians, "over map": ratios}
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measure(options.steps, options.repeats), indent=2))
