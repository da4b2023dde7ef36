"""Leave-one-out predictive densities from draws of the full posterior (PSIS-LOO; Vehtari et al., 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from credax.core.special import logsumexp


def leave_one_out(each: np.ndarray, log_weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """The log predictive density of each row under the posterior of the others.

    Args:
      each: log p(y_i | w_s), ``(samples, rows)``.
      log_weights: the normalised log weight of each sample.

    Returns:
      The log densities of the rows, and the Pareto shape of the importance weights of each.
    """
    from arviz_stats.base import array_stats

    # The posterior without row i is proportional to the full one divided by p(y_i | w). psislw takes the
    # negative of the logarithm of these weights.
    ratios, pareto_k = array_stats.psislw(each.T - log_weights, axis=-1)
    return logsumexp(ratios + each.T, axis=1), pareto_k
