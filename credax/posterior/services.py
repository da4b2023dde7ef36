"""Functions behind methods of ``Posterior`` that are defined in higher layers: scores, diagnoses, files, plots.

The modules that define these functions import :class:`~credax.posterior.Posterior`, which therefore cannot
import them. Each module assigns its function here when it is imported, and the first use of a function imports
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

save: Callable[..., None]
export: Callable[..., None]
evaluate: Callable[..., Any]
calibrate: Callable[..., Any]
diagnose: Callable[..., Any]
alarms: Callable[..., Any]
examine: Callable[..., Any]
convergence: Callable[..., Any]
plot_posterior: Callable[..., Any]
plot_predictive: Callable[..., Any]


def __getattr__(name: str) -> Any:
    if name not in __annotations__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for home in ("storage", "diagnostics", "report.kinds"):
        import_module(f"credax.{home}")
    return globals()[name]
