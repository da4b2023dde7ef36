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

import numpy as np

from credax.core.checks import integer, must, one_of

Check = Callable[[str, str, Any], Any]
"""``check(owner, name, value)`` returns the value to store, or raises an error."""

REQUIRED: Any = dataclasses.MISSING
"""The ``default`` of a setting that must be given."""


def setting(default: Any, check: Check, **options: Any) -> Any:
    """A field of a dataclass whose value is checked.

    Args:
      default: the default value, or ``REQUIRED`` if there is none.
      check: checks the value, and may convert it. A subclass that declares the field again, with another
        default, keeps this check.
      **options: passed on to ``dataclasses.field``.
    """
    return dataclasses.field(default=default, metadata={"check": check}, **options)


class Settings:
    """Base class of frozen dataclasses whose settings are checked when an instance is made.

    Checks that involve several settings go into a ``__post_init__`` that first calls this one.
    """

    def __post_init__(self):
        for name, check in checks_of(type(self)):
            value = check(self._owner, name, getattr(self, name))
            object.__setattr__(self, name, value)

    def _fill(self, **defaults: Any) -> None:
        """Give settings that are ``None`` a value, before they are checked.

        For defaults that depend on other settings.
        """
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def _owner(self) -> str:
        """The name with which error messages begin."""
        return type(self).__name__


@cache
def checks_of(cls: type) -> tuple[tuple[str, Check], ...]:
    """The name and the check of each setting of a class, in the order of declaration."""
    found: dict[str, Check] = {}
    for ancestor in reversed(cls.__mro__):
        for item in vars(ancestor).get("__dataclass_fields__", {}).values():
            if "check" in item.metadata:
                found[item.name] = item.metadata["check"]
    return tuple(found.items())


# -- checks that several settings share -------------------------------------------------------------


def at_least(minimum: int) -> Check:
    """A check for a whole number, at least ``minimum``."""
    return partial(integer, minimum=minimum)


def one_among(*allowed: Any) -> Check:
    """A check for one of the values in ``allowed``."""
    return partial(one_of, allowed=allowed)


def optional(check: Check) -> Check:
    """A check for ``None``, or for a value that ``check`` allows."""
    return lambda owner, name, value: None if value is None else check(owner, name, value)


def instance_of(kind: type, allowed: str) -> Check:
    """A check for an instance of a class, which error messages describe as ``allowed``."""

    def check(owner: str, name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(must(owner, name, allowed, value))
        return value

    return check


def flag(owner: str, name: str, value: Any) -> bool:
    """Check that the value is ``True`` or ``False``, of Python or NumPy; return it as a ``bool``."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(must(owner, name, "True or False", value))
    return bool(value)


def function(owner: str, name: str, value: Any) -> Callable:
    """Check that the value can be called; return it."""
    if not callable(value):
        raise TypeError(must(owner, name, "a function", value))
    return value
