r"""The effect of each column on the prediction, with its uncertainty.

These are accumulated local effects (Apley & Zhu, 2020). The range of a column is divided into bins. In each,
only the rows that lie in it are moved, from one end of the bin to the other, and the changes of the prediction
are averaged and added up:

.. math:: e_w(z_k) = c + \sum_{j \le k} \frac{1}{n_j} \sum_{i \in N_j}
          \bigl( E[y \mid x_i \text{ with } z_j, w] - E[y \mid x_i \text{ with } z_{j-1}, w] \bigr)

No row is moved further than its bin is wide. So columns that go together stay together, and the model is not
asked about rows that cannot exist. The constant c makes the mean effect equal to the mean prediction.
Categories are put in the order of their mean predictions, and the rows of each are moved to its two neighbours.

The mean over the posterior of w is the effect. The band from the 5 % to the 95 % quantile is its epistemic
uncertainty, without the noise of y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from credax.tables.columns import as_text
from credax.tables.encoding import Column, names_of

if TYPE_CHECKING:
    import pandas as pd

    from credax.tables.runs import Run

ROWS, POINTS, SAMPLES, CATEGORIES = 400, 20, 200, 12
"""The largest numbers of rows, of ends of bins z, of posterior samples w, and of categories."""


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of one column.

    Attributes:
      column: the column.
      places: the values z as numbers: days since 1970 for dates, and 0, 1, ... for categories.
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
    some = np.unique(np.linspace(0, len(table) - 1, ROWS).astype(int))
    rows = table.iloc[some].reset_index(drop=True)
    whole = _predicted(run, rows)
    found = [_effect(run, rows, table, column, whole) for column in run.preprocessor.columns]
    present = [effect for effect in found if effect is not None]
    return sorted(present, key=lambda effect: -effect.importance)


class _Means(NamedTuple):
    """E[y | w] of rows, of shape ``(samples, rows, outputs)``, and the weight of each sample."""

    values: np.ndarray
    weights: np.ndarray


def _predicted(run: Run, rows: pd.DataFrame) -> _Means:
    predictive = run.posterior.predict(run.preprocessor.encode(rows), num_samples=SAMPLES)
    means = np.asarray(predictive.means, np.float64)
    means = means.reshape(*means.shape[:2], -1)
    weights = np.exp(predictive.log_weights)
    return _Means(run.preprocessor.centre + run.preprocessor.scale * means, weights)


def _effect(
    run: Run, rows: pd.DataFrame, table: pd.DataFrame, column: Column, whole: _Means
) -> Effect | None:
    values, places, names, seen = _values(table[column.name], column)
    if not len(values):
        return None
    at = _place(rows[column.name], column, places, names)
    mine = np.flatnonzero(at >= 0)
    if not len(mine):
        return None
    order = np.arange(len(places))
    if (
        column.kind == "category"
    ):  # neighbours are the categories whose rows have similar predictions
        each = [_weighted(_Means(whole.values[:, at == k], whole.weights)) for k in order]
        heights = np.array([one.mean(0) if len(one) else np.zeros(one.shape[1]) for one in each])
        order = np.argsort(heights[:, np.argmax(np.ptp(heights, axis=0))], kind="stable")
    rank = np.argsort(order)[at[mine]]
    if names:
        # A row of a category is moved to both of its neighbours.
        pairs = [(mine[rank == k + side], k) for k in range(len(order) - 1) for side in (0, 1)]
        moved = np.concatenate([mine[:0], *(rows_of for rows_of, _ in pairs)])
        bins = np.concatenate([rank[:0], *(np.full(len(r), k) for r, k in pairs)])
        heavy = np.bincount(rank, minlength=len(order))
    else:
        moved, bins = mine, np.maximum(rank - 1, 0)
        ends = np.bincount(bins, minlength=max(len(order) - 1, 1)) / 2
        heavy = (np.r_[ends, 0] + np.r_[0, ends])[: len(order)]
    if len(order) > 1 and len(moved):
        low, high = (_moved(run, rows, column, values, moved, order[bins + e]) for e in (0, 1))
        curve = accumulated(high - low, bins, len(order) - 1)
    else:
        curve = np.zeros((len(whole.weights), len(order), whole.values.shape[2]))
    centre = np.sum(curve * heavy[:, None], 1, keepdims=True) / heavy.sum()
    curve = curve - centre + whole.values[:, mine].mean(1, keepdims=True)
    curve = curve[:, np.argsort(order)]
    lower, upper = (weighted_quantile(curve, whole.weights, q) for q in (0.05, 0.95))
    return Effect(
        column, places, names, _weighted(_Means(curve, whole.weights)), lower, upper, seen
    )


def accumulated(changes: np.ndarray, bins: np.ndarray, count: int) -> np.ndarray:
    """The sums of the mean changes in the bins up to each end of a bin, beginning with zero.

    Args:
      changes: the change of the prediction of each row across its bin, ``(samples, rows, outputs)``.
      bins: the bin of each row.
      count: the number of bins. In a bin without rows, nothing changes.

    >>> accumulated(np.array([[[1.0], [3.0], [5.0]]]), np.array([0, 0, 1]), 2)[0, :, 0]
    array([0., 2., 7.])
    """
    member = bins == np.arange(count)[:, None]
    share = member / np.maximum(member.sum(1, keepdims=True), 1)
    means = np.einsum("kn,snc->skc", share, changes)
    return np.concatenate([np.zeros_like(means[:, :1]), np.cumsum(means, 1)], axis=1)


def _moved(
    run: Run, rows: pd.DataFrame, column: Column, values: Any, moved: np.ndarray, to: np.ndarray
) -> np.ndarray:
    """The predictions of some rows after their column was set to some of the values."""
    import pandas as pd

    table = rows.iloc[moved].reset_index(drop=True)
    table[column.name] = pd.Series(values).iloc[to].reset_index(drop=True)
    return _predicted(run, table).values


def _weighted(means: _Means) -> np.ndarray:
    """The mean over the posterior."""
    return np.einsum("s,snc->nc", means.weights, means.values) / means.weights.sum()


def _place(
    found: pd.Series, column: Column, places: np.ndarray, names: tuple[str, ...]
) -> np.ndarray:
    """The number of the category of each row, or of the upper end of its bin; -1 where there is none."""
    if column.kind == "category":
        return np.array([names.index(t) if t in names else -1 for t in found.map(as_text)])
    if column.kind == "boolean":
        return np.array([names.index(str(v)) if str(v) in names else -1 for v in found])
    raw = np.asarray(column.raw(found), float)
    if names:
        every = names_of(column.kind)
        wanted = [every.index(name) for name in names]
        return np.array(
            [wanted.index(int(v)) if np.isfinite(v) and int(v) in wanted else -1 for v in raw]
        )
    at = np.clip(np.searchsorted(places, raw, side="left"), 0, len(places) - 1)
    return np.where(np.isfinite(raw), at, -1)


def _values(found: pd.Series, column: Column) -> tuple[Any, np.ndarray, tuple[str, ...], Any]:
    """The values z to set, their places on the axis, their names, and the values in the rows."""
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
    if len(places) > POINTS:  # about as many rows in each bin
        places = np.unique(np.quantile(seen, np.linspace(0.01, 0.99, POINTS)))
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
