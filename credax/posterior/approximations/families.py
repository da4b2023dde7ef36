r"""Variational families: distributions q(w) over a pytree of weights.

A distribution is a pytree of its variational parameters phi, so that an optimiser can update it:

.. math:: w = t(\epsilon, \phi), \qquad \epsilon \sim N(0, I)

Each family provides what the evidence lower bound needs: draws that are differentiable with respect to phi, the
log density, the entropy, and the mean and variance of each weight (which give the expectation of a Gaussian log
prior in closed form).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from credax.core import random
from credax.core.precision import at_least_single, total
from credax.core.special import softplus, softplus_anew
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.posterior.approximations.approximation import Generated


class Family(Generated):
    """A distribution over the weights with variational parameters phi."""

    state: NetworkState
    like_state = ("state",)

    @abc.abstractmethod
    def draw(self, key: Key) -> Params:
        """One draw of the weights, differentiable with respect to phi if the weights are continuous."""

    @abc.abstractmethod
    def log_prob(self, params: Params) -> Array:
        """log q(w)."""

    def mirrored(self, params: Params) -> Params:
        """The antithetic draw: the weights reflected at the mean."""
        return jax.tree.map(lambda mean, w: 2 * mean - w, self.moments()[0], params)

    @abc.abstractmethod
    def entropy(self) -> Array:
        """-E log q(w), in closed form."""

    @abc.abstractmethod
    def moments(self) -> tuple[Params, Params]:
        """The mean and the variance of each weight."""

    def explicit(self) -> Family:
        """The same distribution in a form for gradients, which computes shared terms of the bound once."""
        return self

    def generate(self, key):
        return Draw(self.draw(key), self.state)

    def with_state(self, state: NetworkState) -> Self:
        """The same distribution with another state of the network."""
        return dataclasses.replace(self, state=state)  # pyright: ignore[reportArgumentType]


class Factorised(Family):
    """A family in which all weights are independent."""

    @abc.abstractmethod
    def log_probs(self, params: Params) -> Params:
        """log q(w_i) of each weight."""

    def log_prob(self, params):
        return total(self.log_probs(params))


def inverse_softplus(y: float) -> float:
    """The inverse of ``softplus``: the rho with softplus(rho) = y."""
    return y + math.log(-math.expm1(-y))


def _constant_like(params: Params, value: float) -> Params:
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, value, leaf.dtype), params)


# -- mean field -----------------------------------------------------------------------------------


@jax.custom_vjp
def perturbed(mean: Array, sigma: Array, rho: Array, noise: Array) -> Array:
    r"""mean + sigma noise, with a backward pass that reads little memory.

    The value is computed from rho, and the gradient goes to sigma = softplus(rho), so that sigma is computed
    only in the backward pass. On CPUs, the backward pass recovers the noise from the weights, which are in
    memory anyway: :math:`\epsilon = (w - \mu) / \sigma`. Accelerators store the noise instead, rounded to the
    eight bits of bfloat16 before it is used: that halves the memory traffic per weight, and a network in half
    precision needs no weights in single precision. The variance of the rounded noise is one to within 1e-5.
    Generating the noise a second time was slower on both.
    """
    return mean + softplus(rho) * noise


def _forward(mean, sigma, rho, noise):
    if mean.dtype != jnp.float32 or jax.default_backend() == "cpu":
        weights = perturbed(mean, sigma, rho, noise)
        return weights, (sigma, (mean, weights))
    halves = _halved(noise)
    return perturbed(mean, sigma, rho, _restored(halves)), (sigma, halves)


def _backward(saved, gradient):
    sigma, kept = saved
    if isinstance(kept, tuple):
        mean, weights = kept
        noise = (weights - mean) / jnp.maximum(sigma, jnp.finfo(sigma.dtype).tiny)
    else:
        noise = _restored(kept)
    return gradient, gradient * noise, None, gradient * sigma


# Rounded by integer arithmetic: the compiler removes a cast to bfloat16 and back, and would keep all 32 bits.
def _halved(x: Array) -> Array:
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return ((bits + np.uint32(1 << 15)) >> np.uint32(16)).astype(jnp.uint16)


def _restored(halves: Array) -> Array:
    return lax.bitcast_convert_type(halves.astype(jnp.uint32) << np.uint32(16), jnp.float32)


perturbed.defvjp(_forward, _backward)  # pyright: ignore[reportFunctionMemberAccess]


@jax.custom_vjp
def squared(sigma: Array, rho: Array) -> Array:
    """Sigma squared. As in :func:`perturbed`, the value is computed from rho and the gradient goes to sigma."""
    return jnp.square(softplus(rho))


squared.defvjp(  # pyright: ignore[reportFunctionMemberAccess]
    lambda sigma, rho: (squared(sigma, rho), sigma),
    lambda sigma, gradient: (2 * gradient * sigma, None),
)


class _Gaussians(Factorised):
    """Independent Gaussians."""

    mean: Params
    sigma: Params

    def log_probs(self, params):
        def leaf(w, mean, sigma):
            spread = jnp.where(sigma > 0, sigma, 1)
            z = (w - mean) / spread
            log_density = -0.5 * z**2 - jnp.log(spread) - 0.5 * math.log(2 * math.pi)
            return jnp.where(sigma > 0, log_density, jnp.where(w == mean, 0, -jnp.inf))

        return jax.tree.map(leaf, params, self.mean, self.sigma)

    def entropy(self):
        constant = 0.5 * math.log(2 * math.pi * math.e)
        return total(jax.tree.map(lambda sigma: jnp.log(sigma) + constant, self.sigma))

    def moments(self):
        return self.mean, jax.tree.map(jnp.square, self.sigma)


@partial(jax.tree_util.register_dataclass, data_fields=["mean", "rho", "state"], meta_fields=[])
@dataclass(frozen=True, eq=False, repr=False)
class MeanField(_Gaussians):
    r"""Independent Gaussians: :math:`q(w) = \prod_i N(w_i; \mu_i, \sigma_i^2)`, sigma = softplus(rho).

    A weight with rho = -inf is certain: every draw holds its mean. The log density is then that of the other
    weights, or -inf if a certain weight is not at its mean, and the entropy is -inf.
    """

    mean: Params
    rho: Params
    state: NetworkState = ()

    like_params = ("mean", "rho")

    @classmethod
    def around(cls, params: Params, scale: float) -> MeanField:
        """The distribution with mean ``params`` and standard deviation ``scale`` for every weight."""
        return cls(params, _constant_like(params, inverse_softplus(scale)))

    @property
    def sigma(self) -> Params:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The standard deviation of each weight."""
        return jax.tree.map(softplus, self.rho)

    def explicit(self):
        return Explicit(self.mean, jax.tree.map(softplus_anew, self.rho), self.rho)

    def draw(self, key):
        return self.explicit().draw(key)


@dataclass(frozen=True, eq=False, repr=False)
class Explicit(_Gaussians):
    """A :class:`MeanField` in a form for gradients, which are summed in sigma before they go on to rho."""

    mean: Params
    sigma: Params  # softplus(rho)
    rho: Params

    def draw(self, key):
        noise = random.noise_like(key, self.mean)
        return jax.tree.map(perturbed, self.mean, self.sigma, self.rho, noise)

    def moments(self):
        return self.mean, jax.tree.map(squared, self.sigma, self.rho)


# -- low rank -------------------------------------------------------------------------------------


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mean", "rho", "factors", "state"],
    meta_fields=[],
)
@dataclass(frozen=True, eq=False, repr=False)
class LowRank(Family):
    r"""A Gaussian of diagonal plus low-rank covariance.

    .. math:: \Sigma = \operatorname{diag}(\sigma^2) + F F^\top

    Every leaf of ``factors`` has a leading axis whose length is the rank of F.
    """

    mean: Params
    rho: Params
    factors: Params
    state: NetworkState = ()

    like_params = ("mean", "rho", "factors")

    def _facts(self):
        return [f"rank {len(jax.tree.leaves(self.factors)[0])}"]

    @classmethod
    def around(cls, params: Params, scale: float, rank: int, key: Key) -> LowRank:
        """The distribution with mean ``params``; F is small and random, which breaks its symmetry."""
        stacked = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((rank, *leaf.shape), leaf.dtype), params
        )
        factors = jax.tree.map(lambda n: 0.1 * scale * n, random.noise_like(key, stacked))
        return cls(params, _constant_like(params, inverse_softplus(scale)), factors)

    @property
    def sigma(self) -> Params:
        """The standard deviation of the diagonal part."""
        return jax.tree.map(softplus, self.rho)

    def draw(self, key):
        own_key, shared_key = jax.random.split(key)
        first = jax.tree.leaves(self.factors)[0]
        shared = random.noise(shared_key, (first.shape[0],), first.dtype)
        own = MeanField(self.mean, self.rho).draw(own_key)
        return jax.tree.map(
            lambda w, f: w + jnp.tensordot(shared.astype(f.dtype), f, 1), own, self.factors
        )

    def log_prob(self, params):
        # Woodbury: with A = F / sigma, Sigma^-1 = D^-1/2 (I - A (I + A'A)^-1 A') D^-1/2.
        scale = lambda w, m, s: at_least_single((w - m) / s)  # noqa: E731
        scaled = jax.tree.map(scale, params, self.mean, self.sigma)
        factor, whitened, log_det = self._inner(scaled)
        solved = jax.scipy.linalg.solve_triangular(factor, whitened, lower=True)
        square = total(jax.tree.map(jnp.square, scaled)) - jnp.sum(solved**2)
        return -0.5 * (square + log_det + self._size() * math.log(2 * math.pi))

    def entropy(self):
        zeros = jax.tree.map(lambda m: at_least_single(jnp.zeros_like(m)), self.mean)
        log_det = self._inner(zeros)[2]
        return 0.5 * (log_det + self._size() * math.log(2 * math.pi * math.e))

    def moments(self):
        variance = jax.tree.map(
            lambda sigma, f: sigma**2 + jnp.sum(f**2, axis=0), self.sigma, self.factors
        )
        return self.mean, variance

    def _size(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.mean))

    def _inner(self, scaled: Params) -> tuple[Array, Array, Array]:
        """The Cholesky factor of I + A'A, A' times a whitened deviation, and log det Sigma."""
        divide = lambda f, s: at_least_single(f / s)  # noqa: E731
        directions = jax.tree.map(divide, self.factors, self.sigma)
        flat = lambda tree: [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)]  # noqa: E731
        gram = jax.tree.reduce(jnp.add, [a @ a.T for a in flat(directions)])
        along = jax.tree.map(lambda a, z: jnp.tensordot(a, z, z.ndim), directions, scaled)
        factor = jnp.linalg.cholesky(jnp.eye(len(gram), dtype=gram.dtype) + gram)
        log_sigma = total(jax.tree.map(jnp.log, self.sigma))
        log_det = 2 * log_sigma + 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
        return factor, jax.tree.reduce(jnp.add, along), log_det


# -- full rank ------------------------------------------------------------------------------------


@partial(jax.tree_util.register_dataclass, data_fields=["mean", "factor", "state"], meta_fields=[])
@dataclass(frozen=True, eq=False, repr=False)
class FullRank(Family):
    r"""A Gaussian of full covariance: :math:`w = \mu + L \epsilon`.

    L is lower triangular with diagonal softplus(diag(factor)). The rows and columns of ``factor`` are the
    weights in the order of ``ravel_pytree``.
    """

    mean: Params
    factor: Array
    state: NetworkState = ()

    like_params = ("mean",)

    @classmethod
    def around(cls, params: Params, scale: float) -> FullRank:
        """The distribution with mean ``params`` and covariance ``scale`` squared times the identity."""
        flat, _ = ravel_pytree(params)
        rho = jnp.full(flat.shape, inverse_softplus(scale), flat.dtype)
        return cls(params, jnp.diag(rho))

    @property
    def lower(self) -> Array:
        """The lower triangular matrix L."""
        return jnp.tril(self.factor, -1) + jnp.diag(self._diagonal)

    @property
    def _diagonal(self) -> Array:
        return softplus(jnp.diagonal(self.factor))

    def draw(self, key):
        flat, unravel = ravel_pytree(self.mean)
        return unravel(flat + self.lower @ random.noise(key, flat.shape, flat.dtype))

    def log_prob(self, params):
        deviation = ravel_pytree(params)[0] - ravel_pytree(self.mean)[0]
        lower, deviation = at_least_single(self.lower), at_least_single(deviation)
        noise = jax.scipy.linalg.solve_triangular(lower, deviation, lower=True)
        constant = 0.5 * len(noise) * math.log(2 * math.pi)
        return -0.5 * total(noise**2) - total(jnp.log(self._diagonal)) - constant

    def entropy(self):
        diagonal = self._diagonal
        return total(jnp.log(diagonal)) + 0.5 * len(diagonal) * math.log(2 * math.pi * math.e)

    def moments(self):
        unravel = ravel_pytree(self.mean)[1]
        return self.mean, unravel(jnp.sum(self.lower**2, axis=1))

    def covariance(self) -> Array:
        """The covariance matrix L L'."""
        return self.lower @ self.lower.T


# -- discrete weights -----------------------------------------------------------------------------


@partial(jax.tree_util.register_dataclass, data_fields=["logits", "state"], meta_fields=["values"])
@dataclass(frozen=True, eq=False, repr=False)
class Categorical(Factorised):
    r"""Independent discrete weights: :math:`q(w) = \prod_i q_i(w_i)`.

    Attributes:
      logits: the logits of the values of each weight; every leaf has a leading axis of the values.
      values: the values that the weights of each leaf can take, in the order of the leaves.
    """

    logits: Params
    values: tuple[tuple[float, ...], ...]
    state: NetworkState = ()

    like_params = ("logits",)
    leading_axes = 1

    @classmethod
    def of_priors(cls, params: Params, priors: Any) -> Categorical:
        """The distribution that is equal to the discrete priors of the weights."""

        def leaf(w, prior):
            log_probs = jnp.asarray(prior.log_probs, w.dtype).reshape(-1, *(1,) * w.ndim)
            return jnp.broadcast_to(log_probs, (len(prior.values), *w.shape))

        values = tuple(tuple(prior.values) for prior in jax.tree.leaves(priors))
        return cls(jax.tree.map(leaf, params, priors), values)

    def draw(self, key):
        leaves, tree = jax.tree.flatten(self.logits)
        keys = jax.random.split(key, len(leaves))
        drawn = [
            jnp.asarray(values, logits.dtype)[jax.random.categorical(key, logits, axis=0)]
            for key, logits, values in zip(keys, leaves, self.values, strict=True)
        ]
        return jax.tree.unflatten(tree, drawn)

    def log_probs(self, params):
        def leaf(w, logits, values):
            chosen = w == jnp.asarray(values, w.dtype).reshape(-1, *(1,) * w.ndim)
            log_prob = jnp.sum(jnp.where(chosen, jax.nn.log_softmax(logits, axis=0), 0), axis=0)
            return jnp.where(jnp.any(chosen, axis=0), log_prob, -jnp.inf)

        return self._each(leaf, params, self.logits)

    def probs(self) -> Params:
        """The probability of each value, along the leading axis."""
        return jax.tree.map(lambda logits: jax.nn.softmax(logits, axis=0), self.logits)

    def entropy(self):
        def leaf(logits):
            log_probs = jax.nn.log_softmax(logits, axis=0)
            return -jnp.sum(jnp.exp(log_probs) * log_probs)

        return total(jax.tree.map(leaf, self.logits))

    def moments(self):
        def power(exponent):
            about = lambda p, v: jnp.tensordot(jnp.asarray(v, p.dtype) ** exponent, p, 1)  # noqa: E731
            return self._each(about, self.probs())

        mean = power(1)
        return mean, jax.tree.map(lambda square, m: square - m**2, power(2), mean)

    def _each(self, function: Any, *trees: Params) -> Params:
        """The tree of ``function(*leaves, values)`` over the leaves of the trees."""
        leaves = zip(*map(jax.tree.leaves, trees), self.values, strict=True)
        structure = jax.tree.structure(trees[0])
        return jax.tree.unflatten(structure, [function(*parts) for parts in leaves])
