r"""The warm-up of HMC and NUTS: step size by dual averaging, mass matrix from windows of draws.

The stages are those of Stan and depend only on the number of warm-up steps: first some steps to reach the
typical set, then windows of doubling length, then some steps to settle the step size. At the end of each
window, the diagonal inverse mass matrix is computed from the variances of its draws and of their gradients
(Seyboldt et al., 2026):

.. math:: M^{-1}_{ii} = \sqrt{\operatorname{Var}[w_i] \,/\, \operatorname{Var}[\partial_i \log p(w, D)]}

For independent, normally distributed weights this equals the variance. For correlated weights, the variance
reflects the widest direction that involves a weight, and the gradient the narrowest, which limits the step
size. For a network of 500 weights, their geometric mean gave up to eight times as many effective draws per
gradient as the variance alone, and for other networks no fewer.

Hidden units of a network can be exchanged, so that corresponding weights of all units of a layer have the same
marginal distribution. A chain changes the roles of its units slowly: a weight that was idle in the windows, and
thus has a large entry of :math:`M^{-1}`, may later be held tightly by the data, where the step is then far too
long. The entries are therefore the geometric means of a weight's own entry and of that of its group
(:mod:`credax.inference.montecarlo.exchangeable`). On an 8-50-1 network, eight chains of 400 draws had between 3
and 62 effective draws of the worst prediction with their own entries alone, between 3 and 13 with those of the
groups alone, and between 9 and 70 with the means.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.typing import Array
from credax.inference.montecarlo import kernels
from credax.inference.montecarlo.stiffness import ROWS, Stiff, none, rank_of, stiff

FEWEST = 20
"""With fewer warm-up steps than this, the mass matrix is not adapted; from Stan."""
FIRST, WINDOW = 75, 25
"""The number of steps before the first window, and in it; from Stan."""
LAST = 0.3
"""The fraction of the warm-up that follows the windows. With Stan's 50 steps the acceptance rate would still be
off by up to 0.05, and with a fraction of 0.2 that of some chains on a funnel by half."""
T0, GAMMA, KAPPA = 50, 0.2, 1.0
"""The parameters of dual averaging (Hoffman & Gelman, 2014): how slowly it begins, how little the step size
reacts to the acceptance rate, and how soon its average forgets. The usual values are 10, 0.05 and 0.75.

With a gamma of 0.05, the step size doubles and halves from step to step. A kappa of 1 gives the plain mean of
all logarithms since the last window, not that of the last steps, and a larger t0 keeps the first of them from
varying most.
"""
SEARCH = 0.25
"""The fraction of the steps after the windows in which dual averaging goes on; then the step size settles."""


def schedule(num_warmup: int) -> tuple[int, tuple[int, ...]]:
    """The number of steps before the first window, and the step at which each window ends.

    >>> schedule(1_000)
    (75, (100, 150, 250, 700))
    >>> schedule(100)
    (15, (70,))
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
        # The last window is extended to the end if another one, twice as long, would not fit.
        begin = begin + window if begin + 3 * window <= end else end
        ends.append(begin)
        window *= 2
    return first, tuple(ends)


def slope(rate: float) -> float:
    r"""How fast the acceptance rate falls with the logarithm of the step size, where it has a certain value.

    In many dimensions the error of the energy is normal, and its standard deviation grows with the square of
    the step size, so that the rate is :math:`2 \Phi(-z)` with :math:`z \propto \epsilon^2` (Beskos et al.,
    2013).

    >>> [round(slope(rate), 2) for rate in (0.6, 0.8, 0.95)]
    [0.73, 0.39, 0.1]
    """
    normal = NormalDist()
    z = -normal.inv_cdf(rate / 2)
    return 4 * z * normal.pdf(z)


class Adaptation(NamedTuple):
    """What a chain has learned about its target."""

    step_size: Array  # for the next step
    inverse_mass: Array  # the diagonal, or the whole matrix
    root: Array  # the square root of the diagonal, or the lower Cholesky factor of the matrix
    averaging: Any  # the dual averaging state of the step size
    halfway: Array  # its mean log step size in the first half of the steps after the windows
    draws: Any  # the moments of the draws in the current window
    gradients: Any  # the moments of their gradients
    stiff: Stiff  # the directions that the diagonal leaves too narrow; none unless "low_rank"
    rows: Array  # gradients of the current window, one in each row; NaN where there is none yet


@dataclass(frozen=True)
class Warmup:
    """What the warm-up adapts, and in how many steps.

    Args:
      num_warmup: the number of steps.
      mass: the mass matrix: ``"diagonal"``, ``"low_rank"`` (a diagonal, and the narrowest directions),
        ``"dense"``, or ``"unit"`` (not adapted).
      target_accept: the acceptance rate that the step size is adapted to. If ``None``, the step size is fixed.
    """

    num_warmup: int
    mass: str
    target_accept: float | None

    def init(self, step_size: Array, position: Array) -> Adaptation:
        """The adaptation before the first step."""
        unit = jnp.ones_like(position)
        inverse_mass = jnp.diag(unit) if self.mass == "dense" else unit
        empty = _no_draws(position, position)
        draws = _no_draws(position, inverse_mass)
        rank = rank_of(position.size) if self.mass == "low_rank" else 0
        rows = jnp.full((ROWS if rank else 0, position.size), jnp.nan, position.dtype)
        return Adaptation(
            *(step_size, inverse_mass, inverse_mass),
            *(self._search(step_size), jnp.log(step_size), draws, empty),
            *(none(position, rank), rows),
        )

    def renewed(self, step: Array) -> Array:
        """Whether a step is the first one, or the first with another mass matrix."""
        ends = () if self.mass == "unit" else schedule(self.num_warmup)[1]
        return jnp.any(step == jnp.asarray((0, *ends), step.dtype))

    def update(
        self,
        adaptation: Adaptation,
        step: Array,
        position: Array,
        gradient: Array,
        rate: Array,
        groups: Any = None,
    ) -> Adaptation:
        """The adaptation after a step; unchanged once the warm-up is over.

        Args:
          adaptation: the adaptation before the step.
          step: the number of steps before this one.
          position: the position after the step.
          gradient: the gradient of the log density at that position.
          rate: the acceptance rate of the step.
          groups: the number of each weight's group of exchangeable weights; ``None`` if there are none.
        """
        after = lambda: self._learn(adaptation, step, position, gradient, rate, groups)  # noqa: E731
        return lax.cond(step < self.num_warmup, after, lambda: adaptation)

    def _learn(self, known, step, position, gradient, rate, groups):
        begin, ends = schedule(self.num_warmup)
        if self.target_accept is not None:
            known = self._resized(known, step, rate)
        if self.mass == "unit" or not ends:
            return known
        in_window = (step >= begin) & (step < ends[-1])
        add = lambda: self._added(known, step, position, gradient)  # noqa: E731
        known = lax.cond(in_window, add, lambda: known)
        closes = jnp.any(step + 1 == jnp.asarray(ends, step.dtype))
        return lax.cond(closes, lambda: self._close(known, groups), lambda: known)

    def _resized(self, known, step, rate):
        r"""The next step size: by dual averaging, and in the last steps by Newton's method on the noisy rates.

        Dual averaging keeps the mean rate at the target with a step size that follows each rate, and so the
        place where the chain is. But the mean of such step sizes is not the one step size with that mean rate:
        since the rate is concave in the logarithm of the step size, it accepted 0.65 instead of 0.6 on a normal
        distribution. So at the end the step size settles: the n-th rate since the windows moves its logarithm
        by

        .. math:: \frac{\text{rate} - \text{target}}{n\, s}

        where s is the slope of the rate (Robbins & Monro, 1951, with the gain of least variance). This makes it
        the mean of what each rate alone says about it. If the means over two halves differ by more than they
        would for independent rates, the right step size differs from place to place, and the smaller mean is
        kept: too long a step does more harm than too short a one. With the mean over all, some chains accepted
        a tenth of their steps on a funnel.
        """
        searched = self._averaged(known.averaging, rate)
        _, ends = schedule(self.num_warmup)
        begin = 0 if self.mass == "unit" or not ends else ends[-1]
        count = self.num_warmup - begin
        search, half = begin + max(1, int(SEARCH * count)), count // 2
        target: Any = self.target_accept
        fall = slope(target)
        number = jnp.maximum(step - begin + 1, 1).astype(known.step_size.dtype)
        move = (rate - target) / (number * fall)
        settled = known.averaging.log_step_size_avg + move.astype(number.dtype)
        mean = jnp.where(step < search, searched.log_step_size_avg, settled)
        halfway = jnp.where(step < begin + half, mean, known.halfway)
        later = (count * mean - half * halfway) / (count - half)
        # The standard error of the difference of the two means, if the rates are independent.
        error = 2 * (target * (1 - target) / count) ** 0.5 / fall
        differ = (half > 0) & (jnp.abs(later - halfway) > error)
        final = jnp.where(differ, jnp.minimum(halfway, later), mean)
        size = jnp.where(step < search - 1, searched.log_step_size, mean)
        size = jnp.where(step == self.num_warmup - 1, final, size)
        averaging = searched._replace(log_step_size=size, log_step_size_avg=mean)
        return known._replace(averaging=averaging, halfway=halfway, step_size=jnp.exp(size))

    def _added(self, known, step, position, gradient):
        """The moments with another draw; rows of gradients are taken evenly from a window."""
        known = _added(known, position, gradient)
        if not known.rows.size:
            return known
        first, ends = schedule(self.num_warmup)
        begins, ends = (jnp.asarray(a, step.dtype) for a in ((first, *ends[:-1]), ends))
        window = jnp.searchsorted(ends, step, side="right")
        row = (step - begins[window]) * ROWS // (ends[window] - begins[window])
        return known._replace(rows=known.rows.at[row].set(gradient))

    def _close(self, known, groups):
        """The mass matrix of a finished window, and a new search for the step size that suits it."""
        inverse_mass = _fisher(known, groups if self.mass != "dense" else None)
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
        if known.rows.size:
            directions = stiff(known.rows, known.gradients.mean, root, len(known.stiff.factors))
            new = new._replace(stiff=directions, rows=jnp.full_like(known.rows, jnp.nan))
        if self.target_accept is None:
            return new
        # If all masses change by the same factor, the step size must change with them.
        factor = jnp.exp(_mean_log(known.root) - _mean_log(root))
        step_size = jnp.exp(known.averaging.log_step_size_avg) * factor
        return new._replace(step_size=step_size, averaging=self._search(step_size))

    def _search(self, step_size):
        """Dual averaging that starts at a step size.

        It usually shrinks towards ten times that size, to favour large steps. Here the first step size is
        already near the right one, and this would only cost rejections at the start of every window.
        """
        start, _, _ = kernels.step_size.dual_averaging_adaptation(self.target_accept or 0.5)
        averaging = start(step_size)._replace(mu=jnp.log(step_size))
        return _typed(averaging, step_size.dtype)

    def _averaged(self, averaging, rate):
        _, update, _ = kernels.step_size.dual_averaging_adaptation(
            self.target_accept, t0=T0, gamma=GAMMA, kappa=KAPPA
        )
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


def _fisher(known, groups=None):
    """The diagonal of the inverse mass matrix; unchanged for weights that did not move in the window."""
    dense = known.draws.m2.ndim == 2
    squares = jnp.diag(known.draws.m2) if dense else known.draws.m2
    before = jnp.diag(known.inverse_mass) if dense else known.inverse_mass
    inverse_mass = jnp.sqrt(squares / known.gradients.m2)
    if groups is not None:
        total = lambda values: jax.ops.segment_sum(values, groups, groups.max() + 1)[groups]  # noqa: E731
        shared = jnp.sqrt(total(squares) / total(known.gradients.m2))
        inverse_mass = jnp.sqrt(inverse_mass * shared)
    return jnp.where(jnp.isfinite(inverse_mass) & (inverse_mass > 0), inverse_mass, before)


def _shrunk(draws, diagonal):
    """The covariance of the draws, shrunk towards a diagonal that counts as much as one draw per weight.

    The covariance of n draws alone has rank below n.
    """
    count = draws.sample_size.astype(diagonal.dtype)
    weights = jnp.asarray(diagonal.size, diagonal.dtype)
    covariance = draws.m2 / (count - 1)
    return (count * covariance + weights * jnp.diag(diagonal)) / (count + weights)


def _mean_log(root):
    return jnp.mean(jnp.log(root if root.ndim == 1 else jnp.diag(root)))


def _typed(averaging, dtype):
    """The dual averaging state in one strong dtype, since the carry of a loop must not change its type."""
    averaging = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), averaging)
    return averaging._replace(step=averaging.step.astype(jnp.int32))
