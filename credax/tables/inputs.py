"""How the columns of X become the numbers that a network takes, for the scikit-learn estimators.

A missing value is replaced by the median of its column, and a further column says where values were missing.
Categories, dates and times become numbers as they do for ``credax fit``. Everything is learned from the rows of
the fit. The columns keep their units: the model standardises them.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from credax.core.errors import DataWarning
from credax.tables.columns import Decision, Reading
from credax.tables.encoding import NO_VALUES, Column, count_of, learn_column, median

if TYPE_CHECKING:
    import pandas as pd


class Inputs(Protocol):
    """What is learned about the columns of X."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers in a row that the network takes."""
        ...

    def encode(self, x: Any) -> np.ndarray:
        """The rows that the network takes, ``(rows, features)``; none of the numbers is NaN."""
        ...


def learn_inputs(x: Any, names: Sequence[str], weights: np.ndarray | None = None) -> Inputs:
    """Learn how the rows of a fit become numbers.

    Args:
      x: the rows: an array of numbers, or a pandas data frame.
      names: the names of the columns.
      weights: the weight of each row; ``None`` if all have the same.
    """
    if isinstance(x, np.ndarray):
        return Filled.learn(x, names, weights)
    return Encoded.learn(x, weights)


# -- arrays of numbers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filled:
    """An array of numbers, in which missing values are filled in.

    Attributes:
      names: the names of the columns.
      used: the columns that have a value in some row of the fit.
      fill: the number that replaces a missing one, for each column that is used.
      missing: the columns that had missing values, each of which gets a further column that says where.
    """

    names: tuple[str, ...]
    used: tuple[int, ...]
    fill: tuple[float, ...]
    missing: tuple[int, ...]

    @classmethod
    def learn(cls, x: np.ndarray, names: Sequence[str], weights: np.ndarray | None) -> Self:
        """Learn the medians from the rows of a fit, ``(rows, columns)``."""
        absent = np.isnan(x)
        used = np.flatnonzero(~absent.all(0))
        empty = np.flatnonzero(absent.all(0)).tolist()
        _warn_left_out([f"{names[i]}: {NO_VALUES}" for i in empty], len(used))
        missing = [int(i) for i in used if absent[:, i].any()]
        there = [~absent[:, i] for i in used]
        own = [None if weights is None else weights[rows] for rows in there]
        fill = [median(x[there[k], i], own[k]) for k, i in enumerate(used)]
        return cls(tuple(names), tuple(used.tolist()), tuple(fill), tuple(missing))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns, and of those that say where values were missing."""
        marks = (f"{self.names[i]} is missing" for i in self.missing)
        return (*(self.names[i] for i in self.used), *marks)

    def encode(self, x: np.ndarray) -> np.ndarray:
        """The rows with missing values filled in; in a column that had none in the fit, with a warning."""
        absent = np.isnan(x)
        if not self.missing and len(self.used) == x.shape[1] and not absent.any():
            return x
        new = [i for i in self.used if absent[:, i].any() and i not in self.missing]
        _warn_new([_replaced(self.names[i], int(absent[:, i].sum()), "its median") for i in new])
        used = list(self.used)
        filled = np.where(absent[:, used], np.array(self.fill), x[:, used])
        return np.concatenate([filled, absent[:, list(self.missing)].astype(float)], axis=1)


# -- data frames with other columns ------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """A data frame with columns of any kind.

    Attributes:
      names: the names of all columns.
      columns: how each column that is used becomes numbers.
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, table: pd.DataFrame, weights: np.ndarray | None) -> Self:
        """Learn the categories and medians from the rows of a fit."""
        found, left_out = [], []
        for name in table.columns:
            values = table[name]
            numeric = is_number(values.dtype)
            _refuse_infinite(values, numeric)
            # Numbers are used as they are, also if they look like codes or number the rows.
            decision = Decision(Reading("number"), given=True) if numeric else None
            column, note = learn_column(values, decision=decision, weights=weights)
            if column is None:
                left_out.append(note)
            else:
                found.append(_in_units(column))
        _warn_left_out(left_out, len(found))
        return cls(tuple(map(str, table.columns)), tuple(found))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers that the columns become."""
        return tuple(name for column in self.columns for name in column.outputs)

    def encode(self, x: Any) -> np.ndarray:
        """The rows as numbers; a warning says what they have that the fit had not."""
        import pandas as pd

        table = x if isinstance(x, pd.DataFrame) else pd.DataFrame(x, columns=list(self.names))
        parts, remarks = [], []
        for column in self.columns:
            values = table[column.name]
            _refuse_infinite(values, is_number(values.dtype))
            remarks += column.remarks(values)
            parts.append(column.encode(values))
        _warn_new(remarks)
        return np.concatenate(parts, axis=1)


def _in_units(column: Column) -> Column:
    """The same column, except that its numbers are not scaled."""
    width = len(column.centre)
    return dataclasses.replace(column, centre=(0.0,) * width, scale=(1.0,) * width, outliers=False)


def is_number(dtype: Any) -> bool:
    """Whether a column of this type, of pandas or polars, holds numbers or booleans."""
    if hasattr(dtype, "is_numeric"):
        return bool(dtype.is_numeric()) or str(dtype) == "Boolean"
    return getattr(dtype, "kind", "O") in "biuf"


def has_other_columns(x: Any) -> bool:
    """Whether this is a data frame in which a column holds something else than numbers."""
    if not (hasattr(x, "columns") and hasattr(x, "dtypes")):
        return False
    return not all(is_number(dtype) for dtype in list(x.dtypes))


def as_pandas(x: Any) -> pd.DataFrame:
    """A data frame of pandas, whose columns have different names of text."""
    table = x if hasattr(x, "iloc") else x.to_pandas()
    names = list(table.columns)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            "X must have columns with different names of text if some of them hold no numbers; got "
            f"{', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}."
        )
    return table


def _refuse_infinite(values: pd.Series, numeric: bool) -> None:
    if not numeric:
        return
    found = np.isinf(values.to_numpy(float, na_value=np.nan))
    if found.any():
        row = int(found.argmax())
        raise ValueError(
            f"Input X contains infinity: column {values.name!r} must hold finite or missing numbers; got "
            f"{values.iloc[row]} in row {row}."
        )


def _warn_left_out(notes: Sequence[str], used: int) -> None:
    if not used:
        raise ValueError(f"X must have a column that can be used. {'. '.join(notes)}.")
    if notes:
        warnings.warn(
            f"Some columns of X are not used. {'. '.join(notes)}.", DataWarning, stacklevel=6
        )


def _warn_new(remarks: Sequence[str]) -> None:
    if remarks:
        text = " ".join(remark[0].upper() + remark[1:] for remark in remarks)
        warnings.warn(f"X is not as in the fit. {text}", DataWarning, stacklevel=5)


def _replaced(name: str, number: int, by: str) -> str:
    rows = f"{count_of(number, 'value')} {'was' if number == 1 else 'were'}"
    return f"column {name!r} had no missing values in the fit; {rows} replaced by {by}."
