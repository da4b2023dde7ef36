"""The settings inside the arguments of an estimator, under names such as ``method__num_steps``.

scikit-learn changes these names in grid searches. A method, a network, a prior or a likelihood is frozen, so
that a changed setting makes a new one, which is checked as any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from credax.core.settings import Settings
from credax.tables.recommended import with_settings


def nested(name: str, value: Any) -> dict[str, Any]:
    """All settings inside an argument, under names that begin with that of the argument.

    >>> from credax.model.priors import Normal
    >>> nested("prior", Normal(2.0))["prior__scale"]
    2.0
    """
    found: dict[str, Any] = {}
    for inner in _settings_of(value):
        path = f"{name}__{inner}"
        found[path] = getattr(value, inner)
        found |= nested(path, found[path])
    return found


def with_nested(name: str, value: Any, settings: Mapping[str, Any]) -> Any:
    """The argument with some of the settings inside it changed.

    Args:
      name: the name of the argument, for error messages.
      value: the argument.
      settings: the settings by name; ``a__b`` is the setting ``b`` inside the setting ``a``.

    >>> from credax.model.priors import Normal
    >>> with_nested("prior", Normal(2.0), {"scale": 3.0})
    Normal(scale=3.0, loc=0.0)
    """
    if not _settings_of(value):
        first = next(iter(settings))
        raise ValueError(
            f"{name}__{first} can be set only if {name} is given and has settings; got {name}={value!r}."
        )
    plain = {path: given for path, given in settings.items() if "__" not in path}
    value = with_settings(value, plain)
    deeper: dict[str, dict[str, Any]] = {}
    for path, given in settings.items():
        inner, separator, rest = path.partition("__")
        if separator:
            deeper.setdefault(inner, {})[rest] = given
    for inner, given in deeper.items():
        changed = with_nested(f"{name}__{inner}", getattr(value, inner, None), given)
        value = with_settings(value, {inner: changed})
    return value


def _settings_of(value: Any) -> list[str]:
    """The names of the settings of a method, network, prior or likelihood; none for anything else."""
    if not isinstance(value, Settings) or not dataclasses.is_dataclass(value):
        return []
    return [item.name for item in dataclasses.fields(value) if item.init and item.name[0] != "_"]
