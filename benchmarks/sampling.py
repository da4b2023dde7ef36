"""The cost of a gradient inside ``HMC``, in a hand-written leapfrog loop, and in a loop over BlackJAX's kernel.

The model is an 8-50-1 tanh network with 500 rows; each run makes 50 draws with 32 leapfrog steps per draw.
Step size and mass are given, so that all alternatives do the same arithmetic, and compilation is not counted.
The alternatives batch their chains with ``vmap``, as their users would; the hand-written loop is also run
with one chain after the other, as ``HMC`` does on a CPU. ``collapsed`` is ``HMC`` with the last layer
integrated out.
"""

import json
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from benchmarks.timing import medians

FEATURES, HIDDEN, ROWS, NOISE = 8, 50, 500, 0.1
LEAPFROGS, DRAWS, STEP = 32, 50, 1e-3


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + NOISE * rng.normal(size=ROWS)
    return x, y.astype(np.float32)


def model() -> cx.Model:
    network = cx.networks.mlp([HIDDEN], activation="tanh")
    return cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(NOISE))


def log_joint(params, x, y):
    """The same log joint, up to a constant, written directly."""
    w1, b1, w2, b2 = params
    mean = (jnp.tanh(x @ w1 + b1) @ w2 + b2)[:, 0]
    log_prior = -0.5 * sum(jnp.sum(leaf**2) for leaf in params)
    return log_prior - 0.5 * jnp.sum(((y - mean) / NOISE) ** 2)


def first(key):
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
    keys = jax.random.split(key, len(shapes))
    return [0.3 * jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True)]


def by_hand(x, y, key, params):
    """One chain of ``DRAWS`` draws by a hand-written sampler."""
    value_and_grad = jax.value_and_grad(partial(log_joint, x=x, y=y))
    add = partial(jax.tree.map, lambda a, b, c: a + c * b)

    def draw(carry, key):
        params, value, gradient = carry
        momentum_key, accept_key = jax.random.split(key)
        keys = jax.random.split(momentum_key, len(params))
        momentum = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, params, strict=True)]
        kinetic = lambda p: 0.5 * sum(jnp.sum(leaf**2) for leaf in p)  # noqa: E731

        def leapfrog(_, carry):
            params, momentum, _, gradient = carry
            half = add(momentum, gradient, [0.5 * STEP] * len(params))
            params = add(params, half, [STEP] * len(params))
            value, gradient = value_and_grad(params)
            return params, add(half, gradient, [0.5 * STEP] * len(params)), value, gradient

        start = (params, momentum, value, gradient)
        end = jax.lax.fori_loop(0, LEAPFROGS, leapfrog, start)
        log_ratio = end[2] - kinetic(end[1]) - value + kinetic(momentum)
        accept = jnp.log(jax.random.uniform(accept_key)) < log_ratio
        new = jax.tree.map(
            lambda a, b: jnp.where(accept, a, b),
            (end[0], end[2], end[3]),
            (params, value, gradient),
        )
        return new, new[0]

    start = (params, *value_and_grad(params))
    return jax.lax.scan(draw, start, jax.random.split(key, DRAWS))[1]


def by_blackjax(x, y, key, params):
    """One chain of ``DRAWS`` draws by BlackJAX's kernel."""
    import blackjax  # imported here: it starts JAX, after which cx.use_cores() is no longer possible

    size = sum(leaf.size for leaf in params)
    kernel = blackjax.hmc(partial(log_joint, x=x, y=y), STEP, jnp.ones(size), LEAPFROGS)

    def draw(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    return jax.lax.scan(draw, kernel.init(params), jax.random.split(key, DRAWS))[1]


def measure(chains: tuple[int, ...] = (1, 4, 16), repeats: int = 5) -> dict:
    """Microseconds per gradient and chain, and the ratios of ``HMC`` to the hand-written loops."""
    x, y = data()
    result = {}
    for count in chains:
        method = cx.HMC(
            chains=count, num_warmup=0, num_draws=DRAWS, step_size=STEP, mass="unit",
            num_leapfrog=LEAPFROGS, jitter=0.0,
        )  # fmt: skip
        keys = jax.random.split(jax.random.key(0), count)
        params = jax.vmap(first)(keys)
        batched = lambda chain: jax.jit(jax.vmap(partial(chain, x, y)))  # noqa: E731
        in_turn = jax.jit(lambda *args: jax.lax.map(lambda a: by_hand(x, y, *a), args))
        runs = {
            "credax": partial(_seconds, method, x, y),
            "credax, collapsed": partial(_seconds, replace(method, collapse=True), x, y),
            "hand-written": _timed(batched(by_hand), keys, params),
            "hand-written, in turn": _timed(in_turn, keys, params),
            "BlackJAX": _timed(batched(by_blackjax), keys, params),
        }
        times = {name: [] for name in runs}
        for _ in range(repeats + 1):
            for name, run in runs.items():
                times[name].append(run())
        gradients = count * DRAWS * LEAPFROGS
        each = {name: 1e6 * float(np.median(t[1:])) / gradients for name, t in times.items()}
        result[f"{count} chains"] = {
            "microseconds per gradient and chain": each,
            "credax over hand-written": each["credax"] / each["hand-written"],
            "credax over hand-written, in turn": each["credax"] / each["hand-written, in turn"],
            "collapsed over credax": each["credax, collapsed"] / each["credax"],
        }
    return result


def _seconds(method, x, y):
    return cx.fit(model(), (x, y), method, progress=False).info["seconds"]


def _timed(function, *args):
    return lambda: medians({"run": lambda: function(*args)}, repeats=1)["run"]


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
