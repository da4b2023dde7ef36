"""Bayes by Backprop (Blundell et al., 2015): variational inference with reparameterised gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from credax.core.checks import fraction, integer, must, number, one_of, positive
from credax.core.precision import total, widened
from credax.core.settings import at_least, flag, one_among, optional, setting
from credax.core.typing import Array, Draw, NetworkState
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.variational.gradient_estimators import row_keys, row_outputs
from credax.inference.variational.objective import (
    FAMILIES,
    annealed,
    average,
    check_antithetic,
    check_family,
    check_points,
    full_elbo,
    make_family,
    negative_kl,
    points_of,
    without_spread,
)
from credax.inference.variational.source_bound import source_elbo
from credax.model import LogDensity
from credax.model.networks.along import TrainedAlong
from credax.model.sources.streamed import SourceData
from credax.posterior import Posterior
from credax.posterior.approximations.families import Explicit, Family, MeanField

ESTIMATORS = ("weight", "local", "flipout")
FEW_ROWS = 1_000
"""Up to this number of rows in each step, separate draws for each row are the default. A step on 80 rows then
takes about twice as long, and one of 256-256 units on 900 rows 2.7 times, for a bound nearer its maximum."""
KL_EVERY = 50
"""Steps between two updates of the KL that the progress bar shows; its value costs more than its gradient."""


class State(NamedTuple):
    """The state of gradient ascent on the evidence lower bound."""

    family: Family  # q, with the variational parameters phi
    optimiser: Any
    network: NetworkState
    average: Family | None  # the running mean of phi, if `averaging` is set
    kl: Array  # the last value that was computed


class Info(NamedTuple):
    """The info of a step."""

    elbo: Array  # minibatch estimate at the draw, before the step
    kl: Array  # computed every `KL_EVERY` steps


def _kl_weights(owner: str, name: str, value: Any) -> str | tuple[float, ...]:
    allowed = '"uniform", "blundell", or non-negative numbers that add up to one'
    if isinstance(value, str):
        return one_of(owner, name, value, ("uniform", "blundell"))
    if not isinstance(value, Iterable):
        raise TypeError(must(owner, name, allowed, value))
    weights = tuple(number(owner, name, weight) for weight in value)
    if abs(sum(weights) - 1) > 1e-6 or min(weights, default=-1) < 0:
        raise ValueError(must(owner, name, allowed, value))
    return weights


@dataclass(frozen=True)
class BayesByBackprop(Method):
    r"""Gradient ascent on the evidence lower bound, with reparameterised draws of the weights.

    .. math::
        \epsilon \sim N(0, I), \quad w = t(\epsilon, \phi), \quad
        f = \log q_\phi(w) - \log p(D \mid w)\, p(w), \quad \phi \leftarrow \phi - \alpha \nabla_\phi f

    The entropy of q and the expectation of a Gaussian log prior are computed in closed form. Other log priors
    (scale mixture, Laplace, Student's t) are evaluated at the draw.

    Args:
      num_steps: the number of optimiser steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax``, or an optax transformation.
      beta2: the decay rate of the running mean of squared gradients, if the named optimiser has one, as Adam
        does. While the weight of the KL rises, the gradients of the standard deviations grow by orders of
        magnitude. A mean over many more steps than 100 lags behind, so that steps are too long, and all units
        may be switched off at once.
      family: the Gaussian family of q: ``"mean_field"`` (diagonal covariance), ``"low_rank"`` (diagonal plus a
        matrix of rank ``rank``) or ``"full_rank"`` (any covariance).
      rank: the rank of the low-rank part, for ``family="low_rank"``.
      estimator: how the rows of a batch share random numbers: ``"weight"`` (one draw of the weights for the
        whole batch), ``"local"`` (local reparameterisation) or ``"flipout"``. The last two need
        ``family="mean_field"``. If ``None``, ``"local"`` for an ``mlp`` and at most 1,000 rows, all of them in
        each step, since the noise of the gradient is largest with few rows; otherwise ``"weight"``.
      samples: the number of draws per step.
      antithetic: whether to draw in pairs, mirrored at the mean; for ``estimator="weight"``.
      kl_weights: how the KL is divided over the M batches of an epoch: ``"uniform"``, ``"blundell"``
        (:math:`2^{M-i} / (2^M - 1)` for batch i), or one number for each batch, which add up to one.
      temperature: the factor by which the KL is multiplied; below 1 the posterior is "cold".
      kl_annealing: the number of steps over which the weight of the KL rises linearly from zero to one; 0 gives
        it the full weight from the first step on. If ``None``, two fifths of ``num_steps``, or 0 for a
        ``LogDensity``.
      initial_scale: the initial standard deviation of every weight.
      averaging: the decay rate of an exponential moving average of phi, e.g. 0.999; q then uses the average. If
        ``None``, q uses the last phi.

    References: Blundell et al., Weight uncertainty in neural networks, 2015; Kingma, Salimans & Welling (2015)
    for ``"local"``; Wen et al. (2018) for ``"flipout"``.
    """

    num_steps: int = setting(5_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    beta2: float = setting(0.99, fraction)
    family: str = setting("mean_field", one_among(*FAMILIES))
    rank: int = setting(4, integer)
    estimator: str | None = setting(None, optional(one_among(*ESTIMATORS)))
    samples: int = setting(1, integer)
    antithetic: bool = setting(False, flag)
    kl_weights: str | Sequence[float] = setting("uniform", _kl_weights)
    temperature: float = setting(1.0, positive)
    kl_annealing: int | None = setting(None, optional(at_least(0)))
    initial_scale: float = setting(0.02, positive)
    averaging: float | None = setting(None, optional(fraction))

    kind = "approximate"
    can = frozenset({"sum parts", "drop state", "learn prior", "train points"})
    objective = "elbo"
    when_diverged = "Lower learning_rate or initial_scale, or scale x and y to unit variance."

    when = "large networks, pruning, a lower bound on the evidence"
    errs = (
        "under a wide prior, wide networks on few rows are far too unsure; elsewhere it is "
        "too sure, most of all far from the data"
    )

    def __post_init__(self):
        super().__post_init__()
        check_antithetic(self)
        name = type(self).__name__
        if self._by_row and self.family != "mean_field":
            allowed = f'"mean_field" for estimator="{self.estimator}"'
            raise ValueError(must(name, "family", allowed, self.family))
        if self._by_row and self.antithetic:
            allowed = f'False for estimator="{self.estimator}"'
            raise ValueError(must(name, "antithetic", allowed, self.antithetic))

    def check(self, model: Any, data: Any) -> None:
        """Also refuse a family that does not fit in memory, and an estimator that does not suit the network."""
        super().check(model, data)
        check_family(self, model)
        check_points(self, model)
        name = type(self).__name__
        if self._by_row:
            if isinstance(model, LogDensity):
                raise ValueError(
                    must(name, "estimator", '"weight" for a LogDensity', self.estimator)
                )
            if jax.tree.leaves(model.init_state()):
                allowed = '"weight" for a network with batch statistics, by which rows depend on each other'
                raise ValueError(must(name, "estimator", allowed, self.estimator))
        if isinstance(self.kl_weights, tuple):
            batches = 1 if self.batch_size is None else data.rows // self.batch_size
            if len(self.kl_weights) != batches:
                allowed = f"one number for each of the {batches} batches of an epoch"
                raise ValueError(must(name, "kl_weights", allowed, self.kl_weights))

    def init(self, key, model, data):
        """A narrow q around the weights with which the network is initialised."""
        family = make_family(self, key, model)
        average = family if self.averaging is not None else None
        kl = jnp.zeros((), jax.eval_shape(total, family).dtype)
        return State(family, make_optimiser(self).init(family), model.init_state(), average, kl)

    def step(self, key, state, model, batch, step):
        """Take one optimiser step that increases the evidence lower bound."""
        key, kl_key = jax.random.split(key)
        value, network, gradient = self.gradient(
            key, state.family, model, batch, state.network, step
        )
        per_row = 1.0 if batch is None else 1 / batch.total
        descent = jax.tree.map(lambda g: -g * jnp.asarray(per_row, g.dtype), gradient)
        if isinstance(descent, MeanField) and jax.default_backend() == "cpu":
            descent = _means_last(descent)
        updates, optimiser = make_optimiser(self).update(descent, state.optimiser, state.family)
        family = optax.apply_updates(state.family, updates)
        if isinstance(family, MeanField):  # an optimiser may change what has no gradient
            points = points_of(model, family.mean)
            family = replace(family, rho=without_spread(points, family.rho))

        def fresh_kl():  # of the new q, since the memory of the old one is reused
            return -negative_kl(model, family, family.draw(kl_key))

        kl = lax.cond(step % KL_EVERY == 0, fresh_kl, lambda: state.kl)
        running = state.average
        if self.averaging is not None:
            running = optax.incremental_update(family, running, 1 - self.averaging)
        state = State(family, optimiser, network, running, kl)
        return state, Info(value - kl, kl)

    def gradient(self, key, family, model, batch, network=(), step=None):
        """The log likelihood at the draws, the network's next state, and the gradient of the lower bound."""
        weight = self.temperature * self._kl_share(batch) * annealed(self, model, step)

        def of_draw(draw, family, key):
            log_likelihood, next_state = self._log_likelihood(
                draw, family, model, batch, network, key
            )
            kl = negative_kl(model, family, draw)
            return log_likelihood + jnp.asarray(weight, kl.dtype) * kl, (log_likelihood, next_state)

        def of_key(key):
            draw_key, key = jax.random.split(key)

            def objective(family):
                family = family.explicit()
                draw = family.draw(draw_key)
                value, aux = of_draw(draw, family, key)
                if not self.antithetic:
                    return value, aux
                mirrored, (other, next_state) = of_draw(family.mirrored(draw), family, key)
                return 0.5 * (value + mirrored), (0.5 * (aux[0] + other), next_state)

            gradient, (log_likelihood, next_state) = jax.grad(objective, has_aux=True)(family)
            return log_likelihood, next_state, gradient

        pairs = self.samples // 2 if self.antithetic else self.samples
        return average(of_key, key, pairs)

    def _log_likelihood(self, draw, family, model, batch, network, key):
        if isinstance(model, LogDensity):
            return model.log_joint(draw), network
        estimator = self._estimator(model, batch)
        if estimator == "weight":
            return model.train_log_likelihood(draw, batch, network, key)
        parts = (model.split(part)[0] for part in (family.mean, family.sigma, family.rho))
        weights, learned = Explicit(*parts), model.split(draw)[1]

        # Each row has its own key, and so the same noise in whatever part of the batch it is computed.
        key, network_key = jax.random.split(key)
        keyed = replace(batch, x=(batch.x, row_keys(key, len(batch.y))))

        def of_batch(batch, network, network_key):
            x, own = batch.x
            outputs = row_outputs(model.forward, weights, x, key, estimator, network_key, own)
            log_prob = model.likelihood.log_prob(widened(outputs), batch.y, learned)
            return batch.sum(log_prob), network

        return model.sum_of_parts(of_batch, keyed, network, network_key)

    @property
    def _by_row(self) -> bool:
        """Whether an estimator with separate draws for each row was asked for."""
        return self.estimator not in (None, "weight")

    def _estimator(self, model, batch) -> str:
        """The estimator that was asked for, or else the one that suits the network and the rows of a step."""
        if self.estimator is not None:
            return self.estimator
        few = self.batch_size is None and len(batch.y) <= FEW_ROWS
        able = self.family == "mean_field" and not self.antithetic and not model.discrete
        return "local" if few and able and model.network.row_by_row else "weight"

    def _kl_share(self, batch) -> Any:
        """The factor of the KL in this batch; its mean over an epoch is one."""
        if batch is None or self.kl_weights == "uniform":
            return 1.0
        count = batch.count
        if self.kl_weights == "blundell":
            dtype = batch.scale.dtype
            halvings = jnp.exp2(-(batch.index + 1).astype(dtype))
            return count * halvings / (1 - 2.0**-count)
        return count * jnp.asarray(self.kl_weights, batch.scale.dtype)[batch.index]

    def draw(self, key, state, model, rows):
        """Draw from q."""
        family = state.family if state.average is None else state.average
        return Draw(family.draw(key), state.network)

    def posterior(self, model, trace):
        """q with the last phi, or with the running mean of phi."""
        state: Any = trace.state
        family = state.family if state.average is None else state.average
        return Posterior(model, of_first_replica(family.with_state(state.network)))

    def finish(self, posterior, trace):
        """Add the evidence lower bound on all rows."""
        return finish_variational(self, posterior, trace)


def _means_last(gradient: MeanField) -> MeanField:
    """The same gradient, but with that of the means made to depend on that of rho.

    Computing the gradient of rho reads the means. Without this dependence, XLA on CPUs does not know that this
    happens before the new means are written, and copies the old means at every step.
    """

    def tied(mean, rho):
        return mean + 0 * rho.ravel()[0] if rho.size else mean

    return replace(gradient, mean=jax.tree.map(tied, gradient.mean, gradient.rho))


def of_first_replica(family: Family) -> Family:
    """The distribution of the first replica on the host, which on a CPU is the memory of the device."""
    return jax.tree.map(lambda leaf: jax.device_get(leaf)[0], family)


def finish_variational(method: Any, posterior: Posterior, trace: Any) -> Posterior:
    """The posterior with the evidence lower bound on all rows, and how well it fits them."""
    visits = method.num_steps * method.samples
    if trace.data is not None and method.batch_size is not None:
        visits *= method.batch_size / trace.data.rows
    family: Any = posterior.approximation
    bound: Any = source_elbo if isinstance(trace.data, SourceData) else full_elbo
    elbo, figures = bound(posterior.model, family, trace.data, trace.key, visits)
    if isinstance(getattr(posterior.model, "network", None), TrainedAlong):
        elbo = None  # with a prior density at a point in it, it does not bound the evidence
    return replace(posterior, elbo=elbo, info={**posterior.info, **figures})
