"""Leave-one-out predictive densities from draws of the full posterior (PSIS-LOO; Vehtari et al., 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from credax.core.special import logsumexp
from credax.inference.montecarlo.importance import smooth_tail


def leave_one_out(each: np.ndarray, log_weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """The log predictive density of each row under the posterior of the others.

    Args:
      each: log p(y_i | w_s), ``(samples, rows)``.
      log_weights: the normalised log weight of each sample.

    Returns:
      The log densities of the rows, NaN for a row that is impossible under some sample; and the Pareto shape
      of the importance weights of each, NaN for fewer than 25 samples.
    """
    # The posterior without row i is proportional to the full one divided by p(y_i | w).
    with np.errstate(invalid="ignore"):
        smoothed = [smooth_tail(log_weights - row) for row in each.T]
        ratios = np.array([weights for weights, _ in smoothed])
        values = logsumexp(ratios + each.T, axis=1) - logsumexp(ratios, axis=1)
    return values, np.array([np.nan if k is None else k for _, k in smoothed])
