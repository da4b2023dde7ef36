"""Point estimates: one best set of weights instead of a distribution over weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from credax.core.checks import integer
from credax.core.settings import optional, setting
from credax.core.typing import Array, Draw, NetworkState, Params
from credax.inference import noise
from credax.inference.method import Ability, Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.posterior import Posterior
from credax.posterior.approximations import Draws


class State(NamedTuple):
    """The state of gradient ascent."""

    params: Params
    network: NetworkState
    optimiser: Any


class LikelihoodInfo(NamedTuple):
    """The info of a step of maximum likelihood."""

    log_likelihood: Array  # minibatch estimate, at the parameters before the step


class JointInfo(NamedTuple):
    """The info of a step of maximum a posteriori."""

    log_joint: Array  # minibatch estimate, at the parameters before the step


def start(method: Any, key, model) -> State:
    """The first state of gradient ascent with the method's optimiser."""
    params = model.init(key)
    return State(params, model.init_state(), make_optimiser(method).init(params))


def slope(key, state: State, objective, batch) -> tuple[Array, NetworkState, Params]:
    """The value of ``objective``, the network's next state, and the gradient of the loss.

    The loss is minus the objective divided by the number of rows, so that the same learning rate suits small
    and large data sets.
    """
    per_row = 1.0 if batch is None else 1 / batch.total
    evaluate = jax.value_and_grad(objective, has_aux=True)
    (value, network), gradient = evaluate(state.params, batch, state.network, key)
    return value, network, jax.tree.map(lambda g: -g * jnp.asarray(per_row, g.dtype), gradient)


def ascend(method: Any, key, state: State, objective, batch) -> tuple[State, Array]:
    """Take one optimiser step that increases ``objective``; also return its value before the step."""
    value, network, descent = slope(key, state, objective, batch)
    updates, optimiser = make_optimiser(method).update(descent, state.optimiser, state.params)
    return State(optax.apply_updates(state.params, updates), network, optimiser), value


def ascend_marginal(
    method: Any, key, state: State, spread, model, batch, step, objective=None
) -> tuple[State, Any, Array]:
    """As :func:`ascend`, with the term that makes the noise maximise its marginal likelihood.

    Args:
      method: the method with the optimiser.
      key: a JAX key.
      state: the state before the step.
      spread: C of :mod:`credax.inference.noise`.
      model: the model.
      batch: the rows, from :func:`credax.inference.noise.with_all_rows`.
      step: the number of steps before this one.
      objective: the log joint density; if ``None``, that of the model.

    Returns:
      The next state, the next C, and the log joint density before the step.
    """
    key, spread, batch, objective = noise.marginal(
        key, spread, model, state, batch, step, method.num_steps, objective
    )
    after, value = ascend(method, key, state, objective, batch)
    return after, spread, value - noise.correction(model, state.params, spread)


def points(model, trace) -> Posterior:
    """A posterior with one draw for each replica: its last parameters."""
    one = jax.tree.map(lambda leaf: jax.device_get(leaf)[:, None], trace.state)
    return Posterior(model, Draws(one.params, one.network))


@dataclass(frozen=True)
class MaximumLikelihood(Method):
    r"""The weights with the largest likelihood; the prior is ignored.

    .. math:: \hat w = \arg\max_w\, p(Y \mid X, w)

    Args:
      num_steps: the number of optimiser steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax`` (``"adam"``, ``"sgd"``, ...), or an optax transformation.

    Reference: Fisher, On the mathematical foundations of theoretical statistics, 1922.
    """

    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)

    kind = "point"
    needs = frozenset({"gradient", "likelihood"})
    objective = "log_likelihood"
    when = "a baseline without a prior and without uncertainty about the weights"
    errs = "no uncertainty about the weights: too sure everywhere"

    @property
    def can(self) -> frozenset[Ability]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Without minibatches, a run depends on the rows only through sums over all of them."""
        rest: tuple[Ability, ...] = ("pad rows",) if self.batch_size is None else ()
        return frozenset({"sum parts", "train points", *rest})

    def init(self, key, model, data):
        """Initialise the weights as the network does."""
        return start(self, key, model)

    def step(self, key, state, model, batch, step):
        """Take one optimiser step that increases the log likelihood."""
        state, value = ascend(self, key, state, model.train_log_likelihood, batch)
        return state, LikelihoodInfo(value)

    def draw(self, key, state, model, rows):
        """The current weights, for every key."""
        return Draw(state.params, state.network)

    def posterior(self, model, trace):
        """A single draw: the last weights."""
        return points(model, trace)


@dataclass(frozen=True)
class MAP(Method):
    r"""The mode of the posterior: maximum likelihood regularised by the prior.

    .. math:: \hat w = \arg\max_w\, p(Y \mid X, w)\, p(w)

    Args:
      num_steps: the number of optimiser steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax`` (``"adam"``, ``"sgd"``, ...), or an optax transformation.

    Reference: Bishop, Pattern Recognition and Machine Learning, 2006, sections 1.2.5 and 5.5.
    """

    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)

    kind = "point"
    objective = "log_joint"
    when = "a quick point estimate, and a starting point for other methods"
    errs = "no uncertainty about the weights: too sure everywhere"

    @property
    def can(self) -> frozenset[Ability]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Without minibatches, a run depends on the rows only through sums over all of them."""
        rest: tuple[Ability, ...] = ("pad rows",) if self.batch_size is None else ()
        return frozenset({"sum parts", "train points", *rest})

    def init(self, key, model, data):
        """Initialise the weights as the network does."""
        return start(self, key, model)

    def step(self, key, state, model, batch, step):
        """Take one optimiser step that increases the log joint density."""
        state, value = ascend(self, key, state, model.train_log_joint, batch)
        return state, JointInfo(value)

    def draw(self, key, state, model, rows):
        """The current weights, for every key."""
        return Draw(state.params, state.network)

    def posterior(self, model, trace):
        """A single draw: the last weights."""
        return points(model, trace)

    def finish(self, posterior, trace):
        """Also the noise scale that maximises the marginal likelihood, next to the one at the mode."""
        state: State = jax.tree.map(lambda leaf: leaf[0], trace.state)
        found = noise.at_joint_mode(posterior.model, state.params, state.network, trace.data)
        return replace(posterior, info=found)
