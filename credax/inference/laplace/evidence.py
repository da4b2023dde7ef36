r"""The evidence of a Laplace approximation, with the prior's scale chosen and the noise integrated out.

Given the parameters :math:`\theta` that the likelihood learns, the evidence is that of the normal approximation
of the weights. Their own prior and volume count as well:

.. math:: p(D) = \int p(D \mid \theta)\, p(\theta)\, \mathrm{d}\theta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

LOG_PRECISIONS = np.linspace(-20.0, 20.0, 41)
"""The grid of log factors of the prior precision at which the search for the best factor starts."""
MOST_DIFFERENCES = 6
"""With more learned parameters, the curvature in them is not computed by finite differences."""
MOST_MOVES, NEAR = 10, 0.25
"""How often the differences are taken anew, until the maximum is within this many standard deviations."""
FLATTEST = 0.02
"""The smallest curvature, relative to that for fixed weights."""


def log_evidence(values: np.ndarray, penalty: float, offset: float, precision: float) -> float:
    """The log evidence with the prior precision multiplied by ``precision``."""
    volume = len(values) * math.log(precision) - np.sum(np.log(values + precision))
    return float(offset - 0.5 * (precision - 1) * penalty + 0.5 * volume)


def best_precision(evidence: Callable[[float], float]) -> float:
    """The factor of the prior precision that maximises the evidence."""
    loss = lambda log_precision: -evidence(math.exp(log_precision))  # noqa: E731
    begin = LOG_PRECISIONS[int(np.argmin([loss(value) for value in LOG_PRECISIONS]))]
    step = LOG_PRECISIONS[1] - LOG_PRECISIONS[0]
    found: Any = minimize_scalar(loss, bounds=(begin - step, begin + step), method="bounded")
    return math.exp(found.x)


def log_integral(
    log_density: Callable[[np.ndarray], float], start: np.ndarray, scales: np.ndarray
) -> float:
    r"""log of the integral of a density with one maximum, from a quadratic fit around it.

    Args:
      log_density: the logarithm of the density.
      start: a point near the maximum.
      scales: a matrix B, such that B B' is about the covariance of the density.
    """
    centre, count = np.asarray(start, float), len(start)
    steps = np.eye(count)

    def at(z: np.ndarray) -> float:
        return log_density(centre + scales @ z)

    value, slope, move, eigenvalues = 0.0, np.zeros(count), np.zeros(count), np.ones(count)
    for _ in range(MOST_MOVES):
        value = at(np.zeros(count))
        ahead, behind = (np.array([at(sign * step) for step in steps]) for sign in (1, -1))
        slope = (ahead - behind) / 2
        curvature = np.diag(2 * value - ahead - behind)
        for i in range(count):
            for j in range(i):
                cross = at(steps[i] + steps[j]) - ahead[i] - ahead[j] + value
                curvature[i, j] = curvature[j, i] = -cross
        eigenvalues, vectors = np.linalg.eigh(curvature)
        eigenvalues = np.maximum(eigenvalues, FLATTEST)
        move = vectors @ ((vectors.T @ slope) / eigenvalues)
        if np.max(np.abs(move)) < NEAR:
            break
        centre = centre + scales @ np.clip(move, -2, 2)
    volume = count * math.log(2 * math.pi) - np.sum(np.log(eigenvalues))
    volume += 2 * np.linalg.slogdet(scales)[1]
    return value + 0.5 * float(slope @ move + volume)
