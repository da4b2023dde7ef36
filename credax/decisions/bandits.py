r"""Contextual bandits: choose an action, observe the reward of that action only, learn, and repeat.

Thompson sampling (Thompson, 1933) samples weights from the posterior and takes the action that is best under
them,

.. math:: w_t \sim p(w \mid D_t), \qquad a_t = \arg\max_a\, E[r \mid x_t, a, w_t],

so that each action is taken with the posterior probability that it is the best. The agent explores while the
posterior is wide and explores less as it narrows. Blundell et al. (2015) do this with neural networks. The
regret of an agent is what it loses in expectation against one who knows the reward distributions,

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
from credax.core.settings import flag
from credax.core.typing import Array, PyTree
from credax.decisions import agents
from credax.decisions.agents import Buffer, Learner, Player, best_action, expected_reward
from credax.decisions.environments import Bandit, World, mushrooms, pick
from credax.fit import fit, next_length
from credax.fit.progress import Bar, deferred_signals
from credax.inference.method import Method
from credax.model import Model
from credax.model.data import ArrayData
from credax.posterior import Posterior

__all__ = ["Bandit", "Play", "mushrooms", "play"]

REFIT = 100
"""Default number of interactions between two fits, for methods that cannot act while they learn."""
PROBES = 256
"""Number of contexts that are used to bind the model to the shapes of the data."""


# -- the compiled program -------------------------------------------------------------------------


class Carry(NamedTuple):
    """What one interaction passes on to the next."""

    agent: PyTree
    buffer: Buffer
    contexts: Array  # contexts, actions and rewards have one entry per interaction of the whole run
    actions: Array
    rewards: Array
    finite: Array


@partial(jax.jit, static_argnames=("agent", "model", "draws"), donate_argnames=("carry",))
def _advance(agent, model, draws, world, epsilon, key, carry, begin, end):
    """Run interactions ``begin`` to ``end``; the bounds are traced, so one program serves all chunks."""

    def interact(step, carry):
        number_key, *draw_keys = jax.random.split(jax.random.fold_in(key, step), 1 + draws)
        numbers = jax.random.uniform(number_key, (4,))
        row, inputs = world.meet(numbers[0])
        rows = jnp.maximum(carry.buffer.counted, 1).astype(jnp.result_type(float))

        def value(key):
            draw, centre = agent.draw(key, carry.agent, model, rows)
            return expected_reward(model, draw, centre, inputs)

        values = jnp.mean(jnp.stack([value(key) for key in draw_keys]), axis=0)
        best = best_action(values, numbers[2])
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


@dataclass(frozen=True, eq=False, repr=False)
class Play:
    """The result of :func:`play`; the first four attributes have one entry per interaction.

    Attributes:
      contexts: the index of the context, a row of ``bandit.contexts``.
      actions: the action taken.
      rewards: the reward received.
      regret: the cumulative expected regret.
      posterior: the final posterior of the reward given a context and an action (a row of
        ``bandit.inputs(rows)``).
      data: the rows left in the buffer, ``(x, y)``, oldest first.
      seconds: the run time, without compilation.
    """

    contexts: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    regret: np.ndarray
    posterior: Posterior
    data: tuple[np.ndarray, np.ndarray]
    seconds: float

    def __repr__(self) -> str:
        return (
            f"Play({len(self.actions):,} interactions, mean reward {self.rewards.mean():.4g}, "
            f"regret {self.regret[-1]:,.4g}, {self.seconds:.3g} s)"
        )


def play(
    bandit: Bandit,
    model: Model,
    method: Method,
    *,
    num_steps: int = 10_000,
    buffer: int = 4_096,
    count_forgotten: bool = False,
    updates: int = 1,
    batch_size: int = 64,
    draws: int = 1,
    epsilon: float = 0.0,
    refit: int | None = None,
    key: Any = 0,
    progress: bool = True,
) -> Play:
    """Play a bandit by Thompson sampling from the posterior of any method.

    Methods that can be sampled from while they learn (``BayesByBackprop``, ``IVON``, ``DeepEnsemble``,
    ``MAP``, ...) take some steps after every interaction. All others (``Laplace``, ``HMC``, ...) are fitted to
    the buffer from time to time, and act by samples of the prior before the first fit. With a point estimate
    such as ``MAP`` every sample is the same: the agent is greedy, or epsilon-greedy with ``epsilon``.

    Args:
      bandit: the contexts and the distributions of the rewards.
      model: a regression model with one target, the reward. Its inputs are a context followed by the one-hot
        code of an action.
      method: the inference method. If it learns after every interaction, a ``learning_rate`` that is a number
        is held constant; one that is a schedule, or ``None``, is that of the number of steps taken so far.
      num_steps: the number of interactions.
      buffer: the number of most recent rows that are remembered.
      count_forgotten: whether the rows in the buffer also stand for those that it no longer holds. The
        likelihood then counts as many rows as were seen, so that the posterior goes on narrowing, and the agent
        explores less and less. Without it, the posterior is that of the rows in the buffer, which never
        narrows further. For methods that learn after every interaction.
      updates: the number of steps of the method after every interaction.
      batch_size: the number of rows per such step.
      draws: the number of weight samples whose expected rewards are averaged to choose an action. One is
        Thompson sampling; Blundell et al. used two.
      epsilon: the probability of taking a uniformly random action instead.
      refit: the number of interactions between two fits to the buffer. If ``None``, methods that can act while
        they learn are not refitted, and all others are refitted every 100 interactions.
      key: an int or a JAX key. The same key gives bit-identical results.
      progress: whether to show a progress bar.

    Returns:
      The record of the run. After Ctrl-C it holds the interactions so far.
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
    count_forgotten = flag("play", "count_forgotten", count_forgotten)
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
    elif count_forgotten:
        allowed = "False for an agent that is refitted, whose posterior is that of the rows held"
        raise ValueError(must("play", "count_forgotten", allowed, True))
    else:
        refit, state = refit or REFIT, agents.prior_pool(bound, agent_key)
    agent = learner or Player()
    dtype = jnp.result_type(float)
    room = partial(jnp.zeros, num_steps)
    carry = Carry(
        state,
        Buffer.empty(capacity, probes.x.shape[1], count_forgotten),
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
    with Bar(method, progress, total=num_steps) as bar, deferred_signals() as interrupted:
        carry = advance(carry, 0, 0)  # an empty range: compiles the program before the clock starts
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
        steps, states = step * updates, carry.agent[1]
        rows = carry.buffer.data()
        posterior = agents.learned(learner.method, bound, states, rows, posterior_key, steps)
    seen, done, paid = (
        np.asarray(a)[:step] for a in (carry.contexts, carry.actions, carry.rewards)
    )
    return Play(seen, done, paid, regret(step), posterior, data, seconds)


# -- the checks -----------------------------------------------------------------------------------


def _prepared(bandit: Bandit, model: Model) -> tuple[Model, ArrayData]:
    """The model bound to the shapes of the data, and example rows of those shapes."""
    some = bandit.inputs(np.linspace(0, len(bandit.contexts) - 1, PROBES).astype(int))
    values = bandit.rewards.reshape(-1)
    x = some.reshape(-1, some.shape[2])
    # All possible rewards are checked; the smallest and the largest are the targets of the example rows.
    model.likelihood.check_targets(values)
    y = np.resize([values.min(), values.max()], len(x)).astype(values.dtype)
    return model.prepare((x, y))


def _without_batches(method: Any) -> Any:
    return replace(method, batch_size=None) if _has_batches(method) else method


def _with_rows(method: Any, rows: int) -> Any:
    """The method with a batch size of at most ``rows``."""
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
    if model.standardise:
        allowed = (
            "a model with standardise=False: the scale of the rewards is not known at the start"
        )
        raise ValueError(must("play", "model", allowed, model.standardise))
    if model.likelihood.task == "classification":
        allowed = (
            "a regression model, e.g. with cx.likelihoods.Gaussian(), since a reward is a number"
        )
        raise ValueError(must("play", "model", allowed, model.likelihood))
