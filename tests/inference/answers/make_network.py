"""Makes ``network.json``: the posterior of a small network, with nothing of credax.

The network has one input, four tanh units and one output, and the scale of its noise is learned:

    y_i ~ N(f(x_i), exp(s)^2),  f(x) = sum_j v_j tanh(x u_j + a_j) + b,  u, a, v, b, s ~ N(0, 1)

It has no closed form, so its answers are estimated, in two ways that share neither code nor algorithm:

- NUTS of BlackJAX, on the density as it is written below. These are the answers that are stored.
- Elliptical slice sampling, in NumPy, inside of sequential Monte Carlo from the prior to the posterior. It
  checks the answers and gives the log evidence.

Run it from the root of the repository; it takes about ten minutes on one core:

    .venv/bin/python tests/inference/answers/make_network.py
"""

import json
import sys
from pathlib import Path

import numpy as np
from arviz_stats.base import array_stats

ROWS, UNITS = 20, 4
SIZE = 3 * UNITS + 2
AT = (-3.0, -1.5, 0.0, 1.0, 3.0)
"""The inputs of the predictions: two of them are beyond the data."""
LIMIT = 4.5
"""The largest difference of the two ways, in standard errors."""


def rows():
    """A noisy wave. All numbers are multiples of 1/64, which every float type has."""
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(-2, 2, ROWS))
    y = np.sin(1.5 * x) + 0.3 * generator.normal(size=ROWS)
    return np.round(64 * x) / 64, np.round(64 * y) / 64


def parts(w):
    """u, a, v, b and s, of one vector or of many."""
    u, a, v = (w[..., i * UNITS : (i + 1) * UNITS] for i in range(3))
    return u, a, v, w[..., -2], w[..., -1]


def function(w, x, numpy=np):
    """f at the inputs: the last axis."""
    u, a, v, b, _ = parts(w)
    units = numpy.tanh(x[:, None] * u[..., None, :] + a[..., None, :])
    return (units * v[..., None, :]).sum(-1) + b[..., None]


def log_likelihood(w, x, y, numpy=np):
    s = w[..., -1]
    square = ((y - function(w, x, numpy)) ** 2).sum(-1)
    return -0.5 * square * numpy.exp(-2 * s) - len(y) * (s + 0.5 * np.log(2 * np.pi))


def log_prior(w):
    return -0.5 * (w**2).sum(-1) - 0.5 * SIZE * np.log(2 * np.pi)


def quantities(w, x, y):
    """What does not depend on the order or the signs of the units, one a column."""
    columns = {f"f({at:g})": function(w, np.array([at]))[..., 0] for at in AT}
    columns["log_scale"] = w[..., -1]
    columns["variance"] = np.exp(2 * w[..., -1])
    columns["log_joint"] = log_prior(w) + log_likelihood(w, x, y)
    return columns


# -- NUTS --------------------------------------------------------------------------------------------


def nuts(x, y, chains=8, warmup=2_000, draws=40_000):
    """Draws, ``(chain, draw, weight)``."""
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def log_density(w):
        return log_prior(w) + log_likelihood(w, x, y, jnp)

    def run(key):
        start_key, warmup_key, key = jax.random.split(key, 3)
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, log_density, target_acceptance_rate=0.9
        )
        start = jax.random.normal(start_key, (SIZE,))
        (state, settings), _ = adaptation.run(warmup_key, start, warmup)
        kernel = blackjax.nuts(log_density, **settings)

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(key, draws))[1]

    # One chain after the other: together each step would wait for the longest trajectory.
    positions, divergent = jax.lax.map(run, jax.random.split(jax.random.key(0), chains))
    return np.asarray(positions), int(divergent.sum())


# -- sequential Monte Carlo with elliptical slices -----------------------------------------------------


def slices(generator, w, log_density):
    """One update of every row of ``w`` under a standard normal prior (Murray, Adams & MacKay, 2010)."""
    around = generator.normal(size=w.shape)
    level = log_density(w) + np.log(generator.uniform(size=len(w)))
    angle = generator.uniform(0, 2 * np.pi, len(w))
    low, high = angle - 2 * np.pi, angle.copy()
    result, open_ = w.copy(), np.arange(len(w))
    while len(open_):
        t = angle[open_, None]
        proposal = w[open_] * np.cos(t) + around[open_] * np.sin(t)
        found = log_density(proposal) > level[open_]
        result[open_[found]] = proposal[found]
        open_ = open_[~found]
        below = angle[open_] < 0
        low[open_] = np.where(below, angle[open_], low[open_])
        high[open_] = np.where(below, high[open_], angle[open_])
        angle[open_] = generator.uniform(low[open_], high[open_])
    return result


def tempered(x, y, seed, particles=4_000, moves=10, last=60):
    """Particles, with the quantities averaged over the last moves, and the log evidence."""
    generator = np.random.default_rng(seed)
    w = generator.normal(size=(particles, SIZE))
    power, log_evidence = 0.0, 0.0
    while power < 1:
        value = log_likelihood(w, x, y)
        low, high = 0.0, 1 - power
        for _ in range(60):
            middle = (low + high) / 2
            weights = np.exp(middle * (value - value.max()))
            enough = weights.sum() ** 2 / (weights**2).sum() > 0.8 * particles
            low, high = (middle, high) if enough else (low, middle)
        step = high if high < 1 - power - 1e-9 else 1 - power
        scaled = step * value
        weights = np.exp(scaled - scaled.max())
        log_evidence += scaled.max() + np.log(weights.mean())
        points = (np.arange(particles) + generator.uniform()) / particles
        chosen = np.searchsorted(np.cumsum(weights) / weights.sum(), points)
        w, power = w[np.minimum(chosen, particles - 1)], power + step
        for _ in range(moves):
            w = slices(generator, w, lambda v, p=power: p * log_likelihood(v, x, y))
    kept = []
    for _ in range(last):
        for _ in range(5):
            w = slices(generator, w, lambda v: log_likelihood(v, x, y))
        kept.append(w)
    return np.concatenate(kept), log_evidence


def spread(values):
    """Mean and standard error of independent runs."""
    values = np.asarray(values)
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def main():
    x, y = rows()
    draws, divergent = nuts(x, y)
    answers = {}
    for name, values in quantities(draws, x, y).items():
        ess = {
            kind: float(array_stats.ess(values, chain_axis=0, draw_axis=1, method=kind))
            for kind in ("mean", "sd")
        }
        squares = (values - values.mean()) ** 2
        sd = float(values.std())
        answers[name] = {
            "mean": float(values.mean()),
            "mean_error": sd / ess["mean"] ** 0.5,
            "sd": sd,
            "sd_error": float(squares.std() / (2 * sd) / ess["sd"] ** 0.5),
            "ess": round(min(ess.values())),
            "rhat": round(float(array_stats.rhat(values, chain_axis=0, draw_axis=1)), 5),
        }
        print(name, answers[name], flush=True)
    print("divergent", divergent)

    runs = [tempered(x, y, seed) for seed in range(10)]
    check = [quantities(w, x, y) for w, _ in runs]
    worst = 0.0
    for name, answer in answers.items():
        for kind, of in (("mean", np.mean), ("sd", np.std)):
            value, error = spread([of(columns[name]) for columns in check])
            z = (value - answer[kind]) / np.hypot(error, answer[f"{kind}_error"])
            worst = max(worst, abs(float(z)))
            print(f"{name} {kind}: {answer[kind]:.4f} and {value:.4f}, z = {z:.2f}", flush=True)
    # The mean of the evidence is unbiased, that of its logarithm is not.
    log_evidences = np.array([log_evidence for _, log_evidence in runs])
    relative, error = spread(np.exp(log_evidences - log_evidences.max()))
    log_evidence = log_evidences.max() + np.log(relative)
    print("log evidence", log_evidence, error / relative)
    if worst > LIMIT:
        sys.exit(f"The two ways differ by {worst:.1f} standard errors: nothing is stored.")

    stored = {
        "made_by": "make_network.py",
        "x": x.tolist(),
        "y": y.tolist(),
        "at": list(AT),
        "draws": list(draws.shape[:2]),
        "divergent": divergent,
        "worst_z_of_the_check": round(worst, 2),
        "log_evidence": [float(log_evidence), float(error / relative)],
        "quantities": answers,
    }
    path = Path(__file__).with_name("network.json")
    path.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
