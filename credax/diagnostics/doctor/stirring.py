r"""Whether the predictions spread as before after a Markov chain has moved the draws.

Hamiltonian Monte Carlo leaves the exact posterior as it is. Chains that start at draws of a posterior end with
predictions that spread as before if these were draws of the exact one. If the spread has grown, the draws were
too close to each other, and if it has shrunk, too far apart. The chains are short, so that their spread lies
between the one at their start and that of the exact posterior: the true difference is at least the one found.
The chains may also move predictions to where the posterior gave them no chance, whatever their spread. So the
distance of the predictions after the chains from the mean before them is measured, in standard deviations
before them. It is 1 for draws of the exact posterior.

Predictions are compared at rows of the fit, and at points away from them, about which the data say less.

Scales of the prior that the fit has learned stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from credax.core import random
from credax.core.precision import widened
from credax.core.programs import jit
from credax.diagnostics.doctor import scales
from credax.model import LogDensity
from credax.model.likelihoods import Heads
from credax.model.networks.wandering import Wandering
from credax.posterior.approximations import Draws
from credax.posterior.approximations.masks import Seeds

if TYPE_CHECKING:
    from credax.posterior import Posterior, Predictive
    from credax.posterior.training import TrainingRows

CHAINS, LEAPFROG = 16, 32
"""The number of chains, which together are one program, and of the leapfrog steps of a move."""
WARMUP, MOVES, KEPT = 48, 192, 16
"""The number of moves that adapt the step size, of those after them, and of the positions that are kept."""
ACCEPTED, LEAST_ACCEPTED = 0.7, 0.2
"""The share of the moves that should be accepted, and the one below which chains have hardly moved."""
FIRST_STEP = 0.003
"""The first step size, in standard deviations of the prior; a move at most halves or nearly doubles it."""
PLACES, FAR = 64, 2.0
"""The most rows of each kind, and how much farther from their mean than rows of the fit the far ones are."""
PAIRS = 512
"""The number of points of which the ones farthest from all rows are taken."""
WORK = 1e11
"""The most products (weights x rows x gradients)."""


def stirred(posterior: Posterior) -> Mapping[str, Any]:
    """How the predictions differ from those after short chains; empty if this does not apply.

    The keys, where PLACE is ``near``, ``between``, ``mixed`` or ``far`` (see :func:`_places`):

    - ``spread_PLACE``: the epistemic standard deviation relative to that after the chains, the median over the
      rows; ``spread_error_PLACE``: the standard error of its logarithm, from the differences between chains;
    - ``noise_PLACE``: the standard deviation of the noise, likewise;
    - ``distance_PLACE``: the root mean square distance of the predictions after the chains from the mean before
      them, in epistemic standard deviations before them, the median over the rows; ``distance_error_PLACE``:
      the standard error of its logarithm, likewise;
    - ``moved_PLACE``: for classes, the total variation between the probabilities before and after, the mean
      over the rows; ``confidence_PLACE``: by how much more probable the most probable class was before;
    - ``raised``, ``raised_error``: where scales of the prior were learned, see :func:`.scales.gain`.

    They are computed when they are first needed, and kept and saved with the other numbers about the posterior.
    """
    known = posterior.examination
    if "stirred" not in known and isinstance(known, dict) and posterior.training is not None:
        known |= {"stirred": False, **_stirred(posterior)}
    return known


def _stirred(posterior: Posterior) -> dict[str, Any]:
    rows = posterior.training
    if rows is None or isinstance(posterior.model, LogDensity) or not applies(posterior, rows):
        return {}
    given: Any = posterior.model
    # Rows are kept as the network got them.
    standard: Any = replace(given.of_standard_data(), prior=posterior.prior)
    posterior = replace(posterior, model=standard)
    after = _after_chains(posterior, rows)
    if after is None:
        return {}
    places = _places(rows)
    # All places together are one program before and one after.
    x = np.concatenate(list(places.values()))
    pair = [each.predict(x) for each in (posterior, after)]
    looked_at = [_looked_at(each, given.likelihood.task) for each in pair]
    if given.likelihood.task != "classification":
        looked_at[1] |= _by_chain(*pair)
    found, first = {}, 0
    for place, points in places.items():
        here = slice(first, first := first + len(points))
        parts = [{name: values[here] for name, values in each.items()} for each in looked_at]
        found |= {f"{name}_{place}": value for name, value in _compared(*parts).items()}
    if given.learned_prior:
        larger = scales.raised(given.prior, posterior.prior)
        later = _after_chains(replace(posterior, model=replace(standard, prior=larger)), rows)
        found |= {} if later is None else scales.gain(after, later, rows)
    return {"stirred": True, **found} if np.all(np.isfinite(list(found.values()))) else {}


def _after_chains(posterior: Posterior, rows: TrainingRows) -> Posterior | None:
    """The draws after short chains; ``None`` without gradients, or if nearly all moves were rejected."""
    model = _trained(posterior.model)
    starts = _starts(posterior)
    unit = _units(model, jax.tree.map(lambda leaf: leaf[0], starts))
    words: Any = np.random.default_rng(0).integers(1 << 32, size=2, dtype=np.uint32)
    key = jax.random.wrap_key_data(words, impl=random.IMPLEMENTATION)
    arguments = (model, starts, unit, rows.part(slice(None)), key)
    try:
        _moved.eval_shape(*arguments)
    except (NotImplementedError, TypeError, ValueError):
        return None  # JAX cannot differentiate this network
    params, accepted = jax.device_get(_moved(*arguments))
    if not accepted > LEAST_ACCEPTED:
        return None
    return replace(posterior, model=model, approximation=Draws(params))


def applies(posterior: Posterior, rows: TrainingRows) -> bool:
    """Whether the rows of the fit are all known, so that its posterior is, and few enough."""
    model: Any = posterior.model
    approximation = posterior.approximation
    point = isinstance(approximation, Draws) and approximation.shape == (1, 1)
    gradients = CHAINS * LEAPFROG * (WARMUP + MOVES)
    return (
        getattr(posterior.method, "kind", "point") != "point"
        and not point
        and not isinstance(approximation, Seeds)
        and not (model.discrete or model.divided or isinstance(model.likelihood, Heads))
        and isinstance(rows.x, np.ndarray)
        and len(rows.x) == rows.total
        and not jax.tree.leaves(_trained(model).init_state())  # batch statistics couple the rows
        and approximation.num_weights * len(rows.x) * gradients <= WORK
        and not getattr(posterior.prior, "learned", True)  # last, since it copies the weights
    )


def _trained(model: Any) -> Any:
    """The model that was fitted: without the functions that only predictions add to its network."""
    network = model.network
    return replace(model, network=network.network) if isinstance(network, Wandering) else model


def _starts(posterior: Posterior) -> Any:
    """Where the chains start: draws, or the mode of a posterior that is used with the linearised network."""
    centre = getattr(posterior.approximation, "centre", None)
    if centre is None:
        return posterior.sample(0, CHAINS)
    repeat = lambda leaf: np.broadcast_to(leaf, (CHAINS, *np.shape(leaf)))  # noqa: E731
    return jax.tree.map(repeat, centre.params)


def _units(model: Any, params: Any) -> np.ndarray:
    """The standard deviation of each parameter under its prior, where it is known."""
    leaves = jax.tree.leaves(params)
    if model.correlated_prior:
        return np.concatenate([np.ones(np.size(leaf), leaf.dtype) for leaf in leaves])
    priors = jax.tree.leaves(model.leaf_priors(params))
    normals = [prior.gaussian(np.shape(leaf)) for prior, leaf in zip(priors, leaves, strict=True)]
    return np.concatenate(
        [
            np.broadcast_to(np.asarray(1 if n is None else n[1], leaf.dtype), leaf.shape).ravel()
            for n, leaf in zip(normals, leaves, strict=True)
        ]
    )


@jit(static_argnames="model")
def _moved(model, starts, unit, rows, key):
    """The positions of the chains after the last moves, and the share of moves that were accepted."""
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], starts))
    x, y, weights = rows

    def log_joint(position):
        params = unravel(position * unit)
        network, learned = model.split(params)
        outputs, _ = model.network.call(network, x, state=(), key=None, train=False)
        log_prob = model.likelihood.log_prob(widened(outputs), y, learned)
        if weights is not None:
            log_prob = weights.astype(log_prob.dtype) * log_prob
        prior = model.log_prior(params)
        return (jnp.sum(log_prob).astype(prior.dtype) + prior).astype(position.dtype)

    value_and_gradient = jax.vmap(jax.value_and_grad(log_joint))
    start = jax.vmap(lambda params: ravel_pytree(params)[0])(starts) / unit

    def move(carry, inputs):
        now, log_step = carry
        key, adapts = inputs
        momentum_key, step_key, accept_key = jax.random.split(key, 3)
        momentum = jax.random.normal(momentum_key, start.shape, start.dtype)
        # Steps of equal length could go round in circles.
        step = jnp.exp(log_step) * jax.random.uniform(step_key, (), start.dtype, 0.6, 1.4)

        # The first pass only computes the gradient where the chains are, so that the program has one gradient.
        def leapfrog(count, state):
            position, momentum, first, _ = state
            position = position + jnp.where(count > 0, step, 0) * momentum
            value, gradient = value_and_gradient(position)
            half = (count == 0) | (count == LEAPFROG)
            momentum = momentum + jnp.where(half, 0.5, 1) * step * gradient
            return position, momentum, jnp.where(count == 0, value, first), value

        kinetic = lambda momentum: 0.5 * jnp.sum(momentum**2, axis=1)  # noqa: E731
        nothing = jnp.zeros(CHAINS, start.dtype)
        begin = (now, momentum, nothing, nothing)
        position, last_momentum, first, last = lax.fori_loop(0, LEAPFROG + 1, leapfrog, begin)
        gain = last - kinetic(last_momentum) - first + kinetic(momentum)
        probability = jnp.where(jnp.isnan(gain), 0, jnp.exp(jnp.minimum(gain, 0)))
        accepted = jax.random.uniform(accept_key, (CHAINS,), start.dtype) < probability
        share = jnp.mean(probability)
        log_step = log_step + jnp.where(adapts, share - ACCEPTED, 0)
        position = jnp.where(accepted[:, None], position, now)
        return (position, log_step), (position, share)

    steps = WARMUP + MOVES
    adapting = jnp.arange(steps) < WARMUP
    begin = (start, jnp.asarray(math.log(FIRST_STEP), start.dtype))
    _, (visited, shares) = lax.scan(move, begin, (jax.random.split(key, steps), adapting))
    last = visited[-MOVES // 2 :: MOVES // 2 // KEPT].swapaxes(0, 1)
    return jax.vmap(jax.vmap(lambda position: unravel(position * unit)))(last), jnp.mean(
        shares[WARMUP:]
    )


def _places(rows: TrainingRows) -> dict[str, np.ndarray]:
    """Rows of the fit; and, if the inputs are columns of real numbers, three kinds of points away from them.

    They are half-way between two rows, or have each column from another row, or are twice as far as a row from
    the mean of each column. Of many such points, those are taken that are farthest from the nearest row.
    """
    x = rows.x
    if not np.issubdtype(x.dtype, np.floating):
        return {"near": x[:PLACES]}
    rng, mean = np.random.default_rng(0), x.mean(0, dtype=np.float64)
    pairs = rng.integers(len(x), size=(2, PAIRS))
    away = {"between": 0.5 * (x[pairs[0]] + x[pairs[1]])}
    if x[0].size > 1:
        order = rng.random((min(len(x), PAIRS), *x.shape[1:])).argsort(axis=0)
        away["mixed"] = np.take_along_axis(x, order, axis=0)
    away["far"] = mean + FAR * (x[:PAIRS] - mean)
    found = {name: _farthest(points, x).astype(x.dtype) for name, points in away.items()}
    return {"near": x[:PLACES], **found}


def _farthest(points: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The points that are farthest from the nearest row, in standard deviations of the columns."""
    rows = x.reshape(len(x), -1).astype(np.float64)
    scale = np.where(rows.std(0) > 0, rows.std(0), 1)
    rows, each = rows / scale, points.reshape(len(points), -1) / scale
    squares = np.min(np.sum(rows**2, 1) - 2 * each @ rows.T, axis=1) + np.sum(each**2, 1)
    return points[np.argsort(-squares, kind="stable")[:PLACES]]


def _looked_at(predictive: Predictive, task: str) -> dict[str, np.ndarray]:
    """The figures of each row that are compared."""
    if task == "classification":
        return {"probs": _of_classes(predictive.probs)}
    parts = {"spread": predictive.epistemic, "noise": predictive.aleatoric}
    return {name: np.asarray(values, np.float64) for name, values in parts.items()}


def _by_chain(before: Predictive, after: Predictive) -> dict[str, np.ndarray]:
    """The first two moments of the distance of the predictions from the mean before, (row, ..., chain)."""
    mean = np.asarray(before.mean, np.float64)
    distance = np.asarray(after.means, np.float64).reshape(CHAINS, -1, *mean.shape) - mean
    moments = {"shift": distance.mean(1), "squares": np.mean(distance**2, axis=1)}
    return {name: np.moveaxis(values, 0, -1) for name, values in moments.items()}


def _compared(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, float]:
    """The figures of one place."""
    if "probs" in before:
        first, second = before["probs"], after["probs"]
        moved = 0.5 * np.abs(first - second).sum(-1).mean()
        return {
            "moved": float(moved),
            "confidence": float(first.max(-1).mean() - second.max(-1).mean()),
        }
    shift, squares = _without_each(after["shift"]), _without_each(after["squares"])
    variance = before["spread"][..., None]
    ratios = {
        "spread": variance / _floored(squares - shift**2),
        "distance": squares / _floored(variance),
    }
    noise = np.median(before["noise"] / _floored(after["noise"])) ** 0.5
    found = {"noise": float(noise)}
    for name, values in ratios.items():
        logs = 0.5 * np.log(_floored(np.median(values.reshape(-1, CHAINS + 1), axis=0)))
        others = logs[1:] - logs[1:].mean()
        error = np.sqrt((CHAINS - 1) / CHAINS * np.sum(others**2))  # the jackknife
        found |= {name: float(np.exp(logs[0])), f"{name}_error": float(error)}
    return found


def _without_each(of_chains: np.ndarray) -> np.ndarray:
    """The mean over all chains, then without each of them in turn, along the last axis."""
    total = of_chains.sum(-1, keepdims=True)
    others = (total - of_chains) / (CHAINS - 1)
    return np.concatenate([total / CHAINS, others], axis=-1)


def _floored(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 1e-150)


def _of_classes(probs: Any) -> np.ndarray:
    """The probabilities of the classes of each row, or those of having each of several labels or not."""
    probs = np.asarray(probs, np.float64)
    if np.allclose(probs.sum(-1), 1, atol=1e-3):
        return probs
    return np.stack([1 - probs, probs], axis=-1)
