"""Bandit agents: the rows they remember, how they sample weights, and how they learn.

:class:`Learner` updates the state of a method after every interaction. :class:`Player` acts by samples of a
posterior that is fitted from time to time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.programs import jit
from credax.core.typing import Array, Draw, Key, PyTree
from credax.decisions.environments import pick
from credax.inference.method import Acting, Method, Trace
from credax.model.data import ArrayData, Batch
from credax.posterior import Posterior
from credax.posterior.mixture import applied

POOL = 100
"""Number of samples of a fitted posterior that an agent chooses from until the next fit."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["x", "y", "written"],
    meta_fields=["count_forgotten"],
)
@dataclass(frozen=True)
class Buffer:
    """A ring buffer of the most recent rows, from which minibatches are drawn.

    Attributes:
      x: contexts followed by one-hot codes of the actions taken, ``(capacity, features + actions)``.
      y: the rewards, ``(capacity,)``.
      written: the number of rows added so far, including those that were overwritten.
      count_forgotten: whether the rows held also stand for those that were overwritten.
    """

    x: Array
    y: Array
    written: Array
    count_forgotten: bool = False

    @classmethod
    def empty(cls, capacity: int, features: int, count_forgotten: bool = False) -> Buffer:
        """A buffer without rows, with room for ``capacity`` of them."""
        room = partial(jnp.zeros, dtype=jnp.result_type(float))
        written = jnp.zeros((), jnp.int32)
        return cls(room((capacity, features)), room(capacity), written, count_forgotten)

    @property
    def rows(self) -> Array:
        """The number of rows held."""
        return jnp.minimum(self.written, self.y.shape[0])

    @property
    def counted(self) -> Array:
        """The number of rows that the likelihood counts."""
        return self.written if self.count_forgotten else self.rows

    def add(self, x: Array, y: Array) -> Buffer:
        """The buffer with one more row, which overwrites the oldest if the buffer is full."""
        place = self.written % self.y.shape[0]
        rows = self.x.at[place].set(x), self.y.at[place].set(y)
        return replace(self, x=rows[0], y=rows[1], written=self.written + 1)

    def numbered(self) -> Buffer:
        """The same rows, with the number of each in place of its inputs and target."""
        numbers = jnp.arange(self.y.shape[0], dtype=jnp.int32)
        return replace(self, x=numbers, y=numbers)

    def batch(self, key: Key, step: Array, size: int) -> Batch:
        """A minibatch of ``size`` rows, drawn uniformly with replacement."""
        chosen = pick(jax.random.uniform(jax.random.fold_in(key, step), (size,)), self.rows)
        scale = self.counted.astype(jnp.result_type(float)) / size
        take = lambda a: a.at[chosen].get(mode="promise_in_bounds")  # noqa: E731
        return Batch(take(self.x), take(self.y), scale, jnp.zeros((), jnp.int32), 1)

    def last(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows as NumPy arrays ``(x, y)``, oldest first."""
        written, capacity = int(self.written), self.y.shape[0]
        places = np.arange(max(0, written - capacity), written) % capacity
        return np.asarray(self.x)[places], np.asarray(self.y)[places]

    def data(self) -> ArrayData:
        """The rows as a data set, in which each of them counts as in a batch."""
        x, y = map(jnp.asarray, self.last())
        if not self.count_forgotten:
            return ArrayData(x, y)
        share = self.counted.astype(y.dtype) / len(y)
        return ArrayData.weighted(x, y, jnp.broadcast_to(share, y.shape))


def expected_reward(model: Any, draw: Draw, centre: Draw | None, x: Array) -> Array:
    """E[r | x, w] of each row for one set of weights w.

    Args:
      model: the model of the reward.
      draw: the weights.
      centre: the weights around which the network is linearised; if ``None``, it is not linearised.
      x: rows of contexts and action codes.
    """
    outputs, learned = applied(model, centre, x)(draw)
    return model.likelihood.mean(outputs, learned)[:, 0]


def best_action(values: Array, uniform: Array) -> Array:
    """The action of the highest value, and one at random among those that share it.

    Where no unit of a rectifier network is active, the values of all actions are equal. An agent that took the
    first of them would never learn what the others are worth.

    Args:
      values: the value of each action.
      uniform: a number in [0, 1) that decides between equal values.
    """
    tied = values == jnp.max(values)
    before = pick(uniform, jnp.sum(tied, dtype=jnp.int32))
    return jnp.argmax(jnp.cumsum(tied, dtype=jnp.int32) > before).astype(jnp.int32)


# -- agents that learn after every interaction ------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """A constant learning-rate schedule, for an agent that must not stop learning."""

    rate: float

    def __call__(self, count: Any) -> float:
        """The rate, the same at every step."""
        return self.rate


@dataclass(frozen=True)
class Learner:
    """Advances the states of a method by minibatch steps on the rows of the buffer.

    Attributes:
      method: a method that can be sampled from while it learns.
      updates: the number of steps after every interaction.
    """

    method: Any  # a Method that is Acting
    updates: int

    def draw(self, key: Key, states: Any, model: Any, rows: Array) -> tuple[Any, None]:
        """A draw from the current state of one replica, chosen at random."""
        _, state = states
        if self.method.replicas > 1:
            replica_key, key = jax.random.split(key)
            replica = pick(jax.random.uniform(replica_key), self.method.replicas)
            state = jax.tree.map(lambda leaf: leaf[replica], state)
        return self.method.draw(key, state, model, rows), None

    def learn(self, states: Any, model: Any, buffer: Any, step: Array) -> tuple[Any, Array]:
        """Take ``updates`` steps.

        Args:
          states: the keys and the states of the replicas.
          model: the model of the reward.
          buffer: the rows to learn from.
          step: the number of interactions before this one, an int32 scalar.

        Returns:
          The keys and the new states, and whether every entry of every step's ``Info`` was finite.
        """
        keys, states = states

        def one(key, state, count):
            batch_key, step_key = jax.random.split(key)
            batch = self.method.batch(batch_key, model, buffer, count)
            return self.method.step(jax.random.fold_in(step_key, count), state, model, batch, count)

        step_all = one if self.method.replicas == 1 else jax.vmap(one, in_axes=(0, 0, None))

        def update(i, carry):
            states, finite = carry
            # The count goes on from one interaction to the next: it is that of all steps so far.
            count = (step * self.updates + i).astype(jnp.int32)
            states, info = step_all(keys, states, count)
            good = [jnp.all(jnp.isfinite(value)) for value in jax.tree.leaves(info)]
            return states, finite & jnp.all(jnp.stack(good))

        states, finite = lax.fori_loop(0, self.updates, update, (states, jnp.array(True)))
        return (keys, states), finite


def learns(method: Method, model: Any, data: ArrayData) -> bool:
    """Whether the method can be sampled from while it learns, for this model."""
    if not isinstance(method, Acting):
        return False

    def draw(key):
        rows = jnp.ones((), jnp.result_type(float))
        return method.draw(key, method.init(key, model, data), model, rows)

    return jax.eval_shape(draw, random.key(0)) is not None


def online(method: Any, num_steps: int, batch_size: int) -> Any:
    """The method with these settings and, if its learning rate is a number, with a constant rate."""
    method = replace(method, num_steps=num_steps, batch_size=batch_size)
    if method.learning_rate is None or callable(method.learning_rate):
        return method
    return replace(method, learning_rate=Constant(method.learning_rate))


@jit(static_argnames=("method", "model"))
def first_states(method, model, key, data):
    """The key and the initial state of each replica.

    A single replica has no replica axis: batching over an axis of length one costs time.
    """
    keys = jax.random.split(key, method.replicas)
    states = jax.vmap(lambda key: method.init(key, model, data))(keys)
    states = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), states)
    if method.replicas > 1:
        return keys, states
    return jax.tree.map(lambda leaf: leaf[0], (keys, states))


def learned(
    method: Any, model: Any, states: PyTree, data: ArrayData, key: Key, steps: int
) -> Posterior:
    """The posterior described by the states of a learner after ``steps`` steps."""
    if method.replicas == 1:
        states = jax.tree.map(lambda leaf: leaf[None], states)
    posterior = method.posterior(model, Trace(states, None, {}, data, key, steps))
    return replace(posterior, method=method, info={**posterior.info, "rows": data.rows})


# -- agents that are refitted from time to time -----------------------------------------------------


@dataclass(frozen=True)
class Player:
    """Acts by samples of the posterior that was fitted last."""

    def draw(self, key: Key, pool: Any, model: Any, rows: Array) -> tuple[Draw, Draw | None]:
        """A random member of the pool, and the centre of linearisation (``None`` if there is none)."""
        draws, centre = pool
        which = pick(jax.random.uniform(key), POOL)
        return jax.tree.map(lambda leaf: leaf[which], draws), centre

    def learn(self, pool: Any, model: Any, buffer: Buffer, step: Array) -> tuple[Any, Array]:
        """Return the pool unchanged: learning happens at the next fit."""
        return pool, jnp.array(True)


@jit(static_argnames=("model",))
def prior_pool(model, key):
    """A pool of samples of the prior, for the interactions before the first fit."""
    params = jax.vmap(model.sample_prior)(jax.random.split(key, POOL))
    repeat = lambda leaf: jnp.broadcast_to(leaf, (POOL, *leaf.shape))  # noqa: E731
    return Draw(params, jax.tree.map(repeat, model.init_state())), None


def pool(posterior: Posterior, key: Key) -> tuple[Draw, Draw | None]:
    """A pool of samples of the posterior and its centre of linearisation, on the device."""
    draws = posterior.approximation.sample(key, POOL)
    centre = posterior.approximation.samples(key, 1).centre
    return jax.device_put((draws, centre))
