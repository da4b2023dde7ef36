"""Tempered sequential Monte Carlo: a population of particles that moves from the prior to the posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from credax.core.checks import fraction, integer, must
from credax.core.errors import DivergedError
from credax.core.settings import setting
from credax.core.trees import Flat
from credax.core.typing import Array, Draw, Key, NetworkState
from credax.inference.method import Method
from credax.inference.montecarlo import kernels
from credax.inference.weighting import LOW_BY_HALF_ITS_VARIANCE
from credax.posterior import Estimate, Posterior
from credax.posterior.approximations import Draws

ACCEPTANCE = 0.75
"""The mean acceptance rate that the step size of the moves is adapted to."""
HALVINGS = 64
"""The number of bisections to find the next temperature: 40 for its order of magnitude, 24 for the digits of a
float."""


class Info(NamedTuple):
    """The figures of a temperature; means are over the particles."""

    temperature: Array
    log_evidence: Array  # of the tempered density
    ess: Array  # the effective sample size before resampling
    acceptance_rate: Array
    step_size: Array
    log_joint: Array  # of the untempered density, after the moves
    ancestors: Array  # the number of prior draws from which the particles descend


class State(NamedTuple):
    """A population of particles with equal weights."""

    position: Flat  # (particles, parameters)
    log_likelihood: Array  # (particles,)
    ancestor: Array  # (particles,), the index of the prior draw from which each descends
    temperature: Array
    log_evidence: Array
    error: Array  # the estimated variance of log_evidence
    by_chance: Array  # log of the fraction of pairs with different ancestors that resampling alone would leave
    variance: Array  # (parameters,), of the particles; the inverse mass of the moves
    step_size: Array
    network: NetworkState
    info: Info  # the figures of the last temperature


@dataclass(frozen=True)
class SMC(Method):
    r"""Sequential Monte Carlo: particles that move from the prior to the posterior through tempered densities.

    .. math:: p_\lambda(w) \propto p(w)\, p(D \mid w)^\lambda, \qquad 0 = \lambda_0 < \dots < \lambda_T = 1
    .. math:: v_i = p(D \mid w_i)^{\lambda_t - \lambda_{t-1}}, \qquad
              \hat p(D) = \prod_t \frac{1}{N} \sum_i v_i

    At each temperature :math:`\lambda_t`, the particles are weighted by v, resampled in proportion to v, and
    moved by Hamiltonian Monte Carlo on the new density. The next temperature is the one at which the
    effective sample size :math:`(\sum v)^2 / \sum v^2` falls to N times ``target_ess``. The step size and the
    mass matrix of the moves are adapted to the population. The particles always start from the prior;
    ``fit(start=...)`` sets only the network's state.

    Args:
      particles: N, the number of particles.
      target_ess: the effective sample size after reweighting, as a fraction of the particles. Values nearer
        to 1 need more temperatures and give a more precise evidence.
      num_moves: moves per particle and temperature.
      num_leapfrog: leapfrog steps per move.
      num_steps: the most temperatures. It is an error not to reach 1 within this number.
      repeats: the number of independent populations. Each is weighted by its estimate of the evidence, and the
        spread of the estimates gives a standard error of the evidence.

    Reference: Del Moral, Doucet & Jasra, Sequential Monte Carlo samplers, 2006.
    """

    particles: int = setting(1_000, integer)
    target_ess: float = setting(0.5, fraction)
    num_moves: int = setting(5, integer)
    num_leapfrog: int = setting(16, integer)
    num_steps: int = setting(200, integer)
    repeats: int = setting(1, integer)

    kind = "exact"
    needs = frozenset({"gradient", "likelihood", "trained state"})
    when_diverged = "Scale x and y to unit variance, or give a tighter prior."

    when = "a posterior with several modes, or the evidence is wanted"
    errs = "particles that moved too little: up to two thirds too unsure on small tables"

    def __post_init__(self):
        super().__post_init__()
        if self.particles * self.target_ess < 2:
            least = math.ceil(2 / self.target_ess)
            allowed = f"at least {least}, so that two of them stay effective"
            raise ValueError(must("SMC", "particles", allowed, self.particles))

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of populations; the particles of a population depend on each other."""
        return self.repeats

    def init(self, key, model, data):
        """Particles drawn from the prior."""
        assert data is not None, "a model with a likelihood has data"
        network = model.init_state()
        keys = jax.random.split(key, self.particles)
        position = jax.vmap(lambda key: Flat.of(model.sample_prior(key)))(keys)
        log_likelihood = _log_likelihoods(model, data.everything(), network, position)
        zero = jnp.zeros((), log_likelihood.dtype)
        return State(
            position,
            log_likelihood,
            ancestor=jnp.arange(self.particles, dtype=jnp.int32),
            temperature=zero,
            log_evidence=zero,
            error=zero,
            by_chance=zero + math.log1p(-1 / self.particles),
            variance=jnp.var(position.vector, axis=0),
            # At a given acceptance rate, the step size falls with the fourth root of the dimension.
            step_size=zero + position.vector.shape[1] ** -0.25,
            network=network,
            info=Info(*[zero] * len(Info._fields)),
        )

    def check_start(self, states):
        """Refuse a prior under which fewer than two draws give the data a positive likelihood."""
        alive = np.isfinite(np.asarray(states.log_likelihood)).sum(1).min()
        if alive < 2:
            raise ValueError(
                f"SMC cannot start: of {self.particles} draws of the prior, {alive} give the data a likelihood "
                "above zero. Give a tighter prior or more particles, or scale x and y to unit variance."
            )

    def step(self, key, state, model, batch, step):
        """One temperature: reweight, resample, move."""
        resample_key, move_key = jax.random.split(key)
        ahead, weights = _reweighted(state, self._increment(state))
        chosen = _systematic(resample_key, weights)
        ahead = ahead._replace(
            position=jax.tree.map(lambda leaf: leaf[chosen], state.position),
            ancestor=state.ancestor[chosen],
            variance=_variance(state, weights),
        )
        ahead = self._moved(move_key, ahead, model, batch)
        done = self.finished(state)
        ahead = jax.tree.map(lambda old, new: jnp.where(done, old, new), state, ahead)
        return ahead, ahead.info

    def finished(self, state):
        """Whether the temperature is one; the last temperature is exactly one."""
        return state.temperature >= 1

    def posterior(self, model, trace):
        """All particles; each population is weighted by its evidence."""
        state: Any = trace.state
        reached = float(np.min(state.temperature))
        if reached < 1 and trace.info["temperature"].shape[1] >= self.num_steps:
            raise DivergedError(
                f"SMC(num_steps={self.num_steps}) ended at temperature {reached:.3g}; the posterior is at 1. "
                "Raise num_steps, or lower target_ess so that fewer temperatures are needed."
            )
        draws, log_weights, log_evidence, _ = jax.device_get(_at_one(state))
        equal = self.repeats == 1 and reached == 1
        log_weights = None if equal else log_weights + log_evidence[:, None]
        return Posterior(model, Draws(draws.params, draws.state, log_weights))

    def finish(self, posterior, trace):
        """Add the evidence."""
        state: Any = trace.state
        *_, log_evidence, error = jax.device_get(_at_one(state))
        return replace(posterior, log_evidence=mean_evidence(log_evidence, error))

    def _increment(self, state: State) -> Array:
        """The rise of the temperature: to one, or until the effective sample size falls to its target."""

        def effective(increment):
            return _ess(_weights(state, increment)) >= self.target_ess * self.particles

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) / 2
            enough = effective(middle)
            return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

        rest = 1 - state.temperature
        low, high = lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(rest), rest))
        # If too many prior draws have likelihood zero, even the smallest rise removes them.
        return jnp.where(effective(rest), rest, jnp.where(low > 0, low, high))

    def _moved(self, key: Key, state: State, model: Any, batch: Any) -> State:
        """The particles after moves by Hamiltonian Monte Carlo on the tempered density, as one batch."""
        kernel, dtype = kernels.hmc.build_kernel(), state.position.vector.dtype

        def log_density(position):
            params = position.tree
            log_likelihood = model.log_likelihood(params, batch, state=state.network)
            log_prior = model.log_prior(params).astype(log_likelihood.dtype)
            return log_prior + state.temperature * log_likelihood

        def move(carry, key):
            chains, step_size = carry
            size_key, move_key = jax.random.split(key)
            # Step sizes are randomised, since with a single one a trajectory may return to its start.
            spread = jax.random.uniform(size_key, (self.particles,), dtype, 0.5, 1.5)
            one = lambda key, chain, size: kernel(  # noqa: E731
                key, chain, log_density, size, state.variance, self.num_leapfrog
            )
            keys = jax.random.split(move_key, self.particles)
            chains, info = jax.vmap(one)(keys, chains, step_size.astype(dtype) * spread)
            acceptance = jnp.mean(info.acceptance_rate).astype(step_size.dtype)
            return (chains, step_size * jnp.exp(acceptance - ACCEPTANCE)), acceptance

        keys = jax.random.split(key, self.num_moves)
        with jax.numpy_dtype_promotion("standard"):
            chains = jax.vmap(lambda position: kernels.hmc.init(position, log_density))(
                state.position
            )
            (chains, step_size), acceptance = lax.scan(move, (chains, state.step_size), keys)
        log_likelihood = _log_likelihoods(model, batch, state.network, chains.position)
        log_joint = chains.logdensity + (1 - state.temperature) * log_likelihood
        families = jnp.zeros_like(log_likelihood).at[state.ancestor].set(1)
        info = state.info._replace(
            acceptance_rate=jnp.mean(acceptance),
            step_size=step_size,
            log_joint=jnp.mean(log_joint),
            ancestors=jnp.sum(families),
        )
        return state._replace(
            position=chains.position, log_likelihood=log_likelihood, step_size=step_size, info=info
        )


def _log_likelihoods(model: Any, batch: Any, network: NetworkState, position: Flat) -> Array:
    def one(position):
        return model.log_likelihood(position.tree, batch, state=network)

    values = jax.vmap(one)(position)
    return jnp.where(jnp.isnan(values), -jnp.inf, values)


# -- reweighting ------------------------------------------------------------------------------------


def _log_weights(state: State, increment: Array) -> Array:
    """The log weights of the particles; not simply a product, since zero times minus infinity is NaN."""
    alive = jnp.isfinite(state.log_likelihood)
    return jnp.where(alive, increment * state.log_likelihood, -jnp.inf)


def _weights(state: State, increment: Array) -> Array:
    return jax.nn.softmax(_log_weights(state, increment))


def _ess(weights: Array) -> Array:
    return 1 / jnp.sum(weights**2)


def _reweighted(state: State, increment: Array) -> tuple[State, Array]:
    r"""The state with the evidence at a higher temperature, and the weights of the particles there.

    The variance of the evidence is estimated as by Lee & Whiteley (Variance estimation in the particle filter,
    2018). Particles with different ancestors are independent, so the total weight of pairs of such particles,
    :math:`1 - \sum_a W_a^2` where :math:`W_a` is the weight of the descendants of a, estimates
    :math:`p(D)^2 / \hat p(D)^2` after division by the fraction that resampling alone would leave. They derive
    this fraction for resampling with independent draws. Systematic resampling rounds :math:`N W_a` up or down
    to a whole number, which lowers the sum by :math:`f (1 - f) / N^2`, where f is the fractional part.
    """
    weights = _weights(state, increment)
    count, ess = len(weights), _ess(weights)
    total = logsumexp(_log_weights(state, increment))
    log_evidence = state.log_evidence + total - math.log(count)

    families = jax.ops.segment_sum(weights, state.ancestor, count)
    fraction = count * families % 1
    # With a single ancestor the variance is unbounded; it is then computed as if one particle had another one.
    pairs = jnp.maximum(1 - jnp.sum(families**2), 2 / count)
    lost = jnp.sum(fraction * (1 - fraction)) / count**2
    error = jnp.maximum(state.by_chance - jnp.log(pairs), 0)
    by_chance = state.by_chance + jnp.log1p(-jnp.minimum(lost / pairs, 0.5))

    last = increment >= 1 - state.temperature
    temperature = jnp.where(last, jnp.ones_like(increment), state.temperature + increment)
    info = state.info._replace(temperature=temperature, log_evidence=log_evidence, ess=ess)
    ahead = state._replace(
        temperature=temperature,
        log_evidence=log_evidence,
        error=error,
        by_chance=by_chance,
        info=info,
    )
    return ahead, weights


def _variance(state: State, weights: Array) -> Array:
    """The variance of each parameter, shrunk towards the previous one if few particles are effective."""
    vector = state.position.vector
    share = (_ess(weights) / (_ess(weights) + 5)).astype(vector.dtype)
    weights = weights.astype(vector.dtype)
    variance = weights @ (vector - weights @ vector) ** 2
    return share * variance + (1 - share) * state.variance


def _systematic(key: Key, weights: Array) -> Array:
    """Systematic resampling: sorted indices, in proportion to the weights, from one random number."""
    count, dtype = len(weights), weights.dtype
    # Rounding may make a compiled cumulative sum fall, or rise where a weight is zero.
    cumulative = lax.cummax(jnp.where(weights > 0, jnp.cumsum(weights), 0))
    points = (jnp.arange(count, dtype=dtype) + jax.random.uniform(key, (), dtype)) / count
    below_one = 1 - float(jnp.finfo(dtype).epsneg)
    points = jnp.minimum(points, below_one) * cumulative[-1]
    return jnp.searchsorted(cumulative, points, side="right")


# -- the final populations --------------------------------------------------------------------------


@jax.jit
def _at_one(states: State) -> tuple[Draw, Array, Array, Array]:
    """The draws of each population, their log weights, the log evidence, and the variance of the log evidence.

    If the last temperature is below one, the draws are reweighted to temperature one without further moves.
    """

    def one(state):
        each = lambda leaf: jnp.broadcast_to(leaf, (len(state.ancestor), *leaf.shape))  # noqa: E731
        draws = Draw(
            jax.vmap(lambda flat: flat.tree)(state.position), jax.tree.map(each, state.network)
        )
        rest = 1 - state.temperature
        last, weights = _reweighted(state, rest)
        error = jnp.where(rest > 0, last.error, state.error)
        return draws, jnp.log(weights), last.log_evidence, error

    return jax.vmap(one)(states)


def mean_evidence(log_evidence: np.ndarray, variance: np.ndarray) -> Estimate:
    r"""The log of the mean evidence of independent populations, and its standard error.

    With :math:`q_r` the share of population r in the sum of the R evidences, the squared standard error is the
    larger one of two estimates: :math:`\sum_r q_r^2 s_r^2` from the variances of the single populations, and
    :math:`\frac{R}{R - 1} \sum_r (q_r - 1 / R)^2` from their spread.

    Args:
      log_evidence: the log evidence of each population.
      variance: the estimated variance :math:`s_r^2` of each.
    """
    log_evidence, count = np.asarray(log_evidence, np.float64), len(log_evidence)
    total = np.logaddexp.reduce(log_evidence)
    share = np.exp(log_evidence - total)
    error = float(np.sum(share**2 * variance))
    if count > 1:
        error = max(error, float(np.sum((share - 1 / count) ** 2)) * count / (count - 1))
    return Estimate(float(total) - math.log(count), math.sqrt(error), LOW_BY_HALF_ITS_VARIANCE)
