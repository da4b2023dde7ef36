"""Hamiltonian Monte Carlo (Duane et al., 1987; Neal, 2011), and without U-turns (Hoffman & Gelman, 2014)."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.checks import fraction, integer, must, number, positive
from credax.core.settings import one_among, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Array, NetworkState
from credax.inference.method import Layout
from credax.inference.montecarlo import kernels
from credax.inference.montecarlo.adaptation import Adaptation, Warmup
from credax.inference.montecarlo.chain import Chains, first_position, target

LARGEST_DENSE = 2_000
"""Weights up to which a mass may be dense; a chain then carries three matrices of their square."""
GOLDEN = np.uint32(2654435769)
"""The golden section of 2^32, whose multiples are spread most evenly."""
SHORT = 4
"""Every so many steps of HMC one is that many times shorter: the posterior of a network has places narrower
than those that warm-up saw, in which all others are rejected and a chain would stay."""


class State(NamedTuple):
    """Where a chain is, and what it has learned."""

    position: Flat
    log_density: Array
    gradient: Flat
    network: NetworkState
    adaptation: Adaptation


class Info(NamedTuple):
    """What a step shows."""

    log_joint: Array  # where it ended
    acceptance_rate: Array
    diverging: Array  # 1 where the energy rose by 1000 or was not a number
    energy: Array  # where it ended
    step_size: Array
    num_leapfrog: Array


@dataclass(frozen=True)
class Hamiltonian(Chains):
    """What HMC and NUTS share: the warm-up, and a step but for how far its trajectory goes."""

    step_size: float | None = setting(None, optional(positive))
    mass: str = setting("diagonal", one_among("diagonal", "dense", "unit"))
    target_accept: float = setting(0.8, fraction)
    collapse: bool | None = setting(False, one_among(False, True, None), kw_only=True)

    # A batch of small products takes twice as long on a CPU as one chain after the other (8-50-1 network, 500
    # rows: 78 us against 35 us a gradient).
    layout = Layout.IN_TURN_IF_SMALL

    def __post_init__(self):
        super().__post_init__()
        if self.step_size is None and self.num_warmup == 0:
            allowed = "a number where num_warmup is 0, since nothing adapts it"
            raise ValueError(must(type(self).__name__, "step_size", allowed, None))

    def check(self, model: Any, data: Any) -> None:
        """As every chain; also that a dense mass is not too large."""
        super().check(model, data)
        if self.mass != "dense":
            return
        params = jax.eval_shape(self.view(model, data).init, jax.random.key(0))
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
        if size > LARGEST_DENSE:
            allowed = f"'diagonal' or 'unit' for a model of more than {LARGEST_DENSE:,} weights"
            message = must(type(self).__name__, "mass", allowed, self.mass)
            raise ValueError(
                f"{message} This one has {size:,}, and a dense mass {size**2:,} entries."
            )

    @property
    def warmup(self) -> Warmup:
        """What is learned in warm-up."""
        adapts = self.step_size is None
        return Warmup(self.num_warmup, self.mass, self.target_accept if adapts else None)

    def init(self, key, model, data):
        """A position, and a step size of which one step is likely to be accepted."""
        position_key, search_key = jax.random.split(key)
        model = self.view(model, data)
        position, value, network = first_position(self, position_key, model, data)
        log_density = target(model, None if data is None else data.everything(), network)
        state = kernels.hmc.HMCState(position, value, jax.grad(log_density)(position))
        with jax.numpy_dtype_promotion("standard"):
            step_size = self._first_step_size(search_key, state, log_density)
            adaptation = self.warmup.init(step_size, position.vector)
        return _state(state, network, adaptation)

    def _first_step_size(self, key, state, log_density):
        dtype = state.position.vector.dtype
        if self.step_size is not None:
            return jnp.asarray(self.step_size, dtype)
        unit = jnp.ones_like(state.position.vector)
        kernel = kernels.hmc.build_kernel()

        def one_leapfrog(size):
            return lambda key, state: kernel(
                key, state, log_density, size.astype(dtype), metric(unit, unit), 1
            )

        guess = jnp.ones((), jnp.result_type(float))
        size = kernels.step_size.find_reasonable_step_size(
            key, one_leapfrog, state, guess, self.target_accept
        )
        return size.astype(dtype)

    def step(self, key, state, model, batch, step):
        """A trajectory from a new momentum; in warm-up, what is to be learned from it."""
        log_density = target(self.view(model, batch), batch, state.network)
        known = state.adaptation
        before = kernels.hmc.HMCState(state.position, state.log_density, state.gradient)
        # BlackJAX mixes types, e.g. whole numbers with floats.
        with jax.numpy_dtype_promotion("standard"):
            mass = metric(known.inverse_mass, known.root)
            after, info = self.transition(key, before, log_density, known.step_size, mass, step)
            position, gradient = after.position.vector, after.logdensity_grad.vector
            known = self.warmup.update(known, step, position, gradient, info.acceptance_rate)
        return _state(after, state.network, known), info

    @abc.abstractmethod
    def transition(
        self,
        key: Any,
        state: Any,
        log_density: Any,
        step_size: Array,
        mass: Any,
        step: Array,
    ) -> tuple[Any, Info]:
        """One trajectory, and where on it the chain ends."""


def _share(owner: str, name: str, value: Any) -> float:
    result = number(owner, name, value)
    if not 0 <= result < 1:
        raise ValueError(must(owner, name, "at least 0 and below 1", value))
    return result


@dataclass(frozen=True)
class HMC(Hamiltonian):
    r"""Proposals from the motion of a particle in the landscape of the log joint.

    With a momentum r of the mass M, the energy

    .. math:: H(w, r) = -\log p(w, D) + \tfrac{1}{2} r^\top M^{-1} r

    is conserved by the motion, which L leapfrogs of the step size epsilon follow,

    .. math::
        r \leftarrow r + \tfrac{\epsilon}{2} \nabla \log p(w, D), \qquad
        w \leftarrow w + \epsilon M^{-1} r, \qquad
        r \leftarrow r + \tfrac{\epsilon}{2} \nabla \log p(w, D)

    nearly: the end is accepted with probability :math:`\min(1, e^{H - H'})`, which makes it exact. In warm-up
    epsilon and M are adapted; afterwards they stay as they are.

    Args:
      chains: how many, from different starts.
      num_warmup: steps of warm-up a chain.
      num_draws: draws a chain.
      thin: steps a draw.
      initial: ``"network"`` (each chain starts from its own initial weights) or ``"prior"``.
      step_size: epsilon, in units of the scales that the mass has learned; ``None``: adapted in warm-up.
      mass: ``"diagonal"``, ``"dense"`` (a matrix; for few weights), or ``"unit"`` (not adapted).
      target_accept: the acceptance rate that epsilon is adapted to.
      collapse: whether the last layer of a regression with normal noise is integrated out exactly, and drawn
        given the rest in the end (far fewer steps from one independent draw to the next); ``None``: where that
        can be done.
      num_leapfrog: L.
      jitter: j; from step to step epsilon is spread evenly over :math:`[(1 - j) \epsilon, (1 + j) \epsilon]`:
        no direction of the posterior then comes back to where it was in every trajectory. Unless j is 0, every
        fourth step is four times shorter, so that a chain in a narrow place can leave it.
    """

    target_accept: float = 0.9
    num_leapfrog: int = setting(128, integer)
    jitter: float = setting(0.5, _share)

    when = "the reference for a small network"

    def transition(self, key, state, log_density, step_size, mass, step):
        """A trajectory, at whose end the chain is if it is accepted."""
        # Not the number of leapfrogs: a GPU asks its host at every turn of a loop of unknown length.
        jittered = step_size * jitter(step, self.jitter).astype(step_size.dtype)
        kernel = kernels.hmc.build_kernel()
        after, info = kernel(key, state, log_density, jittered, mass, self.num_leapfrog)
        # BlackJAX gives the energy of the proposal, which need not be a number.
        stayed = mass.kinetic_energy(info.momentum) - state.logdensity
        energy = jnp.where(info.is_accepted, info.energy, stayed)
        return after, _info(after, info, energy, step_size, self.num_leapfrog)


@dataclass(frozen=True)
class NUTS(Hamiltonian):
    r"""Hamiltonian Monte Carlo that finds out by itself how far to go: until its trajectory turns back.

    The trajectory is doubled, forwards or backwards in time at random, until in the whole or in a part of it

    .. math:: r_-^\top M^{-1} \rho \le 0 \quad \text{or} \quad r_+^\top M^{-1} \rho \le 0

    for the momenta at its ends and the sum rho of those between. The draw is one of its points, chosen in
    proportion to :math:`e^{-H}` with a preference for the newer half (Betancourt, 2017).

    Args:
      chains: how many, from different starts.
      num_warmup: steps of warm-up a chain.
      num_draws: draws a chain.
      thin: steps a draw.
      initial: ``"network"`` (each chain starts from its own initial weights) or ``"prior"``.
      step_size: epsilon, in units of the scales that the mass has learned; ``None``: adapted in warm-up.
      mass: ``"diagonal"``, ``"dense"`` (a matrix; for few weights), or ``"unit"`` (not adapted).
      target_accept: the mean acceptance rate along trajectories that epsilon is adapted to.
      collapse: whether the last layer of a regression with normal noise is integrated out exactly, and drawn
        given the rest in the end (far fewer steps from one independent draw to the next); ``None``: where that
        can be done.
      max_depth: doublings at most, so that a step has at most :math:`2^{\text{max\_depth}} - 1` leapfrogs.
    """

    max_depth: int = setting(10, integer)

    layout = Layout.IN_TURN  # in a batch, a step would wait for the longest tree
    when = "the reference where nobody wants to choose a path length"

    def transition(self, key, state, log_density, step_size, mass, step):
        """A trajectory, and a point of it."""
        after, info = kernels.nuts.build_kernel()(
            key, state, log_density, step_size, mass, self.max_depth
        )
        return after, _info(after, info, info.energy, step_size, info.num_integration_steps)


def metric(inverse_mass: Array, root: Array) -> Any:
    """BlackJAX's kinetic energy, with momenta from a root that is already there."""

    def sample(key, position):
        noise = random.normal(key, position.vector.shape, position.vector.dtype)
        if root.ndim == 1:
            momentum = noise / root
        else:
            momentum = jax.scipy.linalg.solve_triangular(root, noise, trans="T", lower=True)
        return Flat(momentum, position.structure, position.leaves)

    return kernels.metrics.gaussian_euclidean(inverse_mass)._replace(sample_momentum=sample)


def jitter(step: Array, width: float) -> Array:
    """The factor of a step's size, from a sequence that fills its range evenly; every fourth a quarter of that.

    It depends on the number of the step alone, not on the state, so the posterior stays invariant.

    >>> [round(float(jitter(jnp.int32(step), 0.5)), 2) for step in range(6)]
    [0.5, 1.12, 0.74, 0.34, 0.97, 0.59]
    """
    share = (step.astype(jnp.uint32) * GOLDEN).astype(jnp.float32) * np.float32(2**-32)
    factor = 1 - np.float32(width) + np.float32(2 * width) * share
    return jnp.where((step % SHORT == SHORT - 1) & (width > 0), factor / SHORT, factor)


def _state(state, network, adaptation):
    position, log_density, gradient = state
    return State(position, log_density, gradient, network, adaptation)


def _info(after, info, energy, step_size, count):
    typed = lambda value: lax.convert_element_type(value, step_size.dtype)  # noqa: E731
    return Info(
        after.logdensity,
        jnp.minimum(typed(info.acceptance_rate), 1),  # a mean that rounding can raise above it
        typed(info.is_divergent),
        typed(energy),
        step_size,
        lax.convert_element_type(count, jnp.int32),
    )
