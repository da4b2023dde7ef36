"""What a person would notice about a column: that it names the rows, is free text, or gives the target away."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from scipy.stats import rankdata

ROWS = 10
"""The least number of rows that are needed to say that a column names them."""
WORDS = 5.0
"""The mean number of words from which on a text is free text."""
ALONE = 0.999
"""A column that explains this share of the target on its own is suspicious."""
_NAMES = re.compile(
    r"(?i:unnamed:? ?\d*|index|idx|id|uuid|guid|row|row[_ ]?(?:id|nr|no|num|number)|nr\.?|no\.?|.+[_ .-]id)"
    r"|.*[a-z]I[dD]"
)


def useless_texts(counts: Counter[str], levels: int) -> str:
    """Why a column of texts cannot help a prediction; empty if it can.

    Args:
      counts: how often each text occurs.
      levels: the largest number of categories that are told apart.
    """
    rows, words = counts.total(), sum(len(text.split()) * n for text, n in counts.items())
    mostly_different = len(counts) > 0.5 * rows
    if rows >= ROWS and mostly_different and words >= WORDS * rows:
        return "it is free text"
    if rows >= ROWS and len(counts) == rows:
        return "every row has a different text: it names the rows"
    if len(counts) > levels and mostly_different:
        return "nearly every row has a different text"
    return ""


def useless_numbers(name: str, values: np.ndarray) -> str:
    """Why a column of numbers cannot help a prediction; empty if it can."""
    if _NAMES.fullmatch(name) and _all_different_whole(values):
        return "it numbers the rows"
    return ""


def of_numbers(name: str, values: np.ndarray) -> list[str]:
    """Remarks about a column of numbers that is used."""
    if len(values) >= ROWS and np.isfinite(values).all() and np.all(np.diff(values) == 1):
        return ["a running number; leave it out (--drop) if it only numbers the rows"]
    if _NAMES.fullmatch(name) and _whole(values):
        return ["its name says that it is an identifier; --column can make it a category"]
    return []


def _whole(values: np.ndarray) -> bool:
    found = values[np.isfinite(values)]
    return bool(len(found) and np.all(found == np.round(found)))


def _all_different_whole(values: np.ndarray) -> bool:
    found = values[np.isfinite(values)]
    return len(found) >= ROWS and _whole(values) and len(np.unique(found)) == len(found)


# -- leaks -----------------------------------------------------------------------------------------------


def gives_away(values: np.ndarray, y: np.ndarray, *, ordered: bool, classes: bool) -> bool:
    """Whether one column tells the target almost perfectly.

    Args:
      values: numbers, of which NaN are left out, or the numbers of categories.
      y: the target, or the class numbers.
      ordered: whether the values are numbers, and not categories.
      classes: whether the target is a class.
    """
    there = np.isfinite(values)
    values, y = values[there], y[there]
    if len(y) < 2 * ROWS or len(np.unique(y)) < 2:
        return False
    if classes:
        return _tells_classes(values, y, ordered)
    if ordered:
        a, b = rankdata(values), rankdata(y)
        if np.ptp(a) == 0 or np.ptp(b) == 0:
            return False
        return bool(abs(np.corrcoef(a, b)[0, 1]) ** 2 > ALONE)
    _, group = np.unique(values, return_inverse=True)
    sizes = np.bincount(group)
    if len(sizes) > len(y) / 3:
        return False
    means = np.bincount(group, y) / sizes
    return bool(np.var(y - means[group]) < (1 - ALONE) * np.var(y))


def _tells_classes(values: np.ndarray, y: np.ndarray, ordered: bool) -> bool:
    labels, classes = np.unique(y, return_inverse=True)
    wrong_by_chance = 1 - np.bincount(classes).max() / len(y)
    allowed = (1 - ALONE) * len(y) * min(1.0, 2 * wrong_by_chance)
    _, group = np.unique(values, return_inverse=True)
    table = np.zeros((group.max() + 1, len(labels)), int)
    np.add.at(table, (group, classes), 1)
    if ordered and len(table) > len(y) / 3:
        # With thresholds between neighbouring values, each class would be one stretch of the line.
        mixed = np.sum(table.sum(1) - table.max(1))
        changes = np.sum(np.diff(table.argmax(1)) != 0) - (len(labels) - 1)
        return bool(mixed + max(changes, 0) <= allowed)
    return bool(len(table) <= len(y) / 3 and np.sum(table.sum(1) - table.max(1)) <= allowed)
