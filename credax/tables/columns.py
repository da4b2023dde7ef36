"""Decides what a column of a table holds, once and from all of its values, and reads it as numbers."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.tables import moments, numbers
from credax.tables.reading import TableError

if TYPE_CHECKING:
    import pandas as pd


KINDS = ("number", "boolean", "category", "date", "time", "weekday", "month", "duration")
"""What a column can hold."""
CHOICES = (*KINDS, "date:day-first", "date:month-first", "date:month-year", "ignore")
"""What a user can ask for by ``--column NAME=KIND``."""
PERIODS = {"time": 24.0, "weekday": 7.0, "month": 12.0}
"""The kinds that go round in a circle, each with the length of a round."""
NOUNS = {
    "number": "numbers",
    "boolean": "yes or no",
    "category": "categories",
    "date": "dates",
    "time": "times of day",
    "weekday": "weekdays",
    "month": "months",
    "duration": "durations",
}
STRAYS = 0.05
"""The largest share of values that may be something else than the rest of their column."""
SAMPLE = 1_000
"""The number of different texts from which a kind that hardly any of them has is ruled out."""
FEWEST = 20
"""The least number of values that outweigh a value of another kind."""
BOOLEANS = {
    **dict.fromkeys(("true", "yes", "1", "1.0", "t", "y", "on"), 1.0),
    **dict.fromkeys(("false", "no", "0", "0.0", "f", "n", "off"), 0.0),
}
NO_CATEGORY = frozenset(("", "?", "n.a.", "n.a", "n/a", "#n/a", "<na>", "(null)", "\\n", "nan"))
"""Texts that stand for a missing value in every column, in lower case."""
MISSING = NO_CATEGORY | frozenset(
    (
        *(
            "na",
            "nan",
            "null",
            "nil",
            "none",
            "missing",
            "unknown",
            "not available",
            "no data",
            "(blank)",
        ),
        *(
            "not applicable",
            "k.a.",
            "k. a.",
            "n.v.",
            "s/d",
            "nd",
            "n.d.",
            "tbd",
            "tba",
            "nr",
            "??",
            "???",
        ),
        *(
            "-",
            "--",
            "---",
            "–",
            "—",
            ".",
            "..",
            "...",
            "*",
            "#",
            "x",
            "inf",
            "-inf",
            "+inf",
            "infinity",
        ),
        *(
            "#value!",
            "#div/0!",
            "#ref!",
            "#name?",
            "#num!",
            "#null!",
            "-infinity",
            "blank",
            "empty",
        ),
    )
)
"""Texts that stand for a missing value among numbers, dates and times, in lower case."""


@dataclass(frozen=True)
class Reading:
    """How the values of a column are read.

    Attributes:
      kind: one of ``KINDS``; ``"lists"`` for what no network takes, and ``"ignore"`` for what is left out.
      decimal: the decimal mark of numbers.
      unit: what stands behind the numbers, such as ``"kg"``.
      order: ``"day-first"`` or ``"month-first"``, of dates such as 05/03/2023; ``"month-year"``, of months such
        as Jan-23.
    """

    kind: str
    decimal: str = "."
    unit: str = ""
    order: str = ""

    @property
    def plain(self) -> bool:
        """Whether the values are numbers as a computer writes them."""
        return self.kind == "number" and self.decimal == "." and not self.unit

    def numbers(self, values: pd.Series) -> np.ndarray:
        """The values as numbers; NaN for those that are missing or cannot be read.

        These are numbers, 0 and 1 for booleans, days since 1970 for dates, hours for times of day, seconds for
        durations, and 0, 1, ... for weekdays (from Monday) and months.
        """
        from pandas.api import types

        values = plain(values)
        if types.is_bool_dtype(values):
            return values.to_numpy(float, na_value=np.nan)
        if types.is_datetime64_any_dtype(values):
            return _days(values)
        if types.is_timedelta64_dtype(values):
            seconds = values.dt.total_seconds().to_numpy(float, na_value=np.nan)
            return seconds / 3600 if self.kind == "time" else seconds
        if types.is_numeric_dtype(values) and self.kind != "date":
            found = values.to_numpy(float, na_value=np.nan)
            return np.where(np.abs(found) <= numbers.LARGEST, found, np.nan)
        codes, texts = different(values)
        found = self.read(texts)
        found = np.where(np.abs(found) <= numbers.LARGEST, found, np.nan)
        return np.append(found, np.nan)[codes]  # the code of a missing value is -1

    def read(self, texts: Sequence[str]) -> np.ndarray:
        """The texts as numbers; NaN for those that cannot be read."""
        if self.kind == "number":
            return numbers.read(texts, numbers.Style(self.decimal, self.unit))
        if self.kind == "boolean":
            return np.array([BOOLEANS.get(text.lower(), math.nan) for text in texts], float)
        if self.kind == "date":
            return moments.read_dates(texts, self.order, compact=True)
        return moments.READERS[self.kind](texts)

    def texts(self, values: pd.Series) -> np.ndarray:
        """The values as texts; ``None`` for those that are missing."""
        codes, texts = different(plain(values))
        found = [None if text.lower() in NO_CATEGORY else text for text in texts]
        return np.array([*found, None], object)[codes]


@dataclass(frozen=True)
class Decision:
    """What was decided about a column.

    Attributes:
      reading: how the column is read.
      notes: what the user should know, as parts of a sentence.
      open: whether the decimal mark was assumed.
      given: whether the user asked for this kind.
    """

    reading: Reading
    notes: tuple[str, ...] = ()
    open: bool = False
    given: bool = False


# -- values ----------------------------------------------------------------------------------------------


def plain(values: pd.Series) -> pd.Series:
    """The values as a column of one type: numbers, booleans, dates, durations or texts."""
    import pandas as pd
    from pandas.api import types

    if isinstance(values.dtype, pd.CategoricalDtype):
        # Somebody has said that these are categories, even if they are written as numbers.
        return values.astype(object).map(as_text, na_action="ignore").astype(object)
    if isinstance(values.dtype, pd.PeriodDtype):
        return values.dt.to_timestamp()
    if types.is_complex_dtype(values):
        return values.astype(str)
    if isinstance(values.dtype, pd.ArrowDtype) and "decimal" in str(values.dtype):
        return values.astype(float)
    if values.dtype != object:
        return values
    found = types.infer_dtype(values, skipna=True)
    if found in ("decimal", "floating", "mixed-integer-float") or (found == "integer"):
        return pd.to_numeric(values.map(float, na_action="ignore"), errors="coerce")
    if found == "boolean":
        return values.astype("boolean")
    if found in ("datetime", "date", "datetime64"):
        return pd.to_datetime(values, errors="coerce", utc=True)
    if found in ("timedelta", "timedelta64"):
        return pd.to_timedelta(values, errors="coerce")
    if found == "bytes":
        return values.map(lambda v: v.decode("utf-8", "replace"), na_action="ignore")
    return values


def as_text(value: Any) -> str:
    """The text of a value. A whole number is written without a point, whatever its type."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, float | np.floating | decimal.Decimal) and _is_whole(value):
        return str(int(value))
    return str(value).strip()


def _is_whole(value: Any) -> bool:
    return math.isfinite(value) and abs(value) < 1e15 and value == int(value)


def different(values: pd.Series) -> tuple[np.ndarray, list[str]]:
    """The different values as texts, and for each row which of them it has; -1 if it has none."""
    import pandas as pd

    try:
        codes, found = pd.factorize(values)
    except TypeError:  # lists and other values that cannot be compared
        codes, found = pd.factorize(values.map(str, na_action="ignore"))
    return codes, [as_text(value) for value in found]


def _days(values: pd.Series) -> np.ndarray:
    import pandas as pd

    moment = values if values.dt.tz is None else values.dt.tz_convert("UTC").dt.tz_localize(None)
    days = (moment - pd.Timestamp(0)) / pd.Timedelta(days=1)
    return days.to_numpy(float, na_value=np.nan)


def holds_lists(values: pd.Series) -> bool:
    """Whether a value is a list, a dictionary or another collection."""
    if values.dtype != object and "[" not in str(values.dtype).removeprefix("datetime64"):
        return "list" in str(values.dtype) or "struct" in str(values.dtype)
    if values.dtype != object:
        return any(word in str(values.dtype) for word in ("list", "struct", "map"))
    kinds = {type(value) for value in values}
    return any(issubclass(kind, list | dict | set | tuple | np.ndarray) for kind in kinds)


# -- decisions ---------------------------------------------------------------------------------------------

LISTS = "left out, since it holds lists"
CODES = "codes with leading zeros, as categories (if they are numbers: number)"
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_LIMIT = re.compile(r"\s*(?:[<>]=?|[≤≥~≈])\s*")


def decide(values: pd.Series, kind: str | None = None, decimal: str = "") -> Decision:
    """Decide what a column holds.

    Args:
      values: all rows of the column.
      kind: what the user says that it holds, one of ``CHOICES``; if ``None``, the values decide.
      decimal: the decimal mark to assume if the values leave it open.
    """
    from pandas.api import types

    if kind == "ignore":
        return Decision(Reading("ignore"), ("left out, as asked",), given=True)
    if holds_lists(values):
        return Decision(Reading("lists"), (LISTS,))
    if kind is None and _numbered_categories(values):
        return Decision(Reading("category"))
    values = plain(values)
    if kind is not None:
        return _asked(values, kind, decimal)
    if types.is_bool_dtype(values):
        return Decision(Reading("boolean"))
    if types.is_numeric_dtype(values):
        return Decision(Reading("number"))
    if types.is_datetime64_any_dtype(values):
        return Decision(Reading("date"))
    if types.is_timedelta64_dtype(values):
        return Decision(Reading("duration"), ("durations, in seconds",))
    return _of_texts(values, decimal)


def _numbered_categories(values: pd.Series) -> bool:
    """Whether a program that wrote the table has said that these numbers are categories."""
    import pandas as pd

    dtype = values.dtype
    return isinstance(dtype, pd.CategoricalDtype) and dtype.categories.dtype.kind in "iuf"


class _Texts:
    """The different texts of a column that stand for a value, and how often each occurs."""

    def __init__(self, values: pd.Series):
        codes, texts = different(values)
        counts = np.bincount(codes[codes >= 0], minlength=len(texts))
        kept = [i for i, text in enumerate(texts) if text.lower() not in MISSING]
        self.texts, self.counts = [texts[i] for i in kept], counts[kept]
        self.rows = int(self.counts.sum())
        self._bad: dict[Reading, np.ndarray] = {}

    def _unreadable(self, reading: Reading) -> np.ndarray:
        """Which of the texts cannot be read so."""
        if reading not in self._bad:
            self._bad[reading] = ~(np.abs(reading.read(self.texts)) < np.inf)
        return self._bad[reading]

    def hopeless(self, reading: Reading) -> bool:
        """Whether so few of the first texts can be read so that the others need not be looked at."""
        if len(self.texts) < 2 * SAMPLE or reading in self._bad:
            return False
        found = np.abs(reading.read(self.texts[:SAMPLE])) < np.inf
        return bool(found.mean() < 0.5 and self.counts[:SAMPLE].sum() < 0.5 * self.rows)

    def strays(self, reading: Reading) -> tuple[int, str]:
        """How many values cannot be read so, and the most frequent one of them."""
        where = np.flatnonzero(self._unreadable(reading))
        if not len(where):
            return 0, ""
        return int(self.counts[where].sum()), self.texts[where[self.counts[where].argmax()]]

    def fits(self, reading: Reading) -> bool:
        """Whether all values can be read so, or all but a few strays."""
        if self.hopeless(reading):
            return False
        strays, _ = self.strays(reading)
        return self.rows > strays and (strays == 0 or self._outweighed(strays))

    def _outweighed(self, strays: int) -> bool:
        return strays <= STRAYS * self.rows and self.rows - strays >= FEWEST


def _of_texts(values: pd.Series, decimal: str) -> Decision:
    found = _Texts(values)
    if not found.rows:
        return Decision(Reading("category"))
    words = {text.lower() for text in found.texts}
    if len(words) <= 2 and words <= set(BOOLEANS):
        return Decision(Reading("boolean"))
    if _are_lists(found.texts):
        return Decision(Reading("lists"), (LISTS,))
    if _are_codes(found.texts):
        return Decision(Reading("category"), (CODES,))
    for make in (lambda: _number(found, decimal), lambda: _clock(found), lambda: _date(found, "")):
        decision = make()
        if decision is not None and found.fits(decision.reading):
            return _with_strays(decision, found)
    for kind in ("weekday", "month"):
        if 1 < len(found.texts) < 100 and found.strays(Reading(kind))[0] == 0:
            return Decision(Reading(kind), (f"{NOUNS[kind]}, as points on a circle",))
    return Decision(Reading("category"), _mixed_marks(found))


def _number(found: _Texts, decimal: str) -> Decision:
    marks = numbers.decide(found.texts, found.counts, decimal)
    style, notes = marks.style, []
    if len(marks.currencies) > 1:
        notes.append(f"amounts of money in {' and '.join(marks.currencies)}, taken as they are")
    elif marks.currencies:
        notes.append("amounts of money")
    if style.unit in numbers.PERCENT:
        notes.append(f"numbers with {style.unit}: 45{style.unit} is 45")
    elif style.unit == "*":
        notes.append("k, M and B are thousands, millions and billions")
    elif style.unit:
        notes.append(f"numbers in {style.unit}")
    commas = any("," in text for text in found.texts)
    if style.decimal == ",":
        notes.append("the comma is the decimal mark" if commas else "the point marks thousands")
    elif marks.open and commas:
        notes.append("the comma is taken to mark thousands")
    return Decision(Reading("number", style.decimal, style.unit), tuple(notes), marks.open)


def _are_lists(texts: Sequence[str]) -> bool:
    """Whether the texts are lists or dictionaries as programs write them, such as [1, 2]."""
    return all(map(_LIST.fullmatch, texts)) and any("," in text or ":" in text for text in texts)


def _are_codes(texts: Sequence[str]) -> bool:
    """Whether the texts are codes such as 01234, whose leading zeros a number would lose.

    Two digits, such as the hours 08 and 12, are numbers.
    """
    return all(map(str.isdecimal, texts)) and any(
        text[0] == "0" and len(text) > 2 for text in texts
    )


def _mixed_marks(found: _Texts) -> tuple[str, ...]:
    """A note about texts that are numbers, but written in different ways."""
    if numbers.decide(found.texts, found.counts).share > 1 - STRAYS:
        return (
            "numbers that are written in different ways; give them one decimal mark and one unit",
        )
    limits = [text for text in found.texts if _LIMIT.match(text)]
    bare = [_LIMIT.sub("", text, count=1) for text in found.texts]
    if 0 < len(limits) < len(bare) and numbers.decide(bare, found.counts).share > 1 - STRAYS:
        return (
            f"numbers and limits such as {shown(limits[0])}; write the limits as numbers to have all read so",
        )
    return ()


TIMES = "times of day, as points on a circle (if they are no times: duration)"


def _clock(found: _Texts) -> Decision | None:
    """Times of day or durations; texts such as 11:08 are times, unless some of them exceed a day."""
    if found.hopeless(Reading("time")) and found.hopeless(Reading("duration")):
        return None
    if found.fits(Reading("time")) and not found.strays(Reading("time"))[0]:
        return Decision(Reading("time"), (TIMES,))
    if found.fits(Reading("duration")):
        return Decision(Reading("duration"), ("durations, in seconds",))
    if found.fits(Reading("time")):
        return Decision(Reading("time"), (TIMES,))
    return None


def _date(found: _Texts, order: str) -> Decision:
    assumed = False
    if not order:
        order, assumed = moments.order_of(found.texts)
    words = {
        "": (),
        "day-first": ("the day comes first",),
        "month-first": ("the month comes first",),
        "month-year": ("months, of which the number is the year",),
    }[order]
    if assumed:
        words = ("the month is assumed to come first (if it does not: date:day-first)",)
    return Decision(Reading("date", order=order), words)


def _with_strays(decision: Decision, found: _Texts) -> Decision:
    strays, example = found.strays(decision.reading)
    if not strays:
        return decision
    note = f"{shown(example)} counts as missing"
    if strays > 1:
        note = f"{strays} values such as {shown(example)} count as missing"
    return replace(decision, notes=(*decision.notes, note))


def shown(text: str, most: int = 40) -> str:
    """A text in quotes, shortened if it is long."""
    return repr(text if len(text) <= most else f"{text[: most - 1]}…")


def _asked(values: pd.Series, kind: str, decimal: str) -> Decision:
    """What the user asked for, if the values allow it."""
    from pandas.api import types

    if kind not in CHOICES:
        raise TableError(
            f"--column {values.name}=KIND must be one of {', '.join(CHOICES)}; got {kind!r}."
        )
    kind, _, order = kind.partition(":")
    if kind == "category":
        return Decision(Reading("category"), given=True)
    numeric = types.is_numeric_dtype(values) or types.is_bool_dtype(values)
    if types.is_datetime64_any_dtype(values) or types.is_timedelta64_dtype(values):
        natural = "date" if types.is_datetime64_any_dtype(values) else "duration"
        if kind not in (natural, "number"):
            raise TableError(f"--column {values.name}={kind}: the column holds {NOUNS[natural]}.")
        return Decision(Reading(natural), given=True)
    if numeric and kind != "date":
        return Decision(Reading(kind), given=True)
    found = _Texts(values)
    if kind == "number":
        decision = _number(found, decimal)
    elif kind == "date":
        decision = _date(found, order)
    else:
        decision = Decision(Reading(kind))
    strays, example = found.strays(decision.reading)
    if found.rows and strays > 0.5 * found.rows:
        raise TableError(
            f"--column {values.name}={kind}: {strays} of {found.rows} values cannot be read so, such as "
            f"{shown(example)}."
        )
    return replace(_with_strays(decision, found), given=True)


def decide_all(
    table: pd.DataFrame, names: Sequence[str], kinds: dict[str, str]
) -> dict[str, Decision]:
    """Decide about each of these columns; a decimal mark that one leaves open is that of the others."""
    found = {name: decide(table[name], kinds.get(name)) for name in names}
    marks = {
        decision.reading.decimal
        for name, decision in found.items()
        if decision.reading.kind == "number" and not decision.open and _has_marks(table[name])
    }
    if marks == {","}:
        for name, decision in found.items():
            if decision.open:
                found[name] = decide(table[name], kinds.get(name), ",")
    return found


def _has_marks(values: pd.Series) -> bool:
    """Whether the numbers of a column are texts with points or commas in them."""
    from pandas.api import types

    if types.is_numeric_dtype(values):
        return False
    return any("," in text or "." in text for text in different(values)[1])
