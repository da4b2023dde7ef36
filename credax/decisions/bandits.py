r"""Contextual bandits: act, see the reward of that action alone, learn, act again.

Thompson sampling (Thompson, 1933) draws weights from the posterior and does what is best under them,

.. math:: w_t \sim p(w \mid D_t), \qquad a_t = \arg\max_a\, E[r \mid x_t, a, w_t],

so that an action is taken as often as it is likely to be the best: many are tried while little is known, and
fewer and fewer later. Blundell et al. (2015) act so with neural networks. What an agent loses to one who knows
the rewards is its regret,

.. math:: R_T = \sum_{t \le T} \max_a E[r \mid x_t, a] - E[r \mid x_t, a_t].
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.checks import integer, must, number
from credax.core.errors import DivergedError
from credax.core.typing import Array, PyTree
from credax.decisions import agents
from credax.decisions.agents import Buffer, Learner, Player, expected_reward
from credax.decisions.environments import Bandit, World, mushrooms, pick
from credax.fit import fit, next_length
from credax.fit.progress import Bar, deferred_interrupt
from credax.inference.method import Method
from credax.model import Model
from credax.model.data import ArrayData
from credax.posterior import Posterior

__all__ = ["Bandit", "Play", "mushrooms", "play"]

REFIT = 100
"""Interactions between two fits, for methods that do not learn row by row."""
PROBES = 256
"""Contexts that show a model the shapes of the rows it will meet."""


# -- the compiled program -------------------------------------------------------------------------


class Carry(NamedTuple):
    """What goes from one interaction to the next."""

    agent: PyTree
    buffer: Buffer
    contexts: Array  # these three: room for all interactions
    actions: Array
    rewards: Array
    finite: Array


@partial(jax.jit, static_argnames=("agent", "model", "draws"), donate_argnames=("carry",))
def _advance(agent, model, draws, world, epsilon, key, carry, begin, end):
    """Interactions ``begin`` to ``end``. The bounds are traced, so one program serves them all."""

    def interact(step, carry):
        number_key, *draw_keys = jax.random.split(jax.random.fold_in(key, step), 1 + draws)
        numbers = jax.random.uniform(number_key, (4,))
        row, inputs = world.meet(numbers[0])
        rows = jnp.maximum(carry.buffer.rows, 1).astype(jnp.result_type(float))

        def value(key):
            draw, centre = agent.draw(key, carry.agent, model, rows)
            return expected_reward(model, draw, centre, inputs)

        values = jnp.mean(jnp.stack([value(key) for key in draw_keys]), axis=0)
        best = jnp.argmax(values).astype(jnp.int32)
        action = jnp.where(numbers[1] < epsilon, pick(numbers[2], len(inputs)), best)
        reward = world.reward(numbers[3], row, action)
        buffer = carry.buffer.add(inputs[action], reward)
        state, finite = agent.learn(carry.agent, model, buffer, step)
        return Carry(
            state,
            buffer,
            carry.contexts.at[step].set(row),
            carry.actions.at[step].set(action),
            carry.rewards.at[step].set(reward),
            carry.finite & finite & jnp.all(jnp.isfinite(values)),
        )

    return lax.fori_loop(begin, end, interact, carry)


# -- the loop -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Play:
    """What :func:`play` returns.

    Attributes:
      contexts: the row of the bandit that each interaction met.
      actions: what was done.
      rewards: what came of it.
      regret: what was lost on average, summed up to each interaction.
      posterior: the last one, of the reward given a context and an action (a row of ``bandit.inputs(rows)``).
      data: the rows in the buffer, ``(x, y)``, the oldest first.
      seconds: how long it took, without compilation.
    """

    contexts: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    regret: np.ndarray
    posterior: Posterior
    data: tuple[np.ndarray, np.ndarray]
    seconds: float


def play(
    bandit: Bandit,
    model: Model,
    method: Method,
    *,
    num_steps: int = 10_000,
    buffer: int = 4_096,
    updates: int = 1,
    batch_size: int = 64,
    draws: int = 1,
    epsilon: float = 0.0,
    refit: int | None = None,
    key: Any = 0,
    progress: bool = True,
) -> Play:
    """Acts on a bandit by Thompson sampling from the posterior of any method.

    A point estimate (``MAP``) has only one thing to draw: it is the greedy agent, with ``epsilon`` the
    epsilon-greedy one. Methods that climb a gradient (``BayesByBackprop``, ``IVON``, ``DeepEnsemble``, ...)
    learn after every interaction; all others (``Laplace``, ``HMC``, ...) are fitted to the buffer now and then,
    and act by draws of the prior before the first fit.

    Args:
      bandit: the contexts and rewards.
      model: of the reward, given a context and the one-hot code of an action; regression with one target.
      method: how to learn. Where it learns after every interaction, a number for its ``learning_rate`` is held
        constant; a schedule is used as it is, and counts updates.
      num_steps: interactions.
      buffer: how many of the last rows are remembered.
      updates: steps of the method after every interaction.
      batch_size: rows of such a step.
      draws: of the weights, whose expected rewards are averaged for an action: 1 is Thompson sampling, Blundell
        et al. took 2.
      epsilon: the probability of an action at random.
      refit: interactions between two fits to the buffer; ``None``: 100 for methods that need them, else none.
      key: an int or a JAX key. The same key gives the same bits.
      progress: shows a progress bar.

    Returns:
      What there is when it ends: Ctrl-C returns the interactions so far.
    """
    num_steps, capacity, updates, batch_size, draws = (
        integer("play", name, value)
        for name, value in [
            ("num_steps", num_steps),
            ("buffer", buffer),
            ("updates", updates),
            ("batch_size", batch_size),
            ("draws", draws),
        ]
    )
    epsilon = number("play", "epsilon", epsilon, "between 0 and 1")
    if not 0 <= epsilon <= 1:
        raise ValueError(must("play", "epsilon", "between 0 and 1", epsilon))
    refit = None if refit is None else integer("play", "refit", refit)
    _check_arguments(bandit, model, method)
    bound, probes = _prepared(bandit, model)
    _without_batches(method).check(bound, probes)

    key, agent_key, pool_key, fit_key, posterior_key = jax.random.split(random.key(key), 5)
    learner = None
    if refit is None and agents.learns(method, bound, probes):
        online = agents.online(method, num_steps * updates, batch_size)
        learner, state = (
            Learner(online, updates),
            agents.first_states(online, bound, agent_key, probes),
        )
    else:
        refit, state = refit or REFIT, agents.prior_pool(bound, agent_key)
    agent = learner or Player()
    dtype = jnp.result_type(float)
    room = partial(jnp.zeros, num_steps)
    carry = Carry(
        state,
        Buffer.empty(capacity, probes.x.shape[1]),
        room(jnp.int32),
        room(jnp.int32),
        room(dtype),
        jnp.array(True),
    )
    world, rate = World.of(bandit), jnp.asarray(epsilon, dtype)

    def advance(carry, begin, end):
        bounds = np.int32(begin), np.int32(end)
        return jax.block_until_ready(
            _advance(agent, bound, draws, world, rate, key, carry, *bounds)
        )

    def refitted(step):
        rows = carry.buffer.last()
        fitting = _with_rows(method, len(rows[1]))
        return fit(model, rows, fitting, key=jax.random.fold_in(fit_key, step), progress=False)

    def regret(step):
        return np.cumsum(bandit.gaps[carry.contexts[:step], carry.actions[:step]])

    step, length = 0, 1
    with Bar(method, progress, total=num_steps) as bar, deferred_interrupt() as interrupted:
        carry = advance(carry, 0, 0)  # only compiles
        began = time.perf_counter()
        while step < num_steps and not interrupted():
            end = min(step + length, num_steps)
            if refit is not None:
                if step and step % refit == 0:
                    posterior = refitted(step)
                    bound = posterior.model
                    pool = agents.pool(posterior, jax.random.fold_in(pool_key, step))
                    carry = carry._replace(agent=pool)
                end = min(end, (step // refit + 1) * refit)
            clock = time.perf_counter()
            carry = advance(carry, step, end)
            length = next_length(end - step, time.perf_counter() - clock)
            step = end
            if not carry.finite:
                name = type(method).__name__
                raise DivergedError(
                    f"{name} met NaN or infinity before interaction {step}. {method.when_diverged}"
                )
            bar.update(step, {"regret": regret(step)[-1]})
    seconds = time.perf_counter() - began
    if not step:
        raise KeyboardInterrupt("interrupted before the first interaction")
    data = carry.buffer.last()
    if learner is None:
        posterior = refitted(step)
    else:
        posterior = agents.learned(learner.method, bound, carry.agent[1], data, posterior_key)
    seen, done, paid = (
        np.asarray(a)[:step] for a in (carry.contexts, carry.actions, carry.rewards)
    )
    return Play(seen, done, paid, regret(step), posterior, data, seconds)


# -- the checks -----------------------------------------------------------------------------------


def _prepared(bandit: Bandit, model: Model) -> tuple[Model, ArrayData]:
    """The model bound to rows like those to come, and some of these."""
    some = bandit.inputs(np.linspace(0, len(bandit.contexts) - 1, PROBES).astype(int))
    values = bandit.rewards.reshape(-1)
    x = some.reshape(-1, some.shape[2])
    # All rewards that there may be are looked at, and the least and the greatest are among the rows.
    model.likelihood.check_targets(values)
    y = np.resize([values.min(), values.max()], len(x)).astype(values.dtype)
    return model.prepare((x, y))


def _without_batches(method: Any) -> Any:
    return replace(method, batch_size=None) if _has_batches(method) else method


def _with_rows(method: Any, rows: int) -> Any:
    """The method with batches no larger than the data."""
    if not _has_batches(method):
        return method
    return replace(method, batch_size=min(method.batch_size, rows))


def _has_batches(method: Any) -> bool:
    return method.batch_size is not None and "batch_size" in {f.name for f in fields(method)}


def _check_arguments(bandit: Any, model: Any, method: Any) -> None:
    if not isinstance(bandit, Bandit):
        raise TypeError(must("play", "bandit", "a bandits.Bandit", bandit))
    if not isinstance(model, Model):
        raise TypeError(must("play", "model", "a cx.Model", model))
    if not isinstance(method, Method):
        hint = " (with parentheses)" if isinstance(method, type) else ""
        allowed = f"a method such as cx.BayesByBackprop() or cx.MAP(){hint}"
        raise TypeError(must("play", "method", allowed, method))
    if model.likelihood.task == "classification":
        allowed = (
            "one with a likelihood of numbers, e.g. cx.likelihoods.Gaussian(): a reward is a number"
        )
        raise ValueError(must("play", "model", allowed, model.likelihood))
