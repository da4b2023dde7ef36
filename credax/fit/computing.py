"""The settings of ``fit`` that say how batches are computed, which the model carries to the method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from credax.core.checks import must
from credax.inference.method import Method
from credax.model import LogDensity, Model
from credax.model.compute import Compute
from credax.posterior import Posterior


def computed(model: Any, method: Method, **settings: Any) -> Any:
    """The model with these settings of computing, after checks; the model itself if there are none."""
    compute = Compute(**settings)
    for name, value in compute.given.items():
        if isinstance(model, LogDensity):
            allowed = "left out for a LogDensity, which has no rows and no network"
            raise TypeError(must("fit", name, allowed, value))
        if "sum parts" not in method.can:
            allowed = (
                f"left out for {type(method).__name__} with these settings, whose steps need more of each row "
                "than its log likelihood"
            )
            raise ValueError(must("fit", name, allowed, value))
    return replace(model, compute=compute) if compute.given else model


def saves_memory(model: Any) -> bool:
    """Whether the program of a run is to be arranged for little memory."""
    compute = getattr(model, "compute", None)
    return compute is not None and bool(compute.micro_batch or compute.rematerialise)


def precise(model: Any) -> Any:
    """The model with which the posterior is made of a run: as in the run, but in full precision."""
    compute = getattr(model, "compute", None)
    return model if compute is None else replace(model, compute=compute.precise)


def plain(posterior: Posterior) -> Posterior:
    """The posterior of the model alone: how a fit computed is no part of it."""
    model = posterior.model
    if not isinstance(model, Model) or model.compute is None:
        return posterior
    return replace(posterior, model=replace(model, compute=None))
