"""Microcanonical Langevin Monte Carlo (Robnik et al., 2023; Robnik & Seljak, 2024; Robnik et al., 2025)."""

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
from credax.core.checks import fraction, must, positive
from credax.core.settings import flag, one_among, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Array, NetworkState
from credax.inference.method import Layout
from credax.inference.montecarlo import kernels
from credax.inference.montecarlo.chain import Chains, first_position, target
from credax.inference.montecarlo.mclmc_tuning import Warmup
from credax.inference.montecarlo.whitening import Layers

DIVERGED = 1_000.0
"""A step whose energy changes by more than this has diverged; the limit of BlackJAX and Stan for HMC."""
MOST = 256
"""The largest mean number of steps in an adjusted trajectory, so that a bad step size in the warm-up cannot
stall the run."""


class State(NamedTuple):
    """The position, direction and tuning of a chain."""

    position: Flat
    log_density: Array
    gradient: Flat  # with respect to the whitened coordinates of the layers
    network: NetworkState
    momentum: Flat  # a unit vector in the same coordinates; adjusted chains draw a new one
    units: tuple[Array, ...]  # the whitening matrices of the layers
    tuning: Flat  # a Tuning, as one array, which costs nothing to pass through a branch


class Info(NamedTuple):
    """The figures of a step."""

    log_joint: Array  # after the step
    energy_change: Array  # the energy error of the step; 0 if the step was undone
    diverging: Array  # 1 if the step was undone
    step_size: Array


class AdjustedInfo(NamedTuple):
    """The figures of a step of an adjusted chain."""

    log_joint: Array  # after the step
    energy_change: Array  # of the proposal
    diverging: Array  # 1 if the energy change was above 1000 or not a number
    step_size: Array
    acceptance_rate: Array
    num_leapfrog: Array  # steps of the trajectory, with two gradients each


@dataclass(frozen=True)
class MCLMC(Chains):
    r"""Microcanonical Langevin Monte Carlo: motion at constant speed in a slowly changing direction.

    In units of the posterior's scales, which the warm-up learns, the d weights follow

    .. math::
        \mathrm{d}w = u\, \mathrm{d}t, \qquad
        \mathrm{d}u = (I - u u^\top) \Bigl( \tfrac{1}{d - 1} \nabla \log p(w, D)\, \mathrm{d}t
        + \sqrt{\tfrac{2}{L\, d}}\, \mathrm{d}W \Bigr), \qquad |u| = 1

    whose stationary distribution is the posterior. A step of size epsilon (minimal-norm integrator, two
    gradients) has an energy error of variance :math:`O(\epsilon^6)` per dimension, and biases the variances of
    the posterior by :math:`O(\epsilon^2)`. No step is rejected, so this bias remains; epsilon is tuned to an
    energy error that keeps it small. ``adjusted=True`` removes the bias: each step is then a trajectory of
    random length that ends with a Metropolis test.

    Args:
      chains: the number of chains, each with its own starting point.
      num_warmup: warm-up steps per chain. If ``None``, 10,000, or 1,000 if ``adjusted``.
      num_draws: draws per chain.
      thin: steps per draw. If ``None``, 20, or 1 if ``adjusted``.
      initial: where the chains start: ``"network"`` for the network's initial weights, drawn anew for each
        chain, or ``"prior"`` for a draw from the prior.
      adjusted: whether a Metropolis test makes the draws exact, at the cost of more gradients per draw.
      step_size: epsilon after the warm-up. If ``None``, it is tuned.
      length: L, the distance over which the direction is forgotten; for adjusted chains, the mean trajectory
        length. If ``None``, it is tuned.
      desired_energy_variance: the variance of the energy error per step and dimension that epsilon is tuned to.
      target_accept: the acceptance rate that epsilon is tuned to if ``adjusted``.
      mass: the units in which the chains move: ``"diagonal"`` for the standard deviation of each weight,
        ``"unit"`` for the weights themselves (nothing is learned), or ``"inputs"`` for coordinates in which the
        inputs of each layer, at the start of the chain, are nearly white (for chains that start at an optimum).
      collapse: whether to integrate out the last layer of a regression with Gaussian noise in closed form, and
        to draw it at the end given the other weights. Draws then become independent after far fewer steps. If
        ``None``, this is done wherever it is possible.
      heat: the factor by which the desired variance is larger at the start of the warm-up. It falls
        geometrically to 1 over the first four fifths of the warm-up. Long, inaccurate steps help a chain to
        leave a region of low density. Only for ``adjusted=False``, and best with ``mass="unit"``, since scales
        would be learned while the chain is hot.

    References: Robnik, De Luca, Silverstein & Seljak, Microcanonical Hamiltonian Monte Carlo, 2023; Robnik &
    Seljak, Fluctuation without dissipation: Microcanonical Langevin Monte Carlo, 2024; Robnik, Cohn-Gordon &
    Seljak, Metropolis adjusted microcanonical Hamiltonian Monte Carlo, 2025.
    """

    num_warmup: int = None  # pyright: ignore[reportAssignmentType]  (filled in by __post_init__)
    thin: int = None  # pyright: ignore[reportAssignmentType]  (filled in by __post_init__)
    adjusted: bool = setting(False, flag)
    step_size: float | None = setting(None, optional(positive))
    length: float | None = setting(None, optional(positive))
    desired_energy_variance: float = setting(2e-5, positive)
    target_accept: float = setting(0.9, fraction)
    mass: str = setting("diagonal", one_among("diagonal", "unit", "inputs"))
    collapse: bool | None = setting(False, one_among(False, True, None))
    heat: float = setting(1.0, positive)

    kind = "approximate"  # unless adjusted: the bias of a step of finite size remains
    when = "many cheap draws of a network with thousands of weights"
    errs = "a small bias of its finite steps: up to a fifth too sure far from the data"

    def __post_init__(self):
        num_warmup, thin = (1_000, 1) if self.adjusted is True else (10_000, 20)
        self._fill(num_warmup=num_warmup, thin=thin)
        super().__post_init__()
        for name in ("step_size", "length"):
            if getattr(self, name) is None and self.num_warmup == 0:
                allowed = "a number where num_warmup is 0, since nothing tunes it"
                raise ValueError(must("MCLMC", name, allowed, None))
        if self.adjusted and self.heat != 1:
            raise ValueError(must("MCLMC", "heat", "1 where adjusted", self.heat))

    @property
    def layout(self) -> Layout:  # pyright: ignore[reportIncompatibleVariableOverride]
        """In turn: the trajectories of adjusted chains differ in length.

        On a CPU a batch of small products, too, takes longer than one chain after the other (8-50-1 network,
        500 rows, four chains: 177 us against 90 us per step).
        """
        return Layout.IN_TURN if self.adjusted else Layout.IN_TURN_IF_SMALL

    @property
    def warmup(self) -> Warmup:
        """What the warm-up tunes."""
        return Warmup(
            num_warmup=self.num_warmup,
            adjusted=self.adjusted,
            step_size=self.step_size,
            length=self.length,
            desired_energy_variance=self.desired_energy_variance,
            target_accept=self.target_accept,
            learn_mass=self.mass == "diagonal",
            heat=self.heat,
        )

    def check(self, model, data):
        """Check what every chain checks, and that there are at least two weights."""
        super().check(model, data)
        if _num_weights(self.view(model, data)) < 2:
            raise ValueError(
                "MCLMC needs at least two weights: in one dimension a particle of constant speed has no way "
                "to turn. Use HMC."
            )

    def view(self, model, rows):
        """The model as the chains see it; ``collapse=None`` must leave at least two weights."""
        view = super().view(model, rows)
        return model if self.collapse is None and _num_weights(view) < 2 else view

    def check_start(self, states):
        """Refuse chains that start where the density is zero or its gradient is not finite."""
        super().check_start(states)
        finite = np.isfinite(np.asarray(states.gradient.vector)).all(1)
        if not finite.all():
            raise ValueError(
                f"MCLMC cannot start: the gradient of the log density of chain {np.argmin(finite)} at its "
                "start is not finite. Start it elsewhere: fit(..., start=posterior), or an init that returns "
                "other parameters."
            )

    def init(self, key, model, data):
        """A starting point and a random direction."""
        position_key, momentum_key = jax.random.split(key)
        view, batch = self.view(model, data), None if data is None else data.everything()
        position, value, network = first_position(self, position_key, view, data)
        layers = self._layers(view, batch)
        units = layers.units(position.tree, batch, network)
        density = _around(position, view, batch, network, layers, units)
        with jax.numpy_dtype_promotion("standard"):
            gradient = jax.grad(density)(layers.origin(position.tree))
        return self._start(momentum_key, position, value, gradient, network, units)

    def unseen(self, key, model, data):
        """A chain at the model's initial weights whose log density is not yet known (NaN).

        Its first step does not move: it only evaluates the density and its gradient. A program that also takes
        steps then has one gradient less to compile.
        """
        view, batch = self.view(model, data), None if data is None else data.everything()
        position, network = Flat.of(view.init(key)), view.init_state()
        value = jax.eval_shape(target(view, batch, network), position)
        value = jnp.full((), jnp.nan, value.dtype)
        layers = self._layers(view, batch)
        units = layers.units(position.tree, batch, network)
        return self._start(key, position, value, layers.origin(position.tree), network, units)

    def _start(self, key, position, value, gradient, network, units):
        with jax.numpy_dtype_promotion("standard"):
            momentum = kernels.util.generate_unit_vector(key, gradient)
            tuning = Flat.of(self.warmup.init(position.vector))
        return State(position, value, gradient, network, momentum, units, tuning)

    def _layers(self, view, batch):
        """The layers whose inputs are whitened; none unless ``mass="inputs"``."""
        return Layers(view if self.mass == "inputs" else None, None if batch is None else batch.x)

    def step(self, key, state, model, batch, step):
        """One step of the motion, or one trajectory if adjusted; during the warm-up, the tuning is updated."""
        view = self.view(model, batch)
        layers = self._layers(view, batch)
        # BlackJAX mixes dtypes, such as integers with floats.
        with jax.numpy_dtype_promotion("standard"):
            move = self._trajectory if self.adjusted else self._move
            density = _around(state.position, view, batch, state.network, layers, state.units)
            after, info = move(key, state, density, step)
            way, momentum, value, gradient = after
            # Added as one vector, which may be of a wider type than some of the weights.
            moved = Flat.of(layers.weights(state.units, way))
            position = jax.tree.map(jnp.add, state.position, moved)
            tuning = state.tuning
            if self.num_warmup:
                seen = lambda: layers.coordinates(state.units, position.tree).vector  # noqa: E731
                learn = lambda: Flat.of(  # noqa: E731
                    self.warmup.update(tuning.tree, step, seen(), value, info)
                )
                tuning = lax.cond(step < self.num_warmup, learn, lambda: tuning)
        network, units = state.network, state.units
        return State(position, value, gradient, network, momentum, units, tuning), info

    def _move(self, key, state, log_density, step):
        """Half of the noise, one step of the motion, half of the noise; undone if it diverged."""
        tuning = state.tuning.tree
        first, second = jax.random.split(key)
        before = _integrator_state(state)
        # An unseen chain does not move: it only takes the density and its gradient from this step.
        seen = ~jnp.isnan(before.logdensity)
        step_size = jnp.where(seen, tuning.step_size, 0)
        turned = turn(first, before.momentum, step_size / 2, tuning.length)
        flow = kernels.integrators.isokinetic_mclachlan(log_density, tuning.inverse_mass)
        after, kinetic = flow(before._replace(momentum=turned), step_size)
        turned = turn(second, after.momentum, step_size / 2, tuning.length)
        change = kinetic + jnp.where(seen, before.logdensity, after.logdensity) - after.logdensity
        # A density or gradient that is not a number makes these not a number, too.
        taken = (jnp.abs(change) < DIVERGED) & jnp.all(jnp.isfinite(turned.vector))
        # The chain goes back the way it came: a rejected step of persistent motion reverses its direction.
        back = before._replace(momentum=jax.tree.map(jnp.negative, before.momentum))
        after = jax.tree.map(partial(jnp.where, taken), after._replace(momentum=turned), back)
        typed = partial(lax.convert_element_type, new_dtype=tuning.step_size.dtype)
        change = typed(jnp.where(taken, change, 0))
        return after, Info(after.logdensity, change, typed(~taken), step_size)

    def _trajectory(self, key, state, log_density, step):
        """A trajectory from a new random direction, whose end is accepted or rejected."""
        tuning = state.tuning.tree
        direction_key, key = jax.random.split(key)
        direction = kernels.util.generate_unit_vector(direction_key, state.momentum)
        before = _integrator_state(state)._replace(momentum=direction)
        flow = kernels.integrators.isokinetic_mclachlan(log_density, tuning.inverse_mass)
        mean = jnp.clip(tuning.length / tuning.step_size, 1, MOST)
        propose = kernels.adjusted_mclmc.adjusted_mclmc_proposal(
            lambda state, step_size, *_: flow(state, step_size),
            tuning.step_size,
            math.inf,
            num_leapfrogs(step, mean),
            DIVERGED,
            sample_proposal=_accept,
        )
        after, info, change = propose(key, before)
        typed = partial(lax.convert_element_type, new_dtype=tuning.step_size.dtype)
        figures = typed(change), typed(info.is_divergent), tuning.step_size
        count = lax.convert_element_type(info.num_integration_steps, jnp.int32)
        rate = typed(info.acceptance_rate)
        return after, AdjustedInfo(after.logdensity, *figures, rate, count)


def turn(key: Array, momentum: Flat, time: Array, length: Array) -> Flat:
    """The direction after noise has acted for ``time``; it is forgotten over ``length``."""
    noise = random.normal(key, momentum.vector.shape, momentum.vector.dtype)
    scale = jnp.sqrt(jnp.expm1(2 * time / length) / momentum.size)
    turned = momentum.vector + scale * noise
    return Flat(turned / jnp.linalg.norm(turned), momentum.structure, momentum.leaves)


def num_leapfrogs(step: Array, mean: Array) -> Array:
    """The number of steps in a trajectory: a quasi-random sequence with the given mean.

    It depends only on the number of the step, not on the state of the chain, so the posterior stays invariant.

    >>> [int(num_leapfrogs(jnp.int32(step), jnp.float32(4.0))) for step in range(7)]
    [4, 2, 6, 1, 5, 3, 7]
    """
    with jax.numpy_dtype_promotion("standard"):
        steps = kernels.adjusted_mclmc_dynamic.trajectory_length(step, mean)
    return jnp.maximum(steps, 1).astype(jnp.int32)


def _accept(key, log_probability, old, new):
    """BlackJAX's Metropolis test, which also returns the energy change of the proposal."""
    state, (accepted, rate, _) = kernels.proposal.static_binomial_sampling(
        key, log_probability, old, new
    )
    limit = jnp.finfo(log_probability.dtype).max
    return state, (accepted, rate, jnp.clip(-log_probability, -limit, limit))


def _around(
    position: Flat, model: Any, batch: Any, network: NetworkState, layers: Layers, units: tuple
) -> Callable[[Flat], Array]:
    """The log density as a function of the displacement from a position, in whitened coordinates."""

    def log_density(way):
        weights = jax.tree.map(jnp.add, position.tree, layers.weights(units, way))
        return model.log_joint(weights, batch, state=network)

    return log_density


def _integrator_state(state):
    """BlackJAX's state of the integrator, whose position is the displacement from the chain's position."""
    momentum = state.momentum
    way = jax.tree.map(jnp.zeros_like, momentum)
    return kernels.integrators.IntegratorState(way, momentum, state.log_density, state.gradient)


def _num_weights(view: Any) -> int:
    params = jax.eval_shape(view.init, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
