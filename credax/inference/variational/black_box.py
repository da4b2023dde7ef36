"""Black-box variational inference (Ranganath et al., 2014), by the log-derivative trick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from credax.core.checks import integer, must, positive
from credax.core.settings import flag, one_among, optional, setting
from credax.core.typing import Array, Draw, NetworkState, Params
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.variational.bayes_by_backprop import finish_variational
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
    """Where the ascent is."""

    family: Family  # lambda, in the lecture's letters
    optimiser: Any
    network: NetworkState


class Info(NamedTuple):
    """What a step shows."""

    elbo: Array  # minibatch estimate, before the step


@dataclass(frozen=True)
class BlackBoxVI(Method):
    r"""Ascent on the evidence lower bound without a gradient of the model.

    .. math::
        \nabla_\lambda L = E_q\left[(\log p(w, D) - \log q_\lambda(w))\, \nabla_\lambda \log q_\lambda(w)\right]

    It needs only values of the log joint, so it also serves discrete weights and log densities that have no
    gradient. The price is variance, which the settings below reduce without any bias.

    Args:
      num_steps: steps of the optimiser.
      batch_size: rows a step; ``None``: all of them.
      learning_rate: of the optimiser; a number decays to zero along a cosine, an optax schedule is used as is.
      optimiser: a name in ``optax`` or an optax transformation.
      family: ``"mean_field"``, ``"low_rank"`` or ``"full_rank"``; under a discrete prior it is the factorised
        categorical, whatever this says.
      rank: of the low-rank part.
      samples: draws a step.
      control_variate: what is taken off the integrand: ``None``; ``"leave_one_out"``, the mean of the other
        draws; ``"optimal"``, for each parameter the multiple of the score with the least variance, estimated
        on one half of the draws for the other.
      rao_blackwell: leaves the other weights' terms of log q and log p(w) out of a weight's integrand (their
        expectation is zero); for factorised families.
      antithetic: draws in pairs, mirrored at the mean; for Gaussian families.
      temperature: what the KL is multiplied by.
      initial_scale: the standard deviation that every weight starts with.
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
    needs = frozenset()
    when = "no gradient through the model: discrete weights, black boxes"

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
        """As every method; also that the family fits the weights."""
        super().check(model, data)
        check_family(self, model)
        name = type(self).__name__
        if self.antithetic and model.discrete:
            raise ValueError(must(name, "antithetic", "False for discrete weights", True))
        if self.rao_blackwell and self.family != "mean_field" and not model.discrete:
            allowed = f'False for family="{self.family}", whose weights are not independent'
            raise ValueError(must(name, "rao_blackwell", allowed, True))

    def init(self, key, model, data):
        """q around the network's own starting weights; the prior itself where it is discrete."""
        family = make_family(self, key, model)
        return State(family, make_optimiser(self).init(family), model.init_state())

    def step(self, key, state, model, batch, step):
        """One step up the bound."""
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
        """The bound at the draws, and the estimate of its gradient."""
        draws = self._draws(key, family)
        scores = jax.vmap(jax.grad(lambda q, w: q.log_prob(w)), in_axes=(None, 0))(family, draws)
        terms = jax.vmap(lambda w: self._terms(family, model, batch, network, w))
        log_likelihoods, log_ratios = terms(draws)
        totals = sum(
            jnp.sum(leaf.reshape(self.samples, -1), 1) for leaf in jax.tree.leaves(log_ratios)
        )
        bounds = log_likelihoods + totals
        if self.rao_blackwell:
            integrands = self._beside(scores, log_likelihoods, log_ratios)
        else:
            integrands = jax.tree.map(lambda _: bounds, scores)
        return jnp.mean(bounds), jax.tree.map(self._estimate, integrands, scores)

    def _terms(self, family, model, batch, network, w) -> tuple[Array, Params]:
        """log p(D | w), and log p(w) - log q(w) weight by weight where q factorises, else in one piece."""
        if isinstance(model, LogDensity):
            log_likelihood, log_prior = model.log_joint(w), jax.tree.map(jnp.zeros_like, w)
        else:
            log_likelihood = model.train_log_likelihood(w, batch, network, None)[0]
            log_prior = jax.tree.map(lambda p, leaf: p.log_density(leaf), model.leaf_priors(w), w)
        if isinstance(family, Factorised):
            ratio = lambda log_p, log_q: self.temperature * (log_p - log_q)  # noqa: E731
            return log_likelihood, jax.tree.map(ratio, log_prior, family.log_probs(w))
        total = jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, log_prior))
        return log_likelihood, self.temperature * (total - family.log_prob(w))

    def _beside(self, scores, log_likelihoods, log_ratios):
        """Each weight's own integrand, beside the scores of the parameters that belong to the weight."""

        def leaf(score, ratio):
            own = ratio + log_likelihoods.reshape(-1, *(1,) * (ratio.ndim - 1))
            return own.reshape(self.samples, *(1,) * (score.ndim - own.ndim), *own.shape[1:])

        trees = {name: getattr(scores, name) for name in scores.like_params}
        return replace(
            scores, **{name: jax.tree.map(leaf, tree, log_ratios) for name, tree in trees.items()}
        )

    def _estimate(self, integrand: Array, score: Array) -> Array:
        """The mean of (integrand - baseline) times score over the draws."""
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
            # Each half takes the other's coefficient: one fitted to its own draws would bias the mean.
            f = jnp.concatenate([f[:half] - second, f[half:] - first])
        return jnp.mean(f * score, 0)

    def _draws(self, key, family) -> Params:
        pairs = self.samples // 2 if self.antithetic else self.samples
        draws = jax.vmap(family.draw)(jax.random.split(key, pairs))
        if self.antithetic:
            mirrored = jax.vmap(family.mirrored)(draws)
            # Pair by pair, so that a group of two is never its own baseline.
            pair = lambda a, b: jnp.stack([a, b], 1).reshape(2 * pairs, *a.shape[1:])  # noqa: E731
            draws = jax.tree.map(pair, draws, mirrored)
        return jax.lax.stop_gradient(draws)

    def draw(self, key, state, model, rows):
        """A draw of q."""
        return Draw(state.family.draw(key), state.network)

    def posterior(self, model, trace):
        """The last q."""
        state = jax.tree.map(lambda leaf: leaf[0], trace.state)
        return Posterior(model, jax.device_get(state.family.with_state(state.network)))

    def finish(self, posterior, trace):
        """Adds the bound on all rows."""
        return finish_variational(self, posterior, trace)


def _best_multiple(f: Array, score: Array) -> Array:
    """The a that gives (f - a) score the least variance: E[f score^2] / E[score^2]."""
    square = jnp.sum(score**2, 0)
    return jnp.sum(f * score**2, 0) / jnp.where(square > 0, square, 1)
