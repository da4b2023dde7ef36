r"""The expected log likelihood of rows whose outputs are normal, in closed form or by quadrature.

.. math:: E\left[\log p(y \mid f)\right], \qquad f_k \sim N(m_k, v_k)

For several classes it has no closed form, and Jensen's inequality bounds it from below:

.. math:: E\left[f_y - \log \sum_k e^{f_k}\right] \ge m_y - \log \sum_k e^{m_k + v_k / 2}.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.special import poisson_log_prob
from credax.core.typing import Array
from credax.model.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from credax.model.likelihoods.targets import like_outputs

SUPPORTED = (Gaussian, Categorical, Bernoulli, Poisson)
"""The likelihoods for which the expectation, or its bound, is known; all are log-concave in the outputs."""
NODES = 24
"""The number of points of the Gauss-Hermite quadrature."""


def expected_log_prob(
    likelihood: Likelihood, mean: Array, variance: Array, y: Array, learned: dict | None
) -> Array:
    """The expected log likelihood of each row, or a lower bound of it for several classes.

    Args:
      likelihood: one of ``SUPPORTED``.
      mean: m, ``(rows, outputs)``.
      variance: v, in the same shape.
      y: the targets.
      learned: the learned parameters of the likelihood, or ``None``.
    """
    if isinstance(likelihood, Gaussian):
        location, scale = likelihood.location_scale(mean, learned)
        spread = jnp.sum(variance / jnp.broadcast_to(scale, location.shape) ** 2, axis=-1)
        return likelihood.log_prob(mean, y, learned) - 0.5 * spread
    if isinstance(likelihood, Categorical):
        # log_prob subtracts the wrong normaliser, which is added again.
        softened = jax.nn.logsumexp(mean + 0.5 * variance, axis=-1)
        return likelihood.log_prob(mean, y) + jax.nn.logsumexp(mean, axis=-1) - softened
    if isinstance(likelihood, Poisson):
        counts = like_outputs(likelihood, y, mean)
        excess = jnp.exp(mean + 0.5 * variance) - jnp.exp(mean)
        return jnp.sum(poisson_log_prob(counts, mean) - excess, axis=-1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    # The terms of several outputs are separate, so that one node serves all of them.
    tiny = jnp.finfo(variance.dtype).tiny
    deviation = jnp.sqrt(jnp.maximum(variance, tiny))
    at = jax.vmap(lambda node: likelihood.log_prob(mean + deviation * node, y, learned))
    values = at(jnp.asarray(nodes, mean.dtype))
    return jnp.asarray(weights / weights.sum(), mean.dtype) @ values
