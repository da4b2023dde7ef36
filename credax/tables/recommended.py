"""The method, network and prior that are used if the user does not choose: the best on the UCI benchmarks."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from credax.inference import DeepEnsemble, Method, MicrocanonicalEnsemble
from credax.model.networks import mlp
from credax.model.networks.mlp import MLP
from credax.model.priors import Normal, Prior

SMALL = 3_000
"""The largest number of rows for which a chain whose every step uses all rows takes only seconds."""


def recommended_method(rows: int) -> Method:
    """A good method for a network that is fitted to this many rows."""
    if rows <= SMALL:
        return MicrocanonicalEnsemble(members=4, num_warmup=3_000, num_draws=100, thin=20)
    return DeepEnsemble(members=5, num_steps=5_000, batch_size=256)


def with_settings(method: Method, settings: Mapping[str, Any]) -> Method:
    """The method with some of its settings replaced.

    Raises:
      ValueError: the method has no setting of that name, or does not allow the value.

    >>> with_settings(recommended_method(100), {"members": 2}).members
    2
    """
    found: Any = method
    known = [item.name for item in dataclasses.fields(found) if item.init]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{type(method).__name__} has no setting {name!r}.{hint} It has {', '.join(known)}."
            )
    return dataclasses.replace(found, **settings)


def recommended_network(hidden: Sequence[int] | None = None) -> MLP:
    """A good network for a table, with hidden layers of these widths; if ``None``, one layer of 50 units."""
    return mlp((50,) if hidden is None else hidden)


def recommended_prior() -> Prior:
    """A good prior for the weights of a network whose inputs and targets have unit variance."""
    return Normal(1.0)
