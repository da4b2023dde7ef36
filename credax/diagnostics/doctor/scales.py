"""Whether scales of the prior that were learned have switched off units that the data need.

A bound with independent weights charges for each unit that is in use. On few rows, it can be largest where a
network is nearly linear, even if the data speak for a curve. Draws of the exact posterior do not show this
under the learned scales, since scales near zero hold the units where they are. Under larger scales they do:
they predict rows better that are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.weights import nested
from credax.diagnostics.leave_one_out import leave_one_out
from credax.model.priors import Around

if TYPE_CHECKING:
    from credax.posterior import Posterior
    from credax.posterior.training import TrainingRows

LEAST_SCALE = 1.0
"""The smallest scale that leaves a unit in use: that of the default prior."""


def raised(prior: Any, learned: Any) -> Around:
    """A prior with learned scales, of which none is below ``LEAST_SCALE``.

    Args:
      prior: the prior of the model, which says of which weights the scales were learned.
      learned: the prior with the scales that were learned.
    """
    scales = {
        path: np.maximum(scale, np.asarray(LEAST_SCALE, scale.dtype))
        if prior.at(path).learned
        else scale
        for path, scale in learned.scale.arrays.items()
    }
    return Around(learned.weights, nested(scales))


def gain(before: Posterior, after: Posterior, rows: TrainingRows) -> dict[str, float]:
    """By how much better a posterior predicts rows that are left out than the one before, with its error.

    In nats, summed over the rows; empty if a row is impossible under some draw.
    """
    values = []
    for posterior in (before, after):
        predictive: Any = posterior.predict(rows.x)
        each = np.asarray(predictive.log_probs(rows.y), np.float64)
        values.append(leave_one_out(each, predictive.log_weights)[0])
    difference = values[1] - values[0]
    if rows.weights is not None:
        difference = rows.weights * difference
    error = np.sqrt(len(difference)) * np.std(difference)
    if not np.isfinite(error):
        return {}
    return {"raised": float(difference.sum()), "raised_error": float(error)}
