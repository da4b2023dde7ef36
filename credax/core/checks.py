"""Checks of arguments. Every error message names the argument, what is allowed and the value given."""

import math
import numbers
import operator
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np


def shown(value: Any) -> str:
    """The text of a value in an error message: at most 80 characters, and never the entries of an array."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def must(owner: str, name: str, allowed: str, value: Any) -> str:
    """The text of an error: ``owner(name=...) must be <allowed>; got <value>.``."""
    return f"{owner}({name}=...) must be {allowed}; got {shown(value)}."


def number(owner: str, name: str, value: Any, allowed: str = "a finite number") -> float:
    """Check that the value is a finite real number; return it as a Python float, which is hashable."""
    value = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(must(owner, name, allowed, value))
    if not math.isfinite(value):
        raise ValueError(must(owner, name, allowed, value))
    return float(value)


def positive(owner: str, name: str, value: Any) -> float:
    """Check that the value is a number above zero; return it as a float."""
    result = number(owner, name, value, "a positive number")
    if result <= 0:
        raise ValueError(must(owner, name, "positive", value))
    return result


def fraction(owner: str, name: str, value: Any) -> float:
    """Check that the value is a number strictly between zero and one; return it as a float."""
    result = number(owner, name, value, "between 0 and 1")
    if not 0 < result < 1:
        raise ValueError(must(owner, name, "between 0 and 1, both excluded", value))
    return result


def integer(owner: str, name: str, value: Any, minimum: int = 1) -> int:
    """Check that the value is a whole number, at least ``minimum``; return it as an int."""
    allowed = f"a whole number, at least {minimum}"
    if isinstance(value, bool | np.bool_):
        raise TypeError(must(owner, name, allowed, value))
    try:
        result = operator.index(value)
    except TypeError:
        raise TypeError(must(owner, name, allowed, value)) from None
    if result < minimum:
        raise ValueError(must(owner, name, allowed, value))
    return result


def path(owner: str, name: str, value: Any) -> Path:
    """Check that the value is the name of a file or folder; return it as a path."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise TypeError(must(owner, name, "the path of a file", value))
    return Path(value)


def one_of(owner: str, name: str, value: Any, allowed: Collection[Any]) -> Any:
    """Check that the value is one of those in ``allowed``; return it."""
    if not isinstance(value, str | int | float | bool | None) or value not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise ValueError(must(owner, name, f"one of {choices}", value))
    return value
