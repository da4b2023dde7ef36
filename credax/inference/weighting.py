"""What the methods share that evaluate many sets of weights at once, each with a weight of its own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

ELEMENTS = 1 << 22
"""Weights and activations in memory at once, where many sets of weights are evaluated together."""
LOWEST = -1e30
"""What an info shows of the logarithm of zero: finite, and so are means of many."""
LOW_BY_HALF_ITS_VARIANCE = (
    "too low on average by half its variance: unbiased for p(D), not for its log"
)
"""To which side the log of an unbiased estimate of the evidence errs."""


def at_once(model: Any, batch: Any) -> int:
    """How many sets of weights to evaluate together, by what they and a layer's activations take."""
    leaves = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    weights = sum(leaf.size for leaf in leaves)
    widest = max((leaf.shape[-1] for leaf in leaves if leaf.shape), default=1)
    rows = 0 if batch is None else batch.x.shape[0]
    return max(1, ELEMENTS // (weights + rows * widest))


def effective_sample_size(log_weights: np.ndarray) -> float:
    """How many draws of equal weight these are worth: (sum w)^2 / sum w^2."""
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.square(weights).sum())
