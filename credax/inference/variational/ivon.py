"""IVON, the improved variational online Newton method (Shen et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from credax.core import random
from credax.core.checks import fraction, integer, positive
from credax.core.precision import at_least_single, total
from credax.core.programs import jit
from credax.core.settings import at_least, optional, setting
from credax.core.typing import Array, Draw, NetworkState, Params
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate
from credax.inference.variational.bayes_by_backprop import (
    KL_EVERY,
    finish_variational,
    of_first_replica,
)
from credax.inference.variational.objective import annealed, average, negative_kl
from credax.posterior import Posterior
from credax.posterior.approximations.families import MeanField

WEIGHTS_PER_ROW = 4
"""A network with more weights per row than this has other defaults, the second of each pair below."""
BETA2 = 0.999, 0.99999
"""On 10,000 images of MNIST, a 784-400-400-10 network ended with an error of 89 % after 100 epochs with
0.999, and of 4.1 % with 0.9999."""
RATE = 0.1, 0.3
"""On 50,000 images, the same network had errors of 3.3 %, 2.6 % and 4.3 % on other training images after six
epochs with beta2 = 0.99999 and rates of 0.1, 0.3 and 1. Runs in which every step uses all rows keep to the
first: of 20 such fits of a network with two hidden layers of 50 units to 80 or 500 rows of 8 columns, the
second switched off all units in 2 and the first in none. Otherwise both reached the same bounds."""


class State(NamedTuple):
    """The state of the optimiser."""

    mean: Params  # m
    hessian: Params  # h
    momentum: Params  # g
    network: NetworkState
    kl: Array  # the last value that was computed


class Info(NamedTuple):
    """The info of a step."""

    elbo: Array  # minibatch estimate at the draw, before the step
    kl: Array  # computed every `KL_EVERY` steps


@dataclass(frozen=True)
class IVON(Method):
    r"""Variational inference by natural-gradient descent, with the memory and time of Adam.

    Let :math:`\bar\ell = -\log p(D \mid w) / N` be the mean loss, T the temperature, :math:`\lambda = N / T`,
    and :math:`\delta` the prior precision divided by :math:`\lambda`. Then

    .. math::
        \sigma = \frac{1}{\sqrt{\lambda (h + \delta)}}, \quad w = m + \sigma \epsilon, \quad
        \hat g = \nabla \bar\ell(w), \quad \hat h = \hat g\, \epsilon / \sigma

    .. math::
        g &\leftarrow \beta_1 g + (1 - \beta_1) \hat g \\
        h &\leftarrow \beta_2 h + (1 - \beta_2) \hat h
            + \tfrac{1}{2} (1 - \beta_2)^2 (h - \hat h)^2 / (h + \delta) \\
        m &\leftarrow m - \alpha \left(g / (1 - \beta_1^t) + \delta m\right) / (h + \delta)

    and the posterior is :math:`N(m, \sigma^2)`. The last term of the update of h keeps :math:`h + \delta`
    positive. For a prior with mean :math:`\mu \ne 0`, :math:`\delta m` becomes :math:`\delta (m - \mu)`.

    Args:
      num_steps: the number of steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: alpha. A number decays to zero along a cosine; an optax schedule is used unchanged. If
        ``None``, 0.1, or 0.3 for a network with more than four weights per row that is fitted in minibatches.
      beta1: the decay rate of the moving average of the gradient.
      beta2: the decay rate of the moving average of the curvature. If ``None``, 0.999; for a network with more
        than four weights per row 0.99999, as in the paper: within a run h then remains near ``hessian_init``.
        If it converged, the lower bound would be highest where nearly all of so many weights follow the
        prior, and the network would predict nothing.
      hessian_init: the initial value of h, an estimate of the curvature of the mean loss.
      clip_radius: a weight changes by at most ``learning_rate * clip_radius`` per step. Without this limit, the
        first Newton steps are far too long if the curvature is far above ``hessian_init``.
      samples: the number of draws per step.
      temperature: the factor by which the KL is multiplied.
      kl_annealing: the number of steps over which the weight of the KL rises linearly from zero to one; 0 gives
        it the full weight from the first step on. If ``None``, two fifths of ``num_steps``.

    Reference: Shen et al., Variational learning is effective for large deep networks, 2024.
    """

    num_steps: int = setting(5_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate | None = setting(None, optional(learning_rate))
    beta1: float = setting(0.9, fraction)
    beta2: float | None = setting(None, optional(fraction))
    hessian_init: float = setting(1.0, positive)
    clip_radius: float = setting(1.0, positive)
    samples: int = setting(1, integer)
    temperature: float = setting(1.0, positive)
    kl_annealing: int | None = setting(None, optional(at_least(0)))

    kind = "approximate"
    can = frozenset({"sum parts", "drop state"})
    objective = "elbo"
    needs = frozenset({"gradient", "likelihood"})
    when_diverged = "Lower learning_rate, raise hessian_init, or scale x and y to unit variance."

    when = "large networks that are otherwise trained with Adam, at the same cost"
    errs = (
        "under a wide prior, wide networks on few rows are far too unsure; elsewhere it is "
        "too sure, most of all far from the data"
    )

    def check(self, model: Any, data: Any) -> None:
        """Also refuse a prior that is not Gaussian."""
        super().check(model, data)
        params = jax.eval_shape(model.init, jax.random.key(0))
        for prior in jax.tree.leaves(model.leaf_priors(params)):
            if prior.gaussian(()) is None:
                raise ValueError(
                    f"IVON needs a Gaussian prior (Normal, FanInNormal); got {prior}. "
                    "Use BayesByBackprop for others."
                )

    def init(self, key, model, data):
        """The weights with which the network is initialised, and a constant estimate of the curvature."""
        # At least in single precision, since half precision rounds away the small changes of a step.
        mean = jax.tree.map(at_least_single, model.init(key))
        hessian = jax.tree.map(lambda m: jnp.full(m.shape, self.hessian_init, m.dtype), mean)
        momentum = jax.tree.map(jnp.zeros_like, mean)
        kl = jnp.zeros((), jax.eval_shape(total, mean).dtype)
        return State(mean, hessian, momentum, model.init_state(), kl)

    def step(self, key, state, model, batch: Any, step):
        """Take one step of the online Newton method."""
        key, kl_key = jax.random.split(key)
        rows = batch.total
        count = rows / (self.temperature * annealed(self, model, step))
        centre, delta = _prior(model, state.mean, count)
        sigma = _sigma(state.hessian, delta, count)
        weights = jax.eval_shape(model.init, key)

        def of_key(key):
            noise_key, network_key = jax.random.split(key)
            noise = random.noise_like(noise_key, state.mean)
            draw = jax.tree.map(_perturbed, state.mean, sigma, noise, weights)
            evaluate = jax.value_and_grad(model.train_log_likelihood, has_aux=True)
            (value, network), gradient = evaluate(draw, batch, state.network, network_key)
            draw, gradient = jax.tree.map(at_least_single, (draw, gradient))
            g = jax.tree.map(lambda leaf: -leaf / rows, gradient)
            h = jax.tree.map(lambda g, w, m, s: g * (w - m) / s**2, g, draw, state.mean, sigma)
            return value, network, g, h

        value, network, g_hat, h_hat = average(of_key, key, self.samples)
        many = _many_weights(state.mean, rows)
        rate = self._rate(step, many)
        usual, slow = BETA2 if self.beta2 is None else (self.beta2, self.beta2)
        pace = _one_of((1 - usual, 1 - slow), many)
        unbias = 1 - jnp.asarray(self.beta1, rate.dtype) ** (step + 1).astype(rate.dtype)

        def update(m, h, g, g_hat, h_hat, m0, d):
            g = self.beta1 * g + (1 - self.beta1) * g_hat
            new = pace.astype(h.dtype)
            correction = 0.5 * new**2 * (h - h_hat) ** 2 / (h + d)
            next_h = (1 - new) * h + new * h_hat + correction
            alpha = rate.astype(m.dtype)
            direction = (g / unbias.astype(m.dtype) + d * (m - m0)) / (next_h + d)
            m = m - alpha * jnp.clip(direction, -self.clip_radius, self.clip_radius)
            return m, next_h, g

        trees = (state.mean, state.hessian, state.momentum, g_hat, h_hat, centre, delta)
        updated = jax.tree.map(update, *trees)
        pick = lambda i: jax.tree.map(lambda _, three: three[i], state.mean, updated)  # noqa: E731

        def fresh_kl():
            family = MeanField(state.mean, jax.tree.map(_inverse_softplus, sigma))
            return -negative_kl(model, family, family.draw(kl_key))

        kl = lax.cond(step % KL_EVERY == 0, fresh_kl, lambda: state.kl)
        return State(pick(0), pick(1), pick(2), network, kl), Info(value - kl, kl)

    def _rate(self, step, many):
        schedule = self.learning_rate
        if not callable(schedule):
            usual, fast = RATE
            default = _one_of((usual, usual if self.batch_size is None else fast), many)
            peak = default if schedule is None else schedule
            schedule = lambda step: peak * optax.cosine_decay_schedule(1.0, self.num_steps)(step)  # noqa: E731
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            return jnp.asarray(schedule(step), jnp.result_type(float))

    def draw(self, key, state, model, rows):
        """Draw from the Gaussian with mean m and the standard deviations that follow from h."""
        count = rows / self.temperature
        sigma = _sigma(state.hessian, _prior(model, state.mean, count)[1], count)
        noise = random.noise_like(key, state.mean)
        weights = jax.eval_shape(model.init, key)
        params = jax.tree.map(_perturbed, state.mean, sigma, noise, weights)
        return Draw(params, state.network)

    def posterior(self, model, trace: Any):
        """The Gaussian with mean m and the standard deviations that follow from h."""
        state: Any = trace.state
        rows = jnp.asarray(trace.data.total, jnp.result_type(float))
        rho = _rho(model, state.hessian, rows / self.temperature)
        weights = jax.eval_shape(model.init, trace.key)
        mean = jax.tree.map(lambda a, w: a.astype(w.dtype, copy=False), state.mean, weights)
        return Posterior(model, of_first_replica(MeanField(mean, rho, state.network)))

    def finish(self, posterior, trace):
        """Add the evidence lower bound on all rows."""
        return finish_variational(self, posterior, trace)


def _many_weights(params, rows) -> Array:
    """Whether there are so many weights per row. Of a bandit's buffer, the rows are known only in a run."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    return weights > WEIGHTS_PER_ROW * jnp.asarray(rows, jnp.result_type(float))


def _one_of(pair: tuple[float, float], second: Array) -> Array:
    usual, other = (jnp.asarray(value, jnp.result_type(float)) for value in pair)
    return jnp.where(second, other, usual)


def _sigma(hessian, delta, count) -> Params:
    return jax.tree.map(lambda h, d: lax.rsqrt((h + d) * count.astype(h.dtype)), hessian, delta)


def _inverse_softplus(sigma):
    return sigma + jnp.log(-jnp.expm1(-sigma))


@jit(static_argnames=("model",))
def _rho(model, hessian, count) -> Params:
    """The spread of the posterior as the rho of a :class:`MeanField`, in the dtypes of the weights.

    It is compiled so that no other arrays of this size are needed on the way.
    """

    def one(hessian):
        sigma = _sigma(hessian, _prior(model, hessian, count)[1], count)
        weights = jax.eval_shape(model.init, jax.random.key(0))
        return jax.tree.map(lambda s, w: _inverse_softplus(s).astype(w.dtype), sigma, weights)

    return jax.vmap(one)(hessian)


def _perturbed(mean, sigma, noise, weight):
    """A draw of a leaf, in the dtype of the weights."""
    return (mean + sigma * noise).astype(weight.dtype)


def _prior(model, params, count) -> tuple[Params, Params]:
    """For each leaf, the prior mean and the prior precision divided by ``count``."""
    priors = model.leaf_priors(params)
    centre = jax.tree.map(lambda leaf, p: p.gaussian(leaf.shape)[0], params, priors)
    delta = jax.tree.map(
        lambda leaf, p: 1 / (p.gaussian(leaf.shape)[1] ** 2 * count), params, priors
    )
    return centre, delta
