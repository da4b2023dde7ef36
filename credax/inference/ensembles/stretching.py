r"""How wide the density of a cross-fitted ensemble has to be, judged by rows that its members have left out.

The noise that a member learns suits its own errors: it stops when it predicts unseen rows best. An ensemble
averages the errors of its members and adds their spread, so that its intervals are too wide. With the factor
:math:`\hat c` by which the density of single members would have to be stretched to predict their unseen rows
best, and :math:`\rho` the variance between members as a part of the variance that a member predicts, the errors
of S members have the variance :math:`\hat c^2 - (1 - 1/S)\rho` in units of the latter, and

.. math:: c^2 = \hat c^2 - 2 (1 - 1/S) \rho

is what is left for the noise after the spread of the members has been taken away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.typing import Array, Draw
from credax.inference import folds
from credax.model.likelihoods import MixtureDensity
from credax.model.likelihoods.mixture import stretched
from credax.posterior import Posterior

FACTORS = np.exp(np.linspace(np.log(0.25), np.log(2.0), 43))
"""The factors that are tried: few, since the programs of a posterior hold its factor."""
PRIOR = 0.3
"""The standard deviation of the normal prior of the logarithm of that factor, for tables with few rows."""
LEAST = 0.5
"""The factor of the ensemble is at least this part of that of single members."""
REST = 0.95
"""Ratios of variances above this quantile count as if they were there."""


def suits(posterior: Posterior) -> bool:
    """Whether the density can be stretched: it is a mixture that has not been stretched yet."""
    likelihood = posterior.model.likelihood  # pyright: ignore[reportAttributeAccessIssue]
    return isinstance(likelihood, MixtureDensity) and likelihood.stretch == 1


def factors(posterior: Posterior, data: Any, count: int) -> tuple[float, float]:
    """The factor that suits single members, and the one that suits the ensemble.

    Args:
      posterior: a posterior that consists of one draw for each member.
      data: the rows of the fit.
      count: the number of folds.
    """
    draws: Any = posterior.approximation
    members = draws.shape[0]
    own = Draw(*jax.tree.map(lambda leaf: jnp.asarray(leaf[:, 0]), (draws.params, draws.state)))
    total, ratios, counts = np.zeros(len(FACTORS)), [], []
    for member in range(members):
        fold = jnp.asarray(member % count, jnp.int32)
        log_probs, means, variance, weights = _judged.quick(
            posterior.model, own, data, member, fold, count
        )
        total += np.asarray(log_probs, np.float64)
        means = np.asarray(means, np.float64)
        others = np.delete(means, member, axis=0)
        # Members that know a row agree too well about it. They differ too much from the one that does not know
        # it, since they know its noise. What lies between is about right.
        unseen = (means[member] - others.mean(0)) ** 2 / (1 + 1 / len(others))
        seen = others.var(0, ddof=1) if len(others) > 1 else unseen
        variance = np.asarray(variance, np.float64)
        ratios.append(np.stack([seen / variance, unseen / variance]).mean(-1))
        counts.append(np.asarray(weights, np.float64))
    single = float(FACTORS[np.argmax(total - 0.5 * (np.log(FACTORS) / PRIOR) ** 2)])
    counted = np.concatenate(counts)
    each = np.concatenate(ratios, axis=1)[:, counted > 0]
    each = np.minimum(each, np.quantile(each, REST, axis=1, keepdims=True))
    between = np.sqrt(np.prod(np.average(each, axis=1, weights=counted[counted > 0])))
    left = single**2 - 2 * (1 - 1 / members) * between
    together = np.sqrt(max(left, (LEAST * single) ** 2))
    return single, float(FACTORS[np.argmin(np.abs(np.log(FACTORS / together)))])


def with_stretch(posterior: Posterior, factor: float) -> Posterior:
    """The posterior with its density stretched by a factor."""
    model: Any = posterior.model
    likelihood = replace(model.likelihood, stretch=factor)
    return replace(posterior, model=replace(model, likelihood=likelihood))


@jit(static_argnames=("model", "count"))
def _judged(
    model: Any, draws: Draw, data: Any, member: Any, fold: Array, count: int
) -> tuple[Array, Array, Array, Array]:
    """About the rows that a member has left out: their log density for each factor; and what is predicted.

    Returns:
      The log density for each factor, ``(factors,)``; the means of all members, ``(members, rows, targets)``;
      the variance that the member predicts; and the weights of the rows.
    """
    rows = folds.held_out(data, fold, count)

    def of(draw):
        return widened(model.network.apply(model.split(draw.params)[0], rows.x, draw.state))

    outputs = jax.lax.map(of, draws)
    means = jax.vmap(model.likelihood.mean)(outputs)
    parts = model.likelihood.parts(outputs[member])
    weights = jnp.ones(len(means[0])) if rows.weights is None else rows.weights

    def total(factor):
        each = model.likelihood.log_density(stretched(factor, *parts), rows.y)
        return jnp.sum(jnp.where(weights > 0, weights * each, 0))

    log_probs = jax.lax.map(total, jnp.asarray(FACTORS, outputs.dtype))
    return log_probs, means, model.likelihood.variance(outputs[member]), weights
