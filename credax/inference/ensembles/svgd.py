"""Stein variational gradient descent (Liu & Wang, 2016): an ensemble whose members repel each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from credax.core import random
from credax.core.checks import integer, positive
from credax.core.settings import at_least, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Array, NetworkState
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.posterior import Posterior
from credax.posterior.approximations import Draws

SPREAD = 1e-2
"""The standard deviation of the noise that sets particles apart if they would all start at the same weights:
between equal particles there is no force."""


class State(NamedTuple):
    """Where the particles are; the leading axis is that of the particles."""

    particles: Flat
    network: NetworkState
    optimiser: Any


class Info(NamedTuple):
    """What a step shows."""

    log_joint: Array  # minibatch estimate, averaged over the particles, before the step
    bandwidth: Array  # of the kernel


@dataclass(frozen=True)
class SVGD(Method):
    r"""Particles that climb the log joint together and repel each other.

    Each particle follows the direction in which the Kullback-Leibler divergence from the particles to the
    posterior falls fastest among the smooth directions that a kernel k allows:

    .. math::
        w_i \leftarrow w_i + \frac{\alpha}{P} \sum_{j=1}^P \left(
        k(w_j, w_i)\, \nabla_{w_j} \log p(w_j, D) + \nabla_{w_j} k(w_j, w_i)\right), \qquad
        k(w, w') = \exp\left(-\frac{|w - w'|^2}{h}\right)

    The first term carries particles to where the posterior is high, weighted by their neighbours; the second
    keeps them apart. With one particle this is ``MAP``. In many dimensions a few particles understate the
    variance.

    Args:
      particles: P, at least two.
      num_steps: the number of steps of the optimiser.
      batch_size: rows per step; ``None`` for all rows.
      learning_rate: of the optimiser; a number decays to zero along a cosine, an optax schedule is used as is.
      optimiser: the name of an optimiser in ``optax``, or an optax transformation.
      bandwidth: h; ``None`` for the squared median distance between two particles, divided by log P, at each
        step.

    Reference: Liu & Wang, Stein Variational Gradient Descent: A General Purpose Bayesian Inference Algorithm,
    2016.
    """

    particles: int = setting(20, at_least(2))
    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    bandwidth: float | None = setting(None, optional(positive))

    kind = "approximate"
    when = "an ensemble whose members would otherwise find the same function"
    errs = "few particles in many dimensions: too sure"

    def init(self, key, model, data):
        """The network's own starting weights, drawn anew for each particle and set apart if they are equal.

        They are equal at a given start, in a pretrained network, and if the init of a user ignores its key.
        """
        weight_key, noise_key = jax.random.split(key)
        keys = jax.random.split(weight_key, self.particles)
        particles = jax.vmap(lambda key: Flat.of(model.init(key)))(keys)
        vectors = particles.vector
        noise = SPREAD * random.noise(noise_key, vectors.shape, vectors.dtype)
        equal = jnp.all(vectors == vectors[0])
        particles = replace(particles, vector=jnp.where(equal, vectors + noise, vectors))
        repeat = lambda leaf: jnp.broadcast_to(leaf, (self.particles, *jnp.shape(leaf)))  # noqa: E731
        network = jax.tree.map(repeat, model.init_state())
        return State(particles, network, make_optimiser(self).init(particles))

    def step(self, key, state, model, batch, step):
        """Move all particles once."""

        def log_joint(particle, network, key):
            return model.train_log_joint(particle.tree, batch, network, key)

        evaluate = jax.vmap(jax.value_and_grad(log_joint, has_aux=True))
        keys = jax.random.split(key, self.particles)
        (values, network), gradient = evaluate(state.particles, state.network, keys)
        direction, bandwidth = self._direction(state.particles.vector, gradient.vector)
        rows = 1.0 if batch is None else batch.total.astype(direction.dtype)
        descent = replace(gradient, vector=-direction / rows)
        updates, after = make_optimiser(self).update(descent, state.optimiser, state.particles)
        particles = optax.apply_updates(state.particles, updates)
        return State(particles, network, after), Info(jnp.mean(values), bandwidth)

    def _direction(self, w: Array, gradient: Array) -> tuple[Array, Array]:
        """The Stein direction of each particle, ``(particles, weights)``, and the bandwidth."""
        apart = w[:, None] - w[None]  # (i, j, weights)
        squares = jnp.sum(apart**2, -1)
        if self.bandwidth is None:
            pairs = jnp.triu_indices(self.particles, 1)
            median = jnp.median(squares[pairs])
            h = jnp.maximum(median, jnp.finfo(w.dtype).tiny) / math.log(self.particles + 1)
        else:
            h = jnp.asarray(self.bandwidth, w.dtype)
        kernel = jnp.exp(-squares / h)
        repulsion = 2 / h * jnp.einsum("ij,ijd->id", kernel, apart)
        return (kernel @ gradient + repulsion) / self.particles, h

    def posterior(self, model, trace):
        """The particles, all with the same weight."""
        params = jax.vmap(jax.vmap(lambda particle: particle.tree))(trace.state.particles)
        draws = jax.device_get((params, trace.state.network))
        return Posterior(model, Draws(*draws))
