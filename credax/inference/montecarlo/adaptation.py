r"""The warm-up of a Hamiltonian chain: its step size by dual averaging, its mass by windows of draws.

Warm-up is cut, by the number of its steps alone, as Stan cuts it: steps to reach the bulk of the density,
windows of doubling length, steps for the last word on the step size. At the end of a window the inverse mass
is, from the variances of its draws and of their gradients (Seyboldt et al., 2026),

.. math:: M^{-1}_{ii} = \sqrt{\operatorname{Var}[w_i] \,/\, \operatorname{Var}[\partial_i \log p(w, D)]}

This is the variance where the weights are independent and normal. Where they are not, the variance knows the
widest direction through a weight and the gradient the narrowest, which is the one that bounds the step size;
for a network of 500 weights their geometric mean gave up to eight times as many effective draws per gradient
as the variance alone, and on others as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.typing import Array
from credax.inference.montecarlo import kernels

FEWEST = 20
"""Steps of warm-up below which the mass is left alone; from Stan."""
FIRST, WINDOW = 75, 25
"""Steps before the windows and in the first of them; from Stan."""
LAST = 0.2
"""The share of the steps after the windows. Stan's 50 steps leave the acceptance rate 0.05 to either side."""
GAMMA = 0.2
"""How firmly dual averaging holds the step size.

With the usual 0.05 it doubles and halves from step to step; since the acceptance rate is concave in the
logarithm, its mean then belongs to an acceptance rate of 0.9 to 0.95 where 0.8 was asked for.
"""


def schedule(num_warmup: int) -> tuple[int, tuple[int, ...]]:
    """How many steps come before the windows, and how many until the end of each.

    >>> schedule(1_000)
    (75, (100, 150, 250, 800))
    >>> schedule(100)
    (15, (80,))
    >>> schedule(10)
    (10, ())
    """
    if num_warmup < FEWEST:
        return num_warmup, ()
    begin, end, window = FIRST, num_warmup - int(LAST * num_warmup), WINDOW
    if end < begin + window:
        begin = int(0.15 * num_warmup)
        return begin, (end,)
    first, ends = begin, []
    while begin < end:
        # A window takes what is left where the next, twice as long, would not fit.
        begin = begin + window if begin + 3 * window <= end else end
        ends.append(begin)
        window *= 2
    return first, tuple(ends)


class Adaptation(NamedTuple):
    """What a chain has learned of its target."""

    step_size: Array  # of the next step
    inverse_mass: Array  # its diagonal, or the whole matrix
    root: Array  # of the inverse mass: its diagonal, or the lower Cholesky factor
    averaging: Any  # of the step size
    draws: Any  # their moments, of this window
    gradients: Any


@dataclass(frozen=True)
class Warmup:
    """What is learned in how many steps.

    Args:
      num_warmup: steps.
      mass: ``"diagonal"``, ``"dense"``, or ``"unit"``, which nothing is learned of.
      target_accept: the acceptance rate that the step size is to give; ``None``: it stays as it is.
    """

    num_warmup: int
    mass: str
    target_accept: float | None

    def init(self, step_size: Array, position: Array) -> Adaptation:
        """Nothing learned yet."""
        unit = jnp.ones_like(position)
        inverse_mass = jnp.diag(unit) if self.mass == "dense" else unit
        empty = _no_draws(position, position)
        draws = _no_draws(position, inverse_mass)
        return Adaptation(
            step_size, inverse_mass, inverse_mass, self._search(step_size), draws, empty
        )

    def update(
        self, adaptation: Adaptation, step: Array, position: Array, gradient: Array, rate: Array
    ) -> Adaptation:
        """What is known after a step.

        Args:
          adaptation: what was known before.
          step: the number of the step, from zero.
          position: where it ended.
          gradient: of the log density, there.
          rate: its acceptance rate.
        """
        after = lambda: self._learn(adaptation, step, position, gradient, rate)  # noqa: E731
        return lax.cond(step < self.num_warmup, after, lambda: adaptation)

    def _learn(self, known, step, position, gradient, rate):
        begin, ends = schedule(self.num_warmup)
        if self.target_accept is not None:
            averaging = self._averaged(known.averaging, rate)
            last = step == self.num_warmup - 1
            log_size = jnp.where(last, averaging.log_step_size_avg, averaging.log_step_size)
            known = known._replace(averaging=averaging, step_size=jnp.exp(log_size))
        if self.mass == "unit" or not ends:
            return known
        in_window = (step >= begin) & (step < ends[-1])
        known = lax.cond(in_window, lambda: _added(known, position, gradient), lambda: known)
        closes = jnp.any(step + 1 == jnp.asarray(ends, step.dtype))
        return lax.cond(closes, lambda: self._close(known), lambda: known)

    def _close(self, known):
        """The mass of a window, and a search for the step size that belongs to it."""
        inverse_mass = _fisher(known)
        root = jnp.sqrt(inverse_mass)
        if self.mass == "dense":
            inverse_mass = _shrunk(known.draws, inverse_mass)
            root = jnp.linalg.cholesky(inverse_mass)
            failed = jnp.isnan(root).any()
            inverse_mass = jnp.where(failed, known.inverse_mass, inverse_mass)
            root = jnp.where(failed, known.root, root)
        draws = _no_draws(known.draws.mean, known.draws.m2)
        empty = _no_draws(known.draws.mean, known.draws.mean)
        new = known._replace(inverse_mass=inverse_mass, root=root, draws=draws, gradients=empty)
        if self.target_accept is None:
            return new
        # Where the masses all change by one factor, the step size changes with them.
        factor = jnp.exp(_mean_log(known.root) - _mean_log(root))
        step_size = jnp.exp(known.averaging.log_step_size_avg) * factor
        return new._replace(step_size=step_size, averaging=self._search(step_size))

    def _search(self, step_size):
        """Dual averaging from a step size.

        It is usually drawn to ten times that size, which costs a few rejections at the start of every window;
        here it begins near the right size.
        """
        start, _, _ = kernels.step_size.dual_averaging_adaptation(self.target_accept or 0.5)
        averaging = start(step_size)._replace(mu=jnp.log(step_size))
        return _typed(averaging, step_size.dtype)

    def _averaged(self, averaging, rate):
        _, update, _ = kernels.step_size.dual_averaging_adaptation(self.target_accept, gamma=GAMMA)
        return _typed(update(averaging, rate), averaging.mu.dtype)


def _added(known, position, gradient):
    _, add, _ = kernels.mass_matrix.welford_algorithm(known.draws.m2.ndim == 1)
    _, add_gradient, _ = kernels.mass_matrix.welford_algorithm(is_diagonal_matrix=True)
    return known._replace(
        draws=add(known.draws, position), gradients=add_gradient(known.gradients, gradient)
    )


def _no_draws(position, shape):
    zero = jnp.zeros((), jnp.int32)
    return kernels.mass_matrix.WelfordAlgorithmState(
        jnp.zeros_like(position), jnp.zeros_like(shape), zero
    )


def _fisher(known):
    """The diagonal of the inverse mass; as it was where all draws of the window were the same."""
    dense = known.draws.m2.ndim == 2
    squares = jnp.diag(known.draws.m2) if dense else known.draws.m2
    before = jnp.diag(known.inverse_mass) if dense else known.inverse_mass
    inverse_mass = jnp.sqrt(squares / known.gradients.m2)
    return jnp.where(jnp.isfinite(inverse_mass) & (inverse_mass > 0), inverse_mass, before)


def _shrunk(draws, diagonal):
    """The covariance, drawn to a diagonal that counts as one draw a weight.

    n draws alone would say that there are n directions.
    """
    count = draws.sample_size.astype(diagonal.dtype)
    weights = jnp.asarray(diagonal.size, diagonal.dtype)
    covariance = draws.m2 / (count - 1)
    return (count * covariance + weights * jnp.diag(diagonal)) / (count + weights)


def _mean_log(root):
    return jnp.mean(jnp.log(root if root.ndim == 1 else jnp.diag(root)))


def _typed(averaging, dtype):
    """In one float type, not weakly: what a loop carries must not change its type."""
    averaging = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), averaging)
    return averaging._replace(step=averaging.step.astype(jnp.int32))
