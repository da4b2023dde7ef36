r"""The evidence lower bound (ELBO), and the settings that the variational methods share.

.. math::
    \log p(D) \ge L(\phi) = E_q \log p(D \mid w) - KL(q \,\|\, p)
                          = E_q \log p(D \mid w) + E_q \log p(w) + H(q)
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core.checks import must
from credax.core.precision import total, widened
from credax.core.programs import jit
from credax.core.typing import Array, Key, Params
from credax.model import LogDensity
from credax.model.data import Batch
from credax.model.model import BLOCK
from credax.model.networks.along import TrainedAlong
from credax.posterior import Estimate
from credax.posterior.approximations.families import (
    Categorical,
    Family,
    FullRank,
    LowRank,
    MeanField,
)
from credax.tracing.convolutions import rearranged

FAMILIES = ("mean_field", "low_rank", "full_rank")
ANNEALED = 0.4
"""The share of the steps over which the weight of the KL rises, if it is not given. A half left too few steps
with the full weight for 500 rows; with three tenths, units were switched off on 50 rows."""
FULL_RANK_LIMIT = 1 << 30
"""The most bytes that the factor of a full covariance matrix may take."""


def check_family(method: Any, model: Any) -> None:
    """Refuse a full covariance matrix that is too large for the memory."""
    if model.discrete or method.family != "full_rank":
        return
    leaves = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    size = sum(leaf.size for leaf in leaves)
    needed = size**2 * leaves[0].dtype.itemsize
    if needed > FULL_RANK_LIMIT:
        raise ValueError(
            f"{type(method).__name__}(family='full_rank') needs a covariance of {size:,} x {size:,} weights, "
            f"{needed / 2**30:,.1f} GiB, and several of them to optimise it; the limit is "
            f"{FULL_RANK_LIMIT / 2**30:.0f} GiB. Use family='low_rank' or 'mean_field'."
        )


def make_family(method: Any, key: Key, model: Any) -> Family:
    """The q from which the optimiser starts."""
    init_key, family_key = jax.random.split(key)
    params = model.init(init_key)
    if model.discrete:
        return Categorical.of_priors(params, model.leaf_priors(params))
    if method.family == "full_rank":
        return FullRank.around(params, method.initial_scale)
    if method.family == "low_rank":
        return LowRank.around(params, method.initial_scale, method.rank, family_key)
    family = MeanField.around(params, method.initial_scale)
    return replace(family, rho=without_spread(points_of(model, params), family.rho))


def points_of(model: Any, params: Params) -> Params | None:
    """For each leaf, whether it is held at a point; ``None`` if none is, as in a ``LogDensity``."""
    return None if isinstance(model, LogDensity) else model.point_weights(params)


def without_spread(points: Params | None, rho: Params) -> Params:
    """The values of rho, with minus infinity for the weights that are points: their sigma is zero."""
    if points is None:
        return rho
    return jax.tree.map(lambda p, r: jnp.full_like(r, -jnp.inf) if p else r, points, rho)


def check_points(method: Any, model: Any) -> None:
    """Refuse settings with which no weights can be held at a point, if the network asks for it."""
    if isinstance(model, LogDensity) or not isinstance(model.network, TrainedAlong):
        return
    wanted = {"family": ("mean_field",), "estimator": ("weight", None)}
    for name, values in wanted.items():
        if getattr(method, name) not in values:
            allowed = f'"{values[0]}" for a subset with rest="trained"'
            raise ValueError(must(type(method).__name__, name, allowed, getattr(method, name)))
    if model.discrete or model.learned_prior:
        # The density of a point under a prior with a learned scale has no maximum.
        allowed = "continuous, with a given scale, for a subset with rest='trained'"
        raise ValueError(must("Model", "prior", allowed, model.prior))


def expected_log_prior(model: Any, family: Family, draw: Params) -> Array:
    r""":math:`E_q \log p(w)`: in closed form if the prior is Gaussian, otherwise estimated at the draw."""
    if model.correlated_prior:
        return model.log_prior(draw)
    mean, variance = family.moments()

    def leaf(prior, mean, variance, w):
        expected = prior.expected_log_density(mean, variance)
        return prior.log_density(w) if expected is None else expected

    return total(jax.tree.map(leaf, model.leaf_priors(draw), mean, variance, draw))


def negative_kl(model: Any, family: Family, draw: Params) -> Array:
    r""":math:`-KL(q \| p) = E_q \log p(w) + H(q)`; only H(q) for a ``LogDensity``.

    Weights that are held at a point have no entropy; their log prior density is added.
    """
    if isinstance(model, LogDensity):
        return family.entropy()
    points = points_of(model, draw)
    spread = family if points is None else _uncertain(family, points)
    return expected_log_prior(model, family, draw) + spread.entropy()


def _uncertain(family: Any, points: Params) -> Any:
    """The distribution of the weights that are not held at a point, as lists of leaves."""

    def chosen(tree):
        pairs = zip(jax.tree.leaves(points), jax.tree.leaves(tree), strict=True)
        return [leaf for point, leaf in pairs if not point]

    names = [item.name for item in fields(family) if item.name in ("mean", "sigma", "rho")]
    return replace(family, **{name: chosen(getattr(family, name)) for name in names})


def annealed(method: Any, model: Any, step: Array | None) -> Any:
    """The weight of the KL at a step: it rises linearly from zero to one over ``kl_annealing`` steps.

    With the full weight from the start, units are switched off before they have learned anything. A
    ``LogDensity`` has no units.
    """
    length = method.kl_annealing
    if length is None:
        length = 0 if isinstance(model, LogDensity) else int(ANNEALED * method.num_steps)
    if not length or step is None:
        return 1.0
    dtype = jnp.result_type(float)
    return jnp.minimum((step + 1).astype(dtype) / length, jnp.ones((), dtype))


def full_elbo(
    model: Any, family: Family, data: Any, key: Key, visits: float
) -> tuple[Estimate, dict[str, float]]:
    """A Monte Carlo estimate of the evidence lower bound on all rows, and how well q fits them.

    The figures of the fit, which a ``LogDensity`` does not have: ``gain`` is the expected log likelihood of all
    rows, minus what it would be if the outputs of the network were the same for every row.
    ``residual_ratio``, for numbers and counts, is the mean square of the residuals divided by the variance that
    was predicted for them.

    Args:
      model: the model, prepared for the data.
      family: q, with the network's state.
      data: all rows; ``None`` for a ``LogDensity``.
      key: the key for the draws.
      visits: how often the run visited each row. The number of draws is a tenth of this, from 8 to 128.
    """
    count = draws_of(visits)
    family = jax.device_put(family)  # on a CPU without a copy, which arrays of NumPy would need
    elbos, fits = jax.device_get(_elbos(model, family, data, jax.random.split(key, count)))
    values = np.asarray(elbos, np.float64)
    error = float(values.std(ddof=1) / math.sqrt(count))
    bound = Estimate(float(values.mean()), error, "too low: a lower bound of the log evidence")
    if data is None:
        return bound, {}
    y, weights = jax.tree.map(lambda a: np.asarray(a[:BLOCK]), (data.y, data.weights))
    return bound, figures_of(fits, y, weights)


def draws_of(visits: float) -> int:
    """The number of draws for the bound of a run that visited each row so many times."""
    return int(np.clip(0.1 * visits, 8, 128))


def figures_of(fits: Any, y: Any, weights: Any = None) -> dict[str, float]:
    """The figures of the fit, from how well each draw fits the rows with these targets and weights."""
    figures = {"gain": float(np.mean(fits.gain, dtype=np.float64))}
    if fits.mean is not None:
        y = np.asarray(y, np.float64).reshape(fits.mean.shape[1:])
        variance = fits.mean.var(0, dtype=np.float64) + fits.variance.mean(0, dtype=np.float64)
        residual = y - fits.mean.mean(0, dtype=np.float64)
        each = (residual**2 / variance).reshape(len(y), -1).mean(1)
        if weights is None or np.sum(weights) > 0:
            figures["residual_ratio"] = float(np.average(each, weights=weights))
    return figures


@jit(static_argnames=("model",))
def _elbos(model, family, data, keys):
    q = family.with_state(())

    def one(key):
        draw = q.draw(key)
        if data is None:
            return model.log_joint(draw) + q.entropy(), None
        log_likelihood = model.full_log_likelihood(draw, data, family.state)
        elbo = log_likelihood + negative_kl(model, q, draw)
        return elbo, fit_of(model, draw, data, family.state, data.rows)

    return lax.map(rearranged(one), keys)


class _Fit(NamedTuple):
    """How well one draw of the weights fits the rows."""

    gain: Array
    mean: Array | None  # E[y | w] of each row, for numbers and counts
    variance: Array | None


def fit_of(model, draw, data, state, count: int) -> _Fit:
    """How well a draw fits all ``count`` rows, of which at most ``BLOCK`` are evaluated."""
    x, y, weights = jax.tree.map(lambda a: a[:BLOCK], (data.x, data.y, data.weights))
    rows = Batch.of(x, y, weights)
    network, params = model.split(draw)
    likelihood = model.likelihood
    outputs = widened(model.network.apply(network, x, state))
    constant = jnp.broadcast_to(jnp.mean(outputs, 0), outputs.shape)
    values = [rows.sum(likelihood.log_prob(o, y, params)) for o in (outputs, constant)]
    gain = (values[0] - values[1]) * (count / len(y))
    if likelihood.task == "classification" or model.divided:
        return _Fit(gain, None, None)
    return _Fit(gain, likelihood.mean(outputs, params), likelihood.variance(outputs, params))


def average(function: Any, key: Key, count: int) -> Any:
    """The mean of a function over ``count`` keys, computed one after the other so that memory does not grow.

    Integers, such as counts in a network's state, are not averaged: those of the last key are returned.
    """
    if count == 1:
        return function(key)

    def merge(total, new):
        return total + new / count if jnp.issubdtype(new.dtype, jnp.inexact) else new

    def add(total, key):
        return jax.tree.map(merge, total, function(key)), None

    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, key))
    return lax.scan(add, zeros, jax.random.split(key, count))[0]


def check_antithetic(method: Any) -> None:
    """Refuse an odd number of antithetic draws."""
    if method.antithetic and method.samples % 2:
        name = type(method).__name__
        raise ValueError(must(name, "samples", "even for antithetic pairs", method.samples))
