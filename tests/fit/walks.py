"""A method and models that show what the loop of ``fit`` does: a random walk, and a straight line."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.core.typing import Draw
from credax.inference import Method
from credax.posterior.approximations import Draws


class Info(NamedTuple):
    made: jax.Array  # the number of steps so far
    noise: jax.Array
    walk: jax.Array


@dataclass(frozen=True)
class Walk(Method):
    """A random walk. Its draws are the positions after each step."""

    num_steps: int = 23
    replicas: int = 1
    num_warmup: int = 0
    thin: int = 1
    keeps: bool = True
    nan_at: int | None = None
    nan_in: int = 0

    kind = "approximate"
    needs = frozenset()
    when_diverged = "Walk more slowly."

    def init(self, key, model, data):
        return model.init(key)

    def step(self, key, state, model, batch, step):
        noise = jax.random.normal(key)
        if self.nan_at is not None:
            # The replicas start a hundred apart, so their positions tell which one this is.
            here = jnp.round(state / 100) == self.nan_in
            noise = jnp.where(here & (step == self.nan_at), jnp.nan, noise)
        state = state + noise
        return state, Info(step + 1, noise, state)

    def keep(self, state):
        return Draw(state) if self.keeps else None

    def posterior(self, model, trace):
        walk = trace.state[:, None] if trace.draws is None else trace.draws.params
        return cx.Posterior(model, Draws(jax.device_get(walk)))


def zero(key):
    return jnp.zeros(())


def flat(params):
    return -0.5 * params**2


DENSITY = cx.LogDensity(zero, flat)


def walk(method, **arguments):
    return cx.fit(DENSITY, None, method, **{"progress": False, **arguments})


def same(a, b):
    np.testing.assert_array_equal(a.draws, b.draws)
    for name in Info._fields:
        np.testing.assert_array_equal(a.info[name], b.info[name])


def hundred_apart(replicas):
    """A posterior whose draws are a hundred apart, as starting points that identify the replicas."""
    return cx.Posterior(DENSITY, Draws(100 * np.arange(replicas, dtype=np.float32)[:, None]))


def line(key):
    return {"slope": jax.random.normal(key, (1, 1)), "offset": jnp.zeros(1)}


def apply_line(params, x):
    return x @ params["slope"] + params["offset"]


LINE = cx.Model(
    cx.networks.from_function(line, apply_line), likelihood=cx.likelihoods.Gaussian(0.1)
)


def table(rows=50):
    x = np.linspace(-1, 1, rows)[:, None]
    return x, 2 * x[:, 0] + np.random.default_rng(0).normal(0, 0.1, rows)


def run(script, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUMPY_DTYPE_PROMOTION": "strict", **environment},
    )
