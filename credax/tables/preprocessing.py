"""Preprocessing: turns the columns of a table into the numbers that a network takes, and the target back.

The scales, fill values and categories are learned once, from the rows that the network is fitted to, and are
stored as plain JSON beside the posterior, so that prediction needs nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.checks import one_of
from credax.core.scaling import Scaling, is_constant, outlier_text
from credax.tables.reading import TableError, require_column

if TYPE_CHECKING:
    import pandas as pd

LEVELS = 30
"""The largest number of categories of a column that get an indicator each; rarer ones share one indicator."""
CLASSES = 100
"""The largest number of classes; a target with more distinct values is refused for a classification."""
TASKS = ("regression", "classification")
KINDS = ("number", "boolean", "category", "date")
DAY = 86_400.0
"""Seconds per day."""
YEAR = 365.2425
"""Days per year."""


# -- columns ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes one or more numbers, its outputs.

    Attributes:
      name: the name of the column.
      kind: ``"number"``, ``"boolean"``, ``"category"`` or ``"date"``.
      centre: what is subtracted from each output, usually its mean.
      scale: what the difference is divided by, usually the standard deviation of the output.
      outliers: whether the column had gross outliers, so that values far from the centre are drawn in.
      fill: the value that replaces a missing one.
      missing: whether a further output says that the value was missing.
      levels: the categories that have an indicator (0 or 1) each.
      rest: whether a further indicator stands for all other categories.
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

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the numbers that the column becomes."""
        if self.kind == "category":
            rest = (f"{self.name} = (other)",) if self.rest else ()
            names = (*(f"{self.name} = {level}" for level in self.levels), *rest)
        elif self.kind == "date":
            names = (self.name, f"{self.name} (season, sin)", f"{self.name} (season, cos)")
        else:
            names = (self.name,)
        return (*names, f"{self.name} is missing") if self.missing else names

    def encode(self, values: pd.Series) -> np.ndarray:
        """The numbers that these values become, of shape ``(rows, outputs)``."""
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
            outliers = (self.outliers,) * len(self.centre)
            columns = Scaling(self.centre, self.scale, outliers).inputs(raw)
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
        """The categories among these values that have no indicator: all indicators are 0 for them."""
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
    """Days since 1970, and the time of year as a point on the unit circle."""
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


def learn_column(values: pd.Series, whole: pd.Series | None = None) -> tuple[Column | None, str]:
    """Learn how a column becomes numbers.

    Args:
      values: the column in the fitted rows, which decide every scale, fill value and category.
      whole: the column in all rows, held-out ones included. They decide only what kind of column it is and
        whether values can be missing, so that held-out rows can always be encoded. If ``None``, ``values``.

    Returns:
      The column, or ``None`` if it cannot help the prediction; and a note for the user, which may be empty.
    """
    name = str(values.name)
    every = _without_infinities(values if whole is None else whole)
    values = _without_infinities(values)
    present, absent = values.dropna(), int(every.isna().sum())
    if absent == len(every):
        raise TableError(f"Column {name!r} has no values at all. Leave it out: --drop {name!r}.")
    if present.empty:
        return None, f"{name}: left out, since it has no value in any fitted row"
    if _same(present) and len(present) == len(values):
        row = "row" if _same(every) else "fitted row"
        return None, f"{name}: left out, since it is the same in every {row}"
    notes = [f"{absent} missing values were filled in"] if absent else []
    kind = column_kind(every.dropna())
    if kind == "category":
        counts = present.astype(str).value_counts()
        if len(counts) > LEVELS and len(counts) > 0.5 * len(present):
            return None, f"{name}: left out, since nearly every row has a different text"
        rest = len(counts) > LEVELS
        if rest:
            notes.append(
                f"{len(counts)} categories, of which the {LEVELS} most frequent are told apart"
            )
        levels = tuple(counts.index[:LEVELS].sort_values())
        column = Column(name, kind, missing=absent > 0, levels=levels, rest=rest)
        unseen = column.unseen(every)
        if unseen:
            notes.append(f"only held-out rows have {_listed(unseen)}")
    else:
        raw = _dates(present) if kind == "date" else _numbers(present, kind)[:, None]
        middle = round(raw.mean()) if kind == "boolean" else np.median(raw[:, 0])
        column = _scaled(name, kind, raw, float(middle), absent > 0)
        if column.outliers:
            notes.append("gross outliers; values far from the median are drawn in")
    return column, f"{name}: {'; '.join(notes)}" if notes else ""


def column_kind(values: pd.Series) -> str:
    """What the values of a column, none of them missing, are: see :class:`Column`."""
    from pandas.api import types

    if types.is_bool_dtype(values):
        return "boolean"
    if types.is_numeric_dtype(values):
        return "number"
    if values.nunique() <= 2 and {str(v).strip().lower() for v in values.unique()} <= set(
        _BOOLEANS
    ):
        return "boolean"
    if types.is_datetime64_any_dtype(values) or _are_dates(values):
        return "date"
    return "category"


def _without_infinities(values: pd.Series) -> pd.Series:
    """The values, with infinite numbers as missing ones."""
    from pandas.api import types

    if types.is_bool_dtype(values) or not types.is_numeric_dtype(values):
        return values
    return values.mask(np.isinf(values.to_numpy(float, na_value=np.nan)))


def _listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, quoted."""
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def _same(values: pd.Series) -> bool:
    """Whether all values are the same, numbers up to rounding errors; a missing value differs from others."""
    from pandas.api import types

    if types.is_bool_dtype(values) or not types.is_numeric_dtype(values) or values.isna().any():
        return values.nunique(dropna=False) == 1
    return bool(is_constant(values.to_numpy(float)))


def _scaled(name: str, kind: str, raw: np.ndarray, fill: float, missing: bool) -> Column:
    scaling = Scaling.learn(raw)
    centre, scale, outliers = scaling.centre, scaling.scale, scaling.outliers[0]
    return Column(name, kind, centre, scale, fill, missing, outliers=outliers)


def _are_dates(values: pd.Series) -> bool:
    import pandas as pd

    some = values.astype(str).head(200)
    if not some.str.contains(r"\d{1,4}[-/.:]\d{1,2}", regex=True).all():
        return False
    return bool(pd.to_datetime(some, errors="coerce", utc=True, format="mixed").notna().all())


# -- the whole table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preprocessor:
    """How the rows of a table become the inputs ``x`` and the targets ``y`` of a network.

    Attributes:
      columns: how each column that is used becomes numbers.
      target: the name of the column to predict.
      task: ``"regression"`` or ``"classification"``.
      classes: for a classification, the labels in the order of their class numbers.
      centre: for a regression, what is subtracted from the target: its mean over the fitted rows, or its median
        if there are gross outliers.
      scale: for a regression, what the difference is divided by: the standard deviation over the fitted rows,
        or its estimate from the quartiles.
      outliers: for a regression, whether the target has gross outliers.
      notes: what the user should know about the preprocessing, one sentence each.
    """

    columns: tuple[Column, ...]
    target: str
    task: str
    classes: tuple[str, ...] = ()
    centre: float = 0.0
    scale: float = 1.0
    outliers: bool = False
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def learn(
        cls,
        table: pd.DataFrame,
        target: str,
        *,
        task: str | None = None,
        drop: Sequence[str] = (),
        whole: pd.DataFrame | None = None,
    ) -> Preprocessor:
        """Learn the preprocessing from the rows that the network is fitted to.

        Args:
          table: the fitted rows, which decide every scale, fill value and category. Rows without a target are
            left out.
          target: the column to predict.
          task: ``"regression"`` or ``"classification"``. If ``None``, :func:`detect_task` decides.
          drop: columns to leave out.
          whole: all rows, held-out ones included. They decide only the task, the set of class labels, the kind
            of each column and whether its values can be missing. So a class that occurs in held-out rows only
            has a probability too, which the fit had no reason to raise, and the scores count it. If ``None``,
            ``table``.
        """
        for name in (target, *drop):
            require_column(table, name)
        every = table if whole is None else whole
        without = int(every[target].isna().sum())
        notes = [f"{target}: {without} rows without a target were left out"] if without else []
        table, every = table[table[target].notna()], every[every[target].notna()]
        y, all_targets = table[target], every[target]
        if y.empty:
            raise TableError(
                f"Column {target!r} has no values at all, so there is nothing to predict."
            )
        if task is None:
            task = detect_task(all_targets)
        one_of("Preprocessor.learn", "task", task, TASKS)
        columns = []
        for name in table.columns:
            if name != target and name not in drop:
                column, note = learn_column(table[name], every[name])
                columns += [] if column is None else [column]
                notes += [note] if note else []
        if not columns:
            raise TableError(f"There is no column left to predict {target!r} from.")
        if task == "classification":
            classes = _classes(all_targets)
            unseen = [label for label in classes if label not in set(y.astype(str))]
            if unseen:
                notes.append(f"{target}: only held-out rows have {_listed(unseen)}")
            return cls(tuple(columns), target, task, classes, notes=tuple(notes))
        _target_numbers(all_targets)  # refuses a held-out target that is no number before the fit
        values = _target_numbers(y)
        scaling = Scaling.learn(values[:, None])
        if scaling.outliers[0]:
            text = outlier_text(values, list(y.index))
            notes.append(f"{target}: {text}, so the noise has Student's t distribution")
        return cls(
            *(tuple(columns), target, task, ()),
            *(scaling.centre[0], scaling.scale[0], scaling.outliers[0], tuple(notes)),
        )

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers in a row of ``x``."""
        return tuple(name for column in self.columns for name in column.outputs)

    def encode(self, table: pd.DataFrame) -> np.ndarray:
        """The inputs ``x`` of these rows, of shape ``(rows, features)``."""
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
        """For each column, the categories that the fit has not seen: all indicators are 0 for them."""
        found = {column.name: column.unseen(table[column.name]) for column in self.columns}
        return {name: levels for name, levels in found.items() if levels}

    def encode_target(self, table: pd.DataFrame) -> np.ndarray:
        """The targets ``y`` of these rows, as the network is fitted to them: standardised, or class numbers."""
        y = self.targets(table)
        return (y - self.centre) / self.scale if self.task == "regression" else y

    def targets(self, table: pd.DataFrame) -> np.ndarray:
        """The targets of these rows on the scale of the table, or their class numbers."""
        y = table[self.target]
        if self.task == "regression":
            return _target_numbers(y)
        numbers = {label: i for i, label in enumerate(self.classes)}
        unknown = sorted(set(y.astype(str)) - set(numbers))
        if unknown:
            raise TableError(
                f"Column {self.target!r} has a class that the fit has not seen: {unknown[0]!r}."
            )
        return y.astype(str).map(numbers).to_numpy(int)

    def to_json(self) -> dict[str, Any]:
        """The preprocessor as plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Preprocessor:
        """The preprocessor that :meth:`to_json` wrote.

        Raises:
          ValueError: it is not one that ``to_json`` could have written.
        """
        columns = tuple(_from_json(Column, column) for column in found["columns"])
        preprocessor = _from_json(cls, {**found, "columns": []})
        if preprocessor.task not in TASKS or {column.kind for column in columns} - set(KINDS):
            raise ValueError("its task and the kinds of its columns must be known ones")
        return dataclasses.replace(preprocessor, columns=columns)


def _from_json(kind: type, found: dict[str, Any]) -> Any:
    """A column or a preprocessor, whose fields have the types of the defaults."""
    made = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    for item in dataclasses.fields(kind):
        value = getattr(made, item.name)
        entries = value if isinstance(value, tuple) else (value,)
        allowed = _TYPES[str(item.type).removeprefix("tuple[").split(",")[0]]
        if isinstance(value, tuple) != str(item.type).startswith("tuple"):
            raise ValueError(f"{item.name} must be of type {item.type}; got {value!r}")
        if not all(type(entry) in allowed and _is_finite(entry) for entry in entries):
            raise ValueError(f"{item.name} must be of type {item.type}; got {value!r}")
    return made


_TYPES = {"str": (str,), "float": (float, int), "bool": (bool,), "Column": (Column,)}


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float | int) or math.isfinite(value)


def detect_task(y: pd.Series) -> str:
    """The task that the kind of the target suggests.

    Numbers call for a regression, unless all of them are 0 or 1 and both occur. Anything else is a class.
    """
    from pandas.api import types

    if types.is_bool_dtype(y) or not types.is_numeric_dtype(y):
        return "classification"
    return "classification" if y.nunique() == 2 and set(y.unique()) <= {0, 1} else "regression"


def _classes(y: pd.Series) -> tuple[str, ...]:
    classes: tuple[str, ...] = tuple(sorted(y.astype(str).unique(), key=_natural))
    if len(classes) < 2:
        raise TableError(
            f"Column {y.name!r} is {y.iloc[0]!r} in every row: there is nothing to tell apart."
        )
    if len(classes) > CLASSES:
        raise TableError(
            f"Column {y.name!r} has {len(classes)} different values, more than {CLASSES} classes. Is "
            "it a number? Use --task regression."
        )
    return classes


def _target_numbers(y: pd.Series) -> np.ndarray:
    import pandas as pd

    values = pd.to_numeric(y, errors="coerce").to_numpy(float, na_value=np.nan)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise TableError(
            f"Column {y.name!r} must hold finite numbers for a regression; got {y.iloc[row]!r} in row "
            f"{y.index[row]}. Use --task classification for classes."
        )
    return values


def _natural(label: str) -> tuple[int, float, str]:
    """A sort key that puts numbers before words, and orders numbers by their value."""
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)
