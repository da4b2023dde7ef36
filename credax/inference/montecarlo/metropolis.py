"""The Metropolis algorithm (Metropolis et al., 1953)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.checks import fraction, integer, must, positive
from credax.core.settings import one_among, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Array, Key, NetworkState
from credax.inference.montecarlo.chain import Chains, first_position, target

COVARIANCES = ("unit", "diagonal", "dense")
LARGEST_DENSE = 2_000
"""The most weights for which the covariance may be dense; each chain then carries two square matrices."""
SWEEP = 1_000
"""The most proposals per step by default."""

Propose = Callable[[Key, Array], Array]


class Walk(NamedTuple):
    """The proposal distribution of continuous weights, and the statistics from which the warm-up learns it."""

    since: Array  # steps since the covariance was last changed
    log_scale: Array  # the log of the step size
    factor: Array  # a root of the covariance: of shape (), (weights,) or (weights, weights)
    mean: Array  # of the positions since then
    scatter: Array  # the sum of their squared deviations, or of the outer products of these


class State(NamedTuple):
    """The position of a chain, and its proposal distribution."""

    position: Flat
    log_density: Array
    network: NetworkState
    walk: Walk | None  # None for discrete weights


class Info(NamedTuple):
    """The figures of a step of continuous weights."""

    log_joint: Array
    acceptance_rate: Array  # the mean acceptance probability of its proposals
    step_size: Array  # of these proposals


class FlipInfo(NamedTuple):
    """The figures of a step of discrete weights."""

    log_joint: Array
    acceptance_rate: Array


@dataclass(frozen=True)
class Metropolis(Chains):
    r"""Random-walk Metropolis: a random step is accepted or rejected by the ratio of the densities.

    .. math::
        w' = w_t + \epsilon, \qquad
        w_{t+1} = \begin{cases}
            w' & \text{with probability } \min\left(1, \tilde p(w' \mid D) / \tilde p(w_t \mid D)\right) \\
            w_t & \text{otherwise}
        \end{cases}

    After a rejected proposal the old state counts once more. Proposals for continuous weights are normal,
    with a step size and covariance that are adapted in the warm-up and then fixed. A proposal for a discrete
    weight is one of its other values, all of which are equally likely.

    Args:
      chains: the number of chains, each with its own starting point.
      num_warmup: warm-up steps per chain, in which the proposals are adapted.
      num_draws: draws per chain.
      thin: steps per draw.
      initial: where the chains start: ``"network"`` for the network's initial weights, drawn anew for each
        chain, or ``"prior"`` for a draw from the prior.
      covariance: the covariance of normal proposals, up to the step size: ``"unit"`` for the identity,
        ``"diagonal"`` for a variance of each weight, or ``"dense"`` for strongly correlated weights, of which
        there may be some hundreds.
      step_size: the factor of the standard deviations of normal proposals. If ``None``, it is adapted in the
        warm-up.
      target_accept: the acceptance rate that the step size is adapted to. If ``None``, 0.44 for one weight,
        falling to 0.234 for many, which is optimal for a normal posterior (Roberts, Gelman & Gilks, 1997).
      proposals_per_step: the number of successive proposals per step. If ``None``, the number of weights, but
        at most 1,000, so that draws of many weights are about as independent as draws of few.
      max_flips: the most discrete weights that one proposal changes. The number that it does change is drawn
        uniformly.

    Reference: Metropolis et al., Equation of State Calculations by Fast Computing Machines, 1953.
    """

    covariance: str = setting("diagonal", one_among(*COVARIANCES))
    step_size: float | None = setting(None, optional(positive))
    target_accept: float | None = setting(None, optional(fraction))
    proposals_per_step: int | None = setting(None, optional(integer))
    max_flips: int = setting(1, integer)

    needs = frozenset({"trained state"})
    when = "a few weights that are discrete or whose density has no gradient"
    errs = "slow chains are too sure; R-hat and the effective sample size tell"

    def check(self, model, data):
        """Check what every chain checks, and that the proposals are well defined."""
        super().check(model, data)
        name = type(self).__name__
        if model.discrete:
            check_flips(self, model)
        elif self.step_size is None and self.num_warmup == 0:
            allowed = "a number where num_warmup is 0, since nothing adapts it"
            raise ValueError(must(name, "step_size", allowed, None))
        elif self.covariance == "dense":
            like = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
            size = sum(math.prod(leaf.shape) for leaf in like)
            if size > LARGEST_DENSE:
                allowed = (
                    f"'diagonal' or 'unit' for more than {LARGEST_DENSE:,} weights, here {size:,}"
                )
                raise ValueError(must(name, "covariance", allowed, self.covariance))

    def init(self, key, model, data):
        """A starting point of positive density, and proposals that are not yet adapted."""
        position, value, network = first_position(self, key, model, data)
        walk = None if model.discrete else self._first_walk(position.size)
        return State(position, value.astype(jnp.result_type(float)), network, walk)

    def _first_walk(self, size: int) -> Walk:
        dtype, zero = jnp.result_type(float), jnp.zeros((), jnp.int32)
        shape = {"unit": (), "diagonal": (size,), "dense": (size, size)}[self.covariance]
        factor = jnp.eye(size, dtype=dtype) if len(shape) == 2 else jnp.ones(shape, dtype)
        log_scale = jnp.full((), math.log(self.step_size or best_scale(size)), dtype)
        mean = jnp.zeros(shape[:1], dtype)
        return Walk(zero, log_scale, factor, mean, jnp.zeros(shape, dtype))

    def step(self, key, state, model, batch, step):
        """A series of proposals; during the warm-up, the proposal distribution is adapted after it."""
        walk = state.walk
        position, value, acceptance, _ = sweep(
            key,
            state.position,
            state.log_density,
            target(model, batch, state.network),
            self._proposal(model, state.position, walk),
            num_proposals(self, state.position),
        )
        if walk is None:
            return State(position, value, state.network, None), FlipInfo(value, acceptance)
        info = Info(value, acceptance, jnp.exp(walk.log_scale))
        learned = lambda: self._learned(walk, step, position.vector, acceptance)  # noqa: E731
        walk = lax.cond(step < self.num_warmup, learned, lambda: walk)
        return State(position, value, state.network, walk), info

    def _proposal(self, model: Any, position: Flat, walk: Walk | None) -> Propose:
        if walk is None:
            return Flips(model, position, self.max_flips)
        return lambda key, vector: stepped(key, vector, jnp.exp(walk.log_scale), walk.factor)

    def _learned(self, walk: Walk, step: Array, vector: Array, acceptance: Array) -> Walk:
        """The proposal distribution after one more step of the warm-up."""
        dtype, size = walk.log_scale.dtype, vector.size
        walk = walk._replace(since=walk.since + 1)
        if self.step_size is None:
            # As Robbins & Monro require, the gains tend to zero but their sum diverges.
            gain = (walk.since + 3).astype(dtype) ** -0.6
            wanted = self.target_accept or best_acceptance(size)
            log_scale = walk.log_scale + gain * (acceptance / wanted - 1)
            walk = walk._replace(log_scale=log_scale)
        if self.covariance == "unit":
            return walk
        before = vector.astype(dtype) - walk.mean
        mean = walk.mean + before / walk.since.astype(dtype)
        after = vector.astype(dtype) - mean
        product = jnp.outer if self.covariance == "dense" else jnp.multiply
        walk = walk._replace(mean=mean, scatter=walk.scatter + product(before, after))
        ends = np.asarray(window_ends(self.num_warmup), np.int32)
        return lax.cond(jnp.any(step + 1 == ends), self._reshaped, lambda walk: walk, walk)

    def _reshaped(self, walk: Walk) -> Walk:
        """Proposals with the covariance of a finished window, at the optimal scale for a normal target."""
        size, count = walk.mean.size, walk.since.astype(walk.mean.dtype)
        covariance = walk.scatter / (count - 1)
        if self.covariance == "diagonal":
            factor = jnp.sqrt(covariance)
            # A weight that has not moved keeps its scale.
            factor = jnp.where(factor > 0, factor, walk.factor)
        else:
            # Shrink the correlations: with fewer states than weights the covariance is singular, and with many
            # more states it needs no correction.
            share = size**2 / (size**2 + count**2)
            covariance = jnp.where(np.eye(size, dtype=bool), covariance, (1 - share) * covariance)
            factor = jnp.linalg.cholesky(covariance)
            factor = jnp.where(jnp.all(jnp.isfinite(factor)), factor, walk.factor)
        log_scale = walk.log_scale
        if self.step_size is None:
            log_scale = jnp.full_like(log_scale, math.log(best_scale(size)))
        since, mean, scatter = jax.tree.map(jnp.zeros_like, (walk.since, walk.mean, walk.scatter))
        return Walk(since, log_scale, factor, mean, scatter)


def window_ends(num_warmup: int) -> list[int]:
    """The steps at which the covariance is replaced: the ends of windows of growing length.

    Each window starts anew, so that states from before the chain reached the typical set are forgotten. The
    last window ends at 90 % of the warm-up; the rest adapts only the step size.
    """
    ends, end = [], 0.9 * num_warmup
    while end >= 20:
        ends.append(round(end))
        end /= 1.5
    return ends[::-1]


def best_scale(size: int) -> float:
    """The optimal step size for a normal target, relative to its standard deviations (Gelman et al., 1996)."""
    return 2.38 / math.sqrt(size)


def best_acceptance(size: int) -> float:
    """The acceptance rate at the optimal step size, within 0.02 of the published values."""
    return 0.234 + 0.206 / size


def check_flips(method: Any, model: Any) -> None:
    """Refuse discrete weights of which none has two values."""
    like = jax.eval_shape(model.init, jax.random.key(0))
    if all(len(prior.values) == 1 for prior in jax.tree.leaves(model.leaf_priors(like))):
        raise ValueError(
            f"{type(method).__name__} needs weights that can move; every weight of this prior has one value."
        )


def num_proposals(method: Any, position: Flat) -> int:
    """The number of proposals per step."""
    return method.proposals_per_step or min(position.size, SWEEP)


# -- symmetric proposals ------------------------------------------------------------------------------


def stepped(key: Key, vector: Array, scale: Array, factor: Array) -> Array:
    """The vector after a normal step.

    Args:
      key: a random key.
      vector: the current weights.
      scale: the step size.
      factor: the root of the covariance: a number, a vector with one entry per weight, or a matrix.
    """
    noise = random.normal(key, vector.shape, factor.dtype)
    step = factor @ noise if factor.ndim == 2 else factor * noise
    return vector + (scale * step).astype(vector.dtype)


class Flips:
    """Proposals for discrete weights: a weight, chosen uniformly, takes another of its values.

    If all weights have two values and nearly every flip is accepted, a fixed number of flips per step would
    always lead to states at an even (or always at an odd) number of changes from the start. Therefore one
    choice in n + 1 changes nothing, where n is the number of weights.

    Args:
      model: a model with discrete priors.
      position: the position of a chain, for its shapes and dtypes.
      most: the most weights that one proposal changes.
    """

    def __init__(self, model: Any, position: Flat, most: int):
        values = [prior.values for prior in jax.tree.leaves(model.leaf_priors(position.tree))]
        sizes = [math.prod(shape) for shape, _ in position.leaves]
        moving = [leaf for leaf, kinds in enumerate(values) if len(kinds) > 1]
        begins = np.cumsum([0, *sizes])[moving]
        ends = np.cumsum(np.array(sizes)[moving])
        width = max(len(kinds) for kinds in values)
        table = np.full((len(moving), width), np.nan)
        for row, leaf in enumerate(moving):
            # Rounded to the dtype of the leaf.
            held = np.asarray(values[leaf]).astype(position.leaves[leaf][1])
            table[row, : len(held)] = held.astype(table.dtype)
        self.most = most
        self.weights = int(ends[-1])
        self._ends = np.asarray(ends, np.int32)
        self._shift = np.asarray(begins - np.concatenate([[0], ends[:-1]]), np.int32)
        self._table = np.asarray(table, position.vector.dtype)
        self._counts = np.asarray([len(values[leaf]) for leaf in moving], np.int32)

    def __call__(self, key: Key, vector: Array) -> Array:
        """The vector after 1 to ``most`` flips; the number is drawn uniformly."""
        many_key, pick_key, value_key = jax.random.split(key, 3)
        many = jax.random.randint(many_key, (), 1, self.most + 1)
        picks = jax.random.randint(pick_key, (self.most,), 0, self.weights + 1)
        others = jax.random.uniform(value_key, (self.most,))
        for flip in range(self.most):
            off = (picks[flip] == self.weights) | (flip >= many)
            vector = self._flipped(
                vector, jnp.minimum(picks[flip], self.weights - 1), others[flip], off
            )
        return vector

    def _flipped(self, vector, pick, other, off):
        leaf = jnp.sum(pick >= self._ends[:-1], dtype=np.int32)
        values, count = jnp.asarray(self._table)[leaf], jnp.asarray(self._counts)[leaf]
        at = pick + jnp.asarray(self._shift)[leaf]
        now = jnp.argmax(values == vector[at]).astype(np.int32)
        further = 1 + (other * (count - 1).astype(other.dtype)).astype(np.int32)
        then = jnp.where(off, now, (now + further) % count)
        return vector.at[at].set(values[then], mode="promise_in_bounds")


def sweep(
    key: Key,
    position: Flat,
    value: Array,
    log_density: Callable[[Flat], Array],
    propose: Propose,
    count: int,
    temperature: Any = 1.0,
    observe: Callable[[Any, Flat, Array], Any] = lambda seen, position, value: seen,
    seen: Any = (),
) -> tuple[Flat, Array, Array, Any]:
    r"""A series of ``count`` proposals, each accepted with probability :math:`\min(1, (p'/p)^{1/T})`.

    Args:
      key: a random key.
      position: the current position.
      value: the log density at that position.
      log_density: the log density of a position.
      propose: a symmetric proposal.
      count: the number of proposals.
      temperature: T.
      observe: a function that updates ``seen`` after each proposal.
      seen: its first argument before the first proposal.

    Returns:
      The last position, its log density, the mean acceptance probability, and ``seen`` after the last proposal.
    """
    propose_key, accept_key = jax.random.split(key)
    keys = jax.random.split(propose_key, count)
    thresholds = jnp.log(jax.random.uniform(accept_key, (count,), value.dtype))

    def body(i, carry):
        position, value, total, seen = carry
        proposal = Flat(propose(keys[i], position.vector), position.structure, position.leaves)
        there = log_density(proposal).astype(value.dtype)
        log_ratio = (there - value) / temperature
        # A comparison with NaN is false, so a density that cannot be computed counts as zero.
        accepted = thresholds[i] < log_ratio
        position, value = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), (proposal, there), (position, value)
        )
        probability = jnp.where(jnp.isnan(log_ratio), 0, jnp.exp(jnp.minimum(log_ratio, 0)))
        return position, value, total + probability, observe(seen, position, value)

    carry = (position, value, jnp.zeros_like(value), seen)
    position, value, total, seen = lax.fori_loop(0, count, body, carry)
    return position, value, total / count, seen
