"""Black-box variational inference (Ranganath et al., 2014), with score-function gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from credax.core.checks import integer, must, positive
from credax.core.precision import at_least_single, total
from credax.core.settings import flag, one_among, optional, setting
from credax.core.typing import Array, Draw, NetworkState, Params
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.variational.bayes_by_backprop import finish_variational, of_first_replica
from credax.inference.variational.objective import (
    FAMILIES,
    check_antithetic,
    check_family,
    make_family,
)
from credax.model import LogDensity
from credax.posterior import Posterior
from credax.posterior.approximations.families import Factorised, Family

CONTROL_VARIATES = (None, "leave_one_out", "optimal")


class State(NamedTuple):
    """The state of gradient ascent on the evidence lower bound."""

    family: Family  # q, with the variational parameters lambda
    optimiser: Any
    network: NetworkState


class Info(NamedTuple):
    """The info of a step."""

    elbo: Array  # minibatch estimate, before the step


@dataclass(frozen=True)
class BlackBoxVI(Method):
    r"""Gradient ascent on the evidence lower bound that needs no gradient of the model.

    .. math::
        \nabla_\lambda L = E_q\left[(\log p(w, D) - \log q_\lambda(w))\, \nabla_\lambda \log q_\lambda(w)\right]

    This score-function estimator (log-derivative trick) needs only values of the log joint density, so the
    method also works for discrete weights and for log densities without a gradient. The estimator has a large
    variance, which the settings below reduce without adding bias.

    Args:
      num_steps: the number of optimiser steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax``, or an optax transformation.
      family: the Gaussian family of q: ``"mean_field"``, ``"low_rank"`` or ``"full_rank"``. Under a discrete
        prior this is ignored, and q is a product of categorical distributions.
      rank: the rank of the low-rank part, for ``family="low_rank"``.
      samples: the number of draws per step.
      control_variate: what is subtracted from the integrand. ``None``: nothing. ``"leave_one_out"``: its mean
        over the other draws. ``"optimal"``: for each parameter, the constant that gives the least variance;
        each half of the draws uses the constant that was estimated on the other half.
      rao_blackwell: whether to leave the terms of log q and log p(w) that belong to other weights out of each
        weight's integrand, since their expectation is zero; for families whose weights are independent.
      antithetic: whether to draw in pairs, mirrored at the mean; for Gaussian families.
      temperature: the factor by which the KL is multiplied.
      initial_scale: the initial standard deviation of every weight.

    Reference: Ranganath, Gerrish & Blei, Black box variational inference, 2014.
    """

    num_steps: int = setting(5_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    family: str = setting("mean_field", one_among(*FAMILIES))
    rank: int = setting(4, integer)
    samples: int = setting(16, integer)
    control_variate: str | None = setting("leave_one_out", one_among(*CONTROL_VARIATES))
    rao_blackwell: bool = setting(True, flag)
    antithetic: bool = setting(False, flag)
    temperature: float = setting(1.0, positive)
    initial_scale: float = setting(0.1, positive)

    kind = "approximate"
    can = frozenset({"sum parts", "drop state"})
    objective = "elbo"
    needs = frozenset()
    when = "models without a gradient: discrete weights, black-box densities"
    errs = (
        "wide networks on few rows are switched off and far too unsure; elsewhere it is too "
        "sure far from the data"
    )

    def __post_init__(self):
        super().__post_init__()
        check_antithetic(self)
        name = type(self).__name__
        groups = self.samples // (2 if self.antithetic else 1)
        needed = {None: 1, "leave_one_out": 2, "optimal": 4}[self.control_variate]
        if groups < needed:
            allowed = f"at least {needed * self.samples // groups} for this control variate"
            raise ValueError(must(name, "samples", allowed, self.samples))

    def check(self, model, data):
        """Also refuse a family that does not suit the weights."""
        super().check(model, data)
        check_family(self, model)
        name = type(self).__name__
        if self.antithetic and model.discrete:
            raise ValueError(must(name, "antithetic", "False for discrete weights", True))
        if self.rao_blackwell and self.family != "mean_field" and not model.discrete:
            allowed = f'False for family="{self.family}", whose weights are not independent'
            raise ValueError(must(name, "rao_blackwell", allowed, True))
        if self.rao_blackwell and model.correlated_prior:
            allowed = "False for a prior under which the weights are not independent"
            raise ValueError(must(name, "rao_blackwell", allowed, True))

    def init(self, key, model, data):
        """q around the weights with which the network is initialised; the prior itself if it is discrete."""
        family = make_family(self, key, model)
        return State(family, make_optimiser(self).init(family), model.init_state())

    def step(self, key, state, model, batch, step):
        """Take one optimiser step that increases the evidence lower bound."""
        value, gradient = self.gradient(key, state.family, model, batch, state.network)
        per_row = 1.0 if batch is None else 1 / batch.total
        descent = jax.tree.map(lambda g: -g * jnp.asarray(per_row, g.dtype), gradient)
        updates, optimiser = make_optimiser(self).update(descent, state.optimiser, state.family)
        network = state.network
        if jax.tree.leaves(network):
            first = jax.tree.map(lambda leaf: leaf[0], self._draws(key, state.family))
            network = model.train_log_likelihood(first, batch, network, None)[1]
        return State(optax.apply_updates(state.family, updates), optimiser, network), Info(value)

    def gradient(self, key, family, model, batch, network=()):
        """The mean of the lower bound over the draws, and an estimate of its gradient."""
        draws = self._draws(key, family)
        # The model is evaluated at the weights in their own dtype, but half precision is too coarse for the
        # differences of log densities.
        wide, wide_draws = jax.tree.map(at_least_single, (family, draws))
        scores = jax.vmap(jax.grad(lambda q, w: q.log_prob(w)), in_axes=(None, 0))(wide, wide_draws)
        terms = jax.vmap(lambda w: self._terms(wide, model, batch, network, w))
        log_likelihoods, log_ratios = terms(draws)
        totals = sum(
            jnp.sum(leaf.reshape(self.samples, -1), 1) for leaf in jax.tree.leaves(log_ratios)
        )
        bounds = log_likelihoods + totals
        if self.rao_blackwell:
            integrands = self._beside(scores, log_likelihoods, log_ratios)
        else:
            integrands = jax.tree.map(lambda _: bounds, scores)
        gradient = jax.tree.map(self._estimate, integrands, scores)
        gradient = jax.tree.map(lambda g, leaf: g.astype(leaf.dtype), gradient, family)
        return jnp.mean(bounds), gradient

    def _terms(self, family, model, batch, network, w) -> tuple[Array, Params]:
        """log p(D | w), and log p(w) - log q(w): for each weight if q factorises, otherwise the total."""
        if isinstance(model, LogDensity):
            log_likelihood = model.log_joint(w)
            w = jax.tree.map(at_least_single, w)
            log_prior = jax.tree.map(jnp.zeros_like, w)
        else:
            log_likelihood = model.train_log_likelihood(w, batch, network, None)[0]
            w = jax.tree.map(at_least_single, w)
            if model.correlated_prior:
                log_prior = model.log_prior(w)
                return log_likelihood, self.temperature * (log_prior - family.log_prob(w))
            log_prior = jax.tree.map(lambda p, leaf: p.log_density(leaf), model.leaf_priors(w), w)
        if isinstance(family, Factorised):
            ratio = lambda log_p, log_q: self.temperature * (log_p - log_q)  # noqa: E731
            return log_likelihood, jax.tree.map(ratio, log_prior, family.log_probs(w))
        return log_likelihood, self.temperature * (total(log_prior) - family.log_prob(w))

    def _beside(self, scores, log_likelihoods, log_ratios):
        """For each parameter of q, the integrand of the weight that it belongs to (Rao-Blackwellised)."""

        def leaf(score, ratio):
            own = ratio + log_likelihoods.reshape(-1, *(1,) * (ratio.ndim - 1))
            return own.reshape(self.samples, *(1,) * (score.ndim - own.ndim), *own.shape[1:])

        trees = {name: getattr(scores, name) for name in scores.like_params}
        return replace(
            scores, **{name: jax.tree.map(leaf, tree, log_ratios) for name, tree in trees.items()}
        )

    def _estimate(self, integrand: Array, score: Array) -> Array:
        """The mean over the draws of (integrand - baseline) times score."""
        f = integrand.reshape(*integrand.shape, *(1,) * (score.ndim - integrand.ndim))
        group = 2 if self.antithetic else 1
        if self.control_variate == "leave_one_out":
            sums = f.reshape(-1, group, *f.shape[1:]).sum(1, keepdims=True)
            others = (jnp.sum(f, 0) - sums) / (self.samples - group)
            f = f - jnp.broadcast_to(others, (len(sums), group, *f.shape[1:])).reshape(f.shape)
        elif self.control_variate == "optimal":
            half = group * (self.samples // group // 2)
            first, second = (
                _best_multiple(f[:half], score[:half]),
                _best_multiple(f[half:], score[half:]),
            )
            # Each half uses the coefficient of the other half: one fitted to its own draws would bias the mean.
            f = jnp.concatenate([f[:half] - second, f[half:] - first])
        return jnp.mean(f * score, 0)

    def _draws(self, key, family) -> Params:
        pairs = self.samples // 2 if self.antithetic else self.samples
        draws = jax.vmap(family.draw)(jax.random.split(key, pairs))
        if self.antithetic:
            mirrored = jax.vmap(family.mirrored)(draws)
            # The two draws of a pair are adjacent: a leave-one-out baseline leaves out the whole pair.
            pair = lambda a, b: jnp.stack([a, b], 1).reshape(2 * pairs, *a.shape[1:])  # noqa: E731
            draws = jax.tree.map(pair, draws, mirrored)
        return jax.lax.stop_gradient(draws)

    def draw(self, key, state, model, rows):
        """Draw from q."""
        return Draw(state.family.draw(key), state.network)

    def posterior(self, model, trace):
        """The last q."""
        state: Any = trace.state
        return Posterior(model, of_first_replica(state.family.with_state(state.network)))

    def finish(self, posterior, trace):
        """Add the evidence lower bound on all rows."""
        return finish_variational(self, posterior, trace)


def _best_multiple(f: Array, score: Array) -> Array:
    """The constant a for which (f - a) score has the least variance: E[f score^2] / E[score^2]."""
    square = jnp.sum(score**2, 0)
    return jnp.sum(f * score**2, 0) / jnp.where(square > 0, square, 1)
