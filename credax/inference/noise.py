r"""The noise scale that maximises the marginal likelihood, while the weights are at their mode.

At the joint mode of weights and noise, the noise is too small: the weights explain a part of it, and the
residuals are what is left. In the Laplace approximation, the marginal likelihood of the noise's parameters
:math:`\theta` has one more term than the log joint density,

.. math::
    \log p(D \mid \theta) \approx \log p(D, \hat w \mid \theta) - \tfrac{1}{2} \log\det P(\theta) + c,
    \qquad P(\theta) = P_0 + \sum_i J_i^\top H(\theta) J_i,

with the prior's precision :math:`P_0`, the Jacobian :math:`J_i` of the outputs of row i, and the information
:math:`H(\theta)` of the likelihood about the outputs, which is the same for all rows if the noise is. The
derivative of this term is that of

.. math:: -\tfrac{1}{2} \operatorname{tr}\left(H(\theta)\, C\right), \qquad C = \sum_i J_i P^{-1} J_i^\top,

where C, the summed covariance of the outputs, is held constant. Training therefore adds this term to the log
joint density and computes C anew from time to time. For one target, the optimum satisfies
:math:`\sigma^2 = \mathrm{RSS} / (N - \gamma)`, with the effective number of parameters :math:`\gamma` (MacKay,
1992), up to the prior of :math:`\sigma`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.typing import Array, Key, NetworkState, Params
from credax.model.data import ArrayData, at, roots
from credax.model.likelihoods import Gaussian, Likelihood, MultivariateGaussian, StudentT
from credax.model.sources.streamed import in_memory
from credax.model.sources.window import Sample, Window

CHOICES = ("marginal", "mode")
"""The values of the setting ``noise``."""
UPDATES = 20
"""How many times C is computed in a run."""
ENTRIES = 1 << 24
"""The largest number of entries of the Jacobian from which C is computed. With more rows, a random subset of
them is used, for which C is on average too small."""
LARGEST = 1024
"""The largest number of rows of a matrix that is factorised."""

LOG_FACTORS = np.linspace(-5.0, 5.0, 1001)
"""The logarithms of the factors of the noise scale among which the best one is chosen."""


class Seen(NamedTuple):
    """The batch of a step, and all rows, of which the update of C takes as many as it can.

    Of a source, it takes them from a random sample.
    """

    batch: Any
    data: ArrayData | Sample


def with_all_rows(setting: str, model: Any, data: Any, batch: Any) -> Any:
    """The batch of a step as a method with the setting ``noise`` needs it."""
    chosen = isinstance(data, ArrayData | Window) and _applies(setting, model)
    return Seen(batch, in_memory(data)) if chosen else batch


def _applies(setting: str, model: Any) -> bool:
    """Whether the likelihood learns its noise and the network's prior is Gaussian."""
    likelihood = getattr(model, "likelihood", None)
    return setting == "marginal" and getattr(likelihood, "learned", False) and _same_noise(model)


def _same_noise(model: Any) -> bool:
    """Whether the noise is the same for all rows, and the network's prior is Gaussian."""
    if not isinstance(model.likelihood, Gaussian | StudentT | MultivariateGaussian):
        return False
    if model.correlated_prior:
        return False
    params = jax.eval_shape(model.init, jax.random.key(0))
    network, priors = (model.split(tree)[0] for tree in (params, model.leaf_priors(params)))
    pairs = zip(jax.tree.leaves(network), jax.tree.leaves(priors), strict=True)
    return all(prior.gaussian(leaf.shape) is not None for leaf, prior in pairs)


def no_spread(setting: str, model: Any) -> Array | tuple[()]:
    """C before the first step, which is zero; ``()`` if the noise is not estimated in this way."""
    if not _applies(setting, model):
        return ()
    outputs = model.schema.outputs
    return jnp.zeros((outputs, outputs), jnp.result_type(float))


class Marginal(NamedTuple):
    """What a step needs whose noise maximises the marginal likelihood.

    Attributes:
      key: the key that remains for the step.
      spread: C.
      batch: the rows of the step.
      objective: the log joint density with the additional term.
    """

    key: Key
    spread: Any
    batch: Any
    objective: Callable[..., Any]


def marginal(key, spread, model, point, seen, step, steps: int, objective=None) -> Marginal:
    """Compute C anew if it is due, and add the term of the noise to the log joint density.

    Args:
      key: the key of the step.
      spread: C, or ``()`` if the noise is not estimated in this way.
      model: the model.
      point: an object with the current ``params`` and the state of the ``network``.
      seen: what :func:`with_all_rows` returned.
      step: the number of steps before this one.
      steps: the number of steps of the run.
      objective: the log joint density in training; if ``None``, that of the model.
    """
    objective = model.train_log_joint if objective is None else objective
    if not isinstance(seen, Seen):
        return Marginal(key, spread, seen, objective)
    key, rows_key = jax.random.split(key)

    def compute():
        found = output_spread(rows_key, model, point.params, point.network, seen.data)
        return jnp.where(jnp.all(jnp.isfinite(found)), found, spread)

    due = step % max(1, steps // UPDATES) == 0
    spread = lax.cond(due, compute, lambda: spread)

    def with_term(params, batch, network, key):
        value, network = objective(params, batch, network, key)
        return value + correction(model, params, spread), network

    return Marginal(key, spread, seen.batch, with_term)


def correction(model: Any, params: Params, spread: Any) -> Array:
    """What is added to the log joint density: minus half the trace of H C."""
    if isinstance(spread, tuple):
        return jnp.zeros((), jnp.result_type(float))
    learned = model.split(params)[1]
    return -0.5 * jnp.sum(information(model.likelihood, learned, len(spread)) * spread)


def information(likelihood: Likelihood, learned: Any, outputs: int) -> Array:
    """H, the expected information about the outputs of a row, ``(outputs, outputs)``."""
    none = jnp.zeros((1, outputs), jnp.result_type(float))
    if isinstance(likelihood, MultivariateGaussian):
        factor = likelihood.factor(none, learned)
        inverse = solve_triangular(factor, jnp.eye(outputs, dtype=factor.dtype), lower=True)
        return inverse.T @ inverse
    assert isinstance(likelihood, Gaussian | StudentT)
    _, scale = likelihood.location_scale(none, learned)
    return jnp.diag(jnp.broadcast_to(likelihood.noise_information() / scale**2, (outputs,)))


def output_spread(key: Key, model: Any, params: Params, state: NetworkState, data: Any):
    """C, scaled to all rows if it is computed from a subset of them."""
    columns, root = _whitened_jacobian(key, model, params, state, data)
    rows, outputs, weights = columns.shape
    scale = data.rows / rows
    flat = columns.reshape(-1, weights)
    with jax.default_matmul_precision("highest"):
        if len(flat) <= weights:
            # For T = Z Z', T (I + T)^-1 = I - (I + T)^-1.
            share = jnp.eye(len(flat), dtype=flat.dtype) - _inverse(scale * flat @ flat.T)
            share = jnp.einsum("rcrd->cd", share.reshape(rows, outputs, rows, outputs))
        else:
            inverse = _inverse(scale * flat.T @ flat)
            share = scale * jnp.einsum("rcw,wv,rdv->cd", columns, inverse, columns)
    half = solve_triangular(root, share, lower=True, trans=1)
    return solve_triangular(root, half.T, lower=True, trans=1)


def _whitened_jacobian(key: Key, model: Any, params: Params, state: NetworkState, data: Any):
    """R' J S of some rows, ``(rows, outputs, weights)``, and R, where R R' = H and S are the prior's scales.

    Each row is multiplied by the square root of its weight, so that sums of squares are weighted.
    """
    network, learned = model.split(params)
    priors = jax.tree.leaves(model.split(model.leaf_priors(params))[0])
    outputs = model.schema.outputs
    weights = sum(leaf.size for leaf in jax.tree.leaves(network))
    most = ENTRIES // (outputs * weights)
    if weights > LARGEST:
        most = min(most, LARGEST // outputs)
    x, row_weights = data.x, data.weights
    held = len(x)  # all rows, or a random sample of those of a source
    size = max(1, min(held, most))
    if size < held:
        chosen = jax.random.choice(key, held, (size,), replace=False)
        x, row_weights = x[chosen], at(row_weights, chosen)
    root = jnp.linalg.cholesky(information(model.likelihood, learned, outputs))

    def of_row(row):
        f, pull = jax.vjp(lambda w: model.network.apply(w, row[None], state)[0], network)
        leaves = jax.tree.leaves(jax.vmap(lambda column: pull(column)[0])(root.T.astype(f.dtype)))
        each = zip(leaves, priors, strict=True)
        scaled = [widened(leaf) * prior.gaussian(leaf.shape[1:])[1] for leaf, prior in each]
        return jnp.concatenate([leaf.reshape(outputs, -1) for leaf in scaled], axis=1)

    columns = jax.vmap(of_row)(x)
    if row_weights is not None:
        columns = columns * roots(row_weights, columns)
    return columns, root


def _inverse(matrix: Array) -> Array:
    """The inverse of I + matrix, for a matrix that is positive semidefinite up to rounding errors."""
    one = jnp.eye(len(matrix), dtype=matrix.dtype)
    rounding = jnp.finfo(matrix.dtype).eps * jnp.max(jnp.sum(jnp.abs(matrix), axis=1))
    factor = jnp.linalg.cholesky(matrix + (1 + rounding) * one)
    return (1 + rounding) * cho_solve((factor, True), one)


# -- the linear expansion of the network at a mode ---------------------------------------------------


def at_joint_mode(model: Any, params: Params, state: NetworkState, data: Any) -> dict[str, float]:
    """The noise scale at a joint mode, and the one that maximises the marginal likelihood there.

    Both are root mean squares over the targets. In the linear expansion of the network at the mode, all noise
    scales are multiplied by the factor that maximises the marginal likelihood. Nothing is returned if the noise
    is not learned, if it is not normal, or if the computation would take long.
    """
    if not _applies("marginal", model) or isinstance(model.likelihood, StudentT):
        return {}
    line = _line(model, params, state, data)
    if line is None:
        return {}
    if len(line.columns) <= len(line.columns.T):
        values, vectors = np.linalg.eigh(line.columns @ line.columns.T)
        along = (line.targets @ vectors) ** 2
    else:
        values, vectors = np.linalg.eigh(line.columns.T @ line.columns)
        seen = values > len(values) * np.finfo(np.float32).eps * values[-1]
        along = (line.targets @ line.columns @ vectors) ** 2
        along = np.where(seen, along / np.where(seen, values, 1), 0)
    values = np.maximum(values, 0)
    # The directions of the targets about which no weight says anything hold noise alone.
    others = float(data.total) * model.schema.outputs - len(values)
    rest = max(float(line.targets @ line.targets - along.sum()), 0.0)

    # The covariance of the targets has the eigenvalues `total`, if all noise scales are multiplied by a factor.
    squares = np.exp(2 * LOG_FACTORS)
    total = values + squares[:, None]
    loss = np.sum(np.log(total) + along / total, axis=1) + 2 * others * LOG_FACTORS + rest / squares
    factor = math.exp(LOG_FACTORS[np.argmax(line.log_prior - loss / 2)])
    scale = float(line.scale)
    return {"noise_scale": scale, "marginal_noise_scale": scale * factor}


def left_out(model: Any, params: Params, state: NetworkState, data: Any) -> dict[str, float]:
    r"""How wide the prediction of a row is that was left out, in units of the spread of the targets.

    In the linear expansion, the variance of a target given all others is one over the diagonal entry of
    :math:`(I + Z Z^\top)^{-1}`, in units of the noise. Nothing is returned if the noise is not the same for all
    rows, if the rows have weights, or if the computation would take long.
    """
    if data.weights is not None:
        return {}  # a row that counts twice is not left out by leaving it out once
    line = _line(model, params, state, data) if _same_noise(model) else None
    if line is None or not line.spread > 0:
        return {}
    columns = line.columns
    if len(columns) <= len(columns.T):
        share = np.diag(np.linalg.inv(np.eye(len(columns)) + columns @ columns.T))
    else:
        solved = np.linalg.solve(np.eye(len(columns.T)) + columns.T @ columns, columns.T)
        share = 1 - np.einsum("ij,ji->i", columns, solved)
    variance = 1 / np.maximum(share, np.finfo(np.float64).eps)
    return {"left_out_std": float(np.sqrt(np.mean(variance)) / line.spread)}


class _Line(NamedTuple):
    """The linear model at a mode, in units in which the noise and the prior have variance one.

    Attributes:
      columns: the derivatives of all outputs with respect to all weights.
      targets: what the weights, without their prior mean, explain together with the noise.
      spread: the standard deviation of the targets of the network.
      scale: the noise scale, in the units of the data.
      log_prior: the log prior density of the noise, multiplied by each factor of the grid.
    """

    columns: Any
    targets: Any
    spread: Any
    scale: Any
    log_prior: Any


def _line(model: Any, params: Params, state: NetworkState, data: Any) -> _Line | None:
    """The linear model, or ``None`` if it is large."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(model.split(params)[0]))
    count = data.rows * model.schema.outputs
    held = in_memory(data)
    if len(held.x) < data.rows:
        return None  # a source of which only a sample is in memory
    if min(count, weights) > LARGEST or count * weights > ENTRIES:
        return None
    found = jax.device_get(_linear_expansion(model, params, state, held))
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


@jit(static_argnames=("model",))
def _linear_expansion(model: Any, params: Params, state: NetworkState, data: Any) -> Any:
    network, learned = model.split(params)
    columns, root = _whitened_jacobian(jax.random.key(0), model, params, state, data)
    columns = columns.reshape(-1, columns.shape[2])
    leaves, priors = (
        jax.tree.leaves(tree) for tree in (network, model.split(model.leaf_priors(params))[0])
    )

    def distance(leaf, prior):
        mean, scale = prior.gaussian(leaf.shape)
        return jnp.ravel((widened(leaf) - mean) / scale)

    distances = [distance(leaf, prior) for leaf, prior in zip(leaves, priors, strict=True)]
    outputs = widened(model.network.apply(network, data.x, state))
    y = data.y.reshape(outputs.shape)
    residuals, centred = (y - outputs) @ root, (y - y.mean(0)) @ root
    variances = model.likelihood.variance(outputs[:1], learned)
    if data.weights is not None:
        residuals = residuals * roots(data.weights, residuals)
    with jax.default_matmul_precision("highest"):
        targets = residuals.reshape(-1) + columns @ jnp.concatenate(distances)

    def log_prior(log_factor):
        # A scale that is multiplied by c: its logarithm grows by log c, the entries of a factor by c.
        moved = {
            name: leaf * jnp.exp(log_factor) if name == "lower" else leaf + log_factor
            for name, leaf in (learned or {}).items()
        }
        return model.likelihood.log_prior(moved or None)

    priors_of_factors = jax.vmap(log_prior)(jnp.asarray(LOG_FACTORS, variances.dtype))
    spread, scale = jnp.sqrt(jnp.mean(centred**2)), jnp.sqrt(jnp.mean(variances))
    return _Line(columns, targets, spread, scale, priors_of_factors)
