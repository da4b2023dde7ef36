"""Tables: from columns of any kind to the numbers that a network takes, and back.

What a column becomes is decided once, from the rows of the fit, and is kept as plain JSON beside the posterior,
so that prediction needs nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.tables.reading import TableError, require_column

if TYPE_CHECKING:
    import pandas as pd

LEVELS = 30
"""Categories that get a column of their own; rarer ones share one."""
CLASSES = 100
"""More different targets than this are not classes."""
DAY = 86_400.0
YEAR = 365.2425


# -- columns ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes numbers.

    Attributes:
      name: of the column.
      kind: ``"number"``, ``"boolean"``, ``"category"`` or ``"date"``.
      centre: what is taken off, of each of its numbers.
      scale: what they are then divided by.
      fill: stands in for a missing value.
      missing: whether a further number says that the value was missing.
      levels: the categories, each a number of its own; the last one holds all others where ``rest``.
      rest: whether there were more categories than have a number of their own.
    """

    name: str
    kind: str
    centre: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    fill: float = 0.0
    missing: bool = False
    levels: tuple[str, ...] = ()
    rest: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the numbers that it becomes."""
        if self.kind == "category":
            rest = (f"{self.name} = (other)",) if self.rest else ()
            names = (*(f"{self.name} = {level}" for level in self.levels), *rest)
        elif self.kind == "date":
            names = (self.name, f"{self.name} (season, sin)", f"{self.name} (season, cos)")
        else:
            names = (self.name,)
        return (*names, f"{self.name} is missing") if self.missing else names

    def encode(self, values: pd.Series) -> np.ndarray:
        """The numbers, ``(rows, outputs)``."""
        if self.kind == "category":
            absent = values.isna().to_numpy()
            columns = self._indicators(values, absent)
        else:
            dates = self.kind == "date"
            raw = _dates(values) if dates else _numbers(values, self.kind)[:, None]
            absent = np.isnan(raw[:, 0])
            if self.missing:
                fill = _date_parts(self.fill) if dates else self.fill
                raw = np.where(absent[:, None], fill, raw)
            columns = (raw - np.array(self.centre)) / np.array(self.scale)
        if self.missing:
            columns = np.concatenate([columns, absent[:, None].astype(float)], axis=1)
        return columns

    def _indicators(self, values: pd.Series, absent: np.ndarray) -> np.ndarray:
        text = values.astype(str).to_numpy()
        known = np.array([[value == level for level in self.levels] for value in text], float)
        known = known.reshape(len(text), len(self.levels)) * ~absent[:, None]
        if not self.rest:
            return known
        other = (known.sum(1) == 0) & ~absent
        return np.concatenate([known, other[:, None].astype(float)], axis=1)

    def unseen(self, values: pd.Series) -> list[str]:
        """Categories that the fit has not seen."""
        if self.kind != "category" or self.rest:
            return []
        seen = values.dropna().astype(str)
        return sorted(set(seen) - set(self.levels))


def _numbers(values: pd.Series, kind: str) -> np.ndarray:
    import pandas as pd

    if kind == "boolean":
        mapped = values.map(
            lambda v: _BOOLEANS.get(str(v).strip().lower(), math.nan), na_action="ignore"
        )
        return pd.to_numeric(mapped, errors="coerce").to_numpy(float)
    found = pd.to_numeric(values, errors="coerce").to_numpy(float, na_value=np.nan)
    bad = np.isnan(found) & values.notna().to_numpy()
    if bad.any():
        raise TableError(
            f"Column {values.name!r} held numbers in the fit; got {values.iloc[int(bad.argmax())]!r} in row "
            f"{int(bad.argmax())}."
        )
    return np.where(np.isfinite(found), found, np.nan)


_BOOLEANS = {
    "true": 1.0,
    "false": 0.0,
    "yes": 1.0,
    "no": 0.0,
    "1": 1.0,
    "0": 0.0,
    "1.0": 1.0,
    "0.0": 0.0,
}


def _dates(values: pd.Series) -> np.ndarray:
    """Days since 1970, and the season as a point on a circle."""
    import pandas as pd

    moments = pd.to_datetime(values, errors="coerce", utc=True, format="mixed")
    bad = moments.isna().to_numpy() & values.notna().to_numpy()
    if bad.any():
        raise TableError(
            f"Column {values.name!r} held dates in the fit; got {values.iloc[int(bad.argmax())]!r} in row "
            f"{int(bad.argmax())}."
        )
    seconds = (moments - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(float)
    return _date_parts(seconds / DAY)


def _date_parts(days: Any) -> np.ndarray:
    angle = 2 * np.pi * np.asarray(days) / YEAR
    return np.stack([np.asarray(days, float), np.sin(angle), np.cos(angle)], axis=-1)


def learn_column(values: pd.Series) -> tuple[Column | None, str]:
    """What a column is, from its rows in the fit, and a note where something about it should be said."""
    from pandas.api import types

    name, present = str(values.name), values.dropna()
    if present.empty:
        raise TableError(f"Column {name!r} has no values at all. Leave it out: --drop {name!r}.")
    missing = bool(values.isna().any())
    note = f"{name}: {int(values.isna().sum())} missing values were filled in" if missing else ""
    if present.nunique() == 1 and not missing:
        return None, f"{name}: left out, since it is the same in every row"
    words = (
        {str(value).strip().lower() for value in present.unique()}
        if present.nunique() <= 2
        else {""}
    )
    if types.is_bool_dtype(present) or (
        words <= set(_BOOLEANS) and not types.is_numeric_dtype(present)
    ):
        raw = _numbers(present, "boolean")
        return _scaled(name, "boolean", raw[:, None], float(round(raw.mean())), missing), note
    if types.is_numeric_dtype(present):
        raw = present.to_numpy(float)
        raw = raw[np.isfinite(raw)]
        missing = missing or len(raw) < len(present)
        return _scaled(name, "number", raw[:, None], float(np.median(raw)), missing), note
    if types.is_datetime64_any_dtype(present) or _are_dates(present):
        raw = _dates(present)
        return _scaled(name, "date", raw, float(np.median(raw[:, 0])), missing), note
    text = present.astype(str)
    counts = text.value_counts()
    if len(counts) > LEVELS and len(counts) > 0.5 * len(text):
        return None, f"{name}: left out, since nearly every row has another text"
    levels = tuple(counts.index[:LEVELS].sort_values())
    rest = len(counts) > LEVELS
    if rest:
        kept = (
            f"{name}: {len(counts)} categories, of which the {LEVELS} most frequent are told apart"
        )
        note = f"{note}; {kept}" if note else kept
    return Column(name, "category", missing=missing, levels=levels, rest=rest), note


def _scaled(name: str, kind: str, raw: np.ndarray, fill: float, missing: bool) -> Column:
    scale = raw.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    return Column(name, kind, tuple(raw.mean(0).tolist()), tuple(scale.tolist()), fill, missing)


def _are_dates(values: pd.Series) -> bool:
    import pandas as pd

    some = values.astype(str).head(200)
    if not some.str.contains(r"\d{1,4}[-/.:]\d{1,2}", regex=True).all():
        return False
    return bool(pd.to_datetime(some, errors="coerce", utc=True, format="mixed").notna().all())


# -- the whole table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preprocessor:
    """How rows of a table become ``x`` and ``y``.

    Attributes:
      columns: what each column becomes.
      target: the name of the column to predict.
      task: ``"regression"`` or ``"classification"``.
      classes: the labels, in the order of their numbers.
      centre: what is taken off a numeric target.
      scale: what it is then divided by.
      notes: what the user should know.
    """

    columns: tuple[Column, ...]
    target: str
    task: str
    classes: tuple[str, ...] = ()
    centre: float = 0.0
    scale: float = 1.0
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def learn(
        cls, table: pd.DataFrame, target: str, *, task: str | None = None, drop: Sequence[str] = ()
    ) -> Preprocessor:
        """Decides from the rows of the fit.

        Args:
          table: the rows.
          target: the column to predict.
          task: ``"regression"`` or ``"classification"``; ``None``: by the kind of the target.
          drop: columns to leave out.
        """
        for name in (target, *drop):
            require_column(table, name)
        notes = []
        y = table[target]
        if y.isna().any():
            notes.append(f"{target}: {int(y.isna().sum())} rows without a target were left out")
            table, y = table[y.notna()], y.dropna()
        if y.empty:
            raise TableError(
                f"Column {target!r} has no values at all, so there is nothing to predict."
            )
        task = task or detect_task(y)
        columns = []
        for name in table.columns:
            if name != target and name not in drop:
                column, note = learn_column(table[name])
                columns += [] if column is None else [column]
                notes += [note] if note else []
        if not columns:
            raise TableError(f"There is no column left to predict {target!r} from.")
        if task == "classification":
            classes: tuple[str, ...] = tuple(sorted(y.astype(str).unique(), key=_natural))
            if len(classes) < 2:
                raise TableError(
                    f"Column {target!r} is {y.iloc[0]!r} in every row: there is nothing to tell apart."
                )
            if len(classes) > CLASSES:
                raise TableError(
                    f"Column {target!r} has {len(classes)} different values, more than {CLASSES} classes. Is "
                    "it a number? Use --task regression."
                )
            return cls(tuple(columns), target, task, classes, notes=tuple(notes))
        values = _target_numbers(y)
        scale = float(values.std()) or 1.0
        return cls(tuple(columns), target, task, (), float(values.mean()), scale, tuple(notes))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of ``x``."""
        return tuple(name for column in self.columns for name in column.outputs)

    def encode(self, table: pd.DataFrame) -> np.ndarray:
        """``x`` for these rows."""
        for column in self.columns:
            require_column(table, column.name)
        parts = [column.encode(table[column.name]) for column in self.columns]
        x = np.concatenate(parts, axis=1)
        if np.isnan(x).any():
            row, place = np.argwhere(np.isnan(x))[0]
            raise TableError(
                f"Column {self.features[place]!r} had no missing values in the fit; row {row} has one."
            )
        return x

    def unseen(self, table: pd.DataFrame) -> dict[str, list[str]]:
        """Categories that the fit has not seen, by column: they become none of the known ones."""
        found = {column.name: column.unseen(table[column.name]) for column in self.columns}
        return {name: levels for name, levels in found.items() if levels}

    def encode_target(self, table: pd.DataFrame) -> np.ndarray:
        """``y`` for these rows: class numbers, or numbers of unit variance."""
        y = table[self.target]
        if self.task == "regression":
            return (_target_numbers(y) - self.centre) / self.scale
        numbers = {label: i for i, label in enumerate(self.classes)}
        unknown = sorted(set(y.astype(str)) - set(numbers))
        if unknown:
            raise TableError(
                f"Column {self.target!r} has a class that the fit has not seen: {unknown[0]!r}."
            )
        return y.astype(str).map(numbers).to_numpy(int)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Preprocessor:
        """From what :meth:`to_json` wrote."""

        def settings(part: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in part.items()}

        columns = tuple(Column(**settings(column)) for column in found["columns"])
        return cls(**{**settings(found), "columns": columns})


def detect_task(y: pd.Series) -> str:
    """Numbers are regressed, unless there are only two of them; anything else is a class."""
    from pandas.api import types

    if types.is_bool_dtype(y) or not types.is_numeric_dtype(y):
        return "classification"
    return "classification" if y.nunique() == 2 and set(y.unique()) <= {0, 1} else "regression"


def _target_numbers(y: pd.Series) -> np.ndarray:
    import pandas as pd

    values = pd.to_numeric(y, errors="coerce").to_numpy(float, na_value=np.nan)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise TableError(
            f"Column {y.name!r} must hold finite numbers for a regression; got {y.iloc[row]!r} in row {row}. "
            "Use --task classification for classes."
        )
    return values


def _natural(label: str) -> tuple[int, float, str]:
    """Numbers before words, and by their size."""
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)
