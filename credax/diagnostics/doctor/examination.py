"""What the rows of a fit say about its posterior, as a few numbers.

A posterior keeps a sample of its rows while it is in memory. The numbers are computed when a diagnosis first
needs them or the posterior is saved, and never change the posterior.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.rows import Observed, RowTree
from credax.diagnostics.doctor.baselines import compare
from credax.diagnostics.doctor.linearised import relative_variance
from credax.diagnostics.doctor.newton import newton_gain
from credax.diagnostics.doctor.stirring import applies
from credax.model import LogDensity

if TYPE_CHECKING:
    from credax.posterior import Posterior, Predictive

COVERAGE = 0.9
"""The level of the intervals that are judged."""
SCORED = 256
"""The number of rows whose intervals are computed."""


def examine(posterior: Posterior) -> dict[str, Any]:
    """The numbers that the checks read: plain floats, integers and text, so that they can be saved.

    The keys, each left out if it does not apply:

    - ``explained``, ``baseline``, ``baseline_name``, ``worse_by``: see
      :class:`~credax.diagnostics.doctor.baselines.Comparison`;
    - ``rows``, and over these ``coverage`` of the 90 % intervals, or ``accuracy`` of the most probable class
      and ``sharpness``, its mean probability;
    - ``epistemic``: the share of the epistemic variance in the variance of the predictions;
    - ``relative_variance``: the epistemic variance relative to that of the linearised network;
    - ``objective``, ``gain``, ``gain_error``: what one step of Newton's method adds to the objective;
    - ``movable``: whether short chains can tell how wide the posterior should be;
    - ``weights``, ``total_rows``: the size of the problem.
    """
    rows = posterior.training
    found: dict[str, Any] = {"weights": int(posterior.approximation.num_weights)}
    if rows is not None and not isinstance(posterior.model, LogDensity):
        found |= {"movable": True} if applies(posterior, rows) else {}
        # The rows are kept as the network got them.
        model = posterior.model.of_standard_data()
        posterior = replace(posterior, model=model)
        found["total_rows"] = int(rows.total)
        # Every figure is of the same samples, and so of the same programs.
        predictive = posterior.predict(rows.x)
        if model.divided:
            found |= _at_positions(model, rows, predictive)
        else:
            found |= _predictions(posterior, rows, predictive)
            found |= relative_variance(posterior, rows, predictive.head(SCORED))
    found |= newton_gain(posterior, rows)
    return found


def _predictions(posterior: Posterior, rows: Any, predictive: Predictive) -> dict[str, Any]:
    model: Any = posterior.model
    mean, variance = (np.asarray(a, np.float64) for a in (predictive.mean, predictive.variance))
    found: dict[str, Any] = {}
    if model.likelihood.task != "classification":
        y = rows.y[:SCORED].reshape(-1, *mean.shape[1:])
        inside = _inside(predictive.head(SCORED), y, counts=model.likelihood.task == "count")
        coverage = _mean(inside, rows.weights)
        found |= {} if coverage is None else {"rows": len(y), "coverage": coverage}
    elif rows.y.size == len(rows.y):  # not several labels per row
        right = predictive.label == rows.y.reshape(-1)
        figures = {"accuracy": right, "sharpness": np.max(predictive.probs, axis=1)}
        means = {name: _mean(values, rows.weights) for name, values in figures.items()}
        found |= {} if None in means.values() else {"rows": len(rows.y), **means}
    if np.all(np.isfinite(variance)) and variance.mean() > 0:
        epistemic = np.mean(predictive.epistemic, dtype=np.float64)
        found["epistemic"] = float(epistemic / variance.mean())
    if rows.weights is not None or isinstance(rows.x, RowTree):
        return found  # the simple predictions are of rows that count once
    compared = compare(model.likelihood.task, rows.x, rows.y, mean)
    return found | ({} if compared is None else compared._asdict())


def _at_positions(model: Any, rows: Any, predictive: Any) -> dict[str, Any]:
    """The figures of positions that count; none for several heads, and for several labels per position."""
    if not isinstance(rows.y, Observed):
        return {}
    weights = np.ones(rows.y.values.shape[:2]) if rows.y.weights is None else rows.y.weights
    weights = weights if rows.weights is None else weights * rows.weights[:, None]
    count = len(rows.x) if model.likelihood.task == "classification" else min(len(rows.x), SCORED)
    predictive, weights, y = predictive.head(count), weights[:count], rows.y.values[:count]
    flat = lambda values: np.asarray(values, np.float64).reshape(*y.shape[:2], -1).mean(-1)  # noqa: E731
    if model.likelihood.task != "classification":
        lower, upper = (a.reshape(y.shape) for a in predictive.interval(COVERAGE))
        figures = {"coverage": (y >= lower) & (y <= upper)}
    elif y.ndim == 2:
        right = predictive.label.reshape(y.shape) == y
        figures = {"accuracy": right, "sharpness": np.max(predictive.probs, axis=-1)}
    else:
        return {}
    if not weights.any():
        return {}
    means = {name: float(np.average(flat(a), weights=weights)) for name, a in figures.items()}
    found: dict[str, Any] = {"rows": int(np.sum(weights > 0)), **means}
    variance = np.asarray(predictive.variance, np.float64)
    if np.all(np.isfinite(variance)) and variance.mean() > 0:
        epistemic = np.mean(predictive.epistemic, dtype=np.float64)
        found["epistemic"] = float(epistemic / variance.mean())
    return found


def _mean(values: np.ndarray, weights: np.ndarray | None) -> float | None:
    """The mean over rows, with the weights of these rows; ``None`` if all of them are zero."""
    if weights is None:
        return float(np.mean(values, dtype=np.float64))
    weights = weights[: len(values)]
    each = np.asarray(values, np.float64).reshape(len(values), -1).mean(1)
    return float(np.average(each, weights=weights)) if weights.any() else None


def _inside(predictive: Predictive, y: np.ndarray, *, counts: bool) -> np.ndarray:
    """Whether targets lie inside their central intervals: by their probabilities, without finding the ends.

    The end of an interval of counts is the smallest count with at least a certain probability.
    """
    lower, upper = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
    if counts:
        up_to, below = predictive.cdf(np.stack([y, y - 1]))
        return (up_to >= lower) & (below < upper)
    (up_to,) = predictive.cdf(y[None])
    return (up_to >= lower) & (up_to <= upper)
