"""Stochastic weight averaging (Izmailov et al., 2018) and SWAG (Maddox et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from credax.core import random
from credax.core.checks import integer, must, positive
from credax.core.programs import jit
from credax.core.settings import at_least, one_among, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.inference import noise
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.point import MAP, slope, start
from credax.model.data import ArrayData, Batch
from credax.model.sources.streamed import in_memory
from credax.posterior import Posterior
from credax.posterior.approximations import Draws
from credax.posterior.approximations.mixtures import GaussianMixture
from credax.tracing.convolutions import rearranged

COVARIANCES = ("low_rank", "diagonal", "none")
MOST_ROWS = 256
"""The largest default batch size."""
PROBES = 16
"""The number of rows, and of power iterations, from which the default rate of SGD is estimated."""
BATCHES = 8
"""The number of batches whose curvature limits the default rate of SGD."""
SETTLING = 200
"""The number of batches from which the batch statistics of the averaged weights are computed."""


class Seen(NamedTuple):
    """The batch of a step, and all rows (or a sample of those of a source), to find the default rate of SGD."""

    batch: Any
    data: Any


class State(NamedTuple):
    """The current weights of a member, and the moments of the iterates collected so far."""

    params: Params
    network: NetworkState
    optimiser: Any
    rate: Array  # the learning rate of SGD
    mean: Params  # of the collected iterates
    square: Params  # their sum of squared deviations from the mean
    deviations: Params  # the last `rank` of them; a spare place takes what is not collected
    spread: Any  # C of the noise's estimate


class Info(NamedTuple):
    """The info of a step."""

    log_joint: Array  # minibatch estimate, at the parameters before the step
    step_size: Array  # the learning rate of SGD; zero during training


@dataclass(frozen=True)
class SWAG(Method):
    r"""A Gaussian with the mean and covariance of SGD iterates around the optimum.

    After training, SGD with a constant learning rate moves around the optimum. From every ``thin``-th iterate,
    the method computes

    .. math::
        \bar w_n = \tfrac{1}{n} \sum_{i \le n} w_i, \quad
        \Sigma_\text{diag} = \operatorname{diag}\left(\tfrac{1}{n} \sum_i (w_i - \bar w_n)^2\right), \quad
        D = [w_i - \bar w_i]_{i > n - K}

    .. math::
        q(w) = N\left(\bar w_n,\;
        \tfrac{1}{2} \Sigma_\text{diag} + \tfrac{1}{2 (K - 1)} D D^\top\right)

    With several members (MultiSWAG), the posterior is a mixture of such Gaussians, each around its own optimum.

    Args:
      members: the number of networks, trained from different initial weights.
      covariance: the covariance of q: ``"low_rank"`` (as above), ``"diagonal"`` (:math:`\Sigma_\text{diag}`),
        or ``"none"`` (zero: stochastic weight averaging, a point estimate at :math:`\bar w_n`).
      rank: the number of deviations K in D.
      num_warmup: the number of training steps before SGD, as in ``MAP``. Use 0 to continue from a trained
        network with ``fit(..., start=posterior)``.
      num_steps: the total number of steps, training and SGD together.
      thin: the number of SGD steps between two collected iterates.
      batch_size: the number of rows per step, drawn independently at every step. If ``None``, a tenth of the
        rows, but at least 2 and at most 256. Unless ``covariance="none"``, it must be below the number of rows,
        since the spread of the iterates comes from the noise of the minibatches.
      learning_rate: the learning rate in training. A number decays to zero along a cosine; an optax schedule is
        used unchanged.
      optimiser: the optimiser in training: its name in ``optax``, or an optax transformation.
      sgd_learning_rate: the constant learning rate of SGD, for the loss averaged over the rows. If ``None``,
        the rate for which the iterates are closest to the posterior (Mandt et al., 2017), limited to rates for
        which SGD is stable.
      noise: how a noise scale that the likelihood learns is estimated, under a Gaussian prior of the weights:
        ``"marginal"`` by its marginal likelihood, ``"mode"`` at the joint mode of weights and noise, where it
        is too small if the network has many weights.

    References: Maddox et al., A simple baseline for Bayesian uncertainty in deep learning, 2019; Izmailov et
    al. (2018) for stochastic weight averaging; Wilson & Izmailov (2020) for MultiSWAG.
    """

    members: int = setting(1, integer)
    covariance: str = setting("low_rank", one_among(*COVARIANCES))
    rank: int = setting(20, at_least(2))
    num_warmup: int = setting(2_000, at_least(0))
    num_steps: int = setting(4_000, integer)
    thin: int = setting(10, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    sgd_learning_rate: float | None = setting(None, optional(positive))
    noise: str = setting("marginal", one_among(*noise.CHOICES))

    kind = "approximate"
    needs = frozenset({"gradient", "likelihood"})
    when_diverged = (
        "Lower sgd_learning_rate (if it was in the SGD phase) or learning_rate, or scale x and y to unit "
        "variance."
    )

    when = "a network that is trained with SGD anyway"
    errs = (
        "it sees the surroundings of one optimum: up to twenty times too sure far from the data, and with "
        "fewer than a few hundred rows also off in the mean"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.num_warmup >= self.num_steps:
            allowed = f"below num_steps, {self.num_steps}"
            raise ValueError(must("SWAG", "num_warmup", allowed, self.num_warmup))

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One replica for each member."""
        return self.members

    @property
    def training(self) -> MAP:
        """The method that trains a member."""
        return MAP(max(self.num_warmup, 1), None, self.learning_rate, self.optimiser)

    def check(self, model, data: Any):
        """Also refuse batches of all rows."""
        super().check(model, data)
        if self.batch_size == data.rows and self.covariance != "none":
            allowed = (
                f"below the number of rows, {data.rows}: all rows together have no sampling noise"
            )
            raise ValueError(must("SWAG", "batch_size", allowed, self.batch_size))

    def batch(self, key, model, data, step) -> Any:
        """Rows that are drawn independently at every step.

        Within an epoch without replacement, the noise of the batches would add up to zero.
        """
        first = jnp.zeros((), jnp.int32)
        batch = data.batch(jax.random.fold_in(key, step), first, self.rows_of(data))
        return Seen(noise.with_all_rows(self.noise, model, data, batch), in_memory(data))

    def rows_of(self, data: ArrayData) -> int:
        """The number of rows per step."""
        return self.batch_size or max(min(max(data.rows // 10, 2), MOST_ROWS, data.rows - 1), 1)

    def init(self, key, model, data):
        """Initialise the weights as the network does."""
        first = start(self.training, key, model)
        zeros = jax.tree.map(jnp.zeros_like, first.params)
        room = self.rank + 1 if self.covariance == "low_rank" else 0
        deviations = jax.tree.map(lambda w: jnp.zeros((room, *w.shape), w.dtype), first.params)
        rate = jnp.asarray(self.sgd_learning_rate or 0.0, jnp.result_type(float))
        spread = noise.no_spread(self.noise, model)
        return State(*first, rate, first.params, zeros, deviations, spread)

    def step(self, key, state, model, batch: Any, step):
        """Take one training step, or one SGD step whose iterate may be collected."""
        seen, data = batch
        training = step < self.num_warmup
        rate = state.rate
        key, spread, batch, objective = noise.marginal(
            key, state.spread, model, state, seen, step, self.num_steps
        )
        if self.sgd_learning_rate is None:
            key, rate_key = jax.random.split(key)
            find = lambda: sgd_rate(rate_key, model, state, batch, data)  # noqa: E731
            rate = lax.cond(step == self.num_warmup, find, lambda: state.rate)
        value, network, gradient = slope(key, state, objective, batch)
        value -= noise.correction(model, state.params, spread)
        updates, optimiser = make_optimiser(self.training).update(
            gradient, state.optimiser, state.params
        )

        def choose(update, g):
            return jnp.where(training, update, -rate.astype(g.dtype) * g)

        params = optax.apply_updates(state.params, jax.tree.map(choose, updates, gradient))
        state = state._replace(
            params=params, network=network, optimiser=optimiser, rate=rate, spread=spread
        )
        state = self._collect(state, step)
        shown = jnp.where(training, jnp.zeros_like(rate), rate)
        return state, Info(value, shown)

    def collected(self, steps: Any) -> Any:
        """The number of collected iterates after ``steps`` steps, training included."""
        return (steps - self.num_warmup).clip(0) // self.thin

    def _collect(self, state: State, step: Array) -> State:
        """The moments after this step, by Welford's algorithm: sums of squares would cancel in float32."""
        before, count = self.collected(step), self.collected(step + 1)
        collected = count > before
        # Before the first collected iterate, the mean is the current weights.
        share = 1 / jnp.maximum(count, 1).astype(jnp.result_type(float))
        share = jnp.where(collected | (count == 0), share, jnp.zeros_like(share))
        rest = jnp.where(collected, 1 - share, jnp.zeros_like(share))
        place = jnp.where(collected, before % self.rank, self.rank)

        def add(factor, power):
            return lambda total, d: total + factor.astype(d.dtype) * d**power

        ahead = jax.tree.map(jnp.subtract, state.params, state.mean)
        mean = jax.tree.map(add(share, 1), state.mean, ahead)
        square = jax.tree.map(add(rest, 2), state.square, ahead)
        deviations = state.deviations
        if self.covariance == "low_rank":
            # The deviation from the new mean is this fraction of the deviation from the old one.
            put = lambda room, d: lax.dynamic_update_index_in_dim(  # noqa: E731
                room, rest.astype(d.dtype) * d, place, 0
            )
            deviations = jax.tree.map(put, deviations, ahead)
        return state._replace(mean=mean, square=square, deviations=deviations)

    def posterior(self, model, trace: Any):
        """The Gaussian of each member's iterates, with the network state for the averaged weights."""
        state: State = trace.state
        network = state.network
        if jax.tree.leaves(network):
            # Early stopping needs this too: with the batch statistics of other weights, predictions are bad.
            network = _settled(model, self, trace.key, state.mean, network, _held(trace.data))
        mean, network, square, deviations = jax.device_get(
            (state.mean, network, state.square, state.deviations)
        )
        count = int(self.collected(np.asarray(trace.steps)))
        if self.covariance == "none":
            one = jax.tree.map(lambda leaf: leaf[:, None], Draw(mean, network))
            return Posterior(model, Draws(*one))
        kept = min(count, self.rank)
        low_rank = self.covariance == "low_rank"

        def scale(square):
            variance = square / max(count, 1)
            return np.sqrt(variance / 2 if low_rank else variance).astype(square.dtype)

        def factor(deviations):
            factor = deviations[:, : self.rank] / np.sqrt(2 * max(kept - 1, 1))
            return factor.astype(deviations.dtype)

        scales = jax.tree.map(scale, square)
        return Posterior(
            model, GaussianMixture(mean, scales, jax.tree.map(factor, deviations), network)
        )


# -- the default rate of SGD, and the batch statistics of averaged weights -------------------------


def sgd_rate(key: Key, model: Any, state: Any, batch: Batch, data: Any) -> Array:
    r"""The default learning rate for SGD around an optimum.

    .. math:: \min\left(\frac{2 S D}{N \operatorname{tr} C}\, \frac{N - 1}{N - S},\; \frac{1}{\lambda}\right)

    with the number of rows N, the batch size S, the number of weights D, the covariance C of the gradients of
    single rows (Mandt et al., 2017), and the largest curvature :math:`\lambda` of the loss of a batch. The
    batches differ in it, much so if they are small and the targets are counts, and SGD must be stable on all of
    them: :math:`\lambda` is the largest among ``BATCHES`` batches.
    """
    optimum, network = Flat.of(state.params), state.network
    size, count, total = len(batch.y), batch.rows, batch.total
    dtype = total.dtype

    def loss_gradient(vector, batch):
        point = Flat(vector, optimum.structure, optimum.leaves)
        loss = lambda flat: -model.log_joint(flat.tree, batch, state=network) / total  # noqa: E731
        return jax.grad(loss)(point).vector

    # By finite differences: a network with a custom derivative may not be differentiable twice.
    reach = 1e-2 * jnp.maximum(jnp.linalg.norm(optimum.vector), 1)

    def turn(batch, _, carry):
        direction, _ = carry
        ahead, behind = (
            loss_gradient(optimum.vector + s * reach * direction, batch) for s in (1, -1)
        )
        product = (ahead - behind) / (2 * reach)
        length = jnp.linalg.norm(product)
        return product / jnp.maximum(length, jnp.finfo(length.dtype).tiny), length

    def largest_curvature(key):
        rows_key, key = jax.random.split(key)
        rows = in_memory(data).batch(rows_key, jnp.zeros((), jnp.int32), size)
        direction = random.noise(key, optimum.vector.shape, optimum.vector.dtype)
        first = (direction / jnp.linalg.norm(direction), jnp.zeros((), direction.dtype))
        return lax.fori_loop(0, PROBES, partial(turn, rows), first)[1]

    curvature = jnp.max(lax.map(largest_curvature, jax.random.split(key, BATCHES)))

    def row_gradient(row):
        one = Batch.of(*jax.tree.map(lambda a: a[None], row))
        likelihood = lambda flat: model.log_likelihood(flat.tree, one, state=network)  # noqa: E731
        return jax.grad(likelihood)(optimum).vector

    weights = batch.weights
    if batch.mean_weight is not None:
        weights = (jnp.ones(size, dtype) if weights is None else weights) / batch.mean_weight
    probes = jax.tree.map(lambda a: a[:PROBES], (batch.x, batch.y, weights))
    gradients = lax.map(row_gradient, probes)
    spread = jnp.sum((gradients - gradients.mean(0)) ** 2) / max(len(gradients) - 1, 1)
    stable = 1 / curvature.astype(dtype)
    noise = total * spread.astype(dtype) * (count - size) / (count - 1)
    nearest = 2 * size * optimum.size / noise
    return jnp.where(noise * stable > 2 * size * optimum.size, nearest, stable)


def _held(data: Any) -> ArrayData:
    """The rows in memory: all rows of arrays, and a random sample of a source."""
    held = in_memory(data)
    return ArrayData(*jax.tree.map(jnp.asarray, (held.x, held.y)))


@jit(static_argnames=("model", "method"))
def _settled(model, method, key, means, networks, data):
    """The network state of each member for its averaged weights.

    It is the mean of the network state over the second half of ``SETTLING`` batches.
    """
    size = min(data.rows, 4 * MOST_ROWS)

    def one(key, params, network):
        params = model.split(params)[0]

        def look(carry, i):
            network, total = carry
            batch_key, network_key = jax.random.split(jax.random.fold_in(key, i))
            batch = data.batch(batch_key, jnp.zeros((), jnp.int32), size)
            call = partial(model.network.call, params, batch.x, key=network_key, train=True)
            network = call(state=network)[1]
            share = jnp.where(i < SETTLING // 2, 0.0, 2 / SETTLING)

            def add(total, value):
                number = jnp.issubdtype(value.dtype, jnp.inexact)  # counts are not averaged
                return total + share.astype(value.dtype) * value if number else value

            return (network, jax.tree.map(add, total, network)), None

        zeros = jax.tree.map(jnp.zeros_like, network)
        (_, average), _ = lax.scan(rearranged(look), (network, zeros), jnp.arange(SETTLING))
        return average

    return jax.vmap(one)(jax.random.split(key, method.members), means, networks)
