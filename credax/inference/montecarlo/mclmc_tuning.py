r"""The warm-up of MCLMC: step size, units (a diagonal inverse mass matrix) and length L.

The step size is searched for throughout the warm-up, so that the energy error per step has the desired variance
(or, for adjusted chains, so that the acceptance rate is the target). Windows of draws give the inverse mass
matrix; a later stage gives L from the autocorrelation time of the positions (Robnik et al., 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.typing import Array
from credax.inference.montecarlo import kernels

FIRST_STEP = 0.25
"""The first step size, as a multiple of the square root of the dimension; from BlackJAX."""
MEMORY = 150.0
"""The least number of past steps that the step size search averages over; from BlackJAX, where it is fixed."""
TRUST = 1.5
"""How fast the weight of a step in the search falls as its energy error moves away from the desired one: the
standard deviation of a normal density in the logarithm of the step size; from BlackJAX."""
DECOHERENCE = 0.4
"""L as a multiple of the distance travelled in one autocorrelation time; from BlackJAX."""
TRAJECTORY = 1.5
"""The mean length of an adjusted trajectory, as a multiple of the posterior's size (the square root of the sum
of its variances); measured on Gaussians and networks."""
COOLED = 0.8
"""The fraction of the warm-up after which ``heat`` has no effect."""
WATCHED = 64
"""The number of coordinates whose autocorrelation is measured: enough for a mean, few enough to be cheap."""
FEWEST = 100
"""With fewer warm-up steps than this, only the step size is tuned."""


# -- what is tuned -----------------------------------------------------------------------------------


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of a series (Welford, 1962)."""

    count: Array
    mean: Array
    squares: Array


class Blocks(NamedTuple):
    """Moments of block means: one row per block length (1, 2, 4, ... steps), one column per coordinate."""

    sums: Array  # over the current, unfinished block
    mean: Array
    squares: Array


class Search(NamedTuple):
    """The state of the step size search of an unadjusted chain."""

    weight: Array  # the total weight of past steps
    count: Array  # the number of past steps


class Tuning(NamedTuple):
    """What a chain has learned about its target."""

    step_size: Array
    length: Array
    inverse_mass: Array  # the diagonal
    search: Any  # a Search; for adjusted chains, BlackJAX's dual averaging state
    moments: Moments  # of the positions in the current window
    blocks: Blocks


class Schedule(NamedTuple):
    """The stages of the warm-up, in steps from its start."""

    begin: int
    """The first step of the first window."""
    ends: tuple[int, ...]
    """The end of each window, at which the next one begins."""
    length: int
    """The end of the stage that measures autocorrelations; it begins at the end of the last window."""


def schedule(num_warmup: int) -> Schedule:
    """The stages of a warm-up of ``num_warmup`` steps.

    The first tenth is for reaching the typical set. The next four tenths are windows of doubling length, each
    of which ends with a new inverse mass matrix. The next two tenths measure autocorrelations. The step size is
    searched for in all stages and in the remaining three tenths.

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
    # At most five windows, together 31 times as long as the first.
    windows = min(5, int(math.log2((end - begin) / 10 + 1)))
    shares = [(2**window - 1) / (2**windows - 1) for window in range(1, windows + 1)]
    ends = tuple(begin + int((end - begin) * share) for share in shares)
    return Schedule(begin, ends, 7 * num_warmup // 10)


@dataclass(frozen=True)
class Warmup:
    """What the warm-up tunes, and in how many steps.

    Args:
      num_warmup: the number of steps.
      adjusted: whether the chain has a Metropolis test, so that the step size is tuned to ``target_accept``.
      step_size: the step size after the warm-up. If ``None``, the tuned one.
      length: L. If ``None``, it is tuned.
      desired_energy_variance: the variance of the energy error per step and dimension that the step size of an
        unadjusted chain is tuned to.
      target_accept: the acceptance rate that the step size of an adjusted chain is tuned to.
      learn_mass: whether the inverse mass matrix is tuned.
      heat: the factor by which the desired variance is larger when the warm-up begins.
    """

    num_warmup: int
    adjusted: bool
    step_size: float | None
    length: float | None
    desired_energy_variance: float
    target_accept: float
    learn_mass: bool
    heat: float

    def init(self, position: Array) -> Tuning:
        """The tuning before the first step."""
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

    def update(
        self, tuning: Tuning, step: Array, position: Array, log_density: Array, info: Any
    ) -> Tuning:
        """The tuning after a warm-up step.

        Args:
          tuning: the tuning before it.
          step: the number of warm-up steps before it.
          position: the position after it.
          log_density: the log density at that position.
          info: the ``Info`` or ``AdjustedInfo`` of the step.
        """
        begin, ends, end = schedule(self.num_warmup)
        tuning = self._search(tuning, step, position.size, log_density, info)
        if ends:
            closes = jnp.any(step + 1 == np.array(ends, np.int32))
            if not self.learn_mass and self.length is not None:
                # There is nothing to learn from positions: only the step size search starts anew.
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
            blocks = add_to_blocks(tuning.blocks, position, number, lengths, within)
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

    def energy_variance(self, step: Array) -> Any:
        """The variance of the energy error, per dimension, that the step size is tuned to at a warm-up step."""
        left = jnp.maximum(1 - step / (COOLED * self.num_warmup), 0)
        return self.desired_energy_variance * self.heat**left

    @property
    def _follows(self) -> bool:
        """Whether L is taken from autocorrelations."""
        return self.length is None and not self.adjusted and len(schedule(self.num_warmup).ends) > 0

    def _new_search(self, step_size):
        if not self.adjusted:
            return Search(jnp.zeros_like(step_size), jnp.zeros_like(step_size))
        start, _, _ = kernels.step_size.dual_averaging_adaptation(self.target_accept)
        return _typed(start(step_size), step_size)

    def _search(self, tuning, step, size, log_density, info):
        """The tuning with the next step size of the search."""
        if self.adjusted:
            _, update, _ = kernels.step_size.dual_averaging_adaptation(self.target_accept)
            search = _typed(update(tuning.search, info.acceptance_rate), tuning.step_size)
            return tuning._replace(step_size=jnp.exp(search.log_step_size), search=search)
        # A shorter step cannot make the error smaller than the rounding error of the log density.
        rounding = jnp.finfo(log_density.dtype).eps * log_density
        desired = self.energy_variance(step) * size + jnp.square(rounding)
        ratio = jnp.square(info.energy_change) / desired.astype(tuning.step_size.dtype)
        factor, search = rescale(ratio, tuning.search)
        undone = info.diverging > 0
        search = jax.tree.map(partial(jnp.where, undone), tuning.search, search)
        step_size = tuning.step_size * jnp.where(undone, 0.8, factor)
        found = tuning._replace(step_size=step_size, search=search)
        # A step of size zero only evaluates the density, so nothing can be learned from it.
        return jax.tree.map(partial(jnp.where, info.step_size > 0), found, tuning)

    def _close(self, tuning):
        """The tuning at the end of a window: a new inverse mass matrix, and L and step size in its units."""
        count, _, squares = tuning.moments
        variance = squares / (count - 1)
        moved = variance > 0
        mass = tuning.inverse_mass
        if self.learn_mass:
            mass = jnp.where(moved, variance, mass)
        size = jnp.sqrt(jnp.sum(jnp.where(moved, variance / mass, 1)))
        length = tuning.length
        if self.length is None:
            length = TRAJECTORY * size if self.adjusted else size
        # In the new units, this step size moves the weights as far as before, on average.
        step_size = tuning.step_size * jnp.exp(jnp.mean(jnp.log(tuning.inverse_mass / mass)) / 2)
        search = self._new_search(step_size)
        empty = jax.tree.map(jnp.zeros_like, tuning.moments)
        return Tuning(step_size, length, mass, search, empty, tuning.blocks)


# -- the step size -----------------------------------------------------------------------------------


def rescale(ratio: Array, search: Search) -> tuple[Array, Search]:
    r"""The factor by which to multiply the step size after one more step, and the new state of the search.

    The variance of the energy error is proportional to :math:`\epsilon^6`. The past steps, with step sizes
    :math:`\epsilon_t` and squared energy errors :math:`\xi_t` relative to the desired variance, therefore
    suggest

    .. math:: \epsilon^{-6} = \sum_t w_t \xi_t \epsilon_t^{-6} \Big/ \sum_t w_t

    and one more step updates this weighted mean. The weights favour errors near the desired one, and recent
    steps over those long past.

    Args:
      ratio: the squared energy error of the step, divided by the desired variance.
      search: the state of the search before the step.
    """
    ratio = ratio + 1e-8
    weight = jnp.exp(-0.5 * jnp.square(jnp.log(ratio) / (6 * TRUST)))
    memory = jnp.maximum(MEMORY, search.count)
    past = search.weight * (memory - 1) / (memory + 1)
    factor = ((past + weight * ratio) / (past + weight)) ** (-1 / 6)
    return factor, Search(past + weight, search.count + 1)


def _typed(averaging, like):
    """The dual averaging state with dtypes that do not change from step to step."""
    averaging = jax.tree.map(lambda leaf: jnp.asarray(leaf, like.dtype), averaging)
    return averaging._replace(step=averaging.step.astype(jnp.int32))


# -- the length --------------------------------------------------------------------------------------


def block_lengths(steps: int) -> np.ndarray:
    """Powers of two, up to the largest one of which ``steps`` steps hold eight blocks."""
    return 2 ** np.arange(max(1, int(math.log2(max(steps, 8) / 8)) + 1), dtype=np.int32)


def autocorrelation_time(blocks: Blocks, steps: int, lengths: np.ndarray) -> Array:
    r"""The integrated autocorrelation time in steps, averaged over the coordinates.

    For blocks much longer than the autocorrelation time :math:`\tau`, the variance of the means of b successive
    positions is :math:`\tau / b` times the variance of the positions (Flyvbjerg & Petersen, 1989). Shorter
    blocks give less; so do longer ones if the autocorrelation becomes negative. The largest value over b is
    therefore taken.

    Args:
      blocks: the moments of the block means.
      steps: the number of steps that the blocks cover.
      lengths: the block lengths, b.
    """
    variance = blocks.squares / (steps // lengths - 1)[:, None].astype(blocks.squares.dtype)
    moved = variance[0] > 0
    times = lengths[:, None].astype(variance.dtype) * variance / jnp.where(moved, variance[0], 1)
    return jnp.max(jnp.mean(jnp.where(moved, times, 0), axis=1))


def add_to_blocks(
    blocks: Blocks, position: Array, number: Array, lengths: np.ndarray, within: Array
) -> Blocks:
    """The blocks with one more position.

    Args:
      blocks: the blocks before.
      position: the position to add.
      number: the number of positions, this one included.
      lengths: the block lengths.
      within: whether to add the position at all.
    """
    _, columns = blocks.sums.shape
    watched = position[:: position.size // columns][:columns]
    sums = blocks.sums + jnp.where(within, watched, 0)
    full = (within & (number % lengths == 0))[:, None]
    count = (number // lengths)[:, None].astype(position.dtype)
    mean = sums / lengths[:, None].astype(position.dtype)
    _, means, squares = _add(Moments(count - 1, blocks.mean, blocks.squares), mean, full)
    return Blocks(jnp.where(full, 0, sums), means, squares)


def _add(moments, value, counts):
    """The moments with one more value, wherever ``counts`` is true."""
    count = moments.count + 1
    away = value - moments.mean
    mean = moments.mean + away / count
    squares = moments.squares + away * (value - mean)
    return jax.tree.map(partial(jnp.where, counts), Moments(count, mean, squares), moments)
