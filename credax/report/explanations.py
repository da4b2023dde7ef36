"""Why a row has its prediction: how much each column moves it away from where a typical value would put it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from credax.report.parts import HeldOut
from credax.report.words import cell, number, percent

if TYPE_CHECKING:
    import pandas as pd

    from credax.tables.encoding import Column
    from credax.tables.runs import Run

MOST = 3
"""The largest number of columns that an explanation names."""


def contributions(run: Run, held: HeldOut, rows: np.ndarray) -> np.ndarray:
    """The prediction minus what it would be with a typical value in one column, ``(rows, columns)``.

    The prediction is the mean of a number, or the probability of the class that is predicted. A typical value
    is the median of the held-out rows, or their most frequent category.

    Args:
      run: a fit of a table.
      held: the held-out rows.
      rows: the numbers of the rows to explain.
    """
    import pandas as pd

    table = held.table.iloc[rows].reset_index(drop=True)
    changed = [table]
    for column in run.preprocessor.columns:
        other = table.copy()
        other[column.name] = typical(held.table[column.name], column)
        changed.append(other)
    found: Any = run.predict(pd.concat(changed, ignore_index=True))
    if held.classes:
        probs = found.iloc[:, 1 : 1 + len(held.classes)].to_numpy(float)
        shaped = probs.reshape(len(changed), len(rows), -1)
        guess = shaped[0].argmax(1)
        values = shaped[:, np.arange(len(rows)), guess]
    else:
        values = found["mean"].to_numpy(float).reshape(len(changed), len(rows))
    return (values[0] - values[1:]).T


def typical(values: pd.Series, column: Column) -> Any:
    """The value in the middle of a column, or its most frequent one; ``None`` if all are missing."""
    present = values.dropna()
    if not len(present):
        return None
    if column.kind in ("number", "date", "duration"):
        raw = np.asarray(column.raw(present), float)
        finite = np.flatnonzero(np.isfinite(raw))
        if len(finite):
            middle = finite[np.argsort(raw[finite], kind="stable")[(len(finite) - 1) // 2]]
            return present.iloc[int(middle)]
    return present.value_counts().index[0]


def explained(run: Run, held: HeldOut, rows: np.ndarray) -> list[str]:
    """For each row, the columns that move its prediction most, with their values and by how much."""
    moves = contributions(run, held, rows)
    names = [column.name for column in run.preprocessor.columns]
    texts = []
    for row, found in zip(rows.tolist(), moves, strict=True):
        most = [k for k in np.argsort(-np.abs(found), kind="stable")[:MOST] if found[k] != 0]
        parts = [
            f"{names[k]} = {cell(held.table[names[k]].iloc[row])} ({_signed(found[k], held)})"
            for k in most
        ]
        texts.append("; ".join(parts) or "no column")
    return texts


def _signed(move: float, held: HeldOut) -> str:
    size = percent(abs(move)) if held.classes else number(abs(move))
    return ("+" if move > 0 else "\u2212") + size
