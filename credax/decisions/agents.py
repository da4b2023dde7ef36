"""Agents: what they remember, where their draws come from, and how they learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.typing import Array, Draw, Key, PyTree
from credax.decisions.environments import pick
from credax.inference.method import Method, Trace
from credax.model.data import ArrayData, Batch
from credax.posterior import Posterior
from credax.posterior.predictive import applied

POOL = 100
"""Draws of a fitted posterior that an agent picks from until the next fit."""


@partial(jax.tree_util.register_dataclass, data_fields=["x", "y", "written"], meta_fields=[])
@dataclass(frozen=True)
class Buffer:
    """The last rows that an agent saw, as a source of minibatches.

    Attributes:
      x: contexts with the actions taken, ``(capacity, features + actions)``.
      y: their rewards.
      written: how many rows were ever added.
    """

    x: Array
    y: Array
    written: Array

    @classmethod
    def empty(cls, capacity: int, features: int) -> Buffer:
        """Room for so many rows."""
        room = partial(jnp.zeros, dtype=jnp.result_type(float))
        return cls(room((capacity, features)), room(capacity), jnp.zeros((), jnp.int32))

    @property
    def rows(self) -> Array:
        """How many there are."""
        return jnp.minimum(self.written, self.y.shape[0])

    def add(self, x: Array, y: Array) -> Buffer:
        """With one more row, in the place of the oldest where all are taken."""
        place = self.written % self.y.shape[0]
        return Buffer(self.x.at[place].set(x), self.y.at[place].set(y), self.written + 1)

    def batch(self, key: Key, step: Array, size: int) -> Batch:
        """Rows drawn independently, each as likely as any other."""
        chosen = pick(jax.random.uniform(jax.random.fold_in(key, step), (size,)), self.rows)
        scale = self.rows.astype(jnp.result_type(float)) / size
        take = lambda a: a.at[chosen].get(mode="promise_in_bounds")  # noqa: E731
        return Batch(take(self.x), take(self.y), scale, jnp.zeros((), jnp.int32), 1)

    def last(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows on the host, the oldest first."""
        written, capacity = int(self.written), self.y.shape[0]
        places = np.arange(max(0, written - capacity), written) % capacity
        return np.asarray(self.x)[places], np.asarray(self.y)[places]


def expected_reward(model: Any, draw: Draw, centre: Draw | None, x: Array) -> Array:
    """E[r | x, w] of each row under one draw."""
    outputs, learned = applied(model, centre, x)(draw)
    return model.likelihood.mean(outputs, learned)[:, 0]


# -- learning row by row --------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """A learning rate that stays: an agent that goes on learning must not come to rest."""

    rate: float

    def __call__(self, count: Any) -> float:
        """The rate, whatever the step."""
        return self.rate


@dataclass(frozen=True)
class Learner:
    """Trains the states of a method, one step after the other, on what is in the buffer."""

    method: Method
    updates: int

    def draw(self, key: Key, states: Any, model: Any, rows: Array) -> tuple[Any, None]:
        """A draw of one replica, any of them."""
        _, state = states
        if self.method.replicas > 1:
            replica_key, key = jax.random.split(key)
            replica = pick(jax.random.uniform(replica_key), self.method.replicas)
            state = jax.tree.map(lambda leaf: leaf[replica], state)
        return self.method.draw(key, state, model, rows), None

    def learn(self, states: Any, model: Any, buffer: Any, step: Array) -> tuple[Any, Array]:
        """The states after some minibatches, and whether all their figures were finite."""
        keys, states = states

        def one(key, state, number):
            batch_key, step_key = jax.random.split(key)
            batch = self.method.batch(batch_key, model, buffer, number)
            return self.method.step(jax.random.fold_in(step_key, number), state, model, batch)

        step_all = one if self.method.replicas == 1 else jax.vmap(one, in_axes=(0, 0, None))

        def update(i, carry):
            states, finite = carry
            states, info = step_all(keys, states, step * self.updates + i)
            good = [jnp.all(jnp.isfinite(value)) for value in jax.tree.leaves(info)]
            return states, finite & jnp.all(jnp.stack(good))

        states, finite = lax.fori_loop(0, self.updates, update, (states, jnp.array(True)))
        return (keys, states), finite


def learns(method: Method, model: Any, data: ArrayData) -> bool:
    """Whether a state of the method can be drawn from in compiled code."""
    if type(method).draw is Method.draw:
        return False

    def draw(key):
        rows = jnp.ones((), jnp.result_type(float))
        return method.draw(key, method.init(key, model, data), model, rows)

    return jax.eval_shape(draw, random.key(0)) is not None


def online(method: Any, num_steps: int, batch_size: int) -> Any:
    """The method for so many steps on minibatches, at a rate that stays."""
    method = replace(method, num_steps=num_steps, batch_size=batch_size)
    if callable(method.learning_rate):
        return method
    return replace(method, learning_rate=Constant(method.learning_rate))


@partial(jax.jit, static_argnames=("method", "model"))
def first_states(method, model, key, data):
    """A key and a first state for each replica; one alone has no replica axis, which would cost time."""
    keys = jax.random.split(key, method.replicas)
    states = jax.vmap(lambda key: method.init(key, model, data))(keys)
    states = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), states)
    if method.replicas > 1:
        return keys, states
    return jax.tree.map(lambda leaf: leaf[0], (keys, states))


def learned(method: Any, model: Any, states: PyTree, rows: Any, key: Key) -> Posterior:
    """The posterior that the states of a learner stand for."""
    if method.replicas == 1:
        states = jax.tree.map(lambda leaf: leaf[None], states)
    data = ArrayData(*map(jnp.asarray, rows))
    posterior = method.posterior(model, Trace(states, None, {}, data, key))
    return replace(posterior, method=method, info={**posterior.info, "rows": data.rows})


# -- fitted now and then --------------------------------------------------------------------------


@dataclass(frozen=True)
class Player:
    """Plays with a pool of draws of a posterior that was fitted before."""

    def draw(self, key: Key, pool: Any, model: Any, rows: Array) -> tuple[Draw, Draw | None]:
        """One of the pool, and where the network is replaced by its linear expansion."""
        draws, centre = pool
        which = pick(jax.random.uniform(key), POOL)
        return jax.tree.map(lambda leaf: leaf[which], draws), centre

    def learn(self, pool: Any, model: Any, buffer: Buffer, step: Array) -> tuple[Any, Array]:
        """Nothing: that is for the next fit."""
        return pool, jnp.array(True)


@partial(jax.jit, static_argnames=("model",))
def prior_pool(model, key):
    """Draws of the prior: what is known before the first row."""
    params = jax.vmap(model.sample_prior)(jax.random.split(key, POOL))
    repeat = lambda leaf: jnp.broadcast_to(leaf, (POOL, *leaf.shape))  # noqa: E731
    return Draw(params, jax.tree.map(repeat, model.init_state())), None


def pool(posterior: Posterior, key: Key) -> tuple[Draw, Draw | None]:
    """Draws of a posterior, on the device."""
    draws = posterior.approximation.sample(key, POOL)
    centre = posterior.approximation.samples(key, 1).centre
    return jax.device_put((draws, centre))
