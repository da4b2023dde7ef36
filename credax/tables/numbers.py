"""Reads numbers as people write them: with currencies, per cent, units, thousands and decimal marks.

One decimal mark and one unit are decided for a whole column. A text that does not fit them is no number.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LARGEST = 1e100
"""A number beyond this is a mistake or a mark of absence, and counts as missing."""

_CURRENCIES = (
    r"(?:US\$|R\$|C\$|A\$|[$€£¥₹₽₩₺₴₪฿₫]"
    r"|(?:USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|Rs|kr|zł)\b\.?)"
)
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<before>{_CURRENCIES})?\s*(?P<sign_2>[-+]?)"
    r"(?P<digits>(?:\d[\d.,]*|[.,]\d+)(?:[eE][-+]?\d+)?)"
    rf"\s*(?P<after>{_CURRENCIES})?(?P<minus>-?)\s*(?P<unit>(?![Qq]\d)[^\W\d_][^\s,;:()\[\]{{}}<>+]*|[%‰°\"][A-Za-z]?)?"
)
_POINT = re.compile(r"(?:\d+|\d{1,3}(?:,\d{2,3})*,\d{3})?(?:\.\d*)?(?:[eE][-+]?\d+)?")
_COMMA = re.compile(r"(?:\d+|\d{1,3}(?:\.\d{3})+)?(?:,\d*)?(?:[eE][-+]?\d+)?")
_PLAIN = re.compile(r"\d+")
_SETTLED_POINT = re.compile(
    r"0?\.\d+|\d+\.\d{1,2}|\d+\.\d{4,}|\d{4,}\.\d+|.*,\d{3}\.\d+|\d+(?:,\d{3}){2,}"
)
_SETTLED_COMMA = re.compile(
    r"0?,\d+|\d+,\d{1,2}|\d+,\d{4,}|\d{4,},\d+|.*\.\d{3},\d+|\d+(?:\.\d{3}){2,}"
)
_SPACES = str.maketrans(dict.fromkeys("\xa0\u202f\u2009", " ") | dict.fromkeys("\u2212\u2013", "-"))
_GROUPS = re.compile(r"(?<=\d)[ '\u2019_](?=\d{3}(?!\d))")
_TIMES = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "mn": 1e6, "B": 1e9, "b": 1e9, "bn": 1e9}
PERCENT = ("%", "‰")


class Style(NamedTuple):
    """How the numbers of a column are written.

    Attributes:
      decimal: the decimal mark, ``"."`` or ``","``.
      unit: what stands behind every number, such as ``"kg"`` or ``"%"``; empty if nothing does.
    """

    decimal: str = "."
    unit: str = ""


class Parts(NamedTuple):
    """A number taken apart."""

    sign: float
    digits: str
    unit: str
    currency: str


def take_apart(text: str) -> Parts | None:
    """The sign, the digits with their marks, the unit and the currency; ``None`` if it is no number."""
    text = _GROUPS.sub("", text.translate(_SPACES).strip())  # 12 345,60 and 12'345.60
    negative = text.startswith("(") and text.endswith(")")
    found = _NUMBER.fullmatch(text[1:-1].strip() if negative else text)
    if found is None:
        return None
    minus = negative or "-" in (found["sign"], found["sign_2"], found["minus"])
    currency = found["before"] or found["after"] or ""
    return Parts(-1.0 if minus else 1.0, found["digits"], found["unit"] or "", currency)


class Marks(NamedTuple):
    """What the numbers of a column look like.

    Attributes:
      style: how they are written.
      open: whether the texts leave the decimal mark open although they have marks.
      currencies: the currencies that occur.
      share: the share of the values that are numbers in some style, if not all in the same one.
    """

    style: Style
    open: bool
    currencies: tuple[str, ...]
    share: float


def decide(texts: Sequence[str], counts: np.ndarray, decimal: str = "") -> Marks:
    """The style in which most of the numbers are written.

    Args:
      texts: the different texts of a column.
      counts: how often each of them occurs.
      decimal: the decimal mark to assume if the texts do not tell; ``""`` for a point.
    """
    pairs = zip(map(take_apart, texts), counts, strict=True)
    found = [(parts, int(count)) for parts, count in pairs if parts is not None]
    fits: Counter[str] = Counter()
    settled: Counter[str] = Counter()
    units: Counter[str] = Counter()
    for parts, count in found:
        digits = parts.digits
        units[parts.unit] += count
        if _PLAIN.fullmatch(digits):
            continue
        for mark, pattern, sure in ((".", _POINT, _SETTLED_POINT), (",", _COMMA, _SETTLED_COMMA)):
            fits[mark] += count * bool(pattern.fullmatch(digits))
            settled[mark] += count * bool(sure.fullmatch(digits))
    open_ = bool(fits) and not settled["."] and not settled[","]
    currencies = tuple(sorted({parts.currency for parts, _ in found if parts.currency}))
    if open_ and fits["."] == fits[","]:
        # An amount of money has no three decimals: 1.000 EUR are a thousand.
        points = currencies and not any("," in parts.digits for parts, _ in found)
        chosen = decimal or ("," if points else ".")
    else:
        score = {mark: (fits[mark], settled[mark]) for mark in ".,"}
        chosen = "," if score[","] > score["."] else "."
    readable = (_POINT.fullmatch, _COMMA.fullmatch)
    count = sum(count for parts, count in found if any(fits(parts.digits) for fits in readable))
    share = count / max(int(np.sum(counts)), 1)
    return Marks(Style(chosen, _unit(units)), open_, currencies, share)


def _unit(units: Counter[str]) -> str:
    """The unit of a column; ``"*"`` if the units are multipliers such as k and M, of which several occur."""
    named = {unit: count for unit, count in units.items() if unit}
    if not named:
        return ""
    if len(named) > 1 and set(named) <= set(_TIMES):
        return "*"
    return max(named, key=lambda unit: named[unit])


def read(texts: Sequence[str], style: Style) -> np.ndarray:
    """The numbers; NaN for each text that is no number in this style."""
    return np.array([_value(text, style) for text in texts], float)


def _value(text: str, style: Style) -> float:
    parts = take_apart(text)
    if parts is None:
        return math.nan
    factor = 1.0
    if parts.unit and parts.unit != style.unit:
        if style.unit != "*" or parts.unit not in _TIMES:
            return math.nan
        factor = _TIMES[parts.unit]
    pattern = _COMMA if style.decimal == "," else _POINT
    if not pattern.fullmatch(parts.digits):
        return math.nan
    digits = parts.digits
    if style.decimal == ",":
        digits = digits.replace(".", "").replace(",", ".")
    try:
        return factor * parts.sign * float(digits.replace(",", ""))
    except ValueError:
        return math.nan
