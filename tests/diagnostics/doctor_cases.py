"""Posteriors with and without planted problems, for the tests of the doctor."""

import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.posterior.approximations import Draws

DENSITY = cx.LogDensity(lambda key: np.zeros(2), lambda params: 0.0)
STEPS = 1000


def posterior(params=None, **info):
    """A posterior of one replica with one draw, unless ``params`` are given; nothing is wrong with it."""
    params = np.zeros((1, 1, 2)) if params is None else np.asarray(params)
    return cx.Posterior(DENSITY, Draws(params), info={"ended": "complete", "steps": 1000, **info})


def settled(replicas=1, steps=1000, level=-50.0, noise=1.0):
    return level + noise * np.random.default_rng(0).normal(size=(replicas, steps))


def rising(replicas=1, steps=1000, level=-50.0, slope=0.01):
    return settled(replicas, steps, level) + slope * np.arange(steps)


def members(spread, count=3):
    noise = np.random.default_rng(2).normal(size=(count, 1, 40))
    return np.linspace(1, 2, 40) + spread * noise


def line(rows=40):
    x = np.linspace(-1, 1, rows)[:, None]
    return x, 2 * x[:, 0] + 0.1 * np.random.default_rng(0).normal(size=rows)


def predicting(likelihood, y, outputs):
    """A posterior whose members are tables of outputs, (member, row, output), and its rows."""
    outputs = np.asarray(outputs, np.float32)
    network = cx.networks.from_function(
        lambda key: {"table": jnp.zeros(outputs.shape[1:])},
        lambda params, x: params["table"][x[:, 0]],
    )
    rows = np.arange(len(y))[:, None]
    model = cx.Model(network, likelihood=likelihood).bind((rows, y))
    return cx.Posterior(model, Draws({"table": outputs[:, None]})), rows


def run(model=DENSITY, params=None, chains=4, warmup=200, **info):
    """Chains without problems after warm-up, unless the arguments say otherwise."""
    rng, steps = np.random.default_rng(3), warmup + STEPS
    figures = {
        "log_joint": rng.normal(size=(chains, steps)),
        "energy": rng.normal(size=(chains, steps)),
        "acceptance_rate": rng.uniform(0.6, 1.0, size=(chains, steps)),
        "diverging": np.zeros((chains, steps)),
        "step_size": np.ones((chains, steps)),
    }
    figures["log_joint"][:, :warmup] -= np.linspace(500, 0, warmup)
    figures["acceptance_rate"][:, :warmup] = 0
    figures["diverging"][:, :warmup] = 1
    params = rng.normal(size=(chains, STEPS, 2)) if params is None else params
    figures |= {"kept": warmup + np.arange(STEPS), "steps": steps, "ended": "complete", **info}
    return cx.Posterior(model, Draws(params), info=figures)


def changed(name, change, **settings):
    """A run in which one figure is changed after warm-up, by a function that modifies it in place."""
    healthy = run(**settings)
    history = np.array(healthy.info[name])
    change(history[:, -STEPS:])
    return run(**settings, **{name: history})


def slow(correlation, chains=4, steps=STEPS):
    rng = np.random.default_rng(5)
    values = rng.normal(size=(chains, steps))
    for t in range(1, steps):
        values[:, t] = correlation * values[:, t - 1] + np.sqrt(1 - correlation**2) * values[:, t]
    return values


def stopped(*which, chains=4):
    params = np.array(run(chains=chains).draws)
    params[list(which)] = params[list(which), :1]
    return params


def weighted(**info):
    draws = Draws(np.random.default_rng(0).normal(size=(1, 500, 2)), (), np.zeros((1, 500)))
    return cx.Posterior(DENSITY, draws, info={"kept": np.arange(0), "ended": "complete", **info})


def network_run(shift=0.0):
    """Chains of a network in which the output bias of chain 1 is shifted."""
    x = np.linspace(-1, 1, 25)[:, None]
    model = cx.Model(cx.networks.mlp([2]), likelihood=cx.likelihoods.Gaussian(0.1)).bind(
        (x, x[:, 0])
    )
    rng = np.random.default_rng(6)
    shapes = {
        "layer_0": {"kernel": (1, 2), "bias": (2,)},
        "layer_1": {"kernel": (2, 1), "bias": (1,)},
    }
    params = {
        layer: {name: rng.normal(size=(4, STEPS, *shape)) for name, shape in leaves.items()}
        for layer, leaves in shapes.items()
    }
    params["layer_1"]["bias"][1] += shift
    return run(model, params), x
