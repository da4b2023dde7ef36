"""Microcanonical Langevin Monte Carlo (Robnik et al., 2023; Robnik & Seljak, 2024; Robnik et al., 2025)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.checks import fraction, must, positive
from credax.core.settings import flag, one_among, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Array, NetworkState
from credax.inference.method import Layout
from credax.inference.montecarlo import kernels
from credax.inference.montecarlo.chain import Chains, first_position, target
from credax.inference.montecarlo.whitening import Layers

DIVERGED = 1_000.0
"""A change of the energy in one step beyond which it counts as diverged; BlackJAX's and Stan's for HMC."""
MOST = 256
"""Steps of an adjusted trajectory on average, at most: a bad step size in warm-up must not stop the run."""
FIRST_STEP = 0.25
"""The first step size, in units of the root of the dimension; BlackJAX's."""
MEMORY = 150.0
"""Steps, at least, that the search for a step size looks back on; BlackJAX's, there for all of it."""
TRUST = 1.5
"""How far from the desired one an energy change may be and still say something of the step size; BlackJAX's."""
DECOHERENCE = 0.4
"""The length in units of the distance between independent positions; BlackJAX's."""
TRAJECTORY = 1.5
"""The length of an adjusted trajectory in units of the posterior's size; measured on Gaussians and networks."""
COOLED = 0.8
"""The share of the warm-up after which ``heat`` is gone."""
WATCHED = 64
"""Coordinates whose autocorrelation is followed: enough for its mean, few enough to cost nothing."""
FEWEST = 100
"""Steps of warm-up below which only the step size is tuned."""


class Moments(NamedTuple):
    """Mean and sum of squared deviations of some positions (Welford, 1962)."""

    count: Array
    mean: Array
    squares: Array


class Blocks(NamedTuple):
    """Means of the positions over blocks of 1, 2, 4, ... steps: a row a length, a column a coordinate."""

    sums: Array  # of the block that is under way
    mean: Array
    squares: Array


class Search(NamedTuple):
    """What the energy changes so far say of the step size."""

    weight: Array
    count: Array


class Tuning(NamedTuple):
    """What a chain has learned of its target."""

    step_size: Array
    length: Array
    inverse_mass: Array  # its diagonal
    search: Any  # a Search, or the dual averaging of an adjusted chain
    moments: Moments
    blocks: Blocks


class State(NamedTuple):
    """Where a chain is, which way it goes, and what it has learned."""

    position: Flat
    log_density: Array
    gradient: Flat  # by the coordinates of the layers, as the momentum
    network: NetworkState
    momentum: Flat  # of unit length; an adjusted chain takes a new one at every step
    units: tuple[Array, ...]  # of the layers
    tuning: Flat  # a Tuning: as one array it goes through a branch at no cost


class Info(NamedTuple):
    """What a step shows."""

    log_joint: Array  # where it ended
    energy_change: Array  # by the step; 0 where it was undone
    diverging: Array  # 1 where it was undone
    step_size: Array


class AdjustedInfo(NamedTuple):
    """What a step of an adjusted chain shows."""

    log_joint: Array  # where it ended
    energy_change: Array  # of the proposal
    diverging: Array  # 1 where it was beyond 1000 or not a number
    step_size: Array
    acceptance_rate: Array
    num_leapfrog: Array  # steps of the trajectory, of two gradients each


class Schedule(NamedTuple):
    """The stages of warm-up, as numbers of steps."""

    begin: int
    """Where the first window of positions begins."""
    ends: tuple[int, ...]
    """Where each window ends; the next begins there."""
    length: int
    """Where the stage ends in which autocorrelations are followed; it begins where the last window ends."""


@dataclass(frozen=True)
class MCLMC(Chains):
    r"""A particle of constant speed that the log joint steers and noise turns (microcanonical Langevin).

    In units of the posterior's scales, which warm-up learns, the weights move by

    .. math::
        \mathrm{d}w = u\, \mathrm{d}t, \qquad
        \mathrm{d}u = (I - u u^\top) \Bigl( \tfrac{1}{d - 1} \nabla \log p(w, D)\, \mathrm{d}t
        + \sqrt{\tfrac{2}{L\, d}}\, \mathrm{d}W \Bigr), \qquad |u| = 1

    whose stationary distribution is the posterior. A step of size epsilon (minimal-norm integrator, two
    gradients) changes the energy by an error of variance :math:`O(\epsilon^6)` a dimension, and the posterior's
    variances by :math:`O(\epsilon^2)`. Nothing is rejected, so this bias remains: epsilon is tuned to an error
    that keeps it small. ``adjusted=True`` removes it: a step is then a trajectory of random length with a
    Metropolis test at its end.

    Args:
      chains: how many, from different starts.
      num_warmup: steps of warm-up a chain; ``None``: 10,000, or 1,000 where adjusted.
      num_draws: draws a chain.
      thin: steps a draw; ``None``: 20, or 1 where adjusted.
      initial: ``"network"`` (each chain starts from its own initial weights) or ``"prior"``.
      adjusted: whether a Metropolis test makes the draws exact, at more gradients a draw.
      step_size: epsilon after warm-up; ``None``: tuned.
      length: L, over which the direction of motion is forgotten; of an adjusted chain, the mean length of a
        trajectory. ``None``: tuned.
      desired_energy_variance: of the error of a step, a dimension, that epsilon is tuned to.
      target_accept: the acceptance rate that epsilon is tuned to where adjusted.
      mass: ``"diagonal"`` (in units of each weight's standard deviation), ``"unit"`` (not tuned), or
        ``"inputs"`` (in units in which the inputs that each layer of a network has at the chain's start are
        nearly white; for starts at an optimum).
      collapse: whether the last layer of a regression with normal noise is integrated out exactly, and drawn
        given the rest in the end (far fewer steps from one independent draw to the next); ``None``: where that
        can be done.
      heat: how many times ``desired_energy_variance`` the variance is when the warm-up begins; it falls
        geometrically, to once by four fifths of it. Long, inaccurate steps take a chain out of a bad place.
        For ``adjusted=False``, and best with ``mass="unit"``: scales would be learned while it is hot.
    """

    num_warmup: int = None  # pyright: ignore[reportAssignmentType]  (filled in by __post_init__)
    thin: int = None  # pyright: ignore[reportAssignmentType]  (filled in by __post_init__)
    adjusted: bool = setting(False, flag)
    step_size: float | None = setting(None, optional(positive))
    length: float | None = setting(None, optional(positive))
    desired_energy_variance: float = setting(2e-5, positive)
    target_accept: float = setting(0.9, fraction)
    mass: str = setting("diagonal", one_among("diagonal", "unit", "inputs"))
    collapse: bool | None = setting(False, one_among(False, True, None))
    heat: float = setting(1.0, positive)

    kind = "approximate"  # unless adjusted: the bias of a step of finite size remains
    when = "many cheap draws of a network with thousands of weights"

    def __post_init__(self):
        num_warmup, thin = (1_000, 1) if self.adjusted is True else (10_000, 20)
        self._fill(num_warmup=num_warmup, thin=thin)
        super().__post_init__()
        for name in ("step_size", "length"):
            if getattr(self, name) is None and self.num_warmup == 0:
                allowed = "a number where num_warmup is 0, since nothing tunes it"
                raise ValueError(must("MCLMC", name, allowed, None))
        if self.adjusted and self.heat != 1:
            raise ValueError(must("MCLMC", "heat", "1 where adjusted", self.heat))

    def check(self, model, data):
        """As every chain; also that there is more than one direction to go."""
        super().check(model, data)
        if _num_weights(self.view(model, data)) < 2:
            raise ValueError(
                "MCLMC needs at least two weights: in one dimension a particle of constant speed has no way "
                "to turn. Use HMC."
            )

    def view(self, model, rows):
        """As every chain; unless asked to, no layer is integrated out that leaves one weight alone."""
        view = super().view(model, rows)
        return model if self.collapse is None and _num_weights(view) < 2 else view

    def check_start(self, states):
        """Refuses chains that start where the density is zero or has no gradient."""
        super().check_start(states)
        finite = np.isfinite(np.asarray(states.gradient.vector)).all(1)
        if not finite.all():
            raise ValueError(
                f"MCLMC cannot start: the gradient of the log density of chain {np.argmin(finite)} at its "
                "start is not finite. Start it elsewhere: fit(..., start=posterior), or an init that returns "
                "other parameters."
            )

    def init(self, key, model, data):
        """A position, and a direction to go."""
        position_key, momentum_key = jax.random.split(key)
        view, batch = self.view(model, data), None if data is None else data.everything()
        position, value, network = first_position(self, position_key, view, data)
        layers = self._layers(view, batch)
        units = layers.units(position.tree, batch, network)
        density = _around(position, view, batch, network, layers, units)
        with jax.numpy_dtype_promotion("standard"):
            gradient = jax.grad(density)(layers.origin(position.tree))
        return self._start(momentum_key, position, value, gradient, network, units)

    def unseen(self, key, model, data):
        """A chain at the model's own start that has yet to see the density: its first step does only that.

        In a program that also takes steps this saves one more gradient to compile.
        """
        view, batch = self.view(model, data), None if data is None else data.everything()
        position, network = Flat.of(view.init(key)), view.init_state()
        value = jax.eval_shape(target(view, batch, network), position)
        value = jnp.full((), jnp.nan, value.dtype)
        layers = self._layers(view, batch)
        units = layers.units(position.tree, batch, network)
        return self._start(key, position, value, layers.origin(position.tree), network, units)

    def _start(self, key, position, value, gradient, network, units):
        with jax.numpy_dtype_promotion("standard"):
            momentum = kernels.util.generate_unit_vector(key, gradient)
            tuning = Flat.of(self._untuned(position.vector))
        return State(position, value, gradient, network, momentum, units, tuning)

    def _layers(self, view, batch):
        """Those that have units of their own."""
        return Layers(view if self.mass == "inputs" else None, None if batch is None else batch.x)

    def step(self, key, state, model, batch, step):
        """One step of the motion, or one trajectory; in warm-up, what is to be learned from it."""
        view = self.view(model, batch)
        layers = self._layers(view, batch)
        # BlackJAX mixes types, e.g. whole numbers with floats.
        with jax.numpy_dtype_promotion("standard"):
            move = self._trajectory if self.adjusted else self._move
            density = _around(state.position, view, batch, state.network, layers, state.units)
            after, info = move(key, state, density, step)
            way, momentum, value, gradient = after
            # As one vector: it may be of a wider type than some of the weights.
            moved = Flat.of(layers.weights(state.units, way))
            position = jax.tree.map(jnp.add, state.position, moved)
            tuning = state.tuning
            if self.num_warmup:
                seen = lambda: layers.coordinates(state.units, position.tree).vector  # noqa: E731
                learn = lambda: Flat.of(self._learn(tuning.tree, step, seen(), value, info))  # noqa: E731
                tuning = lax.cond(step < self.num_warmup, learn, lambda: tuning)
        network, units = state.network, state.units
        return State(position, value, gradient, network, momentum, units, tuning), info

    def _move(self, key, state, log_density, step):
        """Half of the noise, one step of the motion, half of the noise; undone where it diverged."""
        tuning = state.tuning.tree
        first, second = jax.random.split(key)
        before = _integrator_state(state)
        # An unseen chain stays where it is, and all it has from here is the density and its gradient.
        seen = ~jnp.isnan(before.logdensity)
        step_size = jnp.where(seen, tuning.step_size, 0)
        turned = turn(first, before.momentum, step_size / 2, tuning.length)
        flow = kernels.integrators.isokinetic_mclachlan(log_density, tuning.inverse_mass)
        after, kinetic = flow(before._replace(momentum=turned), step_size)
        turned = turn(second, after.momentum, step_size / 2, tuning.length)
        change = kinetic + jnp.where(seen, before.logdensity, after.logdensity) - after.logdensity
        # Where the density or its gradient is not a number, neither are these.
        taken = (jnp.abs(change) < DIVERGED) & jnp.all(jnp.isfinite(turned.vector))
        # Back the way it came: a rejected step of a motion that remembers its direction reverses it.
        back = before._replace(momentum=jax.tree.map(jnp.negative, before.momentum))
        after = jax.tree.map(partial(jnp.where, taken), after._replace(momentum=turned), back)
        typed = partial(lax.convert_element_type, new_dtype=tuning.step_size.dtype)
        change = typed(jnp.where(taken, change, 0))
        return after, Info(after.logdensity, change, typed(~taken), step_size)

    def _trajectory(self, key, state, log_density, step):
        """Steps of the motion from a new direction, at whose end the chain is if it is accepted."""
        tuning = state.tuning.tree
        direction_key, key = jax.random.split(key)
        direction = kernels.util.generate_unit_vector(direction_key, state.momentum)
        before = _integrator_state(state)._replace(momentum=direction)
        flow = kernels.integrators.isokinetic_mclachlan(log_density, tuning.inverse_mass)
        mean = jnp.clip(tuning.length / tuning.step_size, 1, MOST)
        propose = kernels.adjusted_mclmc.adjusted_mclmc_proposal(
            lambda state, step_size, *_: flow(state, step_size),
            tuning.step_size,
            math.inf,
            num_leapfrogs(step, mean),
            DIVERGED,
            sample_proposal=_accept,
        )
        after, info, change = propose(key, before)
        typed = partial(lax.convert_element_type, new_dtype=tuning.step_size.dtype)
        figures = typed(change), typed(info.is_divergent), tuning.step_size
        count = lax.convert_element_type(info.num_integration_steps, jnp.int32)
        rate = typed(info.acceptance_rate)
        return after, AdjustedInfo(after.logdensity, *figures, rate, count)

    # -- warm-up ----------------------------------------------------------------------------------

    def _untuned(self, position):
        """What is known before the first step."""
        root, zeros = math.sqrt(position.size), jnp.zeros_like(position)
        step_size = FIRST_STEP * root if self.num_warmup else self.step_size
        size = TRAJECTORY * root if self.adjusted else root
        step_size = jnp.asarray(step_size, position.dtype)
        _, ends, length = schedule(self.num_warmup)
        rows = len(block_lengths(length - ends[-1])) if self._follows else 1
        blocks = jnp.zeros((rows, min(WATCHED, position.size)), position.dtype)
        return Tuning(
            step_size,
            jnp.asarray(size if self.length is None else self.length, position.dtype),
            jnp.ones_like(position),
            self._new_search(step_size),
            Moments(jnp.zeros_like(step_size), zeros, zeros),
            Blocks(blocks, blocks, blocks),
        )

    @property
    def layout(self) -> Layout:  # pyright: ignore[reportIncompatibleVariableOverride]
        """In turn: the trajectories of adjusted chains differ in length.

        On a CPU a batch of small products, too, takes longer than one chain after the other (8-50-1 network,
        500 rows, four chains: 177 us against 90 us per step).
        """
        return Layout.IN_TURN if self.adjusted else Layout.IN_TURN_IF_SMALL

    @property
    def _follows(self) -> bool:
        """Whether the length comes from autocorrelations."""
        return self.length is None and not self.adjusted and len(schedule(self.num_warmup).ends) > 0

    def _new_search(self, step_size):
        if not self.adjusted:
            return Search(jnp.zeros_like(step_size), jnp.zeros_like(step_size))
        start, _, _ = kernels.step_size.dual_averaging_adaptation(self.target_accept)
        return _typed(start(step_size), step_size)

    def _learn(self, tuning, step, position, log_density, info):
        """What is known after a step of warm-up to this position."""
        begin, ends, end = schedule(self.num_warmup)
        tuning = self._search(tuning, step, position.size, log_density, info)
        if ends:
            closes = jnp.any(step + 1 == np.array(ends, np.int32))
            if self.mass != "diagonal" and self.length is not None:
                # There are no units to learn: only the step size is looked for anew.
                closed = tuning._replace(search=self._new_search(tuning.step_size))
            else:
                within = (step >= begin) & (step < ends[-1])
                tuning = tuning._replace(moments=_add(tuning.moments, position, within))
                closed = self._close(tuning)
            tuning = jax.tree.map(partial(jnp.where, closes), closed, tuning)
        if self._follows:
            number = step + 1 - ends[-1]
            lengths = block_lengths(end - ends[-1])
            within = (number > 0) & (step < end)
            blocks = _add_to_blocks(tuning.blocks, position, number, lengths, within)
            distance = tuning.step_size * autocorrelation_time(blocks, end - ends[-1], lengths)
            known = (step + 1 == end) & (distance > 0)
            length = jnp.where(known, DECOHERENCE * distance, tuning.length)
            tuning = tuning._replace(blocks=blocks, length=length)
        last = step + 1 == self.num_warmup
        if self.step_size is not None:
            given = jnp.where(last, self.step_size, tuning.step_size)
            tuning = tuning._replace(step_size=given.astype(tuning.step_size.dtype))
        elif self.adjusted:
            mean = jnp.exp(tuning.search.log_step_size_avg)
            tuning = tuning._replace(step_size=jnp.where(last, mean, tuning.step_size))
        return tuning

    def _search(self, tuning, step, size, log_density, info):
        """A step size nearer to the one that is looked for."""
        if self.adjusted:
            _, update, _ = kernels.step_size.dual_averaging_adaptation(self.target_accept)
            search = _typed(update(tuning.search, info.acceptance_rate), tuning.step_size)
            return tuning._replace(step_size=jnp.exp(search.log_step_size), search=search)
        # Below what the log density is rounded to, a shorter step makes no smaller change.
        rounding = jnp.finfo(log_density.dtype).eps * log_density
        desired = self.energy_variance(step) * size + jnp.square(rounding)
        ratio = jnp.square(info.energy_change) / desired.astype(tuning.step_size.dtype)
        factor, search = rescale(ratio, tuning.search)
        undone = info.diverging > 0
        search = jax.tree.map(partial(jnp.where, undone), tuning.search, search)
        step_size = tuning.step_size * jnp.where(undone, 0.8, factor)
        found = tuning._replace(step_size=step_size, search=search)
        # A step of no length, which only looked at the density, says nothing of the others.
        return jax.tree.map(partial(jnp.where, info.step_size > 0), found, tuning)

    def energy_variance(self, step: Array) -> Any:
        """Of the error of a step of warm-up, a dimension, to which its size is tuned."""
        left = jnp.maximum(1 - step / (COOLED * self.num_warmup), 0)
        return self.desired_energy_variance * self.heat**left

    def _close(self, tuning):
        """At the end of a window: new units, in which all that was tuned is tuned anew."""
        count, _, squares = tuning.moments
        variance = squares / (count - 1)
        moved = variance > 0
        mass = tuning.inverse_mass
        if self.mass == "diagonal":
            mass = jnp.where(moved, variance, mass)
        size = jnp.sqrt(jnp.sum(jnp.where(moved, variance / mass, 1)))
        length = tuning.length
        if self.length is None:
            length = TRAJECTORY * size if self.adjusted else size
        # The same distance, on average, in the new units.
        step_size = tuning.step_size * jnp.exp(jnp.mean(jnp.log(tuning.inverse_mass / mass)) / 2)
        search = self._new_search(step_size)
        nothing = jax.tree.map(jnp.zeros_like, tuning.moments)
        return Tuning(step_size, length, mass, search, nothing, tuning.blocks)


def _num_weights(view: Any) -> int:
    params = jax.eval_shape(view.init, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def turn(key: Array, momentum: Flat, time: Array, length: Array) -> Flat:
    """The direction after so long under noise that makes it forgotten over ``length``."""
    noise = random.normal(key, momentum.vector.shape, momentum.vector.dtype)
    scale = jnp.sqrt(jnp.expm1(2 * time / length) / momentum.size)
    turned = momentum.vector + scale * noise
    return Flat(turned / jnp.linalg.norm(turned), momentum.structure, momentum.leaves)


def num_leapfrogs(step: Array, mean: Array) -> Array:
    """The steps of a trajectory, from a sequence that all chains share and that fills its range evenly.

    It depends on the number of the step alone, not on the state, so the posterior stays invariant.

    >>> [int(num_leapfrogs(jnp.int32(step), jnp.float32(4.0))) for step in range(7)]
    [4, 2, 6, 1, 5, 3, 7]
    """
    with jax.numpy_dtype_promotion("standard"):
        steps = kernels.adjusted_mclmc_dynamic.trajectory_length(step, mean)
    return jnp.maximum(steps, 1).astype(jnp.int32)


def _accept(key, log_probability, old, new):
    """BlackJAX's Metropolis test, with the change of energy that it was of."""
    state, (accepted, rate, _) = kernels.proposal.static_binomial_sampling(
        key, log_probability, old, new
    )
    limit = jnp.finfo(log_probability.dtype).max
    return state, (accepted, rate, jnp.clip(-log_probability, -limit, limit))


def _around(
    position: Flat, model: Any, batch: Any, network: NetworkState, layers: Layers, units: tuple
) -> Callable[[Flat], Array]:
    """The log density as a function of the way from a position, in the coordinates of the layers."""

    def log_density(way):
        weights = jax.tree.map(jnp.add, position.tree, layers.weights(units, way))
        return model.log_joint(weights, batch, state=network)

    return log_density


def _integrator_state(state):
    """At the beginning of the way from the chain's position."""
    momentum = state.momentum
    way = jax.tree.map(jnp.zeros_like, momentum)
    return kernels.integrators.IntegratorState(way, momentum, state.log_density, state.gradient)


def schedule(num_warmup: int) -> Schedule:
    """The stages of so many steps of warm-up.

    A tenth to reach the bulk of the density; four tenths in windows of doubling length, each of which gives
    new units; two tenths in which autocorrelations are followed. The step size is searched for in all of them,
    and in what is left.

    >>> schedule(10_000)
    Schedule(begin=1000, ends=(1129, 1387, 1903, 2935, 5000), length=7000)
    >>> schedule(100)
    Schedule(begin=10, ends=(23, 50), length=70)
    >>> schedule(11)
    Schedule(begin=0, ends=(), length=0)
    """
    if num_warmup < FEWEST:
        return Schedule(0, (), 0)
    begin, end = num_warmup // 10, num_warmup // 2
    # At most five: 31 times the first window.
    windows = min(5, int(math.log2((end - begin) / 10 + 1)))
    shares = [(2**window - 1) / (2**windows - 1) for window in range(1, windows + 1)]
    ends = tuple(begin + int((end - begin) * share) for share in shares)
    return Schedule(begin, ends, 7 * num_warmup // 10)


def rescale(ratio: Array, search: Search) -> tuple[Array, Search]:
    r"""What to multiply the step size by, after a squared energy change of ``ratio`` times the desired.

    The variance of the energy change goes with :math:`\epsilon^6`. So the steps so far, each with its own
    :math:`\epsilon_t` and squared change :math:`\xi_t` in units of the desired, ask for

    .. math:: \epsilon^{-6} = \sum_t w_t \xi_t \epsilon_t^{-6} \Big/ \sum_t w_t

    which is what the last answer is changed to by one more of them. The weights favour changes near the desired
    ones, and the last steps over those long past.
    """
    ratio = ratio + 1e-8
    weight = jnp.exp(-0.5 * jnp.square(jnp.log(ratio) / (6 * TRUST)))
    memory = jnp.maximum(MEMORY, search.count)
    past = search.weight * (memory - 1) / (memory + 1)
    factor = ((past + weight * ratio) / (past + weight)) ** (-1 / 6)
    return factor, Search(past + weight, search.count + 1)


def block_lengths(steps: int) -> np.ndarray:
    """Powers of two, up to the largest of which there are eight blocks in so many steps."""
    return 2 ** np.arange(max(1, int(math.log2(max(steps, 8) / 8)) + 1), dtype=np.int32)


def autocorrelation_time(blocks: Blocks, steps: int, lengths: np.ndarray) -> Array:
    r"""Steps from one independent position to the next, on average over the coordinates.

    The variance of the means of b successive positions is :math:`\tau / b` times that of the positions once b
    is well beyond tau, and a greater b then changes nothing but the noise (Flyvbjerg & Petersen, 1989). An
    autocorrelation that swings below zero makes it fall again: the largest value is before that.
    """
    variance = blocks.squares / (steps // lengths - 1)[:, None].astype(blocks.squares.dtype)
    moved = variance[0] > 0
    times = lengths[:, None].astype(variance.dtype) * variance / jnp.where(moved, variance[0], 1)
    return jnp.max(jnp.mean(jnp.where(moved, times, 0), axis=1))


def _add_to_blocks(blocks, position, number, lengths, within):
    """After the position of step ``number`` (from one); ``within``: whether it is to be counted at all."""
    _, columns = blocks.sums.shape
    watched = position[:: position.size // columns][:columns]
    sums = blocks.sums + jnp.where(within, watched, 0)
    full = (within & (number % lengths == 0))[:, None]
    count = (number // lengths)[:, None].astype(position.dtype)
    mean = sums / lengths[:, None].astype(position.dtype)
    _, means, squares = _add(Moments(count - 1, blocks.mean, blocks.squares), mean, full)
    return Blocks(jnp.where(full, 0, sums), means, squares)


def _add(moments, value, counts):
    """The moments with one more value, where it counts."""
    count = moments.count + 1
    away = value - moments.mean
    mean = moments.mean + away / count
    squares = moments.squares + away * (value - mean)
    return jax.tree.map(partial(jnp.where, counts), Moments(count, mean, squares), moments)


def _typed(averaging, like):
    """Dual averaging whose numbers keep their types from step to step."""
    averaging = jax.tree.map(lambda leaf: jnp.asarray(leaf, like.dtype), averaging)
    return averaging._replace(step=averaging.step.astype(jnp.int32))
