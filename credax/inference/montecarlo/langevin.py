"""Langevin dynamics on minibatch gradients: SGLD (Welling & Teh, 2011) and SGHMC (Chen et al., 2014)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.checks import fraction, integer, must, number, positive
from credax.core.precision import widened
from credax.core.settings import one_among, optional, setting
from credax.core.typing import Array, Draw, NetworkState, Params
from credax.inference.montecarlo import schedules
from credax.inference.montecarlo.chain import Chains
from credax.posterior import Posterior
from credax.posterior.approximations import Draws

MEMORY = 10
"""The mean square of the gradients is an average over about the last tenth of the steps, so that the steep
start of a run is forgotten."""
STEEP = 10.0
"""A gradient this many times larger than its root mean square shows that the density has become steeper, so
that steps must be shorter."""


ESCAPED, LEAST, LAG = 3.0, 20.0, 50
"""The nats that the log likelihood may lose: per weight, or per row if there are fewer rows (a draw of a normal
posterior is at most half a nat per weight below its mode), and in any case. The last number is that of the
steps over which it is averaged."""
NOISE = 10.0
"""By how many standard deviations of its estimates from minibatches it may be lower."""
SHORTEST = 2.0**-20
"""With steps shorter than this share of the default, a chain has no place to go."""


class Sound(NamedTuple):
    """Where a chain with a default step size was when it still explained the data."""

    params: Params
    typical: Array  # the mean log likelihood of the last steps
    best: Array  # the highest of these means
    spread: Array  # the mean square by which batches differ from it
    share: Array  # the share of the longest step size that is used


class State(NamedTuple):
    """The position and momentum of a chain."""

    params: Params
    momentum: Params  # with unit variance in every coordinate; () for SGLD
    square: Params  # the mean square of the gradient; () without a preconditioner
    network: NetworkState
    sound: Any  # a Sound; () for a step size that was given


class Info(NamedTuple):
    """The figures of a step."""

    log_joint: Array  # minibatch estimate, at the position before the step
    gradient_norm: Array  # of the same estimate, divided by the number of rows
    step_size: Array


class NoisyInfo(NamedTuple):
    """The figures of a step of SGLD with added noise."""

    log_joint: Array
    gradient_norm: Array
    step_size: Array
    inflation: Array  # an estimate of the relative excess of the draws' variance, averaged over the weights


class Force(NamedTuple):
    """The terms that move a chain in one step."""

    gradient: Params  # of the log joint, estimated from the batch
    metric: Params  # the step size times the preconditioner, epsilon G
    temperature: Array


@dataclass(frozen=True)
class LangevinChains(Chains):
    """Base class of SGLD and SGHMC: step sizes, preconditioner, temperature and the weights of the draws."""

    num_warmup: int = 5_000
    num_draws: int = 1_000
    thin: int = 10
    batch_size: int | None = setting(None, optional(integer))
    step_size: float | Callable[[Array], Array] | None = setting(
        None, optional(schedules.size_or_schedule)
    )
    # With a decay above 1, the step sizes have a finite sum, and the chain would come to a halt.
    decay: float | None = setting(None, optional(schedules.above_zero_to_one))
    cycles: int | None = setting(None, optional(integer))
    exploration: float = setting(0.5, fraction)
    preconditioner: str | None = setting("rmsprop", one_among(None, "rmsprop"))
    temperature: float = setting(1.0, positive)

    longest = 0.04
    """The default step size of a chain that never escapes."""
    kind = "approximate"  # the bias of steps of finite size, and the noise of minibatches, remain
    needs = frozenset({"gradient", "likelihood"})
    when_diverged = (
        "Lower step_size, scale x and y to unit variance, or start from an optimum: "
        "fit(..., start=cx.fit(model, data, cx.MAP()))."
    )

    def __post_init__(self):
        super().__post_init__()
        schedules.check_schedule(self)
        name = type(self).__name__
        if self.cycles is not None and self.num_draws % self.cycles:
            allowed = f"a divisor of num_draws, {self.num_draws}"
            raise ValueError(must(name, "cycles", allowed, self.cycles))

    @property
    def num_steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The steps of warm-up, exploration and drawing."""
        return self.num_warmup + schedules.num_steps(self)

    def check(self, model, data):
        """Refuse a ``LogDensity``, which has no data to take minibatches of."""
        if not hasattr(model, "log_likelihood"):
            raise TypeError(
                f"{type(self).__name__} needs a Model and its data, of which it takes minibatches; got a "
                f"{type(model).__name__}. Use HMC, NUTS or MCLMC."
            )
        super().check(model, data)

    def check_start(self, states):
        """Check nothing: all rows may be too many to evaluate at once, and the first step shows a batch."""

    def init(self, key, model, data):
        """The network's initial weights, or a draw from the prior."""
        key, momentum_key = jax.random.split(key)
        from_prior = self.initial == "prior" and not model.started
        params = (model.sample_prior if from_prior else model.init)(key)
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.result_type(float)), params)
        square = () if self.preconditioner is None else zeros
        momentum = self.first_momentum(momentum_key, zeros)
        sound = ()
        if self.step_size is None:
            lowest = jnp.full((), -jnp.inf, jnp.result_type(float))
            sound = Sound(params, lowest, lowest, -lowest, jnp.ones_like(lowest))
        return State(params, momentum, square, model.init_state(), sound)

    def first_momentum(self, key, like: Params) -> Params:
        """The momentum at the start; ``()`` for dynamics without momentum."""
        return ()

    def force(self, key, state: State, model, batch, step) -> tuple[Force, Info, State]:
        """The terms that move the chain, the figures of the step, and the state before it has moved."""
        evaluate = jax.value_and_grad(model.train_log_joint, has_aux=True)
        (value, network), gradient = evaluate(state.params, batch, state.network, key)
        gradient = jax.tree.map(widened, gradient)
        step_size = schedules.step_size(self, step)
        rows, square = batch.total, state.square
        if self.step_size is None:
            prior = widened(model.log_prior(state.params))
            state, gradient, fit = self._kept_sound(state, gradient, value - prior, rows, step)
            value = fit + jnp.where(jnp.isfinite(prior), prior, 0)
            step_size *= state.sound.share
        if self.preconditioner is None:
            metric = jax.tree.map(lambda _: step_size / rows, gradient)
        else:
            square = jax.tree.map(partial(self._mean_square, step), square, gradient)
            metric = jax.tree.map(lambda v: step_size * lax.rsqrt(rows * (1 + v)), square)
        exploring = schedules.exploring(self, step)
        temperature = jnp.where(exploring, 0.0, jnp.full_like(rows, self.temperature))
        norm = jnp.sqrt(jax.tree.reduce(lambda total, g: total + jnp.sum(g**2), gradient, 0.0))
        info = Info(value, norm / rows, step_size)
        state = state._replace(square=square, network=network)
        return Force(gradient, metric, temperature), info, state

    def _kept_sound(self, state: State, gradient: Params, value: Array, rows: Array, step: Array):
        """The state, gradient and log likelihood of a chain that has not escaped.

        Where the density is steeper than the step size allows, a chain leaves the places that explain the data,
        and what it finds there is no draw: these places have a probability of e to the minus hundreds. It then
        returns to the last sound place, and goes on without its momentum and with steps of half the size.
        """
        sound: Any = state.sound
        size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        lost = ESCAPED * jnp.minimum(rows, size) + LEAST
        if self.batch_size is not None or getattr(self, "sgd_batch_size", None) is not None:
            lost += NOISE * jnp.sqrt(sound.spread).astype(lost.dtype)
        best = sound.best.astype(value.dtype)
        escaped = ~(value >= best - max(1.0, self.temperature) * lost.astype(value.dtype))
        escaped &= step > 0  # a start that is NaN is the user's, and stays an error
        choose = partial(jnp.where, escaped)
        value = choose(sound.typical.astype(value.dtype), value)
        value = jnp.where(sound.share < SHORTEST, jnp.nan, value)
        first = step == 0
        mean = sound.typical + (value.astype(best.dtype) - sound.typical) / LAG
        mean = jnp.where(first, value.astype(mean.dtype), mean)
        # Before the second step nothing is known but the size of the first value.
        square = jnp.where(first, value.astype(mean.dtype), value.astype(mean.dtype) - mean) ** 2
        spread = jnp.where(first, square, sound.spread + (square - sound.spread) / LAG)
        due = first | (step % LAG == 0)
        params = jax.tree.map(choose, sound.params, state.params)
        sound = Sound(
            jax.tree.map(partial(jnp.where, due), params, sound.params),
            mean,
            jnp.maximum(sound.best, mean),
            choose(sound.spread, spread),
            choose(sound.share / 2, sound.share),
        )
        still = lambda leaf: choose(jnp.zeros_like(leaf), leaf)  # noqa: E731
        momentum, gradient = (jax.tree.map(still, tree) for tree in (state.momentum, gradient))
        return state._replace(params=params, momentum=momentum, sound=sound), gradient, value

    def _mean_square(self, step, square, gradient):
        """The mean square of the gradient after a step.

        It is learned only while no draws are kept, since a preconditioner that follows the chain would change
        its stationary distribution. Afterwards it grows only if the density becomes much steeper, so that the
        chain cannot diverge there.
        """
        rate = MEMORY / (MEMORY + step.astype(gradient.dtype))
        learned = square + rate * (gradient**2 - square)
        fixed = jnp.maximum(square, gradient**2 / STEEP**2)
        # Without a warm-up, it is learned from the first gradient alone.
        warming_up = step < max(self.num_warmup, 1)
        return jnp.where(warming_up | schedules.exploring(self, step), learned, fixed)

    def keep(self, state):
        """The parameters of the chain."""
        return Draw(state.params, state.network)

    def posterior(self, model, trace):
        """All draws except those of exploration, weighted by the sizes of their steps."""
        draws: Any = trace.draws
        if schedules.constant(self):
            return super().posterior(model, trace)
        count = jax.tree.leaves(draws)[0].shape[1]
        kept = self.num_warmup + self.thin * np.arange(1, count + 1) - 1
        chosen = np.flatnonzero(~schedules.exploring(self, kept))
        if not len(chosen):
            chosen = np.arange(count)[-1:]  # a run that was stopped before its first draw
        draws = jax.tree.map(lambda leaf: leaf[:, chosen], draws)
        with np.errstate(divide="ignore"):  # a step of size zero has weight zero
            log_weights = np.log(trace.info["step_size"][:, kept[chosen]])
        return Posterior(
            model, Draws(draws.params, draws.state, log_weights), info={"kept": kept[chosen]}
        )


@dataclass(frozen=True)
class SGLD(LangevinChains):
    r"""Stochastic gradient Langevin dynamics: gradient ascent on minibatches, with noise added to every step.

    .. math::
        w \leftarrow w + \frac{\epsilon}{2} G\, \nabla \log \hat p(w, D) + \sqrt{\epsilon\, T\, G}\; \xi,
        \qquad \xi \sim N(0, I)

    where the gradient is an unbiased estimate from a batch of the N rows, and the preconditioner G is
    :math:`1/N` or, with the mean square V of the gradient, the diagonal matrix :math:`1/\sqrt{N (1 + V)}`.

    Args:
      chains: the number of chains, each with its own starting point.
      num_warmup: warm-up steps per chain.
      num_draws: draws per chain.
      thin: steps per draw.
      initial: where the chains start: ``"network"`` for the network's initial weights, drawn anew for each
        chain, or ``"prior"`` for a draw from the prior.
      batch_size: rows per step. If ``None``, all rows are used.
      step_size: epsilon: a number, or a function of the step (an optax schedule), by which draws are then
        weighted. If ``None``, 0.04, halved whenever a chain leaves the places that explain the data; it returns
        to the last of them. Without a preconditioner, :math:`\epsilon / 2` is the learning rate of SGD on the
        loss averaged over the rows.
      decay: gamma, above 0 and at most 1, for step sizes :math:`\epsilon\, (1 + t/b)^{-\gamma}`, where t is the
        number of steps since the end of the warm-up and b the length of the warm-up. 1/3 gives the smallest
        error for a given number of steps. If ``None``, the step size does not decay.
      cycles: the number of cycles in each of which the step size falls from epsilon to zero along a cosine. A
        cycle first explores without noise, then draws. The number must divide ``num_draws``. Cycles must be
        long enough for the draws to spread from the place that exploring has found: short ones are too sure.
      exploration: the fraction of a cycle that explores.
      preconditioner: ``"rmsprop"`` scales each coordinate by the mean square of its past gradients; ``None``
        scales all coordinates equally.
      temperature: T; the draws are from the posterior raised to the power 1/T.
      sgd_batch_size: if given, every step uses this many rows, drawn independently of all other steps, and the
        noise of their gradient replaces :math:`\xi`: SGD with a constant learning rate as a sampler. If
        ``None``, noise is added.

    References: Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, 2011; Li et al.
    (2016) for the preconditioner; Zhang et al. (2020) for cycles; Mandt, Hoffman & Blei (2017) for SGD as a
    sampler.
    """

    sgd_batch_size: int | None = setting(None, optional(integer))

    when = "data too large for full gradients"
    errs = (
        "a bias of its finite steps and slow chains: up to twice too unsure in the "
        "data, and somewhat too sure far from it"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.sgd_batch_size is None:
            return
        if self.batch_size is not None:
            allowed = "None with sgd_batch_size, whose rows are drawn from all rows"
            raise ValueError(must("SGLD", "batch_size", allowed, self.batch_size))
        if self.temperature != 1:
            allowed = "1 with sgd_batch_size, which adds no noise of any temperature"
            raise ValueError(must("SGLD", "temperature", allowed, self.temperature))
        if not schedules.constant(self):
            allowed = "None where decay, cycles or a function as step_size is given"
            raise ValueError(must("SGLD", "sgd_batch_size", allowed, self.sgd_batch_size))

    def check(self, model, data):
        """Refuse ``sgd_batch_size`` of all rows, whose gradient has no noise."""
        super().check(model, data)
        if self.sgd_batch_size is not None and self.sgd_batch_size >= data.rows:
            allowed = f"below the number of rows, {data.rows}"
            raise ValueError(must("SGLD", "sgd_batch_size", allowed, self.sgd_batch_size))

    def step(self, key, state, model, batch: Any, step):
        """One Euler-Maruyama step of Langevin dynamics."""
        gradient_key, other_key = jax.random.split(key)
        if self.sgd_batch_size is not None:
            # Not the batches of an epoch, whose noise adds up to zero over the epoch.
            batch = batch.data.batch(other_key, jnp.zeros((), jnp.int32), self.sgd_batch_size)
        force, info, state = self.force(gradient_key, state, model, batch, step)
        if self.sgd_batch_size is None:
            noise = random.noise_like(other_key, force.gradient)
            info = NoisyInfo(*info, self._inflation(force))
        else:
            noise = jax.tree.map(jnp.zeros_like, force.gradient)

        def move(w, g, metric, xi):
            step = 0.5 * metric * g + jnp.sqrt(force.temperature * metric) * xi
            return w + step.astype(w.dtype)

        params = jax.tree.map(move, state.params, force.gradient, force.metric, noise)
        return state._replace(params=params), info

    def _inflation(self, force: Force) -> Array:
        r"""An estimate of the excess of the draws' variance over T times that of the posterior.

        On a normal posterior of precision :math:`\lambda`, draws with metric :math:`h = \epsilon G` have the
        variance :math:`T / (\lambda (1 - h \lambda / 4))`, and the mean square of the gradient is
        :math:`T \lambda / (1 - h \lambda / 4)`. The relative excess is thus the expectation of
        :math:`h g^2 / 4 T`; summed over the weights, this holds for correlated weights, too.
        """
        squares = jax.tree.map(lambda h, g: jnp.sum(h * g**2), force.metric, force.gradient)
        size = sum(leaf.size for leaf in jax.tree.leaves(force.gradient))
        total = jax.tree.reduce(jnp.add, squares)
        return total / (4 * self.temperature * size)


@dataclass(frozen=True)
class SGHMC(LangevinChains):
    r"""Stochastic gradient Hamiltonian Monte Carlo: SGD with momentum, with noise added to every step.

    With :math:`s = \sqrt{\epsilon G}`, a momentum r of unit variance and friction :math:`\alpha`, a step is

    .. math::
        r &\leftarrow r + s\, \nabla \log \hat p(w, D) \\
        w &\leftarrow w + \tfrac{1}{2} s\, r \\
        r &\leftarrow (1 - \alpha)\, r + \sqrt{T (2 - \alpha) (\alpha - \hat\beta)}\; \xi \\
        w &\leftarrow w + \tfrac{1}{2} s\, r

    where the gradient is an unbiased estimate from a batch of the N rows, and the preconditioner G is
    :math:`1/N` or, with the mean square V of the gradient, the diagonal matrix :math:`1/\sqrt{N (1 + V)}`.
    The order of the updates is that of the BAOAB integrator, whose positions have no bias on a Gaussian
    posterior at any stable step size.

    Args:
      chains: the number of chains, each with its own starting point.
      num_warmup: warm-up steps per chain.
      num_draws: draws per chain.
      thin: steps per draw.
      initial: where the chains start: ``"network"`` for the network's initial weights, drawn anew for each
        chain, or ``"prior"`` for a draw from the prior.
      batch_size: rows per step. If ``None``, all rows are used.
      step_size: epsilon: a number, or a function of the step (an optax schedule), by which draws are then
        weighted. If ``None``, 0.02, halved whenever a chain leaves the places that explain the data; it returns
        to the last of them. Without a preconditioner, it is the learning rate of SGD with momentum
        ``1 - friction`` on the loss averaged over the rows.
      decay: gamma, above 0 and at most 1, for step sizes :math:`\epsilon\, (1 + t/b)^{-\gamma}`, where t is the
        number of steps since the end of the warm-up and b the length of the warm-up. If ``None``, the step size
        does not decay.
      cycles: the number of cycles in each of which the step size falls from epsilon to zero along a cosine. A
        cycle first explores without noise, then draws. The number must divide ``num_draws``. Cycles must be
        long enough for the draws to spread from the place that exploring has found: short ones are too sure.
      exploration: the fraction of a cycle that explores.
      preconditioner: ``"rmsprop"`` scales each coordinate by the mean square of its past gradients, which
        acts as a mass matrix; ``None`` scales all coordinates equally.
      temperature: T; the draws are from the posterior raised to the power 1/T.
      friction: alpha, the fraction of its momentum that a chain loses per step; above 0 and at most 1.
      noise_estimate: :math:`\hat\beta`, an estimate of the gradient noise of the minibatches, by which the
        added noise is reduced; at least 0 and below ``friction``.

    References: Chen, Fox & Guestrin, Stochastic gradient Hamiltonian Monte Carlo, 2014; Leimkuhler & Matthews
    (2013) for the integrator.
    """

    friction: float = setting(0.1, schedules.above_zero_to_one)
    noise_estimate: float = setting(0.0, number)

    longest = 0.02
    when = "data too large for full gradients; mixes faster than SGLD"
    errs = "a small bias of its finite steps: up to a third too unsure in the data"

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.noise_estimate < self.friction:
            allowed = f"at least 0 and below friction, {self.friction}"
            raise ValueError(must("SGHMC", "noise_estimate", allowed, self.noise_estimate))

    def first_momentum(self, key, like):
        """A draw from the stationary distribution of the momentum."""
        noise = random.noise_like(key, like)
        return jax.tree.map(lambda xi: math.sqrt(self.temperature) * xi, noise)

    def step(self, key, state, model, batch: Any, step):
        """One BAOAB step: momentum update, half a drift, friction and noise, half a drift."""
        gradient_key, noise_key = jax.random.split(key)
        force, info, state = self.force(gradient_key, state, model, batch, step)
        noise = random.noise_like(noise_key, force.gradient)
        kept, lost = 1 - self.friction, self.friction - self.noise_estimate
        spread = jnp.sqrt(force.temperature * (1 + kept) * lost)
        scale = jax.tree.map(jnp.sqrt, force.metric)
        kicked = jax.tree.map(lambda r, s, g: r + s * g, state.momentum, scale, force.gradient)
        momentum = jax.tree.map(lambda r, xi: kept * r + spread * xi, kicked, noise)

        def drift(w, s, before, after):
            return w + (0.5 * s * (before + after)).astype(w.dtype)

        params = jax.tree.map(drift, state.params, scale, kicked, momentum)
        return state._replace(params=params, momentum=momentum), info
