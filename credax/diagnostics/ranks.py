"""Ranks of true values among posterior draws: whether they are uniform, and if not, how far they deviate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

LEVEL = 0.01
"""The p-value below which the ranks are reported as uneven, i.e. the method as miscalibrated."""
CORRELATED = 0.2
"""The correlation of neighbouring draws above which even a correct method gives uneven ranks."""
BINS = 10
"""Number of bins of the chi-square test. More bins detect draws that are too narrow equally well, but draws
that are shifted or too wide less often."""
POINTS = 50
"""The largest number of points at which the empirical distribution function is compared with the diagonal."""
BARS = "▁▂▃▄▅▆▇█"
NARROWEST = 0.02
"""The smallest spread that is told apart from a single point."""


class Deviation(NamedTuple):
    """How the draws of a quantity differ from draws of its posterior, in the posterior's standard deviations.

    Attributes:
      bias: the mean of the draws minus the posterior mean.
      bias_error: the standard error of the bias.
      spread: the standard deviation of the draws; below 1 they are too narrow, above 1 too wide.
      spread_error: the standard error of the spread.
    """

    bias: float
    bias_error: float
    spread: float
    spread_error: float


@dataclass(frozen=True, eq=False, repr=False)
class Ranks:
    """The ranks of the true values among the posterior draws, uniform if the method is correct.

    It prints as a summary with a histogram for each quantity.

    Attributes:
      names: the names of the quantities.
      ranks: the ranks, ``(simulation, quantity)``, from 0 to ``num_draws``.
      num_draws: the number of draws of each posterior among which the true value is ranked.
      correlation: the correlation of neighbouring draws of each quantity, averaged over the simulations.
      warned: the warnings issued by the fits.
    """

    names: tuple[str, ...]
    ranks: np.ndarray
    num_draws: int
    correlation: np.ndarray
    warned: tuple[str, ...] = ()

    @property
    def histogram(self) -> np.ndarray:
        """The number of ranks in each bin, ``(bin, quantity)``."""
        edges = self._edges
        return np.stack([np.histogram(ranks, edges)[0] for ranks in self.ranks.T], axis=1)

    @property
    def expected(self) -> np.ndarray:
        """The expected number of uniform ranks in each bin, ``(bin,)``."""
        return len(self.ranks) * np.diff(self._edges) / (self.num_draws + 1)

    @property
    def p_values(self) -> dict[str, float]:
        """For each quantity, the p-value of a chi-square test for uniform ranks."""
        tests = stats.chisquare(self.histogram, self.expected[:, None])
        return dict(zip(self.names, tests.pvalue.tolist(), strict=True))

    @property
    def p_value(self) -> float:
        """The p-value for all quantities together: the smallest one times their number (Bonferroni)."""
        return min(1.0, len(self.names) * min(self.p_values.values()))

    @cached_property
    def ecdf_p_values(self) -> dict[str, float]:
        """For each quantity, the p-value of the largest deviation of the empirical distribution function.

        It detects ranks that drift slowly from one side to the other better than the chi-square test does.
        """
        return {
            name: ecdf_p_value(ranks, self.num_draws)
            for name, ranks in zip(self.names, self.ranks.T, strict=True)
        }

    @property
    def ecdf_p_value(self) -> float:
        """Like ``p_value``, of the empirical distribution functions."""
        return min(1.0, len(self.names) * min(self.ecdf_p_values.values()))

    def ecdf(self) -> tuple[np.ndarray, np.ndarray]:
        """Points from 0 to 1, and the fraction of ranks up to each point, ``(point, quantity)``."""
        at = _points(self.num_draws)
        below = (self.ranks[None] < at[:, None, None]).mean(1)
        return at / (self.num_draws + 1), below

    def ecdf_band(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The points of :meth:`ecdf`, and the band that holds a whole function with the given probability.

        It is for the function of one quantity whose ranks are uniform (Säilynoja, Bürkner & Vehtari, 2022).

        Args:
          level: the probability that the function lies within the band at all points at once.
        """
        return ecdf_band(len(self.ranks), self.num_draws, level)

    @cached_property
    def deviations(self) -> dict[str, Deviation]:
        """For each quantity, the bias and spread of the draws that explain the ranks best."""
        return {
            name: deviation(ranks, self.num_draws)
            for name, ranks in zip(self.names, self.ranks.T, strict=True)
        }

    @property
    def _edges(self) -> np.ndarray:
        """The edges of the bins: ten bins, or fewer so that at least five ranks are expected in each."""
        count = int(np.clip(len(self.ranks) // 5, 2, min(BINS, self.num_draws + 1)))
        return np.round(np.linspace(0, self.num_draws + 1, count + 1)) - 0.5

    def __repr__(self) -> str:
        verdict = "uneven" if self.p_value < LEVEL else "even, as they should be"
        head = f"{len(self.ranks)} simulations, ranks among {self.num_draws} draws: {verdict}"
        lines = [f"{head} (p = {self.p_value:.2g} for all quantities together)."]
        width = max(map(len, self.names))
        for name, p, counts, ranks in zip(
            self.names, self.p_values.values(), self.histogram.T, self.ranks.T, strict=True
        ):
            bars = "".join(BARS[int(count * 7.99 / max(counts.max(), 1))] for count in counts)
            uneven = p < LEVEL / len(self.names)
            how = f"  {_shape((ranks + 0.5) / (self.num_draws + 1))}" if uneven else ""
            lines.append(f"  {name:<{width}}  {bars}  p = {p:.2g}{how}")
        if self.correlation.max() > CORRELATED:
            name = self.names[int(self.correlation.argmax())]
            lines.append(
                f"Neighbouring draws are correlated ({self.correlation.max():.2f} for {name}), which alone "
                "makes ranks uneven: thin the chains more (thin), or rank among fewer draws (num_draws)."
            )
        if self.warned:
            lines.append(f"The fits gave {len(self.warned)} warnings, the first: {self.warned[0]}")
        return "\n".join(lines)


def _shape(uniform: np.ndarray) -> str:
    """A description of how normalised ranks, between 0 and 1, deviate from uniform ones."""
    count = len(uniform)
    shift = (uniform.mean() - 0.5) * np.sqrt(12 * count)
    # The mean of (u - 1/2)^2 is 1/12, its variance 1/180.
    spread = (np.mean((uniform - 0.5) ** 2) - 1 / 12) * np.sqrt(180 * count)
    if abs(shift) > abs(spread):
        return "the draws are too low" if shift > 0 else "the draws are too high"
    return "the draws are too narrow" if spread > 0 else "the draws are too wide"


# -- the empirical distribution function -------------------------------------------------------------
#
# The statistic is that of Säilynoja, Bürkner & Vehtari (Graphical test for discrete uniformity and its
# applications in goodness-of-fit evaluation and multiple sample comparison, 2022): the smallest two-sided
# pointwise tail probability of the number of ranks up to a point, over all points. Its distribution is
# computed exactly, since these numbers form a Markov chain with binomial steps.


def ecdf_p_value(ranks: np.ndarray, num_draws: int) -> float:
    """The probability that uniform ranks deviate at least as far from the diagonal as these at some point."""
    at = _points(num_draws)
    counts = (ranks[None] < at[:, None]).sum(1)
    tails = _tails(len(ranks), at / (num_draws + 1))
    least = float(tails[np.arange(len(at)), counts].min())
    # One tail at the most extreme point is a lower bound, for p-values that are lost in rounding.
    return min(1.0, max(1 - _coverage(tails, num_draws, least), least / 2))


def ecdf_band(
    count: int, num_draws: int, level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points from 0 to 1, and the lowest and highest fraction of uniform ranks up to each point.

    Args:
      count: the number of ranks.
      num_draws: the largest rank.
      level: the probability that all fractions lie within the band.
    """
    at = _points(num_draws)
    tails = _tails(count, at / (num_draws + 1))
    low, high = 0.0, 1 - level
    for _ in range(30):
        middle = (low + high) / 2
        enough = _coverage(tails, num_draws, middle) >= level
        low, high = (middle, high) if enough else (low, middle)
    inside = tails > low
    lower = inside.argmax(1) / count
    upper = (count - inside[:, ::-1].argmax(1)) / count
    return at / (num_draws + 1), lower, upper


def _points(num_draws: int) -> np.ndarray:
    """The numbers of ranks, out of ``num_draws + 1``, at which the distribution function is evaluated."""
    return np.unique(
        np.round(np.linspace(0, num_draws + 1, min(num_draws, POINTS) + 2)[1:-1]).astype(int)
    )


def _tails(count: int, points: np.ndarray) -> np.ndarray:
    """For each point and each number of ranks up to it, the two-sided tail probability."""
    numbers = np.arange(count + 1)
    below = stats.binom.cdf(numbers, count, points[:, None])
    above = stats.binom.sf(numbers - 1, count, points[:, None])
    return np.minimum(2 * np.minimum(below, above), 1.0)


def _coverage(tails: np.ndarray, num_draws: int, least: float) -> float:
    """The probability that all tail probabilities of uniform ranks are larger than ``least``."""
    count = tails.shape[1] - 1
    points = np.r_[0, _points(num_draws) / (num_draws + 1)]
    now, chance = np.zeros(1, int), np.ones(1)
    for i, row in enumerate(tails):
        ahead = np.flatnonzero(row > least)
        if not len(ahead):
            return 0.0
        share = (points[i + 1] - points[i]) / (1 - points[i])
        moves = stats.binom.pmf(ahead[None] - now[:, None], count - now[:, None], share)
        now, chance = ahead, chance @ moves
    return float(chance.sum())


# -- bias and spread ---------------------------------------------------------------------------------

_NODES = np.linspace(-8.0, 8.0, 801)
_WEIGHTS = stats.norm.pdf(_NODES) / stats.norm.pdf(_NODES).sum()


def deviation(ranks: np.ndarray, num_draws: int) -> Deviation:
    r"""The bias b and the spread s of draws that explain ranks best, by maximum likelihood.

    In units of the posterior, the truth is a draw of N(0, 1) and each posterior draw one of
    :math:`N(b, s^2)`. Given the truth z, its rank is binomial with the probability
    :math:`\Phi((z - b) / s)`. Two draws or more are needed to tell s from b; a spread of ``NARROWEST`` is that
    of a single point.
    """
    if num_draws < 2:
        return Deviation(np.nan, np.nan, np.nan, np.nan)
    values, counts = np.unique(ranks, return_counts=True)
    choose = special.gammaln(num_draws + 1) - special.gammaln(values + 1)
    choose -= special.gammaln(num_draws - values + 1)

    def loss(at):
        z = (_NODES[:, None] - at[0]) / np.exp(at[1])
        log_prob = values * special.log_ndtr(z) + (num_draws - values) * special.log_ndtr(-z)
        chance = _WEIGHTS @ np.exp(choose + log_prob)
        return -counts @ np.log(np.maximum(chance, 1e-300))

    limits = [(-8.0, 8.0), (np.log(NARROWEST), np.log(1 / NARROWEST))]
    starts = [(0.0, np.log(spread)) for spread in (0.3, 1.0, 3.0)]
    found = min(
        (optimize.minimize(loss, start, bounds=limits, method="L-BFGS-B") for start in starts),
        key=lambda result: result.fun,
    )
    bias, log_spread = found.x
    if log_spread < limits[1][0] + 1e-3:
        return Deviation(float(bias), np.nan, NARROWEST, np.nan)
    # The curvature of the log likelihood gives the standard errors.
    step = 1e-3 * np.eye(2)

    def curvature(a, b):
        corners = [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)]
        return sum(sign * loss(found.x + i * a + j * b) for i, j, sign in corners) / (4 * 1e-6)

    hessian = np.array([[curvature(a, b) for b in step] for a in step])
    covariance = np.linalg.pinv(hessian)
    errors = np.sqrt(np.maximum(np.diag(covariance), 0))
    spread = float(np.exp(log_spread))
    return Deviation(float(bias), float(errors[0]), spread, float(spread * errors[1]))
