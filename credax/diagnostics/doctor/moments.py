"""The mean and the variance of the weights of a variational posterior, by one program for all checks."""

from __future__ import annotations

from typing import Any

import jax

from credax.core.programs import jit
from credax.core.typing import Params
from credax.posterior.approximations.families import Family


def moments(family: Family) -> tuple[Params, Params]:
    """The mean and the variance of each weight, on the host."""
    return jax.device_get(_moments.quick(family.with_state(())))


@jit
def _moments(family: Any) -> Any:
    return family.moments()
