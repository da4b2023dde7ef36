r"""The effect of each column on the prediction: partial dependence (Friedman, 2001), with its uncertainty.

.. math:: e_w(v) = \frac{1}{n} \sum_{i=1}^n E[y \mid x_i \text{ with the column at } v,\; w]

for n of the held-out rows. The mean over the posterior of w is the effect of the value v. The band from the 5 %
to the 95 % quantile is the epistemic uncertainty of the effect, without the noise of y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.tables.columns import as_text
from credax.tables.encoding import Column, names_of

if TYPE_CHECKING:
    import pandas as pd

    from credax.tables.runs import Run

ROWS, POINTS, SAMPLES, CATEGORIES = 100, 20, 200, 12
"""The largest numbers of rows n, of values v, of posterior samples w, and of categories."""


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of one column.

    Attributes:
      column: the column.
      places: the values v as numbers: days since 1970 for dates, and 0, 1, ... for categories.
      names: the names of the categories; empty for numbers and dates.
      mean: the mean of the effect, of shape ``(values, outputs)``: one output for a number, else one per class.
      lower: the 5 % quantile of the effect.
      upper: the 95 % quantile of the effect.
      seen: the values of the column in the held-out rows, as numbers.
    """

    column: Column
    places: np.ndarray
    names: tuple[str, ...]
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    seen: np.ndarray

    @property
    def importance(self) -> float:
        """The range of the mean effect over the values, for the output with the largest range."""
        return float(np.max(np.ptp(self.mean, axis=0)))


def effects(run: Run, table: pd.DataFrame) -> list[Effect]:
    """The effects of all columns, the most important first.

    Args:
      run: a fit of a table.
      table: held-out rows, with the columns of the fitted table.
    """
    found = [_effect(run, table, column) for column in run.preprocessor.columns]
    present = [effect for effect in found if effect is not None]
    return sorted(present, key=lambda effect: -effect.importance)


def _effect(run: Run, table: pd.DataFrame, column: Column) -> Effect | None:
    import pandas as pd

    values, places, names, seen = _values(table[column.name], column)
    if not len(values):
        return None
    some = np.unique(np.linspace(0, len(table) - 1, ROWS).astype(int))
    rows = table.iloc[some]
    table = pd.concat([rows] * len(values), ignore_index=True)
    table[column.name] = pd.Series(values).repeat(len(rows)).reset_index(drop=True)
    predictive = run.posterior.predict(run.preprocessor.encode(table), num_samples=SAMPLES)
    means = np.asarray(predictive.means, np.float64)
    means = means.reshape(len(means), len(values), len(rows), -1).mean(2)
    means = run.preprocessor.centre + run.preprocessor.scale * means
    weights = np.exp(predictive.log_weights)[:, None, None]
    lower, upper = (weighted_quantile(means, weights.ravel(), q) for q in (0.05, 0.95))
    mean = np.sum(weights * means, 0) / np.sum(weights)
    return Effect(column, places, names, mean, lower, upper, seen)


def _values(found: pd.Series, column: Column) -> tuple[Any, np.ndarray, tuple[str, ...], Any]:
    """The values v to set, their places on the axis, their names, and the values in the rows."""
    import pandas as pd

    present = found.dropna()
    if column.kind == "category":
        counts = present.map(as_text).value_counts()
        often = set(counts.index[:CATEGORIES])
        names = tuple(level for level in column.levels if level in often)
        return list(names), np.arange(len(names)), names, ()
    if column.kind == "boolean":
        values = present[np.isfinite(column.raw(present))].drop_duplicates().sort_values(key=_texts)
        return values.tolist(), np.arange(len(values)), tuple(map(str, values)), ()
    seen = column.raw(present)
    seen = seen[np.isfinite(seen)]
    places = np.unique(seen)
    every = names_of(column.kind)
    if every:
        names = tuple(every[int(place)] for place in places)
        return list(names), np.arange(len(names)), names, ()
    if len(places) > POINTS:
        first, last = np.quantile(seen, [0.01, 0.99])
        places = np.linspace(first, last, POINTS)
    if column.kind == "date":
        return pd.to_datetime(places, unit="D", utc=True), places, (), seen
    return places, places, (), seen


def _texts(values: pd.Series) -> pd.Series:
    return values.astype(str)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, q: float) -> np.ndarray:
    """The quantile along the first axis of weighted values.

    It interpolates between the values, each of which is placed at the middle of its share of the weight.
    """
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, 0)
    heavy = weights[order] / weights.sum()
    middle = np.cumsum(heavy, 0) - heavy / 2
    flat = zip(middle.reshape(len(values), -1).T, ordered.reshape(len(values), -1).T, strict=True)
    return np.array([np.interp(q, *each) for each in flat]).reshape(values.shape[1:])
