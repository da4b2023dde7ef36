"""Numbers, settings and assessments as text."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import numpy as np

from credax.inference import METHODS
from credax.model import likelihoods, networks, priors
from credax.storage.describe import describe_or_name

_RAISED = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)
SURE = 1.96
"""Chance alone keeps a difference within this many standard errors 19 times in 20."""


def number(value: Any, digits: int = 3) -> str:
    """A number as text, to ``digits`` significant digits, which are grouped by three.

    >>> number(12345.678), number(0.0123456), number(7)
    ('12\u202f346', '0.0123', '7')
    """
    value = float(value)
    if not math.isfinite(value):
        return "\u2013" if math.isnan(value) else ("\u221e" if value > 0 else "\u2212\u221e")
    if value == 0 or (value == int(value) and abs(value) < 1e7):
        text = f"{value:,.0f}"
    elif 1e-4 <= abs(value) < 1e7:
        text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    else:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        text = f"{mantissa}\u00a0\u00d7\u00a010{str(int(power)).translate(_RAISED)}"
    return text.replace(",", "\u202f").replace("-", "\u2212")


def percent(share: Any) -> str:
    """A share as a percentage, without decimals except near 0 and 100, to which nothing is rounded."""
    value = 100 * float(share)
    near = 0 < value < 1 or 99 < value < 100
    text = f"{value:.1f}" if near else f"{value:.0f}"
    text = {"0.0": "less than 0.1", "100.0": "more than 99.9"}.get(text, text)
    return text + "\u00a0%"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, in the singular or plural."""
    return f"{number(n)} {noun if n == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """A duration in seconds or minutes."""
    if seconds < 1:
        return "less than a second"
    if seconds < 120:
        return count(round(seconds), "second")
    return count(round(seconds / 60), "minute")


def cell(value: Any) -> str:
    """A value in the table as text."""
    if value is None or value is np.ma.masked or (isinstance(value, float) and math.isnan(value)):
        return "missing"
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return "missing" if str(value) in ("NaT", "<NA>") else str(value)
    text = number(value, 4)
    return text.rstrip("0").rstrip(".") if "." in text and "\u00d7" not in text else text


def scatter_of_share(share: Any, rows: Any) -> Any:
    """The standard deviation of the share of rows in which an event of probability ``share`` happens."""
    return np.sqrt(np.asarray(share) * (1 - np.asarray(share)) / rows)


# -- settings -------------------------------------------------------------------------------------------


def documented(kind: type, head: str = "Args") -> dict[str, str]:
    """The description of each setting of a class in its docstring."""
    doc = inspect.getdoc(kind) or ""
    part = re.split(rf"^{head}:\n", doc, maxsplit=1, flags=re.MULTILINE)
    if len(part) < 2:
        return {}
    part = re.split(r"^\S", part[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^ {2}(\w+): (.*(?:\n {4}.*)*)", part, flags=re.MULTILINE)
    return {name: plain(text) for name, text in found}


def plain(text: str) -> str:
    """The text of a docstring without its markup."""
    text = re.sub(r":\w+:`~?\.?([^`]*)`", r"\1", text)
    return " ".join(text.replace("`", "").split())


def summary(kind: type) -> str:
    """The first paragraph of the docstring of a class."""
    return plain((inspect.getdoc(kind) or "").split("\n\n")[0])


def described(value: Any) -> dict[str, Any]:
    """The name of a method, prior or likelihood, what it is, and its settings with their meanings."""
    found = describe_or_name(value)
    if not isinstance(found, dict):
        return {"name": str(found), "what": "", "settings": []}
    name = str(found.get("type", found.get("custom", "unknown")))
    kind = _KINDS.get(name)
    meanings = documented(kind) if kind else {}
    given = {key: item for key, item in found.items() if key not in ("type", "custom")}
    # The order of the docstring; a file stores the settings in another order.
    order = [key for key in meanings if key in given] + sorted(set(given) - set(meanings))
    settings = [(key, setting(given[key]), meanings.get(key, "")) for key in order]
    return {"name": name, "what": summary(kind) if kind else "", "settings": settings}


def setting(value: Any) -> str:
    """The value of a setting as text."""
    if isinstance(value, dict):
        name = value.get("type", value.get("custom", "unknown"))
        inner = [f"{k}={setting(v)}" for k, v in value.items() if k not in ("type", "custom")]
        return f"{name}({', '.join(inner)})"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


_KINDS: dict[str, type] = {
    **{
        name: kind
        for module in (priors, likelihoods, networks)
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
    },
    **{kind.__name__: kind for kind in METHODS.values()},
}


# -- assessments ----------------------------------------------------------------------------------------


def coverage_off(coverage: float, rows: int, level: float = 0.9) -> float:
    """How far the share of rows inside intervals of a level is from it, in standard errors."""
    return (coverage - level) / float(scatter_of_share(level, rows))


def confidence_off(confidence: np.ndarray, right: np.ndarray) -> float:
    """How far the share of right classes is from what their probabilities say, in standard errors."""
    spread = math.sqrt(float(np.sum(confidence * (1 - confidence))))
    return float(np.sum(right - confidence)) / max(spread, 1e-12)


def judged_coverage(coverage: float, rows: int, level: float = 0.9) -> str:
    """A sentence on whether intervals of a level hold as many rows as they should."""
    off = coverage_off(coverage, rows, level)
    if abs(off) <= SURE:
        chance = percent(SURE * float(scatter_of_share(level, rows)))
        agrees = f"That agrees with {percent(level)}"
        return f"{agrees}: with {count(rows, 'row')}, chance alone moves it by up to {chance} either way."
    if off < 0:
        return "That is too few: the intervals are too narrow, and the model is overconfident."
    return "That is too many: the intervals are wider than necessary."


def judged_confidence(confidence: np.ndarray, right: np.ndarray) -> str:
    """A sentence on whether the most probable class is right as often as its probability says."""
    off = confidence_off(confidence, right)
    if abs(off) <= SURE:
        return "It is right as often as that, up to chance."
    if off < 0:
        return "It is right less often than that: the model is overconfident."
    return "It is right more often than that: the model is underconfident."
