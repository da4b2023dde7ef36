r"""Weights whose inputs are masked: dropout as a distribution over the weights.

.. math:: w = \operatorname{diag}(z)\, M / (1 - p), \qquad z_i \sim \operatorname{Bernoulli}(1 - p)

A mask is applied in two equivalent ways. In training, each row of data has its own mask, which multiplies the
row's inputs to the weight. In prediction, each draw has one mask, which multiplies the rows of the weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr

from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.posterior.approximations.approximation import Generated
from credax.tracing.random_weights import Weight
from credax.tracing.usage import Site, along

Sites = tuple[Site | None, ...]
"""For each leaf of the parameters, the product in which it meets its inputs; ``None`` if it is not masked."""
TEMPERATURE = 0.1
"""The temperature of relaxed masks, as in Gal et al. (2017): nearly zero or one, but differentiable."""


# -- masks ----------------------------------------------------------------------------------------


def masks(key: Key, sites: Sites, rates: Array) -> list[Array | None]:
    """z / (1 - p) for the inputs of each masked weight."""

    def draw(key, shape, rate):
        return jax.random.bernoulli(key, 1 - rate, shape).astype(rate.dtype) / (1 - rate)

    return _each(draw, key, sites, rates)


def relaxed_masks(key: Key, sites: Sites, rates: Array) -> list[Array | None]:
    r"""Masks as in ``masks``, but with z between zero and one, differentiable in p (Gal et al., 2017).

    .. math:: z = 1 - \operatorname{sigmoid}\left(\tfrac{1}{t}\left(
              \log\tfrac{p}{1 - p} + \log\tfrac{u}{1 - u}\right)\right), \qquad u \sim U(0, 1)
    """

    def draw(key, shape, rate):
        logistic = jax.random.logistic(key, shape, rate.dtype)
        odds = jnp.log(rate) - jnp.log1p(-rate)
        return jax.nn.sigmoid(-(odds + logistic) / TEMPERATURE) / (1 - rate)

    return _each(draw, key, sites, rates)


def _each(draw: Any, key: Key, sites: Sites, rates: Array) -> list[Array | None]:
    keys = jax.random.split(key, len(sites))
    return [
        None if site is None else draw(keys[i], site.inputs, rates[i])
        for i, site in enumerate(sites)
    ]


def masked(params: Params, sites: Sites, scales: list[Array | None]) -> Params:
    """The parameters of one draw: the rows of each masked weight are multiplied by its mask."""

    def leaf(weight, site, scale):
        return weight if site is None else weight * site.over_weight(scale).astype(weight.dtype)

    return _zip(leaf, params, sites, scales)


def maskable(params: Params, sites: Sites, scales: list[Array | None]) -> Params:
    """The parameters for one row of data: masked weights that multiply the row's inputs by the mask."""

    def leaf(weight, site, scale):
        return weight if site is None else DroppedWeight(weight, scale)

    return _zip(leaf, params, sites, scales)


def _zip(function: Any, params: Params, *lists: Any) -> Params:
    leaves, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [function(*p) for p in zip(leaves, *lists, strict=True)])


class DroppedWeight(Weight):
    """A weight M with the mask z / (1 - p) of one row of data."""

    mean: Array
    scale: Array

    def product(self, multiply, x, input_axes, output_axes):
        """The product of the masked inputs with M."""
        return multiply(x * along(self.scale, input_axes, x.ndim).astype(x.dtype), self.mean)

    def moved(self, move):
        """The weight after a change of layout, which does not affect the mask of the inputs."""
        return DroppedWeight(move(self.mean), self.scale)


# -- the bound ------------------------------------------------------------------------------------


def expected_log_prior(model: Any, params: Params, sites: Sites, rates: Array) -> Array:
    r"""The expectation of log p(w), for any prior: a masked weight is 0 with probability p, else M / (1 - p).

    .. math:: E \log p(w) = \sum (1 - p) \log p\left(\tfrac{M}{1 - p}\right) + p \log p(0)
    """
    total = jnp.zeros((), rates.dtype)
    priors = jax.tree.leaves(model.leaf_priors(params))
    for i, (weight, prior) in enumerate(zip(jax.tree.leaves(params), priors, strict=True)):
        if sites[i] is None:
            value = jnp.sum(prior.log_density(weight))
        else:
            rate = rates[i].astype(weight.dtype)
            kept, dropped = (
                prior.log_density(weight / (1 - rate)),
                prior.log_density(jnp.zeros_like(weight)),
            )
            value = jnp.sum((1 - rate) * kept + rate * dropped)
        total += value.astype(total.dtype)
    return total


def entropy(sites: Sites, rates: Array) -> Array:
    """The entropy of the masks of one draw."""
    total = jnp.zeros((), rates.dtype)
    for site, rate in zip(sites, rates, strict=True):
        if site is not None:
            total += math.prod(site.inputs) * (entr(rate) + entr(1 - rate))
    return total


# -- distributions for prediction -----------------------------------------------------------------


class Dropout(Generated):
    """One set of parameters, and masks that are generated for each draw."""

    params: Params
    state: NetworkState
    like_params = ("params",)
    like_state = ("state",)

    def starts(self, key, replicas):
        """The parameters without masks, for every replica: another run has its own masks, or none."""
        repeat = lambda leaf: np.broadcast_to(leaf, (replicas, *np.shape(leaf)))  # noqa: E731
        return jax.tree.map(repeat, Draw(self.params, self.own_state))

    @property
    def own_state(self) -> NetworkState:
        """The state of the fitted network."""
        return self.state


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "rates", "state"],
    meta_fields=["sites"],
)
@dataclass(frozen=True, eq=False, repr=False)
class Masked(Dropout):
    """Weights whose inputs are masked; a draw consists of the masked weights.

    Attributes:
      params: M, and the parameters that are not masked.
      rates: the dropout rate p of each leaf; zero if it is not masked.
      sites: for each leaf, the product in which it meets its inputs; ``None`` if it is not masked.
      state: the network's state.
    """

    params: Params
    rates: Array
    sites: Sites
    state: NetworkState = ()

    def __post_init__(self):
        made = tuple(None if site is None else Site(*site) for site in self.sites)
        object.__setattr__(self, "sites", made)  # loading gives plain tuples

    def generate(self, key):
        """The parameters with one mask for each masked weight."""
        scales = masks(key, self.sites, self.rates)
        return Draw(masked(self.params, self.sites, scales), self.state)


@partial(jax.tree_util.register_dataclass, data_fields=["params", "state"], meta_fields=[])
@dataclass(frozen=True, eq=False, repr=False)
class Seeds(Dropout):
    """Dropout layers inside the network: draws share the parameters and differ in the seed of their masks.

    Attributes:
      params: the parameters.
      state: the state of a :class:`~credax.model.networks.seeded.Seeded` network, which includes a seed.
    """

    params: Params
    state: NetworkState

    def generate(self, key):
        """The parameters with a new seed."""
        return Draw(self.params, (self.state[0], jax.random.key_data(key)))

    @property
    def own_state(self):
        """The network's state without the seed."""
        return self.state[0]
