"""Preprocessing: turns the columns of a table into the numbers that a network takes, and the target back.

The scales, fill values and categories are learned once, from the rows that the network is fitted to, and are
stored as plain JSON beside the posterior, so that prediction needs nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from credax.core.checks import one_of
from credax.core.scaling import Scaling, outlier_text
from credax.tables import hints
from credax.tables.columns import (
    KINDS,
    NOUNS,
    STRAYS,
    Reading,
    as_text,
    decide,
    decide_all,
    shown,
)
from credax.tables.encoding import Column, count_of, learn_column, listed
from credax.tables.reading import TableError, require_column

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Column", "Preprocessor", "detect_task", "learn_column", "with_target"]

CLASSES = 100
"""The largest number of classes; a target with more distinct values is refused for a classification."""
TASKS = ("regression", "classification")
LEAKS = 10_000
"""The largest number of rows that are searched for columns which give the target away."""
FAR = 1e30
"""The largest distance of a target from the centre, in scales, that single precision can hold."""


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
        kinds: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
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
          kinds: what columns hold, where the user knows better than :func:`credax.tables.columns.decide`.
          notes: notes about the table with which those of the preprocessor begin.
        """
        kinds = dict(kinds or {})
        for name in (target, *drop, *kinds):
            require_column(table, name)
        aim = with_target(table if whole is None else whole, target, task, kinds.get(target))
        every, task, found = aim.table, aim.task, [*notes, *aim.notes]
        table = every if whole is None else aim.of(table)
        names = [str(name) for name in table.columns if name != target and name not in drop]
        decisions = decide_all(every, names, kinds)
        columns = []
        for name in names:
            column, note = learn_column(table[name], every[name], decisions[name])
            columns += [] if column is None else [column]
            found += [note] if note else []
        if not columns:
            raise TableError(
                f"There is no column left to predict {target!r} from."
                + "".join(f" {note}." for note in found[:3])
            )
        if task == "classification":
            classes = _classes(every[target])
            unseen = [label for label in classes if label not in set(table[target])]
            if unseen:
                found.append(f"{target}: only held-out rows have {listed(unseen)}")
            made = cls(tuple(columns), target, task, classes)
        else:
            values = table[target].to_numpy(float)
            scaling = Scaling.learn(values[:, None])
            _refuse_far(every[target], scaling)
            if scaling.outliers[0]:
                text = outlier_text(values, list(table.index))
                found.append(f"{target}: {text}, so the noise has Student's t distribution")
            made = cls(
                *(tuple(columns), target, task, ()),
                *(scaling.centre[0], scaling.scale[0], scaling.outliers[0]),
            )
        found += made.leaks(table)
        return dataclasses.replace(made, notes=tuple(found))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers in a row of ``x``."""
        return tuple(name for column in self.columns for name in column.outputs)

    def encode(self, table: pd.DataFrame) -> np.ndarray:
        """The inputs ``x`` of these rows, of shape ``(rows, features)``; missing values are filled in."""
        for column in self.columns:
            require_column(table, column.name)
        return np.concatenate(
            [column.encode(table[column.name]) for column in self.columns], axis=1
        )

    def unseen(self, table: pd.DataFrame) -> dict[str, list[str]]:
        """For each column, the categories that the fit has not seen: all indicators are 0 for them."""
        found = {column.name: column.unseen(table[column.name]) for column in self.columns}
        return {name: levels for name, levels in found.items() if levels}

    def remarks(self, table: pd.DataFrame) -> list[str]:
        """Sentences about values in these rows that the fit has not seen the like of."""
        return [text for column in self.columns for text in column.remarks(table[column.name])]

    def leaks(self, table: pd.DataFrame) -> list[str]:
        """Notes about columns that tell the target almost perfectly on their own."""
        if len(table) > LEAKS:
            table = table.iloc[np.linspace(0, len(table) - 1, LEAKS).astype(int)]
        y, classes = self.targets(table).astype(float), self.task == "classification"
        found = []
        for column in self.columns:
            ordered = column.kind != "category"
            values = column.raw(table[column.name])
            if hints.gives_away(values, y, ordered=ordered, classes=classes):
                found.append(
                    f"{column.name}: tells {self.target} almost perfectly on its own; leave it out "
                    f"(--drop) if it is known only together with {self.target}"
                )
        return found

    def read_as(self) -> list[tuple[str, str, str]]:
        """For each column that was used or noted: its name, what it was read as, and the note about it."""
        kinds = {column.name: column.kind for column in self.columns}
        kinds[self.target] = "class" if self.classes else "number"
        notes: dict[str, list[str]] = {}
        for note in self.notes:
            name = max((n for n in kinds if note.startswith(f"{n}: ")), key=len, default="")
            name = name or note.partition(": left out")[0]
            notes.setdefault(name, []).append(note.removeprefix(f"{name}: "))
        left_out = [name for name in notes if name not in kinds]
        return [
            *((name, kind, "; ".join(notes.get(name, ()))) for name, kind in kinds.items()),
            *(
                (name, "left out", "; ".join(notes[name]).removeprefix("left out, "))
                for name in left_out
            ),
        ]

    @property
    def as_written(self) -> tuple[str, ...]:
        """The columns that must be read as they are written, since they are not plain numbers."""
        names = [column.name for column in self.columns if not column.reading.plain]
        return (*names, self.target) if self.classes else tuple(names)

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
        found = [_class_number(value, numbers) for value in y]
        unknown = sorted({as_text(v) for v, n in zip(y, found, strict=True) if n is None})
        if unknown:
            raise TableError(
                f"Column {self.target!r} has a class that the fit has not seen: {unknown[0]!r}."
            )
        return np.array(found, int)

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


# -- the target ------------------------------------------------------------------------------------------


class Aim(NamedTuple):
    """The rows that have a target, which is a number or the text of a class.

    Attributes:
      table: the rows, with the target as numbers for a regression and as texts for a classification.
      task: ``"regression"`` or ``"classification"``.
      notes: what the user should know about the target.
      target: the name of the target.
      reading: how the target was read.
    """

    table: pd.DataFrame
    task: str
    notes: tuple[str, ...]
    target: str
    reading: Reading

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """Other rows, with their target read in the same way; those without one are left out."""
        return _read_target(table, self.target, self.task, self.reading)


def with_target(
    table: pd.DataFrame, target: str, task: str | None = None, kind: str | None = None
) -> Aim:
    """Decide what the target is, and keep the rows that have one.

    Args:
      table: all rows.
      target: the column to predict.
      task: ``"regression"`` or ``"classification"``. If ``None``, the kind of the target decides.
      kind: what the target holds, if the user says so.
    """
    if task is not None:
        one_of("Preprocessor.learn", "task", task, TASKS)
    require_column(table, target)
    y = table[target]
    if y.notna().sum() == 0:
        raise TableError(f"Column {target!r} has no values at all, so there is nothing to predict.")
    if kind not in (None, "number", "duration", "boolean", "category"):
        raise TableError(
            f"--column {target}=KIND must be one of number, duration, boolean, category for the target; got "
            f"{kind!r}."
        )
    decision = decide(y, "category" if task == "classification" and kind is None else kind)
    reading, notes = decision.reading, list(decision.notes)
    if reading.kind == "lists":
        raise TableError(f"Column {target!r} holds lists, which cannot be predicted.")
    if task is None:
        if reading.kind in ("date", "time"):
            raise TableError(
                f"Column {target!r} holds {NOUNS[reading.kind]}, which cannot be predicted as such. Turn them "
                "into numbers first, or use --task classification for classes."
            )
        if reading.kind in ("number", "duration"):
            task = "regression" if kind else detect_task(_finite(reading.numbers(y)))
        else:
            task = "classification"
    if task == "regression" and reading.kind not in ("number", "duration"):
        reading = _as_numbers(y)
    if task == "classification":
        reading, notes = Reading("category"), []
    kept = _read_target(table, target, task, reading)
    if kept.empty:
        raise TableError(
            f"Column {target!r} has no value that can be used, so there is nothing to predict; its first is "
            f"{shown(str(y.dropna().iloc[0]))}."
        )
    without = len(table) - len(kept)
    if without:
        were = "was" if without == 1 else "were"
        notes.append(f"{count_of(without, 'row')} without a target {were} left out")
    return Aim(kept, task, tuple(f"{target}: {note}" for note in notes), target, reading)


def _read_target(table: pd.DataFrame, target: str, task: str, reading: Reading) -> pd.DataFrame:
    import pandas as pd

    y = table[target]
    if task == "classification":
        values = pd.Series(reading.texts(y), index=table.index, dtype=object)
    else:
        values = pd.Series(reading.numbers(y), index=table.index)
    table = table.copy(deep=False)
    table[target] = values
    return table[values.notna()]


def _finite(values: np.ndarray) -> pd.Series:
    import pandas as pd

    return pd.Series(values[np.isfinite(values)])


def _as_numbers(y: pd.Series) -> Reading:
    """How to read a target as numbers, although more than a few of its values may be none."""
    try:
        reading = decide(y, "number").reading
    except TableError:
        reading = Reading("number")
    bad = np.isnan(reading.numbers(y)) & y.notna().to_numpy()
    if bad.mean() > STRAYS:
        row = int(bad.argmax())
        raise TableError(
            f"Column {y.name!r} must hold finite numbers for a regression; got "
            f"{shown(str(y.iloc[row]))} in row {y.index[row]}. Use --task classification for classes."
        )
    return reading


def _refuse_far(y: pd.Series, scaling: Scaling) -> None:
    with np.errstate(over="ignore"):
        distance = np.abs(scaling.standard(y.to_numpy(float)[:, None]))[:, 0]
    if np.any(distance > FAR):
        row = int(distance.argmax())
        raise TableError(
            f"Column {y.name!r} has the value {y.iloc[row]:g} in row {y.index[row]}, which is too far from the "
            "others to be fitted to. Correct it or leave the row out."
        )


def _class_number(value: Any, numbers: Mapping[str, int]) -> int | None:
    text = as_text(value)
    for candidate in (str(value), text):
        if candidate in numbers:
            return numbers[candidate]
    try:
        return numbers.get(as_text(float(text)))
    except ValueError:
        return None


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
            f"Column {y.name!r} is {shown(str(y.iloc[0]))} in every row: there is nothing to tell apart."
        )
    if len(classes) > CLASSES:
        raise TableError(
            f"Column {y.name!r} has {len(classes)} different values, more than {CLASSES} classes. Is "
            "it a number? Use --task regression."
        )
    if len(classes) == len(y) >= hints.ROWS:
        raise TableError(
            f"Column {y.name!r} has another class in every row, such as {shown(str(y.iloc[0]))}: there is "
            "nothing to learn from. Is it the column to predict?"
        )
    return classes


def _target_numbers(y: pd.Series) -> np.ndarray:
    decision = decide(y)
    reading = (
        decision.reading if decision.reading.kind in ("number", "duration") else Reading("number")
    )
    values = reading.numbers(y)
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
