"""The method of a posterior in a file: its class name and its settings, from which it is built again."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from credax.storage.describe import Description, Stored, rebuild

METHODS: dict[str, type] = {}
"""The classes of methods that loading may build, by class name.

:mod:`credax.inference` enters its methods here when it is imported: it is built on this package, which
therefore cannot import it. A method from elsewhere can be built as well once its class is entered.
"""

PARTS: dict[str, type] = {}
"""The classes of which settings of methods may be instances, by class name; entered in the same way."""


def rebuild_method(description: Description) -> Any:
    """The method that ``describe_or_name`` described, or :class:`Stored` if it cannot be built again."""
    if description is None:
        return None
    if not isinstance(description, dict):
        raise ValueError(f"its method must be a description of one; got {description!r}")
    import_module("credax.inference")  # which enters its methods
    name = description.get("type", description.get("custom"))
    named = [key for key, value in description.items() if _is_named(value)]
    if name not in METHODS:
        return Stored(description, f"credax has no method {name}")
    if named:
        return Stored(description, f"a file cannot hold its {' and '.join(named)}")
    try:
        return rebuild(description, METHODS, PARTS)
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError),
        *(TypeError, ValueError),
    ) as error:
        return Stored(description, f"this version refuses its settings: {error}")


def _is_named(value: Description) -> bool:
    """Whether the file holds only the name of a setting's value."""
    if isinstance(value, list):
        return any(map(_is_named, value))
    return isinstance(value, dict) and "custom" in value
