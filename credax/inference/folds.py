"""Folds: each replica leaves out some rows, whose targets it has then not seen.

The rows are divided at random into folds of equal size, in the same way for every run with as many rows, so
that the predictions of different models for rows that they have not seen can be compared row by row. The last
N mod F of N rows are in no fold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.special import logsumexp
from credax.core.typing import Array, Draw, Key
from credax.model.data import ArrayData, Batch, at
from credax.tracing.convolutions import rearranged

ORDER = 20151
"""The seed of the order of the rows, of which each fold is a part."""


def size(rows: int, folds: int) -> int:
    """The number of rows in a fold."""
    return rows // folds


def _rows(places: Array, rows: int) -> Array:
    """The numbers of the rows at these places of the order."""
    return random.shuffled(jax.random.key(ORDER), places, rows)


def held_out_rows(rows: int, folds: int, count: int | None = None) -> np.ndarray:
    """The numbers of the rows in the first ``count`` folds, ``(count, size)``."""
    count, here = folds if count is None else count, size(rows, folds)
    places = jnp.arange(count * here, dtype=jnp.int32)
    return np.asarray(_rows(places, rows)).reshape(count, here)


def held_out(data: ArrayData, fold: Array, folds: int) -> ArrayData:
    """The rows of one fold."""
    here = size(data.rows, folds)
    chosen = _rows(fold * here + jnp.arange(here, dtype=jnp.int32), data.rows)
    return data.take(chosen)


def training_rows(rows: int, fold: Array, folds: int) -> Array:
    """The numbers of the rows outside a fold."""
    return _outside(jnp.arange(rows - size(rows, folds), dtype=jnp.int32), fold, folds, rows)


def _outside(numbers: Array, fold: Array, folds: int, rows: int) -> Array:
    """The rows with these numbers among those outside a fold."""
    here = size(rows, folds)
    return _rows(jnp.where(numbers < fold * here, numbers, numbers + here), rows)


def batch(
    data: ArrayData, fold: Array, folds: int, key: Key, step: Array, rows: int | None
) -> Batch:
    """The batch of one step, from the rows outside a fold; ``None`` for all of them."""
    numbers = jnp.arange(data.rows - size(data.rows, folds), dtype=jnp.int32)
    chosen = ArrayData(numbers, numbers).batch(key, step, rows)
    own = _outside(chosen.x, fold, folds, data.rows)
    weights = at(data.weights, own)
    # The mean weight of all rows, so that the loss has the same scale outside every fold.
    return replace(
        chosen, x=data.x[own], y=data.y[own], weights=weights, mean_weight=data.mean_weight
    )


def held_out_log_prob(posterior: Any, data: ArrayData, folds: int) -> dict[str, np.ndarray]:
    """The log density of each row in a fold under the draws of a replica that has not seen it.

    Replica r leaves out fold r mod F. Where several replicas leave out the same fold, their densities are
    averaged.

    Args:
      posterior: a posterior that consists of draws.
      data: the rows of the fit.
      folds: the number of folds.

    Returns:
      ``held_out_log_prob``, ``(rows,)``, and ``held_out_rows``, the numbers of these rows.
    """
    draws = Draw(posterior.approximation.params, posterior.approximation.state)
    replicas, kept = posterior.approximation.shape
    found: dict[int, list[np.ndarray]] = {}
    # The compiler takes longer than a single draw of each replica.
    log_probs: Any = _log_probs.quick if kept == 1 else _log_probs
    for replica in range(replicas):
        own = jax.tree.map(lambda leaf, r=replica: leaf[r], draws)
        fold = replica % folds
        here = log_probs(posterior.model, own, data, jnp.asarray(fold, jnp.int32), folds)
        found.setdefault(fold, []).append(np.asarray(here, np.float64))
    averaged = [logsumexp(np.concatenate(each), axis=0) for each in found.values()]
    counts = [kept * len(each) for each in found.values()]
    values = [value - np.log(count) for value, count in zip(averaged, counts, strict=True)]
    rows = held_out_rows(data.rows, folds, len(found))
    log_scale = posterior.model.frame.log_scale
    return {"held_out_log_prob": np.concatenate(values) - log_scale, "held_out_rows": rows.ravel()}


@jit(static_argnames=("model", "folds"))
def _log_probs(model: Any, draws: Any, data: ArrayData, fold: Array, folds: int) -> Array:
    """The log density of each held-out row under each draw, ``(draws, size)``."""
    rows = held_out(data, fold, folds)

    def of(draw):
        network, learned = model.split(draw.params)
        outputs = widened(model.network.apply(network, rows.x, draw.state))
        return model.likelihood.log_prob(outputs, rows.y, learned)

    return jax.lax.map(rearranged(of), draws)
