"""Whether the predictions are as good in every part of the table: by prediction, and by the main columns.

An interval that holds 90 % of all rows may hold 99 % of the cheap ones and 70 % of the dear ones. Each segment
is compared with what chance would do; since there are many segments, a difference counts if its probability is
below 5 % divided by their number (Bonferroni).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, norm

from credax.report.charts import shortened
from credax.report.effects import Effect
from credax.report.parts import HeldOut, Part, Section, absent, table, text
from credax.report.words import count, number, percent
from credax.tables.columns import as_text

LEVEL = 0.9
PREDICTED = "predicted: "
LEAST = 10
"""The least number of rows in a segment."""
COLUMNS, LEVELS, GROUPS = 4, 6, 5
"""The largest numbers of columns, of categories of a column, and of groups of a number."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of the held-out rows.

    Attributes:
      name: what the rows have in common.
      rows: whether each held-out row belongs to it.
      hits: the number of rows inside their interval; for classes, of those classified correctly.
      expected: how many there should be, by the predictions themselves.
      probability: the probability of a number as far from what is expected, if the model is calibrated.
      error: the median absolute error; for classes, the share of wrong classes.
    """

    name: str
    rows: np.ndarray
    hits: int
    expected: float
    probability: float
    error: float

    @property
    def size(self) -> int:
        """The number of rows."""
        return int(self.rows.sum())


def segments(held: HeldOut, found: list[Effect]) -> list[Segment]:
    """The segments of the held-out rows by prediction and by the columns that matter most.

    Args:
      held: the held-out rows.
      found: the effects of the columns, the most important first.
    """
    named: list[tuple[str, np.ndarray]] = []
    if held.classes:
        guess = held.probs.argmax(1)
        named += [(f"{PREDICTED}{name}", guess == k) for k, name in enumerate(held.classes)]
    else:
        named += _groups(PREDICTED, held["mean"])
    for effect in found[:COLUMNS]:
        column = effect.column
        values = held.table[column.name]
        if effect.names:
            texts = values.map(as_text).to_numpy()
            named += [(f"{column.name}: {n}", texts == n) for n in effect.names[:LEVELS]]
        elif column.kind == "date":
            continue
        else:
            named += _groups(f"{column.name}: ", np.asarray(column.raw(values), float))
    return [_segment(held, name, rows) for name, rows in named if rows.sum() >= LEAST]


def _groups(name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Groups of nearly equal size, from the smallest to the largest values."""
    finite = np.isfinite(values)
    groups = min(GROUPS, int(finite.sum()) // LEAST)
    if groups < 2:
        return []
    edges = np.unique(np.quantile(values[finite], np.linspace(0, 1, groups + 1)))
    place = np.searchsorted(edges[1:-1], values, side="right")
    return [
        (f"{name}{number(low)} to {number(high)}", finite & (place == i))
        for i, (low, high) in enumerate(itertools.pairwise(edges))
    ]


def _segment(held: HeldOut, name: str, rows: np.ndarray) -> Segment:
    size = int(rows.sum())
    if held.classes:
        claimed = held.probs[rows].max(1)
        right = held.probs[rows].argmax(1) == held.y[rows]
        scatter = max(float(np.sqrt(np.sum(claimed * (1 - claimed)))), 1e-12)
        away = (right.sum() - claimed.sum()) / scatter
        chance = float(2 * norm.sf(abs(away)))
        return Segment(name, rows, int(right.sum()), float(claimed.sum()), chance, 1 - right.mean())
    y, lower, upper = held.y[rows], held["lower"][rows], held["upper"][rows]
    hits = int(np.sum((y >= lower) & (y <= upper)))
    chance = float(binomtest(hits, size, LEVEL).pvalue)
    error = float(np.median(np.abs(y - held["mean"][rows])))
    return Segment(name, rows, hits, LEVEL * size, chance, error)


def segment_section(held: HeldOut | None, found: list[Effect], target: str) -> Section:
    """The section on the parts of the table."""
    how = (
        "The same check for parts of the held-out rows, since what holds on average may fail where it matters. "
        "A part is marked if chance alone would hardly explain it, given how many parts are looked at."
    )
    section = Section("segments", "Is it as good in every part of the table?", how)
    if held is None:
        section.parts.append(absent())
        return section
    parts = segments(held, found)
    if not parts:
        section.parts.append(absent(f"No part of the table has {LEAST} held-out rows."))
        return section
    by_prediction = [part for part in parts if part.name.startswith(PREDICTED)]
    by_column = [part for part in parts if not part.name.startswith(PREDICTED)]
    section.parts.append(text(_said(parts)))
    if by_prediction:
        section.parts.append(_table(held, by_prediction, parts, target, "by prediction", False))
    if by_column:
        section.parts.append(_table(held, by_column, parts, target, "by column", True))
    return section


def _off(segment: Segment, parts: list[Segment]) -> str:
    """What a segment is marked with: nothing, if it agrees with what is expected."""
    if segment.probability >= 0.05 / len(parts):
        return ""
    return "too sure" if segment.hits < segment.expected else "not sure enough"


def _said(parts: list[Segment]) -> str:
    off = [f"{shortened(p.name, 40)} ({_off(p, parts)})" for p in parts if _off(p, parts)]
    if not off:
        return f"None of {count(len(parts), 'part')} differs from what is expected by more than chance."
    differ = "1 differs" if len(off) == 1 else f"{len(off)} differ"
    return f"Of {count(len(parts), 'part')}, {differ} by more than chance: {'; '.join(off)}."


def _table(
    held: HeldOut, shown: list[Segment], parts: list[Segment], target: str, by: str, closed: bool
) -> Part:
    if held.classes:
        heads = ["part", "rows", "right", "expected", "verdict"]
        caption = (
            "How often the predicted class is right, and how often it should be by its probability"
        )
    else:
        heads = ["part", "rows", "inside", "typical error", "verdict"]
        caption = f"Rows inside their 90\u00a0% interval, and the median absolute error of {target}"
    rows = [
        [
            shortened(part.name, 48),
            number(part.size),
            percent(part.hits / part.size),
            percent(part.expected / part.size) if held.classes else number(part.error),
            _off(part, parts) or "as expected",
        ]
        for part in shown
    ]
    return table(f"{caption}, {by}", heads, rows, [1, 2, 3], closed=closed, css="stack-1")
