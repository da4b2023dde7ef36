"""Functions for methods that evaluate many sets of weights together and weight each of them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

ELEMENTS = 1 << 22
"""The number of weights and activations in memory while many sets of weights are evaluated together."""
LOWEST = -1e30
"""The value that an info has for the logarithm of zero: finite, and its means over many steps are too."""
LOW_BY_HALF_ITS_VARIANCE = (
    "too low on average by half its variance: unbiased for p(D), not for its log"
)
"""The bias of the log of an unbiased estimate of the evidence."""


def at_once(model: Any, batch: Any) -> int:
    """How many sets of weights to evaluate together, given their size and that of a layer's activations."""
    leaves = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    weights = sum(leaf.size for leaf in leaves)
    widest = max((leaf.shape[-1] for leaf in leaves if leaf.shape), default=1)
    rows = 0 if batch is None else len(batch.x)
    return max(1, ELEMENTS // (weights + rows * widest))


def effective_sample_size(log_weights: np.ndarray) -> float:
    """The number of equally weighted draws that are as informative: (sum w)^2 / sum w^2."""
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.square(weights).sum())
