"""The methods ``plot`` of predictions and posteriors: which of the functions of ``plots`` they call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from credax.core.checks import must, one_of
from credax.posterior import services
from credax.report import drawing, plots

KINDS: dict[str, Callable[..., Any]] = {
    "intervals": plots.intervals,
    "predicted": plots.predicted,
    "calibration": plots.calibration,
    "uncertainty": plots.uncertainty,
    "probabilities": plots.probabilities,
}
"""The plots of predictions, by their names."""
_TAKES = {"intervals": "xy", "predicted": "y", "calibration": "y", "uncertainty": "x"}


def plot_predictive(
    predictive: Any, x: Any = None, y: Any = None, kind: str | None = None, **options: Any
) -> Any:
    """Draw predictions; see :meth:`credax.Predictive.plot`."""
    if kind is None:
        classes = drawing.is_classes("plot", predictive)
        over_rows = "probabilities" if classes else "intervals"
        against_true = "calibration" if classes else "predicted"
        kind = against_true if x is None and y is not None else over_rows
    draw = KINDS[one_of("plot", "kind", kind, KINDS)]
    takes = _TAKES.get(kind, "xy")
    if takes == "y" and y is None:
        raise ValueError(must("plot", "y", f"the true values for kind={kind!r}", None))
    given = {"x": x, "y": y}
    _check_options(kind, draw, options)
    return draw(predictive, *(given[name] for name in takes), **options)


def plot_posterior(
    posterior: Any, kind: str | None = None, x: Any = None, y: Any = None, **options: Any
) -> Any:
    """Draw a run or its predictions; see :meth:`credax.Posterior.plot`."""
    kind = "trace" if kind is None and x is None else kind
    if kind == "trace":
        _check_options(kind, plots.trace, options)
        return plots.trace(posterior, **options)
    if kind is not None:
        one_of("plot", "kind", kind, ("trace", *KINDS))
    if x is None:
        raise ValueError(must("plot", "x", f"the rows to predict for kind={kind!r}", None))
    over = np.asarray(x)
    over = over.reshape(len(over)) if over.ndim and over.size == len(over) else None
    return plot_predictive(posterior.predict(x), over, y, kind, **options)


def _check_options(kind: str, draw: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse an option that the plot of this kind does not have."""
    found = inspect.signature(draw).parameters
    allowed = [name for name in found if name not in ("predictive", "posterior", "x", "y")]
    for name in options:
        if name not in allowed:
            raise TypeError(
                f"plot(kind={kind!r}) has the options {', '.join(allowed)}; got {name!r}."
            )


services.plot_predictive = plot_predictive
services.plot_posterior = plot_posterior
