"""Likelihoods for counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from credax.core.special import poisson_cdf, poisson_log_prob, poisson_sample
from credax.core.typing import Array
from credax.model.likelihoods.likelihood import Likelihood
from credax.model.likelihoods.targets import (
    as_floats,
    check_shape,
    integral,
    like_outputs,
    plain,
    points,
)


@dataclass(frozen=True)
class Poisson(Likelihood):
    r"""Counts with a Poisson distribution; the network predicts the logarithm of the rate.

    .. math:: P(y = k) = \frac{\lambda^k e^{-\lambda}}{k!}, \quad \lambda = \exp f_w(x)

    Targets and draws are whole numbers stored as floats, so that counts, means and quantiles have the same
    dtype.
    """

    task = "count"

    def check_targets(self, y):
        y = check_shape(self, y)
        if not integral(y) or y.min() < 0:
            got = plain(y[(y < 0) | (y != np.floor(y))][0])
            raise ValueError(f"y must hold whole numbers, at least 0, for Poisson(); got {got}.")
        return as_floats(y)

    def log_prob(self, outputs, y, params=None):
        return jnp.sum(poisson_log_prob(like_outputs(self, y, outputs), outputs), axis=-1)

    def mean(self, outputs, params=None):
        return _rate(outputs)

    def variance(self, outputs, params=None):
        return _rate(outputs)

    def sample(self, key, outputs, params=None):
        return poisson_sample(key, _rate(outputs))

    def cdf(self, outputs, t, params=None):
        return poisson_cdf(points(t, outputs.dtype), jnp.exp(outputs))


def _rate(outputs: Array) -> Array:
    """The rate, bounded so that its square is finite.

    Far from the data the exponential overflows: in float32 already at 89. An infinite rate of one draw would
    make the mean over all draws infinite, and their variance NaN. The bound, about 1e18 in float32, is far
    beyond any count that is observed.
    """
    return jnp.exp(jnp.minimum(outputs, 0.5 * math.log(jnp.finfo(outputs.dtype).max) - 2))
