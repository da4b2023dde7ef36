"""Reads dates, times of day, durations and the names of weekdays and months.

Nothing here asks for the present day, so that a saved run reads a table in the same way on any day.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

DAY = 86_400.0
"""Seconds per day."""
EPOCH = 719_163
"""The number of 1 January 1970 among the days of the calendar."""

# -- names ---------------------------------------------------------------------------------------------

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = {name[:length]: i for i, name in enumerate(_DAYS) for length in (3, len(name))}
WEEKDAYS |= {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}
MONTHS = {name[:length]: i for i, name in enumerate(_MONTHS) for length in (3, len(name))}
MONTHS |= {"sept": 8}
DAY_NAMES = tuple(name.capitalize() for name in _DAYS)
MONTH_NAMES = tuple(name.capitalize() for name in _MONTHS)


def read_weekdays(texts: Sequence[str]) -> np.ndarray:
    """The number of each weekday, Monday being 0; NaN for other texts."""
    return np.array([WEEKDAYS.get(text.lower().rstrip("."), math.nan) for text in texts], float)


def read_months(texts: Sequence[str]) -> np.ndarray:
    """The number of each month, January being 0; NaN for other texts."""
    return np.array([MONTHS.get(text.lower().rstrip("."), math.nan) for text in texts], float)


# -- times of day and durations --------------------------------------------------------------------------

_CLOCK = re.compile(
    r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?\s*([ap])?\.?(?:m\.?)?", re.IGNORECASE
)
_COLONS = re.compile(r"(-?)(?:(\d+)\s*(?:days?|d),?\s*)?(\d+):(\d{2})(?::(\d{2}(?:\.\d+)?))?")
_AMOUNT = re.compile(r"(\d+(?:[.,]\d+)?)\s*([a-zµ]+)\.?,?\s*", re.IGNORECASE)
_ISO_DURATION = re.compile(
    r"P(?:(\d+(?:\.\d+)?)W)?(?:(\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_UNITS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "std"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), DAY),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 7 * DAY),
}


def read_times(texts: Sequence[str]) -> np.ndarray:
    """The hours since midnight; NaN for what is no time of day."""
    return np.array([_time(text) for text in texts], float)


def _time(text: str) -> float:
    found = _CLOCK.fullmatch(text)
    if not found:
        return math.nan
    hour, minute, second = int(found[1]), int(found[2]), float(found[3] or 0)
    if found[4]:
        if not 1 <= hour <= 12:
            return math.nan
        hour = hour % 12 + 12 * (found[4].lower() == "p")
    if hour > 23 or minute > 59 or second >= 60:
        return math.nan
    return hour + minute / 60 + second / 3600


def read_durations(texts: Sequence[str]) -> np.ndarray:
    """The seconds of each duration; NaN for what is none."""
    return np.array([_duration(text) for text in texts], float)


def _duration(text: str) -> float:
    found = _COLONS.fullmatch(text)
    if found:
        hours, minutes, seconds = int(found[3]), int(found[4]), float(found[5] or 0)
        total = int(found[2] or 0) * DAY + 3600 * hours + 60 * minutes + seconds
        return -total if found[1] else total
    found = _ISO_DURATION.fullmatch(text)
    if found and any(found.groups()):
        sizes = (7 * DAY, DAY, 3600.0, 60.0, 1.0)
        return sum(
            float(part or 0) * size for part, size in zip(found.groups(), sizes, strict=True)
        )
    amounts = _AMOUNT.findall(text)
    if not amounts or _AMOUNT.sub("", text).replace("and", "").strip():
        return math.nan
    if any(unit.lower() not in _UNITS for _, unit in amounts):
        return math.nan
    return sum(float(n.replace(",", ".")) * _UNITS[unit.lower()] for n, unit in amounts)


# -- dates -----------------------------------------------------------------------------------------------

_TIME = (
    r"(?:(?:\s*[T,]\s*|\s+)(?P<clock>\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:[ap]\.?m\.?)?)"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2})?)?"
)
_WEEKDAY = r"(?:[A-Za-z]{3,9}\.?,?\s+)?"
_YEAR_FIRST = re.compile(
    rf"(?P<y>\d{{4}})(?P<s>[-/.])(?P<m>\d{{1,2}})(?:(?P=s)(?P<d>\d{{1,2}}))?{_TIME}", re.IGNORECASE
)
_COMPACT = re.compile(rf"(?P<y>\d{{4}})(?P<m>\d{{2}})(?P<d>\d{{2}}){_TIME}", re.IGNORECASE)
_NUMERIC = re.compile(
    rf"(?P<a>\d{{1,2}})(?P<s>[-/.])(?P<b>\d{{1,2}})(?P=s)(?P<y>\d{{4}}|\d{{2}}){_TIME}",
    re.IGNORECASE,
)
_DAY_NAME = re.compile(
    rf"{_WEEKDAY}(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\.?[\s-]+(?:of\s+)?(?P<n>[A-Za-z]{{3,9}})\.?[\s,-]+"
    rf"(?P<y>\d{{4}}|\d{{2}}){_TIME}",
    re.IGNORECASE,
)
_NAME_DAY = re.compile(
    rf"{_WEEKDAY}(?P<n>[A-Za-z]{{3,9}})\.?[\s-]+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?,?[\s-]+(?P<y>\d{{4}}){_TIME}",
    re.IGNORECASE,
)
_NAME_YEAR = re.compile(r"(?P<n>[A-Za-z]{3,9})\.?[\s,-]+(?P<y>\d{4})", re.IGNORECASE)
_NAME_SHORT_YEAR = re.compile(r"(?P<n>[A-Za-z]{3,9})\.?[\s'\u2019-]*(?P<y>\d{2})", re.IGNORECASE)
_MONTH_YEAR = re.compile(r"(?P<m>\d{1,2})/(?P<y>\d{4})")
_QUARTER = re.compile(
    r"(?:Q(?P<q>[1-4])|(?P<q_2>[1-4])\.?Q)[\s/'\u2019-]*(?P<y>\d{4}|\d{2})"
    r"|(?P<y_2>\d{4})[\s/-]*(?:Q(?P<q_3>[1-4])|(?P<q_4>[1-4])Q)",
    re.IGNORECASE,
)
_HALF = re.compile(
    r"H(?P<q>[12])[\s/'\u2019-]*(?P<y>\d{4})|(?P<y_2>\d{4})[\s/-]*H(?P<q_2>[12])", re.IGNORECASE
)
_WEEK = re.compile(r"(?P<y>\d{4})-?W(?P<w>\d{2})(?:-?(?P<d>[1-7]))?", re.IGNORECASE)
_OFTEN_VERSIONS = re.compile(r"\d{1,2}\.\d{1,2}\.\d{2}")
_PADDED = re.compile(r"\d{2}\.\d{2}\.\d{2}")
ORDERS = ("day-first", "month-first")
MONTH_YEAR = "month-year"
"""The order of dates such as Jan-23, where the number is a year; without it, such a text is no date."""
DAYS_OF_MONTH = 25
"""Numbers after the names of months that take this many values among 1 to 31 are days rather than years."""


def order_of(texts: Sequence[str]) -> tuple[str, bool]:
    """Whether the day or the month comes first in dates such as 05/03/2023, decided from all of them.

    Returns:
      ``"day-first"`` or ``"month-first"``; ``"month-year"`` if the dates are months such as Jan-23; or ``""``
      if no date is written so; and whether the texts leave it open, so that it was assumed.
    """
    found = [m for m in map(_NUMERIC.fullmatch, texts) if m]
    if not found:
        return (MONTH_YEAR if _are_years(texts) else ""), False
    day_first = sum(int(m["a"]) > 12 >= int(m["b"]) for m in found)
    month_first = sum(int(m["b"]) > 12 >= int(m["a"]) for m in found)
    if day_first != month_first:
        return ORDERS[month_first > day_first], False
    if sum(m["s"] == "." for m in found) > 0.5 * len(found):
        return ORDERS[0], False
    # In a table that is sorted by date, only one of the orders gives sorted dates.
    ordered = [_is_sorted(read_dates([m[0] for m in found], order)) for order in ORDERS]
    if len(found) > 4 and ordered[0] != ordered[1]:
        return ORDERS[ordered[1]], False
    return ORDERS[1], True


def _are_years(texts: Sequence[str]) -> bool:
    """Whether texts such as Jan-23 are months of a year, rather than days of an unknown year."""
    found = [m for m in map(_NAME_SHORT_YEAR.fullmatch, texts) if m and m["n"].lower() in MONTHS]
    after = {int(m["y"]) for m in found}
    return bool(after) and (len(after) < DAYS_OF_MONTH or min(after) == 0 or max(after) > 31)


def _is_sorted(values: np.ndarray) -> bool:
    steps = np.diff(values)
    return bool(np.isfinite(values).all() and (np.all(steps >= 0) or np.all(steps <= 0)))


def read_dates(texts: Sequence[str], order: str = "", *, compact: bool = False) -> np.ndarray:
    """The days since 1970 of each date, in UTC; NaN for what is none.

    Args:
      texts: the texts.
      order: ``"day-first"`` or ``"month-first"``, of dates such as 05/03/2023; ``"month-year"`` if Jan-23 is a
        month. Of a month, a week such as 2023-W05, a quarter such as Q1 2023 and a half-year such as H1 2023,
        the date is the first day.
      compact: whether 20230305 is a date as well.
    """
    return np.array([_date(text, order, compact) for text in texts], float)


_PARTS = ((_QUARTER, 3, ("q", "q_2", "q_3", "q_4")), (_HALF, 6, ("q", "q_2")))
"""Parts of a year: how they are written, how many months they have, and the groups with their numbers."""
_PATTERNS = (_YEAR_FIRST, _NUMERIC, _DAY_NAME, _NAME_DAY, _NAME_YEAR, _MONTH_YEAR)


def _date(text: str, order: str, compact: bool) -> float:
    for pattern, months, names in _PARTS:
        part = pattern.fullmatch(text)
        if part:
            number, year = (next(filter(None, part.group(*n))) for n in (names, ("y", "y_2")))
            return _days(_year(year), months * (int(number) - 1) + 1, 1, None, None)
    week = _WEEK.fullmatch(text)
    if week:
        return _iso_day(int(week["y"]), int(week["w"]), int(week["d"] or 1))
    short = (_NAME_SHORT_YEAR,) if order == MONTH_YEAR else ()
    for pattern in (*_PATTERNS, *short, *((_COMPACT,) if compact else ())):
        found = pattern.fullmatch(text)
        if not found:
            continue
        parts = found.groupdict()
        if pattern is _NUMERIC:
            if _OFTEN_VERSIONS.fullmatch(text) and not _PADDED.fullmatch(text):
                return math.nan  # 3.11.12 is more likely a version than a day
            day, month = parts["a"], parts["b"]
            if order == "month-first":
                day, month = month, day
        elif "n" in parts:
            number = MONTHS.get(parts["n"].lower())
            if number is None:
                continue
            day, month = parts.get("d") or "1", str(number + 1)
        else:
            day, month = parts.get("d") or "1", parts["m"]
        clock, zone = parts.get("clock"), parts.get("zone")
        return _days(_year(parts["y"]), int(month), int(day), clock, zone)
    return math.nan


def _year(digits: str) -> int:
    """The year, of which two digits may stand for one between 1970 and 2069."""
    year = int(digits)
    return year + (2000 if year < 70 else 1900) if len(digits) == 2 else year


def _iso_day(year: int, week: int, weekday: int) -> float:
    try:
        return float(datetime.date.fromisocalendar(year, week, weekday).toordinal() - EPOCH)
    except ValueError:
        return math.nan


def _days(year: int, month: int, day: int, clock: str | None, zone: str | None) -> float:
    try:
        days = float(datetime.date(year, month, day).toordinal() - EPOCH)
    except ValueError:
        return math.nan
    if clock:
        hours = _time(clock.replace(",", ".").strip())
        if math.isnan(hours):
            return math.nan
        days += hours / 24
    if zone and zone[0] in "+-":
        away = int(zone[1:3]) / 24 + int(zone[-2:]) / 1440
        days -= away if zone[0] == "+" else -away
    return days


READERS: dict[str, Callable[[Sequence[str]], np.ndarray]] = {
    "time": read_times,
    "duration": read_durations,
    "weekday": read_weekdays,
    "month": read_months,
}
