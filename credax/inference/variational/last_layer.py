"""A variational posterior of the last layer, without sampling (Harrison, Willes & Snoek, 2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.scipy.linalg import solve_triangular

from credax.core.checks import integer, must, number
from credax.core.programs import jit
from credax.core.settings import optional, setting
from credax.core.typing import Array, NetworkState
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.variational.expected import expected_log_prob
from credax.inference.variational.layer import Last, Layer, Seen
from credax.model import Model
from credax.model.likelihoods import Categorical, Gaussian, Poisson
from credax.model.sources.streamed import SourceData
from credax.posterior import Estimate, Posterior
from credax.posterior.approximations.normals import FullNormal

FULL_BYTES = 1 << 30
"""The most bytes that the covariance of the last layer may take."""
BLOCK = 4096
"""The number of rows whose features are computed at once at the end of a run."""
REFINEMENTS, REFINEMENT_RATE = 100, 0.5
"""The updates of the last layer at the end of a run, if one is not enough."""
FARTHEST = 1.0
"""The farthest that an update may move the log mean of a count: the steps of Newton's method from a mean far
below the counts would lead to means beyond all numbers."""
NARROW = 1e6
"""The precision with which q of counts begins, in units of the prior. The first step renews all of it, and only
needs expected counts that are numbers: under a wide prior, they are the exponentials of hundreds."""


def _share(owner: str, name: str, value: Any) -> float:
    allowed = "above 0 and at most 1"
    result = number(owner, name, value, allowed)
    if not 0 < result <= 1:
        raise ValueError(must(owner, name, allowed, value))
    return result


class State(NamedTuple):
    """The state of the run."""

    others: Any  # all weights but those of the last layer, and what the likelihood learns
    last: Last
    network: NetworkState
    optimiser: Any


class Info(NamedTuple):
    """The info of a step."""

    bound: Array  # minibatch estimate of the bound, before the other weights move


@dataclass(frozen=True)
class VariationalLastLayer(Method):
    r"""A normal posterior of the last layer on features that are trained along with it, without sampling.

    The outputs are :math:`f_k = w_k^\top \phi(x)`, where the features :math:`\phi` come from all other layers.
    For :math:`q(w_k) = N(m_k, \Lambda_k^{-1})`, each output of a row is normal, with a mean and a variance
    :math:`v_k = \phi^\top \Lambda_k^{-1} \phi` that are known, and

    .. math:: \mathcal{L} = \sum_i E_q\left[\log p(y_i \mid f(x_i))\right] - \mathrm{KL}(q \,\|\, p)

    has a closed form for Gaussian noise and for counts, a lower bound in closed form for classes (Jensen's
    inequality), and is integrated numerically for labels of 0 and 1. Each step moves q along the natural
    gradient,

    .. math::
        \Lambda_k &\leftarrow (1 - \rho) \Lambda_k
            + \rho \left(P - 2\, \nabla_{\Sigma_k} E_q[\log p(D \mid w)]\right), \\
        m_k &\leftarrow m_k + \rho\, \Lambda_k^{-1} \nabla_{m_k} \mathcal{L},

    with the prior's precision P, and all other weights and the noise along the gradient of
    :math:`\mathcal{L} + \log p(\text{other weights})`. At the end, the features of all rows are computed once,
    and q is optimised for them; of a source, they are all that is held in memory. For Gaussian noise this is
    the exact posterior of the last layer given the features and the noise.

    Args:
      num_steps: the number of steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the other weights. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax`` (``"adam"``, ``"sgd"``, ...), or an optax transformation.
      last_layer_rate: rho, the share by which a step renews q. The first steps renew more: step t at least
        1 / t.

    References: Harrison, Willes & Snoek, Variational Bayesian last layers, 2024; Khan & Lin, Conjugate-
    computation variational inference, 2017, for the natural gradient.
    """

    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    last_layer_rate: float = setting(0.1, _share)

    kind = "approximate"
    needs = frozenset({"gradient", "likelihood", "trained state"})
    can = frozenset()  # not "sum parts": a step needs the features of all rows of its batch
    when = "uncertainty at the cost of ordinary training, in one pass and without sampling"
    errs = "the features are taken to be known: too sure where other features would fit as well"

    def check(self, model: Any, data: Any) -> None:
        """Also refuse a model whose last layer has no such posterior."""
        super().check(model, data)
        layer = Layer(model, data.x)
        size = layer.weights**2 * np.dtype(jnp.result_type(float)).itemsize
        if size > FULL_BYTES:
            raise ValueError(
                f"VariationalLastLayer needs a matrix of all {layer.weights:,} weights of the last layer, "
                f"{size / 2**30:,.1f} GiB; the limit is {FULL_BYTES / 2**30:g} GiB. Narrow the layer before "
                "it, or use Laplace(structure='kronecker')."
            )

    def init(self, key, model, data: Any):
        """The initial weights of the network; the last layer has the covariance of the prior."""
        layer = Layer(model, data.x)
        others, mean = layer.split(model.init(key))
        narrow = NARROW if isinstance(model.likelihood, Poisson) else 1.0
        identity = narrow * jnp.eye(len(mean), dtype=mean.dtype)
        precision = jnp.broadcast_to(identity, (mean.shape[1], *identity.shape))
        optimised = make_optimiser(self).init(others)
        return State(others, Last(mean, precision), model.init_state(), optimised)

    def step(self, key, state, model, batch: Any, step):
        """Renew q, then take one optimiser step with all other weights."""
        layer = Layer(model, batch.x)
        dtype = state.last.mean.dtype
        rate = jnp.maximum(jnp.asarray(self.last_layer_rate, dtype), 1 / (1 + step.astype(dtype)))
        seen = layer.rows_of(state.others, state.network, batch.x)
        counts = batch.scale if batch.weights is None else batch.scale * batch.weights
        last = renewed(model, state.last, seen, batch.y, state.others[1], counts, rate)

        def objective(others):
            seen = layer.rows_of(others, state.network, batch.x)
            value = bound(model, last, seen, batch.y, others[1], counts)
            return value + model.log_prior(layer.join(others, jnp.zeros_like(last.mean))), value

        (_, value), gradient = jax.value_and_grad(objective, has_aux=True)(state.others)
        descent = jax.tree.map(lambda g: -g / jnp.asarray(batch.total, g.dtype), gradient)
        updates, optimised = make_optimiser(self).update(descent, state.optimiser, state.others)
        others = optax.apply_updates(state.others, updates)
        return State(others, last, state.network, optimised), Info(value)

    def posterior(self, model, trace):
        """The normal distribution of the last layer; all other weights are fixed."""
        state: State = jax.tree.map(lambda leaf: leaf[0], trace.state)
        return Posterior(model, _normal(model, trace.data, state, state.last))

    def finish(self, posterior, trace: Any):
        """Optimise q for the final features of all rows; also add its bound."""
        model: Any = posterior.model
        state: State = jax.tree.map(lambda leaf: leaf[0], trace.state)
        seen, y = _gathered(model, state, trace.data)
        once = isinstance(model.likelihood, Gaussian)
        with jax.enable_x64(True):
            double = jax.tree.map(
                lambda leaf: jnp.asarray(np.float64(leaf)),
                jax.device_get((state.last, seen, state.others[1])),
            )
            y = jnp.asarray(np.float64(y) if y.dtype.kind == "f" else y)
            weights = trace.data.weights
            counts = jnp.asarray(np.float64(1 if weights is None else weights))
            last, value = jax.device_get(_optimised(model, once, *double, y, counts))
        info = {"last_layer_elbo": float(value), "features": len(last.mean)}
        elbo = None
        if not jax.tree.leaves(state.others):  # otherwise it is a bound only for these features
            elbo = Estimate(float(value), 0.0, "too low: a lower bound")
        return replace(
            posterior,
            approximation=_normal(model, trace.data, state, last),
            info=info,
            elbo=elbo,
        )


# -- the posterior of the last layer ------------------------------------------------------------------


def moments(last: Last, seen: Seen) -> tuple[Array, Array]:
    """The mean and the variance of each output of each row."""
    mean = seen.base + seen.features @ last.mean

    def variance(precision):
        along = solve_triangular(_root(precision), seen.features.T, lower=True)
        return jnp.sum(along**2, axis=0)

    return mean, jax.vmap(variance)(last.precision).T


def _root(precision: Array) -> Array:
    """The Cholesky factor; what rounding may take away from the eigenvalues is added first."""
    rounding = jnp.finfo(precision.dtype).eps * jnp.max(jnp.sum(jnp.abs(precision), axis=1))
    return jnp.linalg.cholesky(
        precision + rounding * jnp.eye(len(precision), dtype=precision.dtype)
    )


def bound(model: Model, last: Last, seen: Seen, y: Array, learned: Any, counts: Any) -> Array:
    """The expected log likelihood, in which each row counts ``counts`` times, minus the KL from the prior."""
    mean, variance = moments(last, seen)
    likely = jnp.sum(counts * expected_log_prob(model.likelihood, mean, variance, y, learned))

    def kl(precision):
        root = _root(precision)
        inverse = solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True)
        return 0.5 * (jnp.sum(inverse**2) - len(root)) + jnp.sum(jnp.log(jnp.diagonal(root)))

    distance = jnp.sum(jax.vmap(kl)(last.precision)) + 0.5 * jnp.sum(last.mean**2)
    return likely - distance


def renewed(model: Model, last: Last, seen: Seen, y, learned, counts: Any, rate: Any) -> Last:
    """q after one step along the natural gradient."""

    def likely(mean, variance):
        each = expected_log_prob(model.likelihood, mean, variance, y, learned)
        return jnp.sum(counts * each)

    # Not a part of the gradient with respect to the features, which sees q as it is.
    last, seen, learned = lax.stop_gradient((last, seen, learned))
    mean, variance = moments(last, seen)
    if isinstance(model.likelihood, Poisson):
        mean, variance = _countable(mean, variance, y, counts)
    slope, curvature = jax.grad(likely, (0, 1))(mean, variance)
    with jax.default_matmul_precision("highest"):
        # Twice the derivative with respect to the variance is the expected second derivative.
        gathered = jnp.einsum("rf,rk,rg->kfg", seen.features, -2 * curvature, seen.features)
        identity = jnp.eye(len(last.mean), dtype=last.mean.dtype)
        precision = (1 - rate) * last.precision + rate * (identity + gathered)
        pull = seen.features.T @ slope - last.mean

        def move(matrix, column):
            root = _root(matrix)
            half = solve_triangular(root, column, lower=True)
            return solve_triangular(root, half, lower=True, trans=1)

        change = rate * jax.vmap(move, (0, 1), 1)(precision, pull)
        if isinstance(model.likelihood, Poisson):
            farthest = jnp.max(jnp.abs(seen.features @ change))
            change = change * (FARTHEST / jnp.maximum(farthest, FARTHEST))
        mean = last.mean + change
    if isinstance(model.likelihood, Categorical):
        # Probabilities do not change if a number is added to all outputs, and the prior wants none.
        mean = mean - jnp.mean(mean, axis=1, keepdims=True)
    return Last(mean, precision)


def _countable(mean: Array, variance: Array, y: Array, counts: Any) -> tuple[Array, Array]:
    """The moments where no row is expected to have more than all counts together, and one for each row.

    At the optimum none has, since the expected counts of all rows add up to the counts. Elsewhere, the
    exponential of a large variance would give a curvature from which q takes long to recover, or infinity.
    """
    most = jnp.log(jnp.sum(jnp.broadcast_to(counts, len(y)) * (1 + y.reshape(len(y), -1).max(1))))
    mean = jnp.minimum(mean, most.astype(mean.dtype))
    return mean, jnp.minimum(variance, 2 * (most.astype(mean.dtype) - mean))


def _gathered(model: Model, state: State, data: Any) -> tuple[Seen, np.ndarray]:
    """What the last layer sees of all rows, and their targets; of a source, a block of rows at a time."""
    blocks = data.chunks() if isinstance(data, SourceData) else [data]
    found = [
        jax.device_get((_all_features(model, state.others, state.network, block), block.y))
        for block in blocks
    ]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)


@jit(static_argnames=("model",))
def _all_features(model: Model, others: Any, state: NetworkState, data: Any) -> Seen:
    """What the last layer sees of all rows, computed in blocks."""
    layer = Layer(model, data.x)
    size = min(data.rows, BLOCK)

    def one(row):
        return jax.tree.map(lambda a: a[0], layer.rows_of(others, state, row[None]))

    return lax.map(one, data.x, batch_size=size)


@jit(static_argnames=("model", "once"))
def _optimised(model: Model, once: bool, last: Last, seen: Seen, learned: Any, y: Array, counts):
    """q at the optimum for given features, and its bound, which no step may lower."""
    value = lambda last: bound(model, last, seen, y, learned, counts)  # noqa: E731
    if once:
        last = renewed(model, last, seen, y, learned, counts, 1.0)
        return last, value(last)

    def refine(_, state):
        last, before, rate = state
        moved = renewed(model, last, seen, y, learned, counts, rate)
        after = value(moved)
        better = (after >= before) | ~jnp.isfinite(before)
        last = jax.tree.map(lambda new, old: jnp.where(better, new, old), moved, last)
        rate = jnp.where(better, jnp.minimum(2 * rate, REFINEMENT_RATE), rate / 2)
        return last, jnp.where(better, after, before), rate

    begin = (last, value(last), jnp.asarray(REFINEMENT_RATE, last.mean.dtype))
    return lax.fori_loop(0, REFINEMENTS, refine, begin)[:2]


def _normal(model: Any, data: Any, state: State, last: Last) -> FullNormal:
    return Layer(model, data.x).normal(state.others, jax.device_get(last), state.network)
