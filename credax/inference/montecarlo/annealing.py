"""Simulated annealing (Kirkpatrick, Gelatt & Vecchi, 1983): Metropolis at a falling temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core.checks import integer, must, positive
from credax.core.settings import one_among, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Array, Key, NetworkState
from credax.inference.method import Method
from credax.inference.montecarlo.chain import Chains, first_position, target
from credax.inference.montecarlo.metropolis import (
    Flips,
    Propose,
    best_acceptance,
    check_flips,
    num_proposals,
    sweep,
)
from credax.model import LogDensity
from credax.posterior import Posterior
from credax.posterior.approximations import Draws

COOLINGS = ("geometric", "logarithmic", "adaptive")
TRIALS = 100
"""The number of proposals from which the first temperature is estimated."""
SPAN = 1e-4
"""The default of the last temperature, as a fraction of the first."""
GAIN = 0.1
"""The gain with which the step size follows the temperature."""
SHAPE_MEMORY, HEAT_MEMORY = 0.02, 0.05
"""The weight of the last step in the running variances of the weights and of the log joint."""
LIMIT = 5.0
"""How many times faster, or slower, than geometric the adaptive cooling may be."""


class Best(NamedTuple):
    """The best state that a restart has visited."""

    position: Flat
    log_density: Array


class Walk(NamedTuple):
    """The proposal scales of continuous weights, proportional to the recent spread of each weight."""

    log_scale: Array
    mean: Array  # the running mean of each weight
    variance: Array  # the running variance of each weight


class Heat(NamedTuple):
    """The statistics of adaptive cooling."""

    mean: Array  # the running mean of the log joint
    variance: Array  # the running variance of the log joint, sigma^2
    total: Array  # the integral of sigma / T over log T so far


class State(NamedTuple):
    """The position and temperature of a restart, and the best state that it has visited."""

    position: Flat
    log_density: Array
    network: NetworkState
    best: Best
    first_temperature: Array
    temperature: Array  # for the next step
    walk: Walk | None  # None for discrete weights
    heat: Heat | None  # None unless the cooling is adaptive


class Info(NamedTuple):
    """The figures of a step."""

    log_joint: Array
    best_log_joint: Array
    temperature: Array  # of the step
    acceptance_rate: Array


@dataclass(frozen=True)
class SimulatedAnnealing(Method):
    r"""Simulated annealing: the mode of the posterior, by a random walk at a falling temperature.

    .. math::
        P(w \to w') = \min\left(1, \exp\frac{\log p(w', D) - \log p(w, D)}{T_k}\right), \qquad T_k \to 0

    It needs no gradient, so it also works for discrete weights. At high temperatures it can leave local optima.
    The posterior has all its weight on the best state that any restart has visited; the best states of the
    other restarts are kept with weight zero. ``posterior.info`` holds the path of every restart.

    Args:
      restarts: the number of independent runs.
      num_steps: steps per restart, over which the temperature falls.
      cooling: how the temperature falls: ``"geometric"`` by the same factor at each step; ``"logarithmic"`` as
        :math:`T_k = T_0 \ln 2 / \ln(k + 2)`, which is slow but certain to find the optimum in the limit if
        :math:`T_0` is large; ``"adaptive"`` more slowly while the log joint fluctuates much (Huang, Romeo &
        Sangiovanni-Vincentelli, 1986).
      initial_temperature: :math:`T_0`. If ``None``, it is 1 for the continuous weights of a ``Model``. For
        discrete weights, and for a ``LogDensity``, it is the median change of the log joint by a proposal
        from the start.
      final_temperature: the temperature of the last step. If ``None``, a ten-thousandth of the first.
        Logarithmic cooling has no final temperature to choose.
      initial_step_size: the scale of the first proposals for continuous weights; later it follows the
        temperature. If ``None``, one over the number of weights.
      proposals_per_step: the number of successive proposals at each temperature. If ``None``, the number of
        weights, but at most 1,000.
      max_flips: the most discrete weights that one proposal changes. The number that it does change is drawn
        uniformly.

    Reference: Kirkpatrick, Gelatt & Vecchi, Optimization by Simulated Annealing, 1983.
    """

    restarts: int = setting(4, integer)
    num_steps: int = setting(2_000, integer)
    cooling: str = setting("geometric", one_among(*COOLINGS))
    initial_temperature: float | None = setting(None, optional(positive))
    final_temperature: float | None = setting(None, optional(positive))
    initial_step_size: float | None = setting(None, optional(positive))
    proposals_per_step: int | None = setting(None, optional(integer))
    max_flips: int = setting(1, integer)

    kind = "point"
    needs = frozenset({"trained state"})
    when_diverged = "The log joint must be a number, or minus infinity where the density is zero."
    initial: ClassVar[str] = "network"

    when = "the best weights among many optima; also for discrete weights"
    errs = "no uncertainty about the weights: too sure everywhere"

    def __post_init__(self):
        super().__post_init__()
        name = type(self).__name__
        first, last = self.initial_temperature, self.final_temperature
        if last is not None and self.cooling == "logarithmic":
            allowed = "None for logarithmic cooling, which follows from the first temperature"
            raise ValueError(must(name, "final_temperature", allowed, last))
        if last is not None and first is not None and last > first:
            allowed = f"at most initial_temperature, {first}"
            raise ValueError(must(name, "final_temperature", allowed, last))

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of restarts."""
        return self.restarts

    def check(self, model, data):
        """Check what every method checks, and that discrete weights can move."""
        super().check(model, data)
        if model.discrete:
            check_flips(self, model)

    check_start = Chains.check_start  # a restart is a Markov chain

    def init(self, key, model, data):
        """A starting point of positive density, and the first temperature."""
        chain: Any = self
        start_key, trial_key = jax.random.split(key)
        position, value, network = first_position(chain, start_key, model, data)
        dtype = jnp.result_type(float)
        value, walk = value.astype(dtype), None
        if not model.discrete:
            log_scale = jnp.full((), math.log(self.initial_step_size or 1 / position.size), dtype)
            mean = position.vector.astype(dtype)
            walk = Walk(log_scale, mean, jnp.ones_like(mean))
        # Above 1 the tempered prior is wider than the prior itself: weights move far away, and return slowly.
        given = self.initial_temperature
        if given is None and not (model.discrete or isinstance(model, LogDensity)):
            given = max(1.0, self.final_temperature or 0.0)
        first = jnp.full((), given or 0.0, dtype)
        if given is None:
            log_density = target(model, None if data is None else data.everything(), network)
            propose = self._proposal(model, position, walk)
            change = typical_change(trial_key, position, value, log_density, propose)
            first = jnp.maximum(change, self.final_temperature or 0.0)
        heat = Heat(value, first**2, jnp.zeros((), dtype)) if self.cooling == "adaptive" else None
        return State(position, value, network, Best(position, value), first, first, walk, heat)

    def step(self, key, state, model, batch, step):
        """A series of proposals at one temperature, then the next temperature."""
        position, value, acceptance, best = sweep(
            key,
            state.position,
            state.log_density,
            target(model, batch, state.network),
            self._proposal(model, state.position, state.walk),
            num_proposals(self, state.position),
            state.temperature,
            better,
            state.best,
        )
        info = Info(value, best.log_density, state.temperature, acceptance)
        state = state._replace(
            position=position,
            log_density=value,
            best=best,
            walk=None if state.walk is None else followed(state.walk, position.vector, acceptance),
        )
        return self._cooled(state, step + 1), info

    def _proposal(self, model: Any, position: Flat, walk: Walk | None) -> Propose:
        if walk is None:
            return Flips(model, position, self.max_flips)
        mean = jnp.maximum(jnp.mean(walk.variance), jnp.finfo(walk.variance.dtype).tiny)
        scales = jnp.exp(walk.log_scale) * jnp.sqrt(0.99 * walk.variance / mean + 0.01)

        def leapt(key, vector):
            # Cauchy, not normal: long jumps of single weights lead from one optimum to another even when the
            # scale has become small (Szu & Hartley, 1987).
            step = scales * jax.random.cauchy(key, vector.shape, scales.dtype)
            return vector + step.astype(vector.dtype)

        return leapt

    def _cooled(self, state: State, done: Array) -> State:
        """The state with the temperature of the next step, after ``done`` steps."""
        first, step = state.first_temperature, done.astype(state.first_temperature.dtype)
        if self.cooling == "logarithmic":
            return state._replace(temperature=first * math.log(2) / jnp.log(step + 2))
        last = first * SPAN if self.final_temperature is None else self.final_temperature
        if self.cooling == "geometric":
            part = step / max(self.num_steps - 1, 1)
            return state._replace(temperature=first * (last / first) ** part)
        return self._adapted(state, done, jnp.log(last))

    def _adapted(self, state: State, done: Array, log_last: Array) -> State:
        r"""The state with the next temperature by the rule of Huang et al.

        .. math:: d \log T = -\lambda T / \sigma

        With it, the mean log joint changes by the same number of standard deviations sigma at each step, since
        its derivative with respect to log T is :math:`-\sigma^2 / T`. The number of steps is
        :math:`1 / \lambda` times the integral of :math:`\sigma / T` over log T. The remaining part of this
        integral is estimated from the past, and lambda is chosen such that the steps suffice for it.
        """
        assert state.heat is not None
        away = state.log_density - state.heat.mean
        mean = state.heat.mean + HEAT_MEMORY * away
        variance = (1 - HEAT_MEMORY) * (state.heat.variance + HEAT_MEMORY * away**2)
        log_now, tiny = jnp.log(state.temperature), jnp.finfo(mean.dtype).tiny
        rough = jnp.maximum(jnp.sqrt(variance) / state.temperature, tiny)
        fallen = jnp.log(state.first_temperature) - log_now
        usual = jnp.where(fallen > 0, state.heat.total / jnp.maximum(fallen, tiny), rough)
        speed = jnp.clip(usual / rough, 1 / LIMIT, LIMIT)
        steps_left = jnp.maximum(self.num_steps - done, 1).astype(mean.dtype)
        change = (log_now - log_last) * jnp.minimum(speed / steps_left, 1)
        heat = Heat(mean, variance, state.heat.total + change * rough)
        return state._replace(temperature=jnp.exp(log_now - change), heat=heat)

    def posterior(self, model, trace):
        """The best state of each restart, with all weight on the best of these."""
        best = trace.state.best
        log_weights = np.full((self.restarts, 1), -np.inf)
        log_weights[np.argmax(best.log_density)] = 0.0
        params = jax.vmap(lambda position: position.tree)(best.position)
        one = lambda leaf: jax.device_get(leaf)[:, None]  # noqa: E731
        draws = Draws(
            jax.tree.map(one, params), jax.tree.map(one, trace.state.network), log_weights
        )
        return Posterior(model, draws)


def better(best: Best, position: Flat, value: Array) -> Best:
    """The better one of the best state so far and a new state."""
    risen = value > best.log_density
    return jax.tree.map(lambda new, old: jnp.where(risen, new, old), Best(position, value), best)


def followed(walk: Walk, vector: Array, acceptance: Array) -> Walk:
    """The proposal scales after a step to ``vector``.

    The gains do not decay, since the best scale falls with the temperature.
    """
    away = vector.astype(walk.mean.dtype) - walk.mean
    mean = walk.mean + SHAPE_MEMORY * away
    variance = (1 - SHAPE_MEMORY) * (walk.variance + SHAPE_MEMORY * away**2)
    log_scale = walk.log_scale + GAIN * (acceptance / best_acceptance(vector.size) - 1)
    return Walk(log_scale, mean, variance)


def typical_change(key: Key, position: Flat, value: Array, log_density: Any, propose: Any) -> Array:
    """The median absolute change of the log density by proposals from a position; 1 if there is no change."""

    def change(key):
        there = Flat(propose(key, position.vector), position.structure, position.leaves)
        return jnp.abs(log_density(there).astype(value.dtype) - value)

    changes = lax.map(change, jax.random.split(key, TRIALS))
    median = jnp.nanmedian(jnp.where(jnp.isfinite(changes) & (changes > 0), changes, jnp.nan))
    return jnp.where(jnp.isnan(median), 1, median)
