"""Hamiltonian Monte Carlo (Neal, 2011) and the No-U-Turn Sampler (Hoffman & Gelman, 2014)."""

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
from credax.inference.method import Ability, Layout
from credax.inference.montecarlo import kernels
from credax.inference.montecarlo.adaptation import Adaptation, Warmup
from credax.inference.montecarlo.chain import Chains, first_position, target
from credax.inference.montecarlo.exchangeable import groups
from credax.inference.montecarlo.stiffness import metric as low_rank

LARGEST_DENSE = 2_000
"""The most weights for which the mass matrix may be dense; each chain then carries three square matrices."""
GOLDEN = np.uint32(2654435769)
"""2^32 divided by the golden ratio; its multiples modulo 2^32 are spread most evenly."""
SHORT = 4
"""Every fourth trajectory of HMC has a step size four times smaller. The posterior of a network has regions
that are narrower than those seen in the warm-up; there, all longer steps are rejected and a chain would be
stuck."""


class State(NamedTuple):
    """The position of a chain, and what it has learned about its target."""

    position: Flat
    log_density: Array
    gradient: Flat
    network: NetworkState
    momentum: Flat  # after the last trajectory; NUTS draws a new one for each
    adaptation: Adaptation


class Info(NamedTuple):
    """The figures of a step."""

    log_joint: Array  # after the step
    acceptance_rate: Array
    diverging: Array  # 1 if the energy error was above 1000 or not a number
    energy: Array  # after the step
    step_size: Array
    num_leapfrog: Array


@dataclass(frozen=True)
class Hamiltonian(Chains):
    """Base class of HMC and NUTS, which differ only in the length of their trajectories."""

    step_size: float | None = setting(None, optional(positive))
    mass: str = setting("diagonal", one_among("diagonal", "low_rank", "dense", "unit"))
    target_accept: float = setting(0.8, fraction)
    collapse: bool | None = setting(False, one_among(False, True, None), kw_only=True)

    # On a CPU, a batch of small products takes twice as long as one chain after the other (8-50-1 network, 500
    # rows: 78 us against 35 us per gradient).
    layout = Layout.IN_TURN_IF_SMALL

    def __post_init__(self):
        super().__post_init__()
        if self.step_size is None and self.num_warmup == 0:
            allowed = "a number where num_warmup is 0, since nothing adapts it"
            raise ValueError(must(type(self).__name__, "step_size", allowed, None))

    def check(self, model: Any, data: Any) -> None:
        """Check what every chain checks, and that a dense mass matrix is not too large."""
        super().check(model, data)
        if self.mass != "dense":
            return
        params = jax.eval_shape(self.view(model, data).init, jax.random.key(0))
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
        if size > LARGEST_DENSE:
            allowed = f"'diagonal', 'low_rank' or 'unit' for a model of more than {LARGEST_DENSE:,} weights"
            message = must(type(self).__name__, "mass", allowed, self.mass)
            raise ValueError(
                f"{message} This one has {size:,}, and a dense mass {size**2:,} entries."
            )

    @property
    def can(self) -> frozenset[Ability]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the last layer may be integrated out, the number of rows decides about it."""
        return frozenset({"sum parts", "pad rows"} if self.collapse is False else ())

    @property
    def warmup(self) -> Warmup:
        """What the warm-up adapts."""
        adapts = self.step_size is None
        return Warmup(self.num_warmup, self.mass, self.target_accept if adapts else None)

    def init(self, key, model, data):
        """A starting point, and a step size at which one leapfrog step is likely to be accepted."""
        position_key, search_key = jax.random.split(key)
        model = self.view(model, data)
        position, value, network = first_position(self, position_key, model, data)
        log_density = target(model, None if data is None else data.everything(), network)
        state = kernels.hmc.HMCState(position, value, jax.grad(log_density)(position))
        with jax.numpy_dtype_promotion("standard"):
            step_size = self._first_step_size(search_key, state, log_density)
            adaptation = self.warmup.init(step_size, position.vector)
        return _state(state, network, jax.tree.map(jnp.zeros_like, position), adaptation)

    def _first_step_size(self, key, state, log_density):
        dtype = state.position.vector.dtype
        if self.step_size is not None:
            return jnp.asarray(self.step_size, dtype)
        unit = jnp.ones_like(state.position.vector)
        kernel = kernels.hmc.build_kernel()

        def one_leapfrog(size):
            return lambda key, state: kernel(
                key, state, log_density, size.astype(dtype), gaussian(unit, unit), 1
            )

        guess = jnp.ones((), jnp.result_type(float))
        size = kernels.step_size.find_reasonable_step_size(
            key, one_leapfrog, state, guess, self.target_accept
        )
        return size.astype(dtype)

    def step(self, key, state, model, batch, step):
        """A trajectory from a new random momentum; during the warm-up, the adaptation is updated."""
        view = self.view(model, batch)
        log_density = target(view, batch, state.network)
        known = state.adaptation
        before = kernels.hmc.HMCState(state.position, state.log_density, state.gradient)
        # BlackJAX mixes dtypes, such as integers with floats.
        with jax.numpy_dtype_promotion("standard"):
            mass, momentum = metric(known), state.momentum
            after, momentum, info = self.transition(
                key, before, momentum, log_density, known.step_size, mass, step
            )
            position, gradient = after.position.vector, after.logdensity_grad.vector
            rate, alike = info.acceptance_rate, groups(view, state.position)
            known = self.warmup.update(known, step, position, gradient, rate, alike)
        return _state(after, state.network, momentum, known), info

    @abc.abstractmethod
    def transition(
        self,
        key: Any,
        state: Any,
        momentum: Flat,
        log_density: Any,
        step_size: Array,
        mass: Any,
        step: Array,
    ) -> tuple[Any, Flat, Info]:
        """The state and the momentum after one trajectory, and its figures.

        Args:
          key: a random key.
          state: BlackJAX's ``HMCState`` before the trajectory.
          momentum: the momentum after the last trajectory.
          log_density: the log density of a position.
          step_size: the step size of the leapfrog integrator.
          mass: BlackJAX's metric, from :func:`metric`.
          step: the number of steps before this one.
        """


def _share(owner: str, name: str, value: Any) -> float:
    result = number(owner, name, value)
    if not 0 <= result < 1:
        raise ValueError(must(owner, name, "at least 0 and below 1", value))
    return result


@dataclass(frozen=True)
class HMC(Hamiltonian):
    r"""Hamiltonian Monte Carlo: proposals that follow the motion of a particle on the log joint density.

    A momentum :math:`r \sim N(0, M)` with mass matrix M is drawn. The motion conserves the energy

    .. math:: H(w, r) = -\log p(w, D) + \tfrac{1}{2} r^\top M^{-1} r

    and is simulated by L leapfrog steps of step size epsilon,

    .. math::
        r \leftarrow r + \tfrac{\epsilon}{2} \nabla \log p(w, D), \qquad
        w \leftarrow w + \epsilon M^{-1} r, \qquad
        r \leftarrow r + \tfrac{\epsilon}{2} \nabla \log p(w, D)

    which conserve the energy approximately. The end of the trajectory is accepted with probability
    :math:`\min(1, e^{H - H'})`, which makes the sampler exact. The warm-up adapts epsilon and M; afterwards
    they are fixed.

    Args:
      chains: the number of chains, each with its own starting point.
      num_warmup: warm-up steps per chain.
      num_draws: draws per chain.
      thin: steps per draw.
      initial: where the chains start: ``"network"`` for the network's initial weights, drawn anew for each
        chain, or ``"prior"`` for a draw from the prior.
      step_size: epsilon, in units of the scales in the mass matrix. If ``None``, it is adapted in the warm-up.
      mass: the mass matrix M: ``"diagonal"``, ``"low_rank"`` (a diagonal, and up to 32 directions in which the
        posterior is narrowest; the diagonal alone for more than 100,000 weights) or ``"dense"`` (for few
        weights), all adapted in the warm-up, or ``"unit"`` (the identity, not adapted). In an ``mlp``, the
        entries of the diagonal are halfway between those of each weight and those that all hidden units of a
        layer share.
      target_accept: the acceptance probability that epsilon is adapted to.
      collapse: whether to integrate out the last layer of a regression with Gaussian noise in closed form, and
        to draw it at the end given the other weights. Draws then become independent after far fewer steps. If
        ``None``, this is done wherever it is possible.
      num_leapfrog: L, the number of leapfrog steps per trajectory.
      jitter: j; the step sizes of successive trajectories are spread evenly over
        :math:`[(1 - j)\, \epsilon, (1 + j)\, \epsilon]`, so that no direction of the posterior returns to its
        starting point in every trajectory. Unless j is 0, every fourth trajectory has a step size four times
        smaller, so that a chain can leave a narrow region.
      persistence: alpha; a trajectory begins with the momentum
        :math:`\alpha\, r + \sqrt{1 - \alpha^2}\, \xi`, where r is that at the end of the last one, reversed
        after a rejection, and :math:`\xi \sim N(0, M)`. Successive trajectories so go on in similar
        directions, and cross a posterior that is much longer than one of them. With 0, each begins anew.

    References: Duane, Kennedy, Pendleton & Roweth, Hybrid Monte Carlo, 1987; Horowitz, A generalized guided
    Monte Carlo algorithm, 1991; Neal, MCMC using Hamiltonian dynamics, 2011.
    """

    target_accept: float = 0.9
    num_leapfrog: int = setting(128, integer)
    jitter: float = setting(0.5, _share)
    persistence: float = setting(0.0, _share)

    when = "the reference for a small network"
    errs = "only Monte Carlo error, once R-hat is near 1"

    def transition(self, key, state, momentum, log_density, step_size, mass, step):
        """A trajectory of ``num_leapfrog`` steps, whose end is accepted or rejected."""
        # The step size varies, not the number of leapfrog steps: in a loop of unknown length, a GPU has to
        # ask its host at every iteration whether to go on.
        jittered = step_size * jitter(step, self.jitter).astype(step_size.dtype)
        mass = mass._replace(sample_momentum=self._renewal(momentum, mass, step))
        kernel = kernels.hmc.build_kernel()
        after, info = kernel(key, state, log_density, jittered, mass, self.num_leapfrog)
        # BlackJAX reverses the momentum of a proposal. After a rejection, the chain goes back as it came.
        ends = info.proposal.momentum, info.momentum
        momentum = jax.tree.map(lambda new, old: -jnp.where(info.is_accepted, new, old), *ends)
        # BlackJAX returns the energy of the proposal, which may be NaN.
        stayed = mass.kinetic_energy(info.momentum) - state.logdensity
        energy = jnp.where(info.is_accepted, info.energy, stayed)
        return after, momentum, _info(after, info, energy, step_size, self.num_leapfrog)

    def _renewal(self, momentum, mass, step):
        """A function that draws a momentum: partly the last one, unless the mass matrix is another."""
        kept = jnp.where(self.warmup.renewed(step), 0, self.persistence)

        def draw(key, position):
            new, share = mass.sample_momentum(key, position), kept.astype(momentum.vector.dtype)
            mix = lambda old, new: share * old + jnp.sqrt(1 - share**2) * new  # noqa: E731
            return jax.tree.map(mix, momentum, new)

        return draw


@dataclass(frozen=True)
class NUTS(Hamiltonian):
    r"""The No-U-Turn Sampler: Hamiltonian Monte Carlo that chooses the trajectory length by itself.

    The trajectory is doubled, forwards or backwards in time at random, until it, or one of its subtrees,
    makes a U-turn,

    .. math:: r_-^\top M^{-1} \rho \le 0 \quad \text{or} \quad r_+^\top M^{-1} \rho \le 0

    where :math:`r_-` and :math:`r_+` are the momenta at its two ends and :math:`\rho` is the sum of all momenta
    along it. The next state is one of its points, drawn with probability proportional to :math:`e^{-H}`, with a
    bias towards the newer half (Betancourt, 2017).

    Args:
      chains: the number of chains, each with its own starting point.
      num_warmup: warm-up steps per chain.
      num_draws: draws per chain.
      thin: steps per draw.
      initial: where the chains start: ``"network"`` for the network's initial weights, drawn anew for each
        chain, or ``"prior"`` for a draw from the prior.
      step_size: epsilon, in units of the scales in the mass matrix. If ``None``, it is adapted in the warm-up.
      mass: the mass matrix M: ``"diagonal"``, ``"low_rank"`` (a diagonal, and up to 32 directions in which the
        posterior is narrowest; the diagonal alone for more than 100,000 weights) or ``"dense"`` (for few
        weights), all adapted in the warm-up, or ``"unit"`` (the identity, not adapted). In an ``mlp``, the
        entries of the diagonal are halfway between those of each weight and those that all hidden units of a
        layer share.
      target_accept: the mean acceptance probability along a trajectory that epsilon is adapted to.
      collapse: whether to integrate out the last layer of a regression with Gaussian noise in closed form, and
        to draw it at the end given the other weights. Draws then become independent after far fewer steps. If
        ``None``, this is done wherever it is possible.
      max_depth: the most doublings of a trajectory, which thus has at most
        :math:`2^{\text{max\_depth}} - 1` leapfrog steps.

    References: Hoffman & Gelman, The No-U-Turn Sampler, 2014; Betancourt, A conceptual introduction to
    Hamiltonian Monte Carlo, 2017.
    """

    max_depth: int = setting(10, integer)

    layout = Layout.IN_TURN  # in a batch, a step would wait for the longest tree
    when = "the reference for a small network, without a trajectory length to choose"
    errs = "only Monte Carlo error, once R-hat is near 1"

    def transition(self, key, state, momentum, log_density, step_size, mass, step):
        """A trajectory of adaptive length, and one of its points."""
        after, info = kernels.nuts.build_kernel()(
            key, state, log_density, step_size, mass, self.max_depth
        )
        info = _info(after, info, info.energy, step_size, info.num_integration_steps)
        return after, momentum, info


def metric(known: Adaptation) -> Any:
    """BlackJAX's metric of the mass matrix."""
    if len(known.stiff.factors):
        return low_rank(known.root, known.stiff)
    return gaussian(known.inverse_mass, known.root)


def gaussian(inverse_mass: Array, root: Array) -> Any:
    """BlackJAX's metric of an inverse mass matrix, which draws momenta with a root computed before.

    Args:
      inverse_mass: the diagonal, or the whole matrix.
      root: the square root of the diagonal, or the lower Cholesky factor of the matrix.
    """

    def sample(key, position):
        noise = random.normal(key, position.vector.shape, position.vector.dtype)
        if root.ndim == 1:
            momentum = noise / root
        else:
            momentum = jax.scipy.linalg.solve_triangular(root, noise, trans="T", lower=True)
        return Flat(momentum, position.structure, position.leaves)

    return kernels.metrics.gaussian_euclidean(inverse_mass)._replace(sample_momentum=sample)


def jitter(step: Array, width: float) -> Array:
    """The factor of the step size at a step: a quasi-random sequence; every fourth value is divided by four.

    It depends only on the number of the step, not on the state of the chain, so the posterior stays invariant.

    Args:
      step: the number of steps before this one.
      width: half the width of the range of the factor, which is centred at 1.

    >>> [round(float(jitter(jnp.int32(step), 0.5)), 2) for step in range(6)]
    [0.5, 1.12, 0.74, 0.34, 0.97, 0.59]
    """
    share = (step.astype(jnp.uint32) * GOLDEN).astype(jnp.float32) * np.float32(2**-32)
    factor = 1 - np.float32(width) + np.float32(2 * width) * share
    return jnp.where((step % SHORT == SHORT - 1) & (width > 0), factor / SHORT, factor)


def _state(state, network, momentum, adaptation):
    position, log_density, gradient = state
    return State(position, log_density, gradient, network, momentum, adaptation)


def _info(after, info, energy, step_size, count):
    typed = lambda value: lax.convert_element_type(value, step_size.dtype)  # noqa: E731
    return Info(
        after.logdensity,
        jnp.minimum(typed(info.acceptance_rate), 1),  # a mean, which rounding may raise above 1
        typed(info.is_divergent),
        typed(energy),
        step_size,
        lax.convert_element_type(count, jnp.int32),
    )
