"""Settings as JSON: a frozen dataclass becomes its name and its fields, and back.

Only classes on a list given by the caller are ever made, and only from numbers, text and lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Description = Any
"""What ``json`` can write."""


class NotDescribable(TypeError):
    """Holds something (a function, an array) that JSON cannot hold."""


def describe(value: Any) -> Description:
    """The value as JSON, or ``NotDescribable``.

    >>> from credax.model.priors import Normal
    >>> describe(Normal(2.0))
    {'type': 'Normal', 'scale': 2.0, 'loc': 0.0}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.init and f.compare]
        return {
            "type": type(value).__name__,
            **{name: describe(getattr(value, name)) for name in fields},
        }
    raise NotDescribable(f"{type(value).__name__} cannot be written as JSON")


def describe_or_name(value: Any) -> Description:
    """As ``describe``; what JSON cannot hold is named, for people, and cannot be rebuilt."""
    try:
        return describe(value)
    except NotDescribable:
        pass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.init and f.compare]
        parts = {name: describe_or_name(getattr(value, name)) for name in fields}
        return {"type": type(value).__name__, "custom": True, **parts}
    return {"custom": getattr(value, "__qualname__", type(value).__qualname__)}


def rebuild(
    description: Description,
    classes: Mapping[str, Callable[..., Any]],
    inner: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """The value that ``describe`` described, made of the given classes only.

    Args:
      description: what ``describe`` returned.
      classes: name to class.
      inner: as ``classes``, for what stands in the fields of a class, where that differs.
    """
    if isinstance(description, list):
        return tuple(rebuild(item, classes, inner) for item in description)
    if not isinstance(description, dict):
        return description
    name = str(description.get("type"))
    if name not in classes:
        raise ValueError(f"{name!r} is none of {', '.join(sorted(classes))}")
    inner = classes if inner is None else inner
    fields = {k: rebuild(v, inner) for k, v in description.items() if k != "type"}
    return classes[name](**fields)
