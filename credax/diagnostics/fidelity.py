"""How near two posteriors' predictions are, so that any method can be judged by a reference such as HMC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.diagnostics.calibration import Score
from credax.model.likelihoods import Bernoulli

if TYPE_CHECKING:
    from credax.posterior import Posterior

QUANTILES = 200
"""Levels at which two predictive distributions are compared."""


@dataclass(frozen=True)
class Fidelity:
    """What :func:`compare_posteriors` returns: means over the rows, each with a standard error.

    Attributes:
      total_variation: half of the summed (integrated) difference between the two distributions of y: 0 where
        they are the same, 1 where they have nothing in common.
      agreement: the share of rows (and labels) with the same likeliest class; ``None`` for numbers.
      wasserstein: the mean distance that probability has to be moved to make one distribution of y the other,
        in the units of y; ``None`` for classes.
      relative_wasserstein: the same in units of the second posterior's predictive standard deviation.
      each: each figure by row.
    """

    total_variation: Score
    agreement: Score | None
    wasserstein: Score | None
    relative_wasserstein: Score | None
    each: dict[str, np.ndarray]

    def __str__(self) -> str:
        named = [(name, getattr(self, name)) for name in self.each]
        return "\n".join(f"{name.replace('_', ' '):<22}{value}" for name, value in named)


def compare_posteriors(a: Posterior, b: Posterior, x: Any, *, key: Any = 0) -> Fidelity:
    """How far the predictions of two posteriors are apart (Izmailov et al., 2021).

    Args:
      a: the one to be judged.
      b: the reference, e.g. of a long HMC run.
      x: rows as in the fits.
      key: an int or a JAX key, for the choice of the draws.
    """
    kinds = [_kind(posterior) for posterior in (a, b)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"compare_posteriors(a=..., b=...) must predict the same kind of y; got {kinds[0]} and {kinds[1]}."
        )
    predictions = [posterior.predict(x, key=key) for posterior in (a, b)]
    if predictions[0].mean.shape != predictions[1].mean.shape:
        shapes = [predictive.mean.shape for predictive in predictions]
        raise ValueError(
            "compare_posteriors(a=..., b=...) must predict targets of the same shape; got "
            f"{shapes[0]} and {shapes[1]}."
        )
    of = {"labels": _of_labels, "classes": _of_classes}.get(kinds[0], _of_numbers)
    each = of(*predictions)
    return Fidelity(**{name: _mean(each.get(name)) for name in _NAMES}, each=each)


_NAMES = ("total_variation", "agreement", "wasserstein", "relative_wasserstein")


def _kind(posterior: Any) -> str:
    if not hasattr(posterior.model, "likelihood"):
        raise TypeError(
            "compare_posteriors needs posteriors that predict; one is of a LogDensity, which has no network."
        )
    likelihood = posterior.model.likelihood
    if isinstance(likelihood, Bernoulli):
        return "labels"
    return {"classification": "classes", "regression": "numbers", "count": "counts"}[
        likelihood.task
    ]


def _mean(rows: np.ndarray | None) -> Any:
    if rows is None:
        return None
    error = rows.std(ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.nan
    return Score(float(rows.mean()), float(error))


def _of_classes(a: Any, b: Any) -> dict[str, np.ndarray]:
    first, second = (np.asarray(p.mean, np.float64).reshape(len(p.mean), -1) for p in (a, b))
    return {
        "total_variation": 0.5 * np.abs(first - second).sum(1),
        "agreement": (first.argmax(1) == second.argmax(1)).astype(np.float64),
    }


def _of_labels(a: Any, b: Any) -> dict[str, np.ndarray]:
    """Yes or no, for one label a row or several; means over the labels."""
    first, second = (np.asarray(p.mean, np.float64).reshape(len(p.mean), -1) for p in (a, b))
    return {
        "total_variation": np.abs(first - second).mean(1),
        "agreement": ((first > 0.5) == (second > 0.5)).mean(1),
    }


def _of_numbers(a: Any, b: Any) -> dict[str, np.ndarray]:
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    tails = np.array([1e-4, 1e-3, 0.999, 0.9999])
    rows = len(a.mean)
    found = [np.asarray(p.quantile([*levels, *tails]), np.float64) for p in (a, b)]
    first, second = (quantiles[:QUANTILES] for quantiles in found)
    rowwise = lambda values: values.reshape(rows, -1).mean(1)  # noqa: E731
    distance = np.abs(first - second).mean(0)
    # Cells between all quantiles of both: their probabilities differ by what the distributions do there.
    edges = np.sort(np.concatenate(found), axis=0)
    below = [np.asarray(p.cdf(edges), np.float64) for p in (a, b)]
    cells = [
        np.diff(np.concatenate([np.zeros_like(c[:1]), c, np.ones_like(c[:1])]), axis=0)
        for c in below
    ]
    return {
        "total_variation": rowwise(0.5 * np.abs(cells[0] - cells[1]).sum(0)),
        "wasserstein": rowwise(distance),
        "relative_wasserstein": rowwise(distance / np.asarray(b.std, np.float64)),
    }
