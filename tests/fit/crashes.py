"""Runs that crash and go on: a model, two methods, and the comparison of two posteriors bit by bit."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.typing import Draw
from credax.inference import Method
from credax.posterior.approximations import Draws

MODEL = cx.Model(cx.networks.mlp([3]), likelihood=cx.likelihoods.Gaussian(None))
POINT = cx.DeepEnsemble(members=2, num_steps=40, batch_size=8)


class State(NamedTuple):
    params: dict
    accepted: jax.Array


class Info(NamedTuple):
    log_joint: jax.Array
    accepted: jax.Array


@dataclass(frozen=True)
class RandomWalk(Method):
    """A minimal Metropolis sampler, as an example of a method that keeps draws."""

    num_steps: int = 40
    num_warmup: int = 7
    thin: int = 3
    replicas: int = 2
    scale: float = 0.05

    kind = "approximate"
    needs = frozenset()

    def init(self, key, model, data):
        return State(model.init(key), jnp.zeros((), bool))

    def step(self, key, state, model, batch, step):
        proposal_key, accept_key = jax.random.split(key)
        leaves, tree = jax.tree.flatten(state.params)
        keys = jax.random.split(proposal_key, len(leaves))
        moved = [
            w + self.scale * jax.random.normal(k, w.shape, w.dtype)
            for w, k in zip(leaves, keys, strict=True)
        ]
        proposal = jax.tree.unflatten(tree, moved)
        before, after = (model.log_joint(params, batch) for params in (state.params, proposal))
        accepted = jnp.log(jax.random.uniform(accept_key)) < after - before
        params = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), proposal, state.params
        )
        return State(params, accepted), Info(before, accepted)

    def keep(self, state):
        return Draw(state.params)

    def posterior(self, model, trace):
        return cx.Posterior(model, Draws(trace.draws.params))


CHAIN = RandomWalk()
METHODS = pytest.mark.parametrize("method", [POINT, CHAIN], ids=["point", "draws"])


def table(shift=0.0):
    x = np.linspace(-1, 1, 24)[:, None]
    return x, np.sin(3 * x[:, 0]) + shift


def fit(method, folder=None, **arguments):
    given = {"progress": False, "checkpoint": folder, "key": 1, **arguments}
    return cx.fit(MODEL, table(), method, **given)


def same(a, b):
    """Draws, infos and predictions agree bit for bit."""
    assert jax.tree.structure(a.draws) == jax.tree.structure(b.draws)
    for left, right in zip(jax.tree.leaves(a.draws), jax.tree.leaves(b.draws), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert set(a.info) == set(b.info)
    for name in set(a.info) - {"seconds", "compile_seconds"}:
        np.testing.assert_array_equal(a.info[name], b.info[name])
    x = np.linspace(-2, 2, 9)[:, None]
    np.testing.assert_array_equal(a.predict(x).mean, b.predict(x).mean)
    np.testing.assert_array_equal(a.predict(x).epistemic, b.predict(x).epistemic)


class Crash(Exception):
    pass


def crash_at(step):
    def callback(event):
        if event.step >= step:
            raise Crash

    return callback
