"""Short ``repr`` texts, which show the shapes of arrays instead of their entries.

>>> import numpy as np
>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Table:
...     x: np.ndarray
...     names: tuple[str, ...] = ()
...     link: object = None
...
...     def __repr__(self):
...         return brief(self)
>>> Table(np.zeros((20, 2)))
Table(x=float64[20, 2])
>>> Table(np.zeros(3), link=np.square)
Table(x=float64[3], link=square)
"""

from __future__ import annotations

import dataclasses
from typing import Any


def brief(instance: Any, *always: str) -> str:
    """The ``repr`` of a dataclass without the fields that have their default values.

    Args:
      instance: of a dataclass.
      *always: names of fields that are shown even if they have their default values.
    """
    parts = {}
    for item in dataclasses.fields(instance):
        value = getattr(instance, item.name)
        if item.repr and (item.name in always or not _is_default(item, value)):
            parts[item.name] = value
    return labelled(instance, **parts)


def labelled(instance: Any, **parts: Any) -> str:
    """The name of the instance's class with these parts: ``Name(part=..., ...)``."""
    inner = ", ".join(f"{name}={short(value)}" for name, value in parts.items())
    return f"{type(instance).__name__}({inner})"


def short(value: Any) -> str:
    """The ``repr`` of a value; for an array its dtype and shape, for a function or a class its name."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if isinstance(value, type):
        return value.__name__
    if dtype is not None and isinstance(shape, tuple):
        return f"{dtype}[{', '.join(map(str, shape))}]"
    if callable(value) and isinstance(getattr(value, "__name__", None), str):
        return value.__name__
    return repr(value)


def _is_default(item: dataclasses.Field, value: Any) -> bool:
    # Values of other types are not compared: the comparison of an array with None is an array.
    return value is item.default or (type(value) is type(item.default) and value == item.default)
