r"""Predictions on the scale of the table, from a posterior that was fitted to standardised targets.

.. math:: y = c + s\, z, \qquad \log p(y) = \log p(z) - \log s
"""

from __future__ import annotations

from typing import Any

import numpy as np

from credax.posterior.predictive import Predictive


class Rescaled:
    """The predictive distribution of y = c + s z, given that of the standardised target z.

    Args:
      predictive: the predictive distribution of z.
      centre: c, one number, or one per target.
      scale: s, one number, or one per target.
    """

    def __init__(self, predictive: Predictive, centre: Any, scale: Any):
        self._predictive, self._centre, self._scale = predictive, centre, scale

    @property
    def mean(self) -> np.ndarray:
        """The predictive mean, E[y]."""
        return self._centre + self._scale * self._predictive.mean

    @property
    def std(self) -> np.ndarray:
        """The predictive standard deviation."""
        return self._scale * self._predictive.std

    @property
    def variance(self) -> np.ndarray:
        """The predictive variance: the sum of the epistemic and the aleatoric variance."""
        return self._scale**2 * self._predictive.variance

    @property
    def epistemic(self) -> np.ndarray:
        """Var_w E[y | w]: the part of the variance that more data would reduce."""
        return self._scale**2 * self._predictive.epistemic

    @property
    def aleatoric(self) -> np.ndarray:
        """E_w Var[y | w]: the part of the variance that remains however much data there is."""
        return self._scale**2 * self._predictive.aleatoric

    def quantile(self, q: Any) -> np.ndarray:
        """The quantiles of the predictive distribution."""
        return self._centre + self._scale * self._predictive.quantile(q)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds y with probability ``level``: its lower and upper ends."""
        lower, upper = self._predictive.interval(level)
        return self._centre + self._scale * lower, self._centre + self._scale * upper

    def log_prob(self, y: Any) -> np.ndarray:
        """The log predictive density of the targets of each row."""
        stretch = np.log(self._scale) * np.ones(np.shape(y)[1:])
        return self._predictive.log_prob(self._standard(y)) - np.sum(stretch)

    def cdf(self, t: Any) -> np.ndarray:
        """The predictive distribution function, P(y <= t)."""
        return self._predictive.cdf(self._standard(t))

    def crps(self, y: Any) -> np.ndarray:
        """The continuous ranked probability score of each target, in the units of y."""
        return self._scale * self._predictive.crps(self._standard(y))

    def sample(self, key: Any, n: int) -> np.ndarray:
        """``n`` draws of y for each row."""
        return self._centre + self._scale * self._predictive.sample(key, n)

    def _standard(self, y: Any) -> np.ndarray:
        return (np.asarray(y, np.float64) - self._centre) / self._scale
