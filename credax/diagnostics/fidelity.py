"""Fidelity: how close the predictions of a posterior are to those of a reference posterior, such as HMC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.checks import must
from credax.core.display import html_table
from credax.diagnostics.calibration import Score
from credax.model.likelihoods import Bernoulli

if TYPE_CHECKING:
    from credax.posterior import Posterior

QUANTILES = 200
"""Number of quantile levels at which two predictive distributions are compared."""


@dataclass(frozen=True, repr=False)
class Fidelity:
    """The result of :func:`compare_posteriors`. ``print`` shows it as a table.

    Each figure is a mean over the rows with a standard error.

    Attributes:
      total_variation: the total variation distance between the two predictive distributions of y: half the sum
        (integral) of their absolute difference. It is 0 if they are equal and 1 if they do not overlap.
      agreement: the fraction of rows (and labels) with the same most probable class; ``None`` for regression.
      wasserstein: the Wasserstein-1 distance between the two predictive distributions of y, in the units of y;
        ``None`` for classification.
      relative_wasserstein: the same in units of the second posterior's predictive standard deviation.
      each: the value of each figure for every row.
    """

    total_variation: Score
    agreement: Score | None
    wasserstein: Score | None
    relative_wasserstein: Score | None
    each: dict[str, np.ndarray]

    def __repr__(self) -> str:
        return f"Fidelity({', '.join(f'{name}={getattr(self, name)}' for name in self.each)})"

    def __str__(self) -> str:
        named = [(name, getattr(self, name)) for name in self.each]
        return "\n".join(f"{name.replace('_', ' '):<22}{value}" for name, value in named)

    def _repr_html_(self) -> str:
        rows = [(name.replace("_", " "), str(getattr(self, name))) for name in self.each]
        return html_table(("", "mean over rows"), rows)


def compare_posteriors(a: Posterior, b: Posterior, x: Any, *, key: Any = 0) -> Fidelity:
    """Compare the predictive distributions of two posteriors (Izmailov et al., 2021).

    Args:
      a: the posterior to be judged.
      b: the reference posterior, e.g. from a long HMC run.
      x: the inputs at which predictions are compared.
      key: an int or a JAX key, for the posterior samples used in prediction.
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
    if not hasattr(posterior, "model"):
        raise TypeError(must("compare_posteriors", "a, b", "two posteriors", posterior))
    if not hasattr(posterior.model, "likelihood"):
        raise TypeError(
            "compare_posteriors needs posteriors of a Model; one is of a LogDensity, which predicts nothing."
        )
    posterior.model.check_undivided("compare_posteriors")
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
    """Figures for binary labels, one or several per row; means over the labels of a row."""
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
    # Total variation over a partition of the line into cells between the quantiles of both distributions.
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
