"""Simulation-based calibration: a test of whether a method finds the correct posterior (Talts et al., 2018)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.checks import integer, must
from credax.core.errors import PosteriorWarning
from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.rows import on_host
from credax.core.typing import Array, Draw, Key, Params
from credax.diagnostics.ranks import Ranks
from credax.fit.many import fit_each
from credax.model import Model
from credax.model.data import ArrayData
from credax.posterior.approximations import Approximation, Draws
from credax.posterior.mixture import applied

if TYPE_CHECKING:
    from credax.inference.method import Method

Quantity = Callable[[Params, Array, Array], Array]
"""``quantity(params, x, y)``: a scalar function of the weights and, optionally, of the data."""
NUM_DRAWS = 99
"""The largest number of draws among which the truth is ranked by default."""
FEWEST = 9
"""The smallest number of draws to which correlated chains are thinned by default."""
NEARLY_INDEPENDENT = 0.05
"""The correlation of neighbouring draws below which the draws are taken for independent."""
DRAW_BYTES = 1 << 29
"""The most bytes that the draws of all fits in one batch may take."""


def simulation_based_calibration(
    model: Model,
    data: Any,
    method: Method,
    *,
    key: Any = 0,
    num_simulations: int = 100,
    num_draws: int | None = None,
    quantities: Mapping[str, Quantity] | None = None,
    progress: bool = True,
) -> Ranks:
    r"""Fit data sets simulated from the model, and rank the true weights among the posterior draws.

    .. math:: w \sim p(w), \quad D \sim p(D \mid w), \quad w_1, \dots, w_L \sim p(w \mid D)
    .. math:: \#\{l : q(w_l) < q(w)\} \sim \operatorname{Uniform}\{0, \dots, L\}

    for any scalar quantity q, since the true weights and exact posterior draws have the same distribution given
    D. A method whose draws are too narrow, too wide or shifted gives ranks that are not uniform. The fits run
    as one batch in one compiled program, so hundreds of small ones take little longer than one.

    Args:
      model: a model whose prior can be sampled.
      data: ``(x, y)`` as for ``fit``; of ``y`` only the shape and the number of classes are used.
      method: the method under test, any that takes the model.
      key: an int or a JAX key.
      num_simulations: the number of simulated data sets, each of which is fitted once.
      num_draws: L, the number of draws of each posterior that are used; if a chain keeps more, evenly spaced
        ones are taken. If ``None``, 99 or as many as the method keeps; if neighbouring ones are correlated,
        fewer, until they are not.
      quantities: a mapping of names to functions ``quantity(params, x, y)`` that return a scalar. If ``None``,
        the outputs of the network at three rows, the log prior and the log likelihood (all of them by the
        linear expansion of the network, where the method predicts with it). Individual weights are a
        hard test if hidden units can be permuted, since a correct method must then visit every permutation.
      progress: whether to show a progress bar.
    """
    owner = "simulation_based_calibration"
    if not isinstance(model, Model):
        raise TypeError(must(owner, "model", "a cx.Model, whose prior can be sampled", model))
    num_simulations = integer(owner, "num_simulations", num_simulations, minimum=10)
    wanted = None if num_draws is None else integer(owner, "num_draws", num_draws)
    bound, rows = model.prepare(data)
    bound.check_undivided(owner)
    bound = bound.of_standard_data()  # the simulated targets are in its units
    chosen = _default_quantities(bound, rows) if quantities is None else _checked(quantities)
    simulate_key, fit_key, sample_key, tie_key = jax.random.split(random.key(key), 4)
    truths, targets = jax.device_get(_simulate(bound, num_simulations, simulate_key, rows))
    x, state = on_host(rows.x), jax.device_get(bound.init_state())
    evaluate = partial(_evaluate, bound, tuple(chosen.values()))

    values, warned = [], []
    at_once = _at_once(bound, method, num_simulations)
    for begin in range(0, num_simulations, at_once):
        # The last batch is filled up with simulations that were fitted before, so that it has the same shape.
        which = np.arange(begin, begin + at_once) % num_simulations
        new = min(at_once, num_simulations - begin)
        keys = [jax.random.fold_in(key, begin) for key in (fit_key, sample_key)]
        with _collected(warned):
            posteriors = fit_each(
                bound, (x, targets[which]), method, key=keys[0], progress=progress
            )
        for i, posterior in zip(which[:new], posteriors, strict=False):
            approximation = posterior.approximation
            draws = _thinned(approximation, jax.random.fold_in(keys[1], i), wanted)
            truth = Draw(jax.tree.map(lambda leaf: leaf[i], truths), state)  # noqa: B023  (used at once)
            truth = jax.tree.map(lambda leaf: np.asarray(leaf)[None], truth)
            centre = getattr(approximation, "centre", None)
            parts = [evaluate(truth, None, x, targets[i]), evaluate(draws, centre, x, targets[i])]
            values.append(np.concatenate(jax.device_get(parts)))
    values = np.stack(values)  # (simulation, truth and draws, quantity)
    if not np.isfinite(values).all():
        name = list(chosen)[int(np.argwhere(~np.isfinite(values))[0, 2])]
        raise ValueError(f"{owner}(quantities=...) must be finite; {name!r} is not.")
    values = _independent(values) if num_draws is None else values
    truth, drawn = values[:, :1], values[:, 1:]
    below, ties = (drawn < truth).sum(1), (drawn == truth).sum(1)
    uniform = np.asarray(jax.random.uniform(tie_key, below.shape))
    ranks = below + np.minimum((uniform * (ties + 1)).astype(int), ties)
    return Ranks(tuple(chosen), ranks, drawn.shape[1], _correlation(drawn), tuple(warned))


def _at_once(model: Model, method: Method, simulations: int) -> int:
    """How many fits run as one batch: as many as memory allows, in batches of nearly equal size."""
    params = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in params)
    kept = max(1, (method.num_steps - method.num_warmup) // method.thin)
    most = max(1, DRAW_BYTES // (size * method.replicas * kept))
    return -(-simulations // -(-simulations // most))


# -- the simulations --------------------------------------------------------------------------------


@jit(static_argnames=("model", "count"))
def _simulate(model: Model, count: int, key: Key, rows: ArrayData) -> tuple[Params, Array]:
    """Samples of the weights from the prior and, for each of them, of the targets at the given rows."""

    def one(key):
        weights_key, noise_key = jax.random.split(key)
        params = model.sample_prior(weights_key)
        network, learned = model.split(params)
        outputs = widened(model.network.apply(network, rows.x, model.init_state()))
        y = model.likelihood.sample(noise_key, outputs, learned)
        return params, y.reshape(rows.y.shape).astype(rows.y.dtype)

    return jax.lax.map(one, jax.random.split(key, count))


@contextmanager
def _collected(warned: list[str]) -> Iterator[None]:
    """Collect the warnings about posteriors in a list, and let all other warnings through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PosteriorWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, PosteriorWarning):
            warned.append(str(warning.message))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def _thinned(approximation: Approximation, key: Key, count: int | None) -> Draw:
    """``count`` draws: evenly spaced along chains, or independent samples of any other approximation."""
    if not isinstance(approximation, Draws) or approximation.log_weights is not None:
        return jax.device_get(approximation.sample(key, count or NUM_DRAWS))
    total = approximation.shape[0] * approximation.shape[1]
    count = min(NUM_DRAWS, total) if count is None else count
    if count > total:
        allowed = f"at most the number of draws that the method keeps, {total}"
        raise ValueError(must("simulation_based_calibration", "num_draws", allowed, count))
    chosen = _evenly(total, count)
    draws = Draw(approximation.params, approximation.state)
    return jax.tree.map(lambda leaf: np.reshape(leaf, (total, *leaf.shape[2:]))[chosen], draws)


# -- the quantities ---------------------------------------------------------------------------------
#
# They are compared by their contents, so that a second call with the same quantities compiles nothing.


class _Evaluated(NamedTuple):
    """What a quantity may depend on: a draw, its outputs, the likelihood's parameters, and the data."""

    model: Model
    draw: Draw
    outputs: Array
    learned: Params | None
    x: Array
    y: Array


@dataclass(frozen=True)
class _Output:
    row: int
    column: int

    def __call__(self, of: _Evaluated) -> Array:
        return of.outputs[self.row, self.column]


@dataclass(frozen=True)
class _Given:
    quantity: Quantity

    def __call__(self, of: _Evaluated) -> Array:
        return self.quantity(of.draw.params, of.x, of.y)


def _log_prior(of: _Evaluated) -> Array:
    return of.model.log_prior(of.draw.params)


def _log_likelihood(of: _Evaluated) -> Array:
    return jnp.sum(of.model.likelihood.log_prob(of.outputs, of.y, of.learned))


@jit(static_argnames=("model", "quantities"))
def _evaluate(
    model: Model,
    quantities: tuple[Callable[[_Evaluated], Array], ...],
    draws: Draw,
    centre: Draw | None,
    x: Array,
    y: Array,
) -> Array:
    """The quantities of each draw, ``(draw, quantity)``."""
    apply, dtype = applied(model, centre, x), jnp.result_type(float)

    def one(draw):
        found = _Evaluated(model, draw, *apply(draw), x, y)
        return jnp.stack([jnp.asarray(quantity(found), dtype) for quantity in quantities])

    return jax.vmap(one)(draws)


def _checked(quantities: Mapping[str, Quantity]) -> dict[str, Callable[[_Evaluated], Array]]:
    if not isinstance(quantities, Mapping) or not quantities:
        allowed = "a mapping of names to functions of (params, x, y)"
        raise TypeError(must("simulation_based_calibration", "quantities", allowed, quantities))
    return {name: _Given(quantity) for name, quantity in quantities.items()}


def _default_quantities(model: Model, rows: ArrayData) -> dict[str, Callable[[_Evaluated], Array]]:
    assert model.schema is not None, "the model is bound by prepare"
    places = dict.fromkeys([0, rows.rows // 2, rows.rows - 1])
    outputs = {
        f"output {column} at row {row}": _Output(row, column)
        for row, column in zip(places, (i % model.schema.outputs for i in range(3)), strict=False)
    }
    return {**outputs, "log prior": _log_prior, "log likelihood": _log_likelihood}


# -- thinning ---------------------------------------------------------------------------------------


def _independent(values: np.ndarray) -> np.ndarray:
    """The draws of ``values`` (after the truth, entry 0), thinned until neighbours are nearly uncorrelated."""
    while values.shape[1] - 1 > FEWEST and _correlation(values[:, 1:]).max() > NEARLY_INDEPENDENT:
        count = max(values.shape[1] // 2 - 1, FEWEST)
        values = values[:, np.r_[0, 1 + _evenly(values.shape[1] - 1, count)]]
    return values


def _evenly(total: int, count: int) -> np.ndarray:
    """``count`` of the numbers below ``total``, evenly spaced."""
    return ((np.arange(count) + 0.5) * total / count).astype(int)


def _correlation(drawn: np.ndarray) -> np.ndarray:
    """The correlation between successive draws, averaged over the simulations, ``(quantity,)``."""
    away = drawn - drawn.mean(1, keepdims=True, dtype=np.float64)
    # Draws that are all equal have no correlation; what differs from their mean is rounding.
    differ = np.ptp(drawn, axis=1) > 0
    scale = np.where(differ, (away**2).sum(1), np.inf)
    return ((away[:, 1:] * away[:, :-1]).sum(1) / scale).mean(0)
