r"""Predictions on the scale of the table: a posterior is fitted to targets of unit variance.

.. math:: y = c + s\, z, \qquad \log p(y) = \log p(z) - \log s
"""

from __future__ import annotations

from typing import Any

import numpy as np

from credax.posterior.predictive import Predictive


class Rescaled:
    """A prediction of numbers, moved and stretched back to where the targets were.

    Args:
      predictive: of the standardised targets.
      centre: c, one number or one a target.
      scale: s, likewise.
    """

    def __init__(self, predictive: Predictive, centre: Any, scale: Any):
        self._predictive, self._centre, self._scale = predictive, centre, scale

    @property
    def mean(self) -> np.ndarray:
        """E[y]."""
        return self._centre + self._scale * self._predictive.mean

    @property
    def std(self) -> np.ndarray:
        """The square root of the variance."""
        return self._scale * self._predictive.std

    @property
    def variance(self) -> np.ndarray:
        """Epistemic and aleatoric together."""
        return self._scale**2 * self._predictive.variance

    @property
    def epistemic(self) -> np.ndarray:
        """Var_w E[y | w]: what more data would remove."""
        return self._scale**2 * self._predictive.epistemic

    @property
    def aleatoric(self) -> np.ndarray:
        """E_w Var[y | w]: what no data removes."""
        return self._scale**2 * self._predictive.aleatoric

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles of the prediction."""
        return self._centre + self._scale * self._predictive.quantile(q)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds y with probability ``level``: its lower and upper ends."""
        lower, upper = self._predictive.interval(level)
        return self._centre + self._scale * lower, self._centre + self._scale * upper

    def log_prob(self, y: Any) -> np.ndarray:
        """The log density of each row's target."""
        stretch = np.log(self._scale) * np.ones(np.shape(y)[1:])
        return self._predictive.log_prob(self._standard(y)) - np.sum(stretch)

    def cdf(self, t: Any) -> np.ndarray:
        """P(y <= t)."""
        return self._predictive.cdf(self._standard(t))

    def crps(self, y: Any) -> np.ndarray:
        """The continuous ranked probability score of each target."""
        return self._scale * self._predictive.crps(self._standard(y))

    def sample(self, key: Any, n: int) -> np.ndarray:
        """Draws of y."""
        return self._centre + self._scale * self._predictive.sample(key, n)

    def _standard(self, y: Any) -> np.ndarray:
        return (np.asarray(y, np.float64) - self._centre) / self._scale
