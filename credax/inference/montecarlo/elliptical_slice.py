"""Elliptical slice sampling (Murray, Adams & MacKay, 2010), for Gaussian priors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from credax.core.trees import Flat
from credax.core.typing import Array, NetworkState
from credax.inference.method import Layout
from credax.inference.montecarlo import kernels
from credax.inference.montecarlo.chain import Chains, first_position

ROUNDING = 8
"""By how many units in the last place the slice lies below the current log likelihood, at least: at the current
position itself, where the bracket ends, the recomputed log likelihood must lie above the slice."""


class State(NamedTuple):
    """Where a chain is."""

    position: Flat
    log_density: Array
    log_likelihood: Array
    network: NetworkState


class Info(NamedTuple):
    """What a step shows."""

    log_joint: Array  # at the end of the step
    num_proposals: Array  # points on the ellipse that were tried


@dataclass(frozen=True)
class EllipticalSlice(Chains):
    r"""Slice sampling on ellipses through the current weights and a draw of the prior.

    For a Gaussian prior with mean :math:`\mu`, a draw :math:`\nu` of the prior and the current weights w define
    an ellipse

    .. math:: w(\theta) = \mu + (w - \mu) \cos\theta + (\nu - \mu) \sin\theta

    all of whose points are equally likely under the prior. A level u below the current likelihood is drawn
    uniformly, and angles are drawn from a shrinking bracket until :math:`p(D \mid w(\theta)) > u`. Every step
    moves the chain, without a gradient and without a step size to tune.

    Args:
      chains: the number of chains, each from its own start.
      num_warmup: the number of steps of each chain before its first draw. Nothing is adapted in them.
      num_draws: the number of draws of each chain.
      thin: the number of steps per draw.
      initial: where chains start: ``"network"``, at the network's own initial weights, or ``"prior"``, at a
        draw of the prior.

    Reference: Murray, Adams & MacKay, Elliptical slice sampling, 2010.
    """

    thin: int = 10

    needs = frozenset({"likelihood", "trained state"})
    layout = Layout.IN_TURN  # in a batch, a step would wait for the chain that tries most points
    when = "Gaussian priors and no tuning at all; few weights, or a weak likelihood"
    errs = "slow chains err in either direction; R-hat and the effective sample size tell"

    def check(self, model, data):
        """Refuse priors that are not Gaussian."""
        super().check(model, data)
        params = jax.eval_shape(model.init, jax.random.key(0))
        for prior in jax.tree.leaves(model.leaf_priors(params)):
            if prior.gaussian(()) is None:
                raise ValueError(
                    f"EllipticalSlice needs a Gaussian prior (Normal, FanInNormal); got {prior}. "
                    "Use Metropolis or HMC for others."
                )

    def init(self, key, model, data):
        """A start where the likelihood is positive."""
        position, value, network = first_position(self, key, model, data)
        # In the float type in use, so that rotating half-precision weights does not round them anew.
        wide = replace(position, vector=position.vector.astype(jnp.result_type(float)))
        value = value.astype(wide.vector.dtype)
        log_prior = model.log_prior(position.tree).astype(value.dtype)
        return State(wide, value, value - log_prior, network)

    def step(self, key, state, model, batch, step):
        """Points on one ellipse, until one of them lies above the slice."""
        mean, variance = _moments(model, state.position)

        def log_likelihood(position):
            value = model.log_likelihood(position.tree, batch, state=state.network)
            return jnp.where(jnp.isnan(value), -jnp.inf, value)

        slack = ROUNDING * jnp.finfo(mean.dtype).eps * (1 + jnp.abs(state.log_likelihood))
        kernel = kernels.elliptical_slice
        before = kernel.EllipSliceState(state.position, state.log_likelihood - slack)
        # BlackJAX mixes types, e.g. whole numbers with floats.
        with jax.numpy_dtype_promotion("standard"):
            after, info = kernel.build_kernel(variance, mean)(key, before, log_likelihood)
        log_prior = model.log_prior(after.position.tree).astype(mean.dtype)
        log_joint = log_prior + after.logdensity
        count = jnp.asarray(info.subiter, jnp.int32)
        return State(after.position, log_joint, after.logdensity, state.network), Info(
            log_joint, count
        )


def _moments(model, position: Flat) -> tuple[Array, Array]:
    """The mean and the variance of each weight under the prior, in the order of the position."""
    params = position.tree
    priors = jax.tree.leaves(model.leaf_priors(params))
    leaves = jax.tree.leaves(params)
    pairs = [p.gaussian(leaf.shape) for p, leaf in zip(priors, leaves, strict=True)]
    dtype = position.vector.dtype
    each = lambda values: jnp.concatenate(  # noqa: E731
        [
            jnp.broadcast_to(jnp.asarray(value, dtype), leaf.shape).reshape(-1)
            for leaf, value in zip(leaves, values, strict=True)
        ]
    )
    return each([mean for mean, _ in pairs]), each([scale**2 for _, scale in pairs])
