"""Importance sampling: draws from a proposal, weighted by the ratio of the posterior to the proposal."""

from __future__ import annotations

import dataclasses
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
from credax.core.checks import integer, must, positive
from credax.core.programs import jit
from credax.core.settings import at_least, flag, optional, setting
from credax.core.special import logsumexp
from credax.core.trees import Flat, named_leaves
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, optimiser
from credax.inference.point import MAP
from credax.inference.weighting import (
    LOW_BY_HALF_ITS_VARIANCE,
    LOWEST,
    at_once,
    effective_sample_size,
)
from credax.model import LogDensity
from credax.posterior import Estimate, Posterior
from credax.posterior.approximations import Draws

STEPS = 100
"""The number of steps over which the draws are spread: enough to show progress, few enough that each step
draws a block that vectorises."""
CURVED = 2_000
"""The most weights for which the Hessian is computed and decomposed."""
FLAT = 1e-6
"""The smallest curvature of a direction, as a fraction of the largest, so that flat directions get a finite
width."""
RANGE = 700.0
"""Weights whose logarithm is this far below the largest one are zero in double precision."""


# -- the proposal around a mode --------------------------------------------------------------------


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mode", "basis", "scales", "state"],
    meta_fields=["df"],
)
@dataclass(frozen=True, eq=False)
class AroundMode:
    r"""A multivariate Student t distribution around a mode, with a scale matrix from the curvature there.

    .. math:: w = \mu + V \operatorname{diag}(s)\, z / \sqrt{u}, \qquad
              z \sim N(0, I), \quad \nu u \sim \chi^2_\nu

    where the columns of V are the eigenvectors of the negative Hessian. Unlike the tails of a widened normal
    distribution, those of a Student t distribution cost few effective draws in high dimensions.
    """

    mode: Flat
    basis: Array
    scales: Array
    state: NetworkState
    df: int | None

    def sample(self, key: Key, count: int) -> Draw:
        """``count`` draws, stacked along a leading axis."""
        normal_key, tail_key = jax.random.split(key)
        dtype = self.scales.dtype
        noise = random.normal(normal_key, (count, self.mode.size), dtype)
        if self.df is not None:
            squares = random.normal(tail_key, (count, self.df), dtype) ** 2
            noise /= jnp.sqrt(jnp.mean(squares, axis=1, keepdims=True))
        vectors = self.mode.vector + _product(noise * self.scales, self.basis.T)
        params = jax.vmap(lambda vector: dataclasses.replace(self.mode, vector=vector).tree)(
            vectors
        )
        repeat = lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape))  # noqa: E731
        return Draw(params, jax.tree.map(repeat, self.state))

    def log_prob(self, params: Params) -> Array:
        """The log density log q(w)."""
        deviation = Flat.of(params).vector - self.mode.vector
        square = jnp.sum((_product(deviation, self.basis) / self.scales) ** 2)
        size, log_volume = self.mode.size, jnp.sum(jnp.log(self.scales))
        if self.df is None:
            return -0.5 * square - log_volume - 0.5 * size * math.log(2 * math.pi)
        half = (self.df + size) / 2
        constant = math.lgamma(half) - math.lgamma(self.df / 2)
        constant -= 0.5 * size * math.log(self.df * math.pi)
        return constant - log_volume - half * jnp.log1p(square / self.df)


def _product(a: Array, b: Array) -> Array:
    """The matrix product in full precision on every device, since a draw and its density must agree."""
    return jnp.matmul(a, b, precision="highest")


def around_mode(
    log_joint: Callable[[Flat], Array],
    point: Flat,
    state: NetworkState,
    df: int | None,
    inflation: float,
    width: int,
) -> AroundMode:
    r"""The proposal from the curvature at a point near the mode: :math:`s_i = |\lambda_i|^{-1/2}`.

    The point is first improved by one Newton step, if that raises the log joint. In a direction in which the
    log density is not concave, the width is computed from the absolute value of the curvature.

    Args:
      log_joint: the log density of flat parameters.
      point: the point at which the curvature is computed.
      state: the network's state.
      df: the degrees of freedom of the Student t distribution. If ``None``, the proposal is normal.
      inflation: a factor for the standard deviations.
      width: the number of columns of the Hessian that are computed in one batch.
    """
    value = lambda vector: log_joint(dataclasses.replace(point, vector=vector))  # noqa: E731
    slope = jax.grad(value)
    column = lambda unit: jax.jvp(slope, (point.vector,), (unit,))[1]  # noqa: E731
    identity = jnp.eye(point.size, dtype=point.vector.dtype)
    hessian = lax.map(column, identity, batch_size=width)
    curvature, basis = jnp.linalg.eigh(-0.5 * (hessian + hessian.T))
    curvature = jnp.abs(curvature)
    curvature = jnp.maximum(curvature, FLAT * jnp.max(curvature))
    step = _product(basis, _product(slope(point.vector), basis) / curvature)
    better = value(point.vector + step) > value(point.vector)
    mode = dataclasses.replace(point, vector=point.vector + jnp.where(better, step, 0))
    return AroundMode(mode, basis, inflation / jnp.sqrt(curvature), state, df)


# -- the method ------------------------------------------------------------------------------------


class State(NamedTuple):
    """The state of the ascent to the mode, and the weights of the draws so far."""

    ascent: Any  # the state of MAP; () unless the proposal is "map"
    proposal: Any  # the distribution of the draws; () for the prior
    log_weights: Array  # -inf for draws that have not been made yet
    key: Key  # for the draws


class Info(NamedTuple):
    """The figures of a step."""

    log_joint: Array  # during the warm-up at the current point, then the highest among the draws of the step
    effective_draws: Array  # the effective sample size so far; 0 during the warm-up


def _proposal(owner: str, name: str, value: Any) -> str | Posterior:
    allowed = '"map", "prior" or a posterior whose density is known'
    if isinstance(value, str):
        if value not in ("map", "prior"):
            raise ValueError(must(owner, name, allowed, value))
        return value
    if not isinstance(value, Posterior):
        raise TypeError(must(owner, name, allowed, value))
    approximation: Any = value.approximation
    # A proposal needs sample(key, count), log_prob(params), and a pytree of arrays.
    arrays = all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(approximation))
    if not arrays or not callable(getattr(approximation, "log_prob", None)):
        kind = type(approximation).__name__
        raise TypeError(
            f"{owner}({name}=...) must be {allowed}: one by BayesByBackprop, BlackBoxVI or IVON. This one "
            f"consists of {kind}, whose density cannot be evaluated."
        )
    return value


@dataclass(frozen=True)
class ImportanceSampling(Method):
    r"""Importance sampling: draws from a proposal q, weighted by the ratio of the posterior to q.

    .. math::
        E[F] \approx \frac{\sum_i F(w_i)\, \omega_i}{\sum_i \omega_i}, \qquad
        \omega_i = \frac{p(D \mid w_i)\, p(w_i)}{q(w_i)}, \quad w_i \sim q, \qquad
        p(D) \approx \frac{1}{L} \sum_{i=1}^L \omega_i

    ``posterior.log_weights`` are the :math:`\log \omega_i`. ``posterior.info`` says how well the proposal
    covers the posterior: ``effective_sample_size`` is the number of equally weighted draws that the weighted
    draws are worth, and ``pareto_k`` is the shape parameter of the tail of the weights. Above 0.7, neither
    the averages nor their standard errors can be trusted (Vehtari et al., 2024).

    Args:
      num_draws: L, the total number of draws.
      proposal: q: ``"map"`` for a Student t distribution around the mode, with the curvature there;
        ``"prior"``; or a posterior whose density is known, such as one by ``BayesByBackprop``.
      self_normalised: whether to divide by the sum of the weights. ``False`` is for a ``LogDensity`` that is
        known to be normalised, and uses the plain estimate
        :math:`\frac1L \sum_i F(w_i)\, p(w_i) / q(w_i)`; see ``expectation``.
      smooth: whether to replace the largest weights by quantiles of a Pareto distribution fitted to them, which
        lowers the variance. Weights that are not self-normalised are never smoothed, so that they stay
        unbiased.
      num_warmup: steps of the optimiser that finds the mode, for ``"map"``.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: a name in ``optax`` or an optax transformation.
      df: the degrees of freedom of the Student t distribution, a whole number, for ``"map"``. If ``None``, a
        normal distribution is used.
      inflation: a factor for the standard deviations of that distribution.

    Reference: Vehtari, Simpson, Gelman, Yao & Gabry, Pareto smoothed importance sampling, 2024.
    """

    num_draws: int = setting(10_000, integer)
    proposal: str | Posterior = setting("map", _proposal)
    self_normalised: bool = setting(True, flag)
    smooth: bool = setting(True, flag)
    num_warmup: int = setting(2_000, at_least(0))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    df: int | None = setting(5, optional(integer))
    inflation: float = setting(1.0, positive)

    kind = "exact"
    needs = frozenset()  # only the proposal "map" needs gradients: see check
    when_diverged = "Give a proposal nearer to the posterior, or scale x and y to unit variance."

    when = "a proposal near the posterior is known, or the evidence is wanted"
    errs = (
        "a few draws have all the weight if there are more than a few weights; the effective "
        "sample size tells"
    )

    # The draws are divided into blocks, one per step.

    @property
    def _block(self) -> int:
        return -(-self.num_draws // STEPS)

    @property
    def _blocks(self) -> int:
        return -(-self.num_draws // self._block)

    @property
    def _warmup(self) -> int:
        return self.num_warmup if self.proposal == "map" else 0

    @property
    def num_steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The steps of the ascent to the mode, then one step per block of draws."""
        return self._warmup + self._blocks

    @property
    def ascent(self) -> MAP:
        """The method that finds the mode."""
        return MAP(max(self.num_warmup, 1), None, self.learning_rate, self.optimiser)

    def check(self, model, data):
        """Refuse a proposal that does not fit the model."""
        super().check(model, data)
        name, params = type(self).__name__, jax.eval_shape(model.init, jax.random.key(0))
        if not self.self_normalised and not isinstance(model, LogDensity):
            allowed = "True for a Model, whose posterior is known only up to the evidence"
            raise ValueError(must(name, "self_normalised", allowed, False))
        if isinstance(self.proposal, Posterior):
            self._check_fit(name, model, params)
        elif self.proposal == "prior":
            if isinstance(model, LogDensity):
                allowed = '"map" or a posterior for a LogDensity, which has no prior'
                raise ValueError(must(name, "proposal", allowed, self.proposal))
            if jax.tree.leaves(model.init_state()):
                allowed = '"map" or a posterior for a network with batch statistics, which a prior has not'
                raise ValueError(must(name, "proposal", allowed, self.proposal))
        else:
            weights = sum(leaf.size for leaf in jax.tree.leaves(params))
            if model.discrete:
                allowed = '"prior" or a posterior for discrete weights, which have no curvature'
                raise ValueError(must(name, "proposal", allowed, self.proposal))
            if weights > CURVED:
                raise ValueError(
                    f'{name}(proposal="map") must have at most {CURVED:,} weights, for their curvature is a '
                    f"matrix; got {weights:,}. Give it a posterior, e.g. by BayesByBackprop, or use HMC or SMC."
                )

    def _check_fit(self, name: str, model: Any, params: Params) -> None:
        """Refuse a proposal that is not over the parameters of the model."""
        proposal: Any = self.proposal
        kinds = {True: "discrete", False: "continuous"}
        if proposal.model.discrete != model.discrete:
            wanted, got = kinds[model.discrete], kinds[proposal.model.discrete]
            raise ValueError(
                f"{name}(proposal=...) must be over {wanted} weights, like the model; got one over {got} ones."
            )
        drawn = jax.eval_shape(lambda: proposal.approximation.sample(random.key(0), 1)).params
        shapes = {path: (leaf.shape, str(leaf.dtype)) for path, leaf in named_leaves(params)}
        got = {path: (leaf.shape[1:], str(leaf.dtype)) for path, leaf in named_leaves(drawn)}
        if shapes != got:
            raise ValueError(
                f"{name}(proposal=...) must have the parameters of the model, {shapes}; got {got}."
            )

    def init(self, key, model, data):
        """The start of the ascent for ``"map"``, and no draws."""
        log_weights = jnp.full(self._blocks * self._block, -jnp.inf, jnp.result_type(float))
        # The loop splits the same key in two; the third part of this split is used nowhere else.
        draw_key = jax.random.split(key, 3)[2]
        ascent, proposal = (), ()
        if self.proposal == "map":
            ascent = self.ascent.init(key, model, data)
            mode = Flat.of(ascent.params)
            vector = jnp.zeros_like(mode.vector)
            basis = jnp.zeros((mode.size, mode.size), vector.dtype)
            proposal = AroundMode(mode, basis, vector, ascent.network, self.df)
        elif isinstance(self.proposal, Posterior):
            # In the state and not a constant, so that a checkpoint contains the distribution drawn from.
            proposal = jax.tree.map(jnp.asarray, self.proposal.approximation)
        return State(ascent, proposal, log_weights, draw_key)

    def step(self, key, state, model, batch, step):
        """One step of the ascent, or one block of draws."""
        if self.proposal != "map":
            return self._draw(state, model, batch, step)

        def climb(state):
            ascent, info = self.ascent.step(key, state.ascent, model, batch, step)
            log_joint = info.log_joint.astype(state.log_weights.dtype)
            return state._replace(ascent=ascent), Info(log_joint, jnp.zeros_like(log_joint))

        def draw(state):
            first = step == self._warmup
            around = partial(self._around, model=model, batch=batch)
            proposal = lax.cond(first, around, lambda state: state.proposal, state)
            return self._draw(state._replace(proposal=proposal), model, batch, step)

        return lax.cond(step < self._warmup, climb, draw, state)

    def _around(self, state: State, model: Any, batch: Any) -> AroundMode:
        point, network = Flat.of(state.ascent.params), state.ascent.network
        log_joint = lambda flat: model.log_joint(flat.tree, batch, state=network)  # noqa: E731
        width = at_once(model, batch)
        return around_mode(log_joint, point, network, self.df, self.inflation, width)

    def _draw(self, state: State, model: Any, batch: Any, step: Array) -> tuple[State, Info]:
        block, dtype = step - self._warmup, state.log_weights.dtype
        draws = self.proposed(model, state.proposal, state.key, block)

        def weigh(draw):
            if self.proposal == "prior":  # the prior cancels in the ratio
                log_weight = model.log_likelihood(draw.params, batch, state=draw.state)
                log_joint = model.log_prior(draw.params) + log_weight
            else:
                log_joint = model.log_joint(draw.params, batch, state=draw.state)
                log_weight = log_joint - state.proposal.log_prob(draw.params)
            return log_joint.astype(dtype), log_weight.astype(dtype)

        log_joint, log_weight = lax.map(weigh, draws, batch_size=at_once(model, batch))
        places = block * self._block + jnp.arange(self._block, dtype=jnp.int32)
        log_weight = jnp.where(places < self.num_draws, log_weight, -jnp.inf)
        log_weights = lax.dynamic_update_slice(state.log_weights, log_weight, (places[0],))
        highest = jnp.maximum(jnp.max(log_joint), LOWEST)
        info = Info(highest, _effective(log_weights))
        return state._replace(log_weights=log_weights), info

    def proposed(self, model: Any, proposal: Any, key: Key, block: Array) -> Draw:
        """The draws of a block, stacked along a leading axis."""
        key = jax.random.fold_in(key, block)
        if self.proposal != "prior":
            return proposal.sample(key, self._block)
        params = jax.vmap(model.sample_prior)(jax.random.split(key, self._block))
        repeat = lambda leaf: jnp.broadcast_to(leaf, (self._block, *jnp.shape(leaf)))  # noqa: E731
        return Draw(params, jax.tree.map(repeat, model.init_state()))

    def posterior(self, model, trace):
        """The draws and their weights."""
        state = jax.tree.map(lambda leaf: leaf[0], trace.state)
        blocks = trace.steps - self._warmup
        if blocks <= 0:
            raise ValueError(
                f"{type(self).__name__} has no draws: the run ended in its warm-up, of {self._warmup} steps."
            )
        count = min(blocks * self._block, self.num_draws)
        # The draws are made again from their key, which costs little; keeping them on the device costs much.
        pieces = [
            jax.device_get(_proposed(self, model, state.proposal, state.key, np.int32(block)))
            for block in range(blocks)
        ]
        draws = jax.tree.map(lambda *leaves: np.concatenate(leaves)[None, :count], *pieces)
        raw = np.asarray(state.log_weights, np.float64)[:count]
        log_evidence = log_mean(raw)
        smoothed, pareto_k = smooth_tail(raw)
        log_weights = smoothed if self.smooth and self.self_normalised else raw
        info: dict[str, Any] = {"effective_sample_size": effective_sample_size(log_weights)}
        if pareto_k is not None:
            info["pareto_k"] = pareto_k
        info["self_normalised"] = self.self_normalised
        kept = Draws(draws.params, draws.state, log_weights[None])
        return Posterior(model, kept, info=info, log_evidence=log_evidence)


@jit(static_argnames=("method", "model"))
def _proposed(method, model, proposal, key, block):
    return method.proposed(model, proposal, key, block)


def _effective(log_weights: Array) -> Array:
    """The effective sample size (sum w)^2 / sum w^2; 0 if all weights are zero."""
    largest = jnp.max(log_weights)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(largest), largest, 0))
    return jnp.sum(weights) ** 2 / jnp.maximum(jnp.sum(weights**2), jnp.finfo(weights.dtype).tiny)


# -- estimates from the weights --------------------------------------------------------------------


def log_mean(log_weights: np.ndarray) -> Estimate | None:
    r"""The log of the mean weight, and its standard error by the delta method.

    .. math:: \operatorname{se}(\log \bar\omega) \approx \frac{s_\omega}{\bar\omega \sqrt L}

    It is ``None`` for a single weight, from which no standard error can be computed.
    """
    largest = log_weights.max()
    if largest == -np.inf:
        raise ValueError(
            f"ImportanceSampling missed the posterior: its density is zero at all {len(log_weights):,} draws. "
            "Give a proposal that reaches it."
        )
    weights = np.exp(log_weights - largest)
    mean, count = weights.mean(), len(weights)
    if count == 1:
        return None
    error = weights.std(ddof=1) / (mean * math.sqrt(count))
    return Estimate(float(largest + math.log(mean)), float(error), LOW_BY_HALF_ITS_VARIANCE)


def smooth_tail(log_weights: np.ndarray) -> tuple[np.ndarray, float | None]:
    """The log weights after smoothing the largest, and the shape k of the Pareto distribution fitted to these.

    For fewer than 25 draws, k cannot be estimated and is ``None``. If the fit fails (for many equal weights, or
    weights over hundreds of orders of magnitude), k is Hill's estimate, and nothing is smoothed.
    """
    from arviz_stats.base.array import array_stats

    count = len(log_weights)
    tail = int(3 * math.sqrt(count)) if count > 225 else count // 5
    if tail < 5:
        return log_weights, None
    largest, order = log_weights.max(), np.argsort(log_weights)
    relative = np.maximum(log_weights - largest, -RANGE)
    lowest, cutoff = relative[order[-tail]], relative[order[-tail - 1]]
    if lowest == 0:
        return log_weights, 0.0  # the largest weights are all equal
    with np.errstate(all="ignore"):
        fitted, k = array_stats.psislw(-relative)  # it takes the logs of the inverse weights
    if not np.isfinite(k) or not np.all(np.isfinite(fitted)):
        return log_weights, float(np.mean(relative[order[-tail:]] - cutoff))
    smoothed, first = log_weights.copy(), order[0]
    # ArviZ normalises the weights. The smallest one, which is not smoothed, shows by which factor.
    smoothed[order[-tail:]] = fitted[order[-tail:]] + (relative[first] - fitted[first]) + largest
    return smoothed, float(k)


def expectation(
    posterior: Posterior, function: Callable[[Params], Any]
) -> tuple[np.ndarray, np.ndarray]:
    r"""The posterior mean of a function of the parameters, and its standard error.

    .. math::
        \hat I = \frac{\sum_i F(w_i)\, \omega_i}{\sum_i \omega_i}
        \quad\text{or, not self-normalised,}\quad \hat I = \frac1L \sum_i F(w_i)\, \omega_i

    Args:
      posterior: a posterior by ``ImportanceSampling``.
      function: F, a function of the parameters of one draw that returns an array or a number.
    """
    log_weights = posterior.log_weights
    if log_weights is None or "self_normalised" not in posterior.info:
        allowed = "a posterior by ImportanceSampling"
        raise TypeError(must("expectation", "posterior", allowed, type(posterior.method).__name__))
    draws = jax.tree.map(lambda leaf: leaf[0], posterior.draws)
    each = lambda params: jnp.asarray(function(params))  # noqa: E731
    values = np.asarray(lax.map(each, draws, batch_size=1024), np.float64)
    column = log_weights.reshape(-1, *(1,) * (values.ndim - 1))
    if posterior.info["self_normalised"]:
        shares = np.exp(column - logsumexp(column))
        mean = np.sum(shares * values, 0)
        return mean, np.sqrt(np.sum((shares * (values - mean)) ** 2, 0))
    terms = np.exp(column) * values
    return terms.mean(0), terms.std(0, ddof=1) / math.sqrt(len(terms))
