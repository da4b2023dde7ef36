"""Settings: the fields of a frozen dataclass, each declared once, with its default and its check.

>>> from dataclasses import dataclass
>>> from credax.core.checks import positive
>>> @dataclass(frozen=True)
... class Walk(Settings):
...     steps: int = setting(100, at_least(1))
...     size: float = setting(0.1, positive)
>>> Walk(steps=20, size=1)
Walk(steps=20, size=1.0)
>>> Walk(size=-1.0)
Traceback (most recent call last):
ValueError: Walk(size=...) must be positive; got -1.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from credax.core.checks import integer, must, one_of

Check = Callable[[str, str, Any], Any]
"""``check(owner, name, value)`` returns the value as it is stored, or raises."""


def setting(default: Any, check: Check, **options: Any) -> Any:
    """A field of a dataclass with a check of its value.

    Args:
      default: the value where none is given.
      check: what is allowed. A subclass that declares the field again, with another default, keeps it.
      **options: of ``dataclasses.field``.
    """
    return dataclasses.field(default=default, metadata={"check": check}, **options)


class Settings:
    """The base of frozen dataclasses whose settings are checked when an instance is made."""

    def __post_init__(self):
        for name, check in checks_of(type(self)):
            value = check(self._owner, name, getattr(self, name))
            object.__setattr__(self, name, value)

    @property
    def _owner(self) -> str:
        """The name that messages begin with."""
        return type(self).__name__


@cache
def checks_of(cls: type) -> tuple[tuple[str, Check], ...]:
    """The settings of a class with their checks, in the order in which they are declared."""
    found: dict[str, Check] = {}
    for ancestor in reversed(cls.__mro__):
        for item in vars(ancestor).get("__dataclass_fields__", {}).values():
            if "check" in item.metadata:
                found[item.name] = item.metadata["check"]
    return tuple(found.items())


# -- checks that several settings share -------------------------------------------------------------


def at_least(minimum: int) -> Check:
    """A whole number, at least ``minimum``."""
    return partial(integer, minimum=minimum)


def one_among(*allowed: Any) -> Check:
    """One of a few values."""
    return partial(one_of, allowed=allowed)


def optional(check: Check) -> Check:
    """``None``, or what another check allows."""
    return lambda owner, name, value: None if value is None else check(owner, name, value)


def flag(owner: str, name: str, value: Any) -> bool:
    """``True`` or ``False``."""
    if not isinstance(value, bool):
        raise TypeError(must(owner, name, "True or False", value))
    return value
