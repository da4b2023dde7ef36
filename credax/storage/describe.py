"""Settings as JSON: a frozen dataclass becomes its class name and its fields, and is built again from them.

Loading builds only classes on a list that the caller gives, and only from numbers, text and lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Description = Any
"""A value that ``json`` can write."""


class NotDescribable(TypeError):
    """The value holds something that JSON cannot hold, such as a function or an array."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """Stands in for an object in a file that could not be built again.

    Attributes:
      description: the object's class name and settings, as they are in the file.
      reason: why the object itself could not be built.
    """

    description: Mapping[str, Any]
    reason: str

    @property
    def name(self) -> str:
        """The name of the object's class."""
        return str(self.description.get("type", self.description.get("custom")))

    @property
    def settings(self) -> dict[str, Any]:
        """The object's settings; those that JSON cannot hold are ``{"custom": name}``."""
        return {k: v for k, v in self.description.items() if k not in ("type", "custom")}

    def __repr__(self) -> str:
        return f"<{self.name} from a file, not built again: {self.reason}>"


def describe(value: Any) -> Description:
    """The value as JSON.

    Raises:
      NotDescribable: the value holds something that JSON cannot hold.

    >>> from credax.model.priors import Normal
    >>> describe(Normal(2.0))
    {'type': 'Normal', 'scale': 2.0, 'loc': 0.0}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if _has_fields(value) and not isinstance(value, Stored):
        fields = {name: describe(getattr(value, name)) for name in _settings(value)}
        return {"type": type(value).__name__, **fields}
    raise NotDescribable(f"{type(value).__name__} cannot be written as JSON")


def describe_or_name(value: Any) -> Description:
    """The value as JSON, where anything that JSON cannot hold is replaced by its name.

    A description with a name in it, marked by the key ``custom``, informs people; nothing can be built from it.
    """
    if isinstance(value, Stored):
        return dict(value.description)
    try:
        return describe(value)
    except NotDescribable:
        pass
    if _has_fields(value):
        fields = {name: describe_or_name(getattr(value, name)) for name in _settings(value)}
        return {"type": type(value).__name__, "custom": True, **fields}
    return {"custom": getattr(value, "__qualname__", type(value).__qualname__)}


def rebuild(
    description: Description,
    classes: Mapping[str, Callable[..., Any]],
    inner: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """The value that ``describe`` described, built from the given classes only.

    Args:
      description: the result of ``describe``.
      classes: the classes that may be built, by name.
      inner: the classes that may be built for the fields of another class. If ``None``, ``classes``.
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


def _has_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _settings(value: Any) -> list[str]:
    """The names of the fields that make one instance of a dataclass differ from another."""
    return [item.name for item in dataclasses.fields(value) if item.init and item.compare]
