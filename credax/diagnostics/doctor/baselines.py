"""How much of the targets' variance the predictions explain, and how much the simplest predictions explain."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ROWS = 1024
"""The most rows that are compared."""
LEAST_ROWS = 20
"""With fewer rows than this, nothing is compared."""
NEIGHBOURS = 5
"""The number of neighbours whose targets are averaged."""
ROWS_PER_COLUMN = 4
"""A straight line is fitted if there are at least this many rows for each column."""


class Comparison(NamedTuple):
    """The share of the variance that predictions explain.

    Attributes:
      explained: the share that the predictions explain.
      baseline: the largest share that a simple prediction explains, each row left out in turn.
      baseline_name: which simple prediction that is.
      worse_by: the difference of the two shares, in standard errors.
    """

    explained: float
    baseline: float
    baseline_name: str
    worse_by: float


def compare(task: str, x: Any, y: Any, mean: Any) -> Comparison | None:
    """Compare predictions with a straight line and with the mean of the nearest rows.

    The targets of a classification are the indicators of the classes. The simple predictions of each row are
    made from the other rows, so they do not profit from having seen its target.

    Args:
      task: ``"classification"``, ``"regression"`` or ``"count"``.
      x: the inputs.
      y: the targets.
      mean: the predictive means, or the class probabilities.

    Returns:
      The comparison, or ``None`` if there are too few rows or the targets are all the same.
    """
    count = min(len(x), ROWS)
    if count < LEAST_ROWS:
        return None
    x = np.asarray(x[:count], np.float64).reshape(count, -1)
    mean = np.asarray(mean[:count], np.float64).reshape(count, -1)
    y = np.asarray(y[:count])
    if task == "classification" and mean.shape[1] > 1 and y.size == count:
        targets = np.eye(mean.shape[1])[y.reshape(-1).astype(int)]
    else:
        targets = y.astype(np.float64).reshape(count, -1)
    centred = targets - targets.mean(0)
    total = np.mean(centred**2)
    if targets.shape != mean.shape or not total > 0 or not np.all(np.isfinite(mean)):
        return None
    x = x - x.mean(0)
    x = x / np.where(x.std(0) > 0, x.std(0), 1)
    simple = {"the mean of the five nearest rows": _neighbours(x, targets)}
    if count >= ROWS_PER_COLUMN * (x.shape[1] + 1):
        simple["a straight line"] = _line(x, targets)
    errors = np.mean((mean - targets) ** 2, 1)
    found = []
    for name, predicted in simple.items():
        theirs = np.mean((predicted - targets) ** 2, 1)
        error = np.std(errors - theirs) / np.sqrt(count) / total
        gap = (errors.mean() - theirs.mean()) / total
        ours, simple_share = (float(1 - each.mean() / total) for each in (errors, theirs))
        found.append(Comparison(ours, simple_share, name, float(gap / max(error, 1e-12))))
    return max(found, key=lambda each: each.baseline)


def _line(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The prediction of a least-squares line for each row, fitted to the other rows."""
    design = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    # The ridge is negligible for columns that vary, and keeps equal columns from being singular.
    gram = design.T @ design + 1e-6 * len(x) * np.eye(design.shape[1])
    solved = np.linalg.solve(gram, design.T)
    fitted, leverage = design @ (solved @ y), np.sum(design * solved.T, 1)
    return y - (y - fitted) / np.maximum(1 - leverage, 1e-6)[:, None]


def _neighbours(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean of the targets of the nearest other rows, for each row."""
    squares = np.sum(x**2, 1)
    distance = squares[:, None] + squares - 2 * x @ x.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argpartition(distance, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    return y[nearest].mean(1)
