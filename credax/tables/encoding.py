"""How one column of a table becomes the numbers that a network takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.scaling import Scaling, is_constant
from credax.tables import hints
from credax.tables.columns import (
    MISSING,
    NO_CATEGORY,
    NOUNS,
    PERIODS,
    Decision,
    Reading,
    as_text,
    decide,
    shown,
)
from credax.tables.moments import DAY_NAMES, MONTH_NAMES
from credax.tables.reading import TableError

if TYPE_CHECKING:
    import pandas as pd

LEVELS = 30
"""The largest number of categories of a column that get an indicator each; rarer ones share one indicator."""
YEAR = 365.2425
"""Days per year."""


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes one or more numbers, its outputs.

    Attributes:
      name: the name of the column.
      kind: one of :data:`credax.tables.columns.KINDS`.
      centre: what is subtracted from each output, usually its mean.
      scale: what the difference is divided by, usually the standard deviation of the output.
      fill: the value that replaces a missing one.
      missing: whether a further output says that the value was missing.
      levels: the categories that have an indicator (0 or 1) each.
      rest: whether a further indicator stands for all other categories.
      outliers: whether the column had gross outliers, so that values far from the centre are drawn in.
      decimal: the decimal mark of numbers.
      unit: what stands behind the numbers, such as ``"kg"``.
      order: ``"day-first"`` or ``"month-first"``, of dates such as 05/03/2023; ``"month-year"``, of months such
        as Jan-23.
      common: the most frequent category, which replaces a missing one if the fit had none.
    """

    name: str
    kind: str
    centre: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    fill: float = 0.0
    missing: bool = False
    levels: tuple[str, ...] = ()
    rest: bool = False
    outliers: bool = False
    decimal: str = "."
    unit: str = ""
    order: str = ""
    common: str = ""

    @property
    def reading(self) -> Reading:
        """How the values of the column are read."""
        return Reading(self.kind, self.decimal, self.unit, self.order)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the numbers that the column becomes."""
        if self.kind == "category":
            rest = (f"{self.name} = (other)",) if self.rest else ()
            names = (*(f"{self.name} = {level}" for level in self.levels), *rest)
        elif self.kind == "date":
            names = (self.name, f"{self.name} (season, sin)", f"{self.name} (season, cos)")
        elif self.kind in PERIODS:
            names = (f"{self.name} (sin)", f"{self.name} (cos)")
        else:
            names = (self.name,)
        return (*names, f"{self.name} is missing") if self.missing else names

    def encode(self, values: pd.Series) -> np.ndarray:
        """The numbers that these values become, of shape ``(rows, outputs)``; none of them is NaN.

        Raises:
          TableError: none of the values can be read as what the fit found in the column.
        """
        if self.kind == "category":
            places = self._places(values)
            absent = places < 0
            columns = self._indicators(places)
        else:
            raw = self.reading.numbers(values)
            absent = np.isnan(raw)
            self._refuse_other_kinds(values, absent)
            parts = parts_of(self.kind, np.where(absent, self.fill, raw))
            if self.kind in PERIODS:
                parts = np.where(absent[:, None], np.array(self.centre), parts)
            outliers = (self.outliers,) * len(self.centre)
            columns = Scaling(self.centre, self.scale, outliers).inputs(parts)
        if self.missing:
            columns = np.concatenate([columns, absent[:, None].astype(float)], axis=1)
        return columns

    def raw(self, values: pd.Series) -> np.ndarray:
        """The values as numbers before they are scaled, or the places of categories; NaN for missing ones."""
        if self.kind != "category":
            return self.reading.numbers(values)
        places = self._places(values).astype(float)
        return np.where(places < 0, np.nan, places)

    def _refuse_other_kinds(self, values: pd.Series, absent: np.ndarray) -> None:
        bad = absent & values.notna().to_numpy()
        if len(values) and bad.any() and absent.all():
            row = int(bad.argmax())
            value = shown(str(values.iloc[row]))
            if as_text(values.iloc[row]).lower() in MISSING:
                return
            raise TableError(
                f"Column {self.name!r} held {NOUNS[self.kind]} in the fit; got {value} in row {row}."
            )

    def _places(self, values: pd.Series) -> np.ndarray:
        """For each value, its place among the levels; one more if it is none of them, and -1 if missing."""
        import pandas as pd

        known = {level: i for i, level in enumerate(self.levels)}
        codes, found = pd.factorize(values)
        places = [self._place(value, known) for value in found]
        return np.array([*places, -1])[codes]

    def _place(self, value: Any, known: dict[str, int]) -> int:
        text = as_text(value)
        for candidate in (text, str(value)):
            if candidate in known:
                return known[candidate]
        try:
            whole = as_text(float(text))  # a whole number that was written as 1.0
        except ValueError:
            whole = text
        if whole in known:
            return known[whole]
        return -1 if text.lower() in NO_CATEGORY else len(known)

    def _indicators(self, places: np.ndarray) -> np.ndarray:
        width = len(self.levels)
        if not self.missing and self.common in self.levels:
            places = np.where(places < 0, self.levels.index(self.common), places)
        found = np.zeros((len(places), width + 2))
        found[np.arange(len(places)), np.where(places < 0, width + 1, places)] = 1
        return found[:, : width + self.rest]

    # -- what new rows have that the fit had not ------------------------------------------------------

    def unseen(self, values: pd.Series) -> list[str]:
        """The categories among these values that have no indicator: all indicators are 0 for them."""
        if self.kind != "category" or self.rest:
            return []
        places = self._places(values)
        return sorted({as_text(value) for value in values[places == len(self.levels)]})

    def remarks(self, values: pd.Series) -> list[str]:
        """Sentences about values that the fit has not seen the like of."""
        unseen, found = self.unseen(values), []
        if unseen:
            found.append(f"the fit has not seen {listed(unseen)} in column {self.name!r}.")
        if self.kind == "category":
            absent = self._places(values) < 0
            stray = []
            fill = repr(self.common)
        else:
            absent = np.isnan(self.reading.numbers(values))
            texts = [as_text(value) for value in values[absent & values.notna().to_numpy()]]
            stray = [text for text, _ in Counter(texts).most_common()]
            fill = "its usual value"
        number = int(absent.sum())
        rows = f"{count_of(number, 'value')} {'was' if number == 1 else 'were'}"
        if stray:
            found.append(
                f"column {self.name!r} held {NOUNS[self.kind]} in the fit; {listed(stray)} counts as missing."
            )
        if absent.any() and not self.missing:
            found.append(
                f"column {self.name!r} had no missing values in the fit; {rows} replaced by {fill}."
            )
        return found


def parts_of(kind: str, raw: np.ndarray) -> np.ndarray:
    """The outputs of these numbers before they are scaled, of shape ``(rows, outputs)``."""
    if kind == "date":
        angle = 2 * np.pi * raw / YEAR
        return np.stack([raw, np.sin(angle), np.cos(angle)], axis=-1)
    if kind in PERIODS:
        angle = 2 * np.pi * raw / PERIODS[kind]
        return np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return raw[:, None]


def names_of(kind: str) -> tuple[str, ...]:
    """The names of the values 0, 1, ... of weekdays and months; none for other kinds."""
    return {"weekday": DAY_NAMES, "month": MONTH_NAMES}.get(kind, ())


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, quoted."""
    return ", ".join(map(shown, names[:most])) + (", ..." if len(names) > most else "")


def count_of(number: int, noun: str) -> str:
    """The number with its noun.

    >>> count_of(1, "value"), count_of(2, "value")
    ('1 value', '2 values')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- learning --------------------------------------------------------------------------------------------


def learn_column(
    values: pd.Series,
    whole: pd.Series | None = None,
    decision: Decision | None = None,
    weights: np.ndarray | None = None,
) -> tuple[Column | None, str]:
    """Learn how a column becomes numbers.

    Args:
      values: the column in the fitted rows, which decide every scale, fill value and category.
      whole: the column in all rows, held-out ones included. They decide only what kind of column it is and
        whether values can be missing, so that held-out rows can always be encoded. If ``None``, ``values``.
      decision: what the column holds. If ``None``, it is decided from all rows.
      weights: the weight of each fitted row, which decides how frequent a category is, and which value is in
        the middle. If ``None``, all have the same.

    Returns:
      The column, or ``None`` if it cannot help the prediction; and a note for the user, which may be empty.
    """
    name, every = str(values.name), values if whole is None else whole
    decision = decide(every) if decision is None else decision
    if decision.reading.kind in ("lists", "ignore"):
        return None, f"{name}: {decision.notes[0]}"
    learn = _category if decision.reading.kind == "category" else _numbers
    column, notes = learn(name, values, every, decision, weights)
    return column, f"{name}: {'; '.join(notes)}" if notes else ""


NO_VALUES = "left out, since it has no values at all"
NO_FITTED = "left out, since it has no value in any fitted row"


def _same(every: bool) -> str:
    return f"left out, since it is the same in every {'row' if every else 'fitted row'}"


def _category(
    name: str,
    values: pd.Series,
    every: pd.Series,
    decision: Decision,
    weights: np.ndarray | None,
) -> tuple[Column | None, list[str]]:
    here, whole = (decision.reading.texts(each) for each in (values, every))
    counts = Counter(text for text in here if text is not None)
    absent = sum(text is None for text in whole)
    if absent == len(whole):
        return None, [NO_VALUES]
    if not counts:
        return None, [NO_FITTED]
    rows = counts.total()
    if len(counts) == 1 and rows == len(here):
        return None, [_same(len(set(whole)) == 1)]
    useless = "" if decision.given else hints.useless_texts(counts, LEVELS)
    if useless:
        return None, [f"left out, since {useless}"]
    notes = [*decision.notes, *_filled(absent)]
    rest = len(counts) > LEVELS
    sizes = counts if weights is None else _weighed(here, weights)
    often = [level for level, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))]
    if rest:
        notes.append(
            f"{len(counts)} categories, of which the {LEVELS} most frequent are told apart"
        )
    column = Column(
        *(name, "category"),
        missing=absent > 0,
        levels=tuple(sorted(often[:LEVELS])),
        rest=rest,
        common=often[0],
    )
    unseen = column.unseen(every)
    if unseen:
        notes.append(f"only held-out rows have {listed(unseen)}")
    return column, notes


def _numbers(
    name: str,
    values: pd.Series,
    every: pd.Series,
    decision: Decision,
    weights: np.ndarray | None,
) -> tuple[Column | None, list[str]]:
    reading = decision.reading
    here, whole = (reading.numbers(each) for each in (values, every))
    present, absent = here[~np.isnan(here)], int(np.isnan(whole).sum())
    if absent == len(whole):
        unread = every.dropna()
        if unread.empty:
            return None, [NO_VALUES]
        such = shown(str(unread.iloc[0]))
        return None, [f"left out, since none of its values can be used, such as {such}"]
    if not len(present):
        return None, [NO_FITTED]
    if len(present) == len(here) and bool(is_constant(present)):
        return None, [_same(not absent and bool(is_constant(whole)))]
    useless = "" if decision.given else hints.useless_numbers(name, whole)
    if useless:
        return None, [f"left out, since {useless}"]
    notes = [*decision.notes, *_filled(absent)]
    if reading.kind == "number" and not decision.given:
        notes += hints.of_numbers(name, whole)
    parts = parts_of(reading.kind, present)
    fill = median(present, None if weights is None else weights[~np.isnan(here)])
    fill = round(fill) if reading.kind == "boolean" else fill
    scaling = Scaling.learn(parts)
    column = Column(
        name,
        reading.kind,
        scaling.centre,
        scaling.scale,
        float(fill),
        absent > 0,
        outliers=scaling.outliers[0] and reading.kind not in PERIODS,
        decimal=reading.decimal,
        unit=reading.unit,
        order=reading.order,
    )
    if column.outliers:
        notes.append("gross outliers; values far from the median are drawn in")
    return column, notes


def _weighed(texts: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """The sum of the weights of the rows that have each text."""
    found: dict[str, float] = {}
    for text, weight in zip(texts, weights, strict=True):
        if text is not None:
            found[text] = found.get(text, 0.0) + float(weight)
    return found


def median(values: np.ndarray, weights: np.ndarray | None) -> float:
    """The median, in which a value of weight 2 counts as two values."""
    if weights is None:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    half = total[-1] / 2
    lower, upper = (np.searchsorted(total, half, side=side) for side in ("left", "right"))
    return float(values[order[[lower, min(upper, len(order) - 1)]]].mean())


def _filled(absent: int) -> list[str]:
    if not absent:
        return []
    return [f"{count_of(absent, 'missing value')} {'was' if absent == 1 else 'were'} filled in"]
