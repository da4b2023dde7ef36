"""The baseline beside every score: the best prediction that is the same for all rows, found in hindsight.

For numbers it is a normal distribution with the mean and the standard deviation of the held-out targets, for
classes their frequencies. It has seen the targets that it is scored on, so that it is hard to beat by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from credax.diagnostics.calibration import Scores, score
from credax.posterior import crps
from credax.report.parts import HeldOut


@dataclass(frozen=True, eq=False)
class SameNormal:
    """The same normal distribution for every row."""

    rows: int
    centre: float
    spread: float

    @property
    def mean(self) -> np.ndarray:
        return np.full(self.rows, self.centre)

    @property
    def std(self) -> np.ndarray:
        return np.full(self.rows, self.spread)

    def log_prob(self, y: Any) -> np.ndarray:
        return norm.logpdf(y, self.centre, self.spread)

    def quantile(self, q: Any) -> np.ndarray:
        levels = norm.ppf(np.asarray(q), self.centre, self.spread)
        return np.repeat(levels[..., None], self.rows, axis=-1)

    def cdf(self, t: Any) -> np.ndarray:
        return norm.cdf(t, self.centre, self.spread)

    def crps(self, y: Any) -> np.ndarray:
        return crps.normal(np.asarray(y, float), self.mean, self.std)


@dataclass(frozen=True, eq=False)
class SameClasses:
    """The same class probabilities for every row."""

    rows: int
    shares: np.ndarray

    @property
    def probs(self) -> np.ndarray:
        return np.repeat(self.shares[None], self.rows, axis=0)

    mean = probs

    def log_prob(self, y: Any) -> np.ndarray:
        return np.log(self.shares[np.asarray(y, int)])


def baseline(held: HeldOut) -> SameNormal | SameClasses | None:
    """The best constant prediction of the held-out rows; ``None`` if all their targets are equal."""
    if held.classes:
        counts = np.bincount(held.y, minlength=len(held.classes))
        return SameClasses(held.rows, counts / held.rows) if np.sum(counts > 0) > 1 else None
    spread = float(np.std(held.y))
    return SameNormal(held.rows, float(np.mean(held.y)), spread) if spread > 0 else None


def baseline_scores(held: HeldOut) -> Scores | None:
    """The scores of the best constant prediction."""
    found: Any = baseline(held)
    task = "classification" if held.classes else "regression"
    return None if found is None else score(found, task, held.y)


def gain(held: HeldOut) -> tuple[float, float, float]:
    """How much of the loss of the best constant the predictions save, and in how many standard errors.

    The loss is the squared error for numbers, and minus the log probability of the true class for classes. The
    rows are the same for both, so that the error is that of paired differences.

    Returns:
      The share of the loss that is saved, the mean difference divided by its standard error, and the loss of
      the constant.
    """
    found = baseline(held)
    if found is None or held.rows < 2:
        return 0.0, 0.0, 0.0
    if isinstance(found, SameClasses):
        likely = np.maximum(held.probs[np.arange(held.rows), held.y], np.finfo(float).tiny)
        ours, constant = -np.log(likely), -found.log_prob(held.y)
    else:
        ours, constant = (held.y - held["mean"]) ** 2, (held.y - found.mean) ** 2
    saved = constant - ours
    error = float(np.std(saved, ddof=1)) / np.sqrt(held.rows)
    share = float(saved.mean() / constant.mean())
    return share, float(saved.mean() / error) if error > 0 else 0.0, float(constant.mean())
