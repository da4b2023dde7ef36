"""The overhead of ``cx.fit`` over a hand-written ``lax.scan`` of the same steps, with batches of 128 rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import credax as cx
from benchmarks.timing import medians

BATCH = 128


def measure(small_steps: int = 20_000, large_steps: int = 150, repeats: int = 7) -> dict:
    """Times per step of both loops on a small and on a large network, and their ratios."""
    small = _compare([64, 64], 20, 1, cx.likelihoods.Gaussian(0.1), small_steps, repeats)
    large = _compare([1200, 1200], 784, 10, cx.likelihoods.Categorical(), large_steps, repeats)
    return {"20-64-64-1": small, "784-1200-1200-10": large}


def _compare(hidden, features, outputs, likelihood, steps, repeats):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, features)).astype(np.float32)
    y = rng.integers(outputs, size=10_000) if outputs > 1 else rng.normal(size=10_000)
    model = cx.Model(cx.networks.mlp(hidden), cx.priors.Normal(1.0), likelihood)
    method = cx.MAP(num_steps=steps, batch_size=BATCH)
    bound, data = model.prepare((x, y))
    optimiser = optax.adam(optax.cosine_decay_schedule(method.learning_rate, steps))

    def by_hand():
        key = jax.random.split(cx.random.key(0), 2)
        params = bound.init(key[0])
        return _scan(params, optimiser.init(params), key[1], data.x, data.y)

    @jax.jit
    def _scan(params, state, key, x, y):
        def log_joint(params, x, y):
            layers = [params[f"layer_{i}"] for i in range(len(hidden) + 1)]
            z = x
            for layer in layers[:-1]:
                z = jax.nn.relu(z @ layer["kernel"] + layer["bias"])
            outputs = z @ layers[-1]["kernel"] + layers[-1]["bias"]
            likelihoods = bound.likelihood.log_prob(outputs, y)
            return jnp.sum(likelihoods) * (len(data.x) / BATCH) + bound.prior.log_prob(params)

        def step(carry, i):
            params, state = carry
            count = len(data.x) // BATCH
            epoch = jax.random.fold_in(key, i // count)
            positions = (i % count) * BATCH + jnp.arange(BATCH, dtype=jnp.int32)
            rows = cx.random.shuffled(epoch, positions, len(data.x))
            value, gradient = jax.value_and_grad(log_joint)(params, x[rows], y[rows])
            gradient = jax.tree.map(lambda g: -g / len(data.x), gradient)
            updates, state = optimiser.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), value

        return lax.scan(step, (params, state), jnp.arange(steps, dtype=jnp.int32))

    def by_fit(progress):
        posterior = cx.fit(model, (x, y), method, progress=progress)
        return jax.tree.leaves(posterior.draws)

    times = medians(
        {"scan": by_hand, "fit": lambda: by_fit(False), "fit_with_bar": lambda: by_fit(True)},
        repeats,
    )
    return {
        **{f"{name}_us_per_step": 1e6 * value / steps for name, value in times.items()},
        "fit_over_scan": times["fit"] / times["scan"],
        "bar_over_none": times["fit_with_bar"] / times["fit"],
    }


if __name__ == "__main__":
    import json

    print(json.dumps(measure(), indent=2))
