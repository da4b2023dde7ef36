"""Likelihoods for counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammaln

from credax.core.special import poisson_cdf, poisson_log_prob, poisson_sample, softplus
from credax.core.typing import Array
from credax.model.likelihoods.likelihood import Likelihood
from credax.model.likelihoods.targets import (
    as_floats,
    check_shape,
    integral,
    like_outputs,
    plain,
    points,
    width,
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
        return _counts(self, y)

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


@dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    r"""Counts whose variance exceeds their mean; the network predicts the logarithms of the mean and of r.

    .. math::
        P(y = k) = \frac{\Gamma(k + r)}{k!\, \Gamma(r)}
                   \Big(\frac{r}{r + \mu}\Big)^{r} \Big(\frac{\mu}{r + \mu}\Big)^{k}, \qquad
        \operatorname{Var} y = \mu + \frac{\mu^2}{r}

    It is a Poisson distribution whose rate has a gamma distribution with mean mu and shape r. For large r it is
    the Poisson distribution with rate mu. The outputs are first the logarithms of mu for all targets, then
    those of r.
    """

    task = "count"

    def check_targets(self, y):
        return _counts(self, y)

    def num_outputs(self, y):
        return 2 * width(y)

    def _parts(self, outputs: Array) -> tuple[Array, Array]:
        mean, shape = jnp.split(outputs, 2, axis=-1)
        # Beyond these limits the distribution hardly changes, and its terms would cancel.
        return _rate(mean), jnp.exp(jnp.clip(shape, *LOG_SHAPE))

    def log_prob(self, outputs, y, params=None):
        mean, shape = self._parts(outputs)
        y = like_outputs(self, y, mean)
        binomial = gammaln(y + shape) - gammaln(shape) - gammaln(y + 1)
        log_ratio = jnp.log(mean) - jnp.log(shape)
        found = binomial - shape * softplus(log_ratio) - y * softplus(-log_ratio)
        return jnp.sum(found, axis=-1)

    def mean(self, outputs, params=None):
        return self._parts(outputs)[0]

    def variance(self, outputs, params=None):
        mean, shape = self._parts(outputs)
        return mean + mean**2 / shape

    def sample(self, key, outputs, params=None):
        mean, shape = self._parts(outputs)
        rate_key, count_key = jax.random.split(key)
        rate = jax.random.gamma(rate_key, shape, dtype=outputs.dtype) * mean / shape
        return poisson_sample(count_key, rate)

    def cdf(self, outputs, t, params=None):
        mean, shape = self._parts(outputs)
        t = jnp.floor(points(t, outputs.dtype))
        inside = betainc(shape, jnp.maximum(t, 0) + 1, shape / (shape + mean))
        return jnp.where(t < 0, jnp.zeros_like(inside), inside)


LOG_SHAPE = (-7.0, 7.0)
"""The range of the logarithm of r: with r = 1,100 the variance exceeds the mean by a part mu / 1,100."""


def _counts(owner: Likelihood, y: np.ndarray) -> np.ndarray:
    """Check that the targets are counts; return them as floats."""
    y = check_shape(owner, y)
    if not integral(y) or y.min() < 0:
        got = plain(y[(y < 0) | (y != np.floor(y))][0])
        name = type(owner).__name__
        raise ValueError(f"y must hold whole numbers, at least 0, for {name}(); got {got}.")
    return as_floats(y)


def _rate(outputs: Array) -> Array:
    """The rate, bounded so that its square is finite.

    Far from the data the exponential overflows: in float32 already at 89. An infinite rate of one draw would
    make the mean over all draws infinite, and their variance NaN. The bound, about 1e18 in float32, is far
    beyond any count that is observed.
    """
    return jnp.exp(jnp.minimum(outputs, 0.5 * math.log(jnp.finfo(outputs.dtype).max) - 2))
