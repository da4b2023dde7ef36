r"""The evidence lower bound on a source, whose rows are read in blocks.

Of a source with more rows than the run has visited, a random sample of n rows is read. The sum over it, times
N / n, estimates the log likelihood of all rows; how far it may be off is part of the standard error.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.typing import Array, Key
from credax.inference.variational.objective import draws_of, figures_of, fit_of, negative_kl
from credax.model.data import ArrayData
from credax.model.model import BLOCK
from credax.model.sources.streamed import SourceData
from credax.posterior import Estimate
from credax.posterior.approximations.families import Family
from credax.tracing.convolutions import rearranged

FEWEST = 65_536
"""The number of rows that are read in any case, if there are so many."""


def source_elbo(
    model: Any, family: Family, data: SourceData, key: Key, visits: float
) -> tuple[Estimate, dict[str, float]]:
    """The bound and the figures of ``full_elbo`` for a source."""
    keys = jax.random.split(key, draws_of(visits))
    most = min(data.rows, max(FEWEST, math.ceil(visits * data.rows)))
    each, rows = np.zeros(len(keys)), []
    family = jax.device_put(family)  # once, rather than for every chunk
    for chunk in data.chunks(most):
        sums, means = jax.device_get(_log_likelihoods(model, family, chunk.x, chunk.y, keys))
        each += np.asarray(sums, np.float64)
        rows.append(np.asarray(means, np.float64))
    mean = np.concatenate(rows)
    held = ArrayData(*(jnp.asarray(a[:BLOCK]) for a in (data.sample.x, data.sample.y)))
    negative, fits = jax.device_get(_rest(model, family, held, keys, data.rows))
    values = each * (data.rows / len(mean)) + np.asarray(negative, np.float64)
    variance = values.var(ddof=1) / len(keys)
    unseen = 1 - len(mean) / data.rows if data.source.countable else 1.0
    if unseen > 0:
        variance += data.rows**2 * unseen * mean.var(ddof=1) / len(mean)
    errs = "too low: a lower bound of the log evidence"
    bound = Estimate(float(values.mean()), float(np.sqrt(variance)), errs)
    return bound, figures_of(fits, held.y)


@jit(static_argnames=("model",))
def _log_likelihoods(model, family, x, y, keys) -> tuple[Array, Array]:
    """The log likelihood of some rows for each draw, and that of each row, averaged over the draws."""
    q = family.with_state(())

    def one(total, key):
        network, learned = model.split(q.draw(key))
        outputs = widened(model.network.apply(network, x, family.state))
        values = model.likelihood.log_prob(outputs, y, learned)
        return total + values / len(keys), jnp.sum(values)

    zeros = jnp.zeros(len(x), jnp.result_type(float))
    means, sums = jax.lax.scan(rearranged(one), zeros, keys)
    return sums, means


@jit(static_argnames=("model", "rows"))
def _rest(model, family, held, keys, rows):
    """Minus the divergence, and how well each draw fits the rows in memory."""
    q = family.with_state(())

    def one(key):
        draw = q.draw(key)
        return negative_kl(model, q, draw), fit_of(model, draw, held, family.state, rows)

    return jax.lax.map(rearranged(one), keys)
