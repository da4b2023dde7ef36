"""Texts for ``repr`` and tables for notebooks: counts, times, and the facts about a posterior."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

REPLICAS = ("chains", "members", "restarts", "repeats")
"""Settings of methods that say how many replicas run, and so what a replica is called."""


# -- numbers and tables -------------------------------------------------------------------------------


def count(number: int, plural: str) -> str:
    """A number of things.

    >>> count(2801, "weights"), count(1, "chains")
    ('2,801 weights', '1 chain')
    """
    return f"{number:,} {plural.removesuffix('s') if number == 1 else plural}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(0.0312), duration(3.14), duration(312), duration(8000)
    ('0.03 s', '3.1 s', '5.2 min', '2.2 h')
    """
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# -- facts about a posterior --------------------------------------------------------------------------


def method_name(method: Any) -> str:
    """The name of a method's class, also if loading could not build the method again."""
    return getattr(method, "name", None) or type(method).__name__


def settings_of(method: Any) -> Mapping[str, Any]:
    """The settings of a method by name, also if loading could not build the method again."""
    if dataclasses.is_dataclass(method) and not hasattr(method, "settings"):
        return {item.name: getattr(method, item.name) for item in dataclasses.fields(method)}
    return getattr(method, "settings", {})


def draws_text(replicas: int, draws: int, method: Any = None, weighted: bool = False) -> str:
    """How many replicas there are and how many draws each has, in the words of the method.

    >>> draws_text(4, 1000), draws_text(5, 1), draws_text(1, 200), draws_text(1, 1)
    ('4 replicas of 1,000 draws', '5 replicas', '200 draws', '1 draw')
    """
    settings = settings_of(method)
    replica = next((noun for noun in REPLICAS if noun in settings), "replicas")
    draw = "particles" if "particles" in settings else "draws"
    each = count(draws, f"weighted {draw}" if weighted else draw)
    if replicas == 1:
        return each
    return count(replicas, replica) + (f" of {each}" if draws > 1 else "")


def cell(value: Any) -> str:
    """A number, or the first few of several, as text."""
    if np.ndim(value) == 0:
        return f"{value:.4g}"
    first = ", ".join(map(cell, value[:3]))
    return f"({first}, ...)" if len(value) > 3 else f"({first})"
