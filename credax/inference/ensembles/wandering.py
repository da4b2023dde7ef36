r"""Random functions that let the members of an ensemble differ where there are no data.

Networks that were trained on the same rows extend what they have learned to other places in much the same way,
although nothing supports it there. A random function that is added to a network before training, and cancelled
by the training where there are data, makes members differ elsewhere (randomised prior functions; Osband et al.,
2018). Here the cancelling needs no training. The function of a member is a random sum of cosines, from which
its ridge regression on the rows is taken away:

.. math::
    \delta_s(x) = \phi(x)^\top \varepsilon_s - \phi(x)^\top (C + \tau I)^{-1} C\, \varepsilon_s
                = \tau\, \phi(x)^\top (C + \tau I)^{-1} \varepsilon_s,
    \qquad C = \tfrac{1}{N} \sum_i \phi(x_i) \phi(x_i)^\top

The functions of all members add up to zero, so they hardly change the mean. Away from the data they vary as
much as what the network has learned varies over the data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.rows import RowTree
from credax.core.typing import Draw
from credax.model.networks.wandering import Wandering
from credax.posterior import Posterior
from credax.posterior.approximations import Draws

NEAR = (0.005, 0.01)
"""The least and the largest size of a function at rows that it has not seen, as a part of its size far away."""
SHARE = 0.25
"""Between them, a function has this part of the size by which the members differ there anyway."""
LENGTHS = (0.5, 1.0, 2.0, 4.0)
"""How far a function takes to change, in standard deviations of a column; the one that reaches farthest."""
PENALTIES = np.geomspace(1e-1, 1e-6, 51)
"""The values of tau; the largest one that will do."""
DEGREES = 3
"""Frequencies have Student's t distribution, as those of a Matérn kernel of smoothness 3/2."""
MOST_COLUMNS = 256
"""A function sees at most this many columns, chosen at random."""
FEATURES = (256, 512)
"""The least and the largest number of cosines, of which a table with more columns gets more."""
MOST_ROWS = 8_192
"""The most rows from which C is computed."""
OUTPUT_ROWS = 2_048
"""The most rows from which the size of the outputs is computed."""
PARTS = 8
"""One row in this many judges what remains of the functions at rows that they have not seen."""
TINY = 1e-30
SEED = 60811
"""The seed of the functions, which are then the same for every table of as many rows and columns."""


class Cosines(NamedTuple):
    """The features of all functions."""

    columns: np.ndarray
    centre: np.ndarray
    frequency: np.ndarray
    phase: np.ndarray

    def at(self, seen: np.ndarray) -> np.ndarray:
        """The features of rows of the columns that are seen, ``(rows, features)``."""
        angles = (seen - self.centre) @ self.frequency + self.phase
        return np.sqrt(2 / len(self.phase)) * np.cos(angles)


def suits(model: Any, data: Any) -> bool:
    """Whether the inputs are one array of numbers, and the outputs belong to rows."""
    return (
        not model.divided
        and not isinstance(data.x, RowTree)
        and jnp.issubdtype(data.x.dtype, jnp.floating)
    )


def with_functions(posterior: Posterior, data: Any) -> Posterior:
    """The posterior, with a random function added to each member.

    Args:
      posterior: a posterior that consists of one draw for each member.
      data: the rows of the fit.
    """
    model: Any = posterior.model
    draws: Any = posterior.approximation
    rng = np.random.default_rng(SEED)
    counted = np.arange(data.rows)
    if data.weights is not None:
        counted = counted[np.asarray(data.weights) > 0]
    chosen = rng.permutation(counted)[:MOST_ROWS]
    x = np.asarray(data.x[chosen], np.float64).reshape(len(chosen), -1)
    weights = None if data.weights is None else np.asarray(data.weights[chosen], np.float64)
    some = data.x[chosen[:OUTPUT_ROWS]]
    found = _outputs.quick(model, Draw(draws.params, draws.state), some)
    outputs, means = (np.asarray(each, np.float64) for each in found)
    if not np.all(np.isfinite(outputs)):
        return posterior
    near = SHARE * np.sqrt(means.var(0).mean() / max(means.mean(0).var(0).mean(), TINY))
    near = float(np.clip(near, *NEAR))
    cosines, kernel = _cosines(rng, x, weights, near, model.network.quantiles is not None)
    spread = np.atleast_2d(np.cov(outputs, rowvar=False, aweights=_of(weights, len(outputs))))
    values, vectors = np.linalg.eigh(spread)
    size = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T

    members, kept = draws.shape
    random = rng.normal(size=(members, len(cosines.phase), outputs.shape[1]))
    random = (random - random.mean(0)) * np.sqrt(members / (members - 1))
    coefficients = kernel @ random @ size

    def repeated(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array, (members, kept, *array.shape))

    dtype = jnp.result_type(float)
    function = {
        name: repeated(np.asarray(array, np.int32 if name == "columns" else dtype))
        for name, array in cosines._asdict().items()
    }
    everywhere = np.broadcast_to(coefficients[:, None], (members, kept, *coefficients.shape[1:]))
    function["coefficients"] = np.asarray(everywhere, dtype)
    width = len(cosines.columns)
    network = Wandering(model.network, width, len(cosines.phase), outputs.shape[1])
    approximation = Draws(draws.params, (draws.state, function), draws.log_weights)
    return replace(posterior, model=replace(model, network=network), approximation=approximation)


def _of(weights: np.ndarray | None, count: int) -> np.ndarray | None:
    return None if weights is None else weights[:count]


def _cosines(
    rng: np.random.Generator,
    x: np.ndarray,
    weights: np.ndarray | None,
    near: float,
    positions: bool,
) -> tuple[Cosines, np.ndarray]:
    """The features, and the matrix that turns random coefficients into those of a function that remains."""
    rows, width = x.shape
    # Of a network that also takes positions among quantiles, the values, which go on beyond the last row.
    known = np.arange(width // 2, width) if positions else np.arange(width)
    columns = np.sort(rng.permutation(known)[:MOST_COLUMNS])
    seen = x[:, columns]
    centre, scale = np.average(seen, 0, weights), seen.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    least, most = FEATURES
    count = min(most, least + 8 * len(columns), max(rows, least))
    directions = _directions(rng, len(columns), count) / scale[:, None]
    phase = rng.uniform(0, 2 * np.pi, count)
    judging = np.arange(rows) < max(rows // PARTS, 1)
    best: tuple[float, Cosines, np.ndarray] | None = None
    for length in LENGTHS:
        cosines = Cosines(columns, centre, directions / length, phase)
        features = cosines.at(seen)
        rest = features[~judging] if rows > 1 else features
        counts = _weights_of(weights, ~judging if rows > 1 else judging)
        values, vectors = np.linalg.eigh(
            np.einsum("r,ri,rj->ij", counts, rest, rest, optimize=True)
        )
        values = np.maximum(values, 0)
        unseen = _weights_of(weights, judging) @ (features[judging] @ vectors) ** 2
        shrunk = PENALTIES[:, None] / (values + PENALTIES[:, None])
        far = np.mean(shrunk**2, 1)
        left = np.sqrt(shrunk**2 @ unseen / far)
        good = np.flatnonzero(left <= near)
        which = good[0] if len(good) else len(PENALTIES) - 1
        # Of a few rows in many columns too much is left at others: then the functions are smaller, or smoother.
        amount = min(1.0, near / left[which])
        reach = amount / length
        if best is None or reach > best[0]:
            scaled = shrunk[which] * amount / np.sqrt(far[which])
            best = reach, cosines, (vectors * scaled) @ vectors.T
    assert best is not None
    return best[1:]


def _weights_of(weights: np.ndarray | None, chosen: np.ndarray) -> np.ndarray:
    """Weights of some rows that add up to one."""
    found = np.ones(int(chosen.sum())) if weights is None else weights[chosen]
    return found / found.sum()


def _directions(rng: np.random.Generator, columns: int, count: int) -> np.ndarray:
    """Frequencies of functions of one column, of two, and of all columns, ``(columns, count)``."""
    sizes = rng.choice([1, min(2, columns), columns], size=count, p=[0.5, 0.25, 0.25])
    # The columns of each function are the first ones of a random order.
    order = np.argsort(rng.random((columns, count)), axis=0).argsort(axis=0)
    normal = rng.normal(size=(columns, count)) * (order < sizes) / np.sqrt(sizes)
    # Quantiles of the distribution, so that frequencies of each size occur as often among few cosines.
    scales = chi2.ppf((rng.permutation(count) + 0.5) / count, DEGREES) / DEGREES
    return normal / np.sqrt(scales)


@jit(static_argnames="model")
def _outputs(model: Any, draws: Draw, x: Any) -> Any:
    """The outputs of the network, averaged over the draws, and the mean of y for every draw."""

    def of(draw):
        network, learned = model.split(draw.params)
        outputs = widened(model.network.apply(network, x, draw.state))
        return outputs, model.likelihood.mean(outputs, learned)

    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws)
    outputs, means = jax.lax.map(of, flat)
    return outputs.mean(0), means
