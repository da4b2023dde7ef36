r"""Averages of the weights that a run has passed, which predict better than the weights themselves.

With a large learning rate the weights move around in a valley of the loss, and their average lies further down
(stochastic weight averaging; Izmailov et al., 2018). A member of a cross-fitted ensemble is often best long
before its learning rate has decayed, and the average over some snapshots then takes the place of the decay.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.programs import jit
from credax.core.typing import Array, Draw
from credax.inference import folds

WIDTHS = (3, 5, 9)
"""The numbers of snapshots that are averaged."""
LATER = (0, 1)
"""By how many snapshots the middle of them is later than the best snapshot."""


def windows(best: int, kept: int) -> list[tuple[int, int]]:
    """The first snapshots that are averaged and those after the last ones, for each average that is tried.

    >>> windows(2, 5)
    [(1, 4), (2, 5), (0, 5)]
    """
    found = []
    for width in WIDTHS:
        for later in LATER:
            first = min(max(best + later - width // 2, 0), kept - width)
            if first >= 0 and (first, first + width) not in found:
                found.append((first, first + width))
    return found


def averaged(draws: Draw, first: int, end: int, best: int) -> Draw:
    """The average over snapshots from ``first`` to before ``end``, with the state of the snapshot ``best``."""

    def mean(leaf: Any) -> np.ndarray:
        if not np.issubdtype(leaf.dtype, np.floating) and leaf.dtype != jnp.bfloat16:
            return leaf[:, best : best + 1]
        whole = np.asarray(leaf[:, first:end], np.float64).mean(1, keepdims=True)
        return whole.astype(leaf.dtype)

    state = jax.tree.map(lambda leaf: leaf[:, best : best + 1], draws.state)
    return Draw(jax.tree.map(mean, draws.params), state)


def best_average(
    model: Any, draws: Draw, data: Any, count: int, best: int, known: np.ndarray
) -> tuple[Draw, int]:
    """The average of snapshots that predicts best the rows that members have left out, and how many it takes.

    An average takes the place of the best snapshot only if the difference exceeds its standard error, over the
    members.

    Args:
      model: the model.
      draws: all snapshots, with the axes (member, snapshot).
      data: the rows of the fit.
      count: the number of folds.
      best: the best snapshot.
      known: its log likelihood per row of the fold that each member leaves out, ``(members,)``.
    """
    kept = jax.tree.leaves(draws.params)[0].shape[1]
    chosen, width, most = averaged(draws, best, best + 1, best), 1, 0.0
    for first, end in windows(best, kept):
        tried = averaged(draws, first, end, best)
        gain = scores(model, tried, data, count) - known
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        if gain.mean() > max(most, error):
            chosen, width, most = tried, end - first, float(gain.mean())
    return chosen, width


def scores(model: Any, draws: Draw, data: Any, count: int) -> np.ndarray:
    """The log likelihood per row of the fold that each member leaves out, ``(members,)``."""
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, 0]), draws)
    members = jax.tree.leaves(one.params)[0].shape[0]
    numbers = jnp.asarray(np.arange(members) % count, jnp.int32)
    return np.asarray(_scores.quick(model, one, numbers, data, count), np.float64)


@jit(static_argnames=("model", "count"))
def _scores(model: Any, draws: Draw, numbers: Array, data: Any, count: int) -> Array:
    return jax.lax.map(
        lambda each: held_out_score(model, each[0], each[1], data, count), (draws, numbers)
    )


def held_out_score(model: Any, draw: Draw, fold: Array, data: Any, count: int) -> Array:
    """The log likelihood per row of a fold."""
    unseen = folds.held_out(data, fold, count)
    total = model.full_log_likelihood(draw.params, unseen, draw.state)
    # Folds of equal size, whose weighted sums are then comparable.
    return total / (unseen.rows if data.weights is None else unseen.rows * data.mean_weight)
