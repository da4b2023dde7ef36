"""Mixtures of Gaussians around the members of an ensemble."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.posterior.approximations.approximation import Approximation, Samples
from credax.posterior.display import count

NUM_SAMPLES = 30
"""The default number of samples of a prediction for each component, as in Maddox et al. (2019)."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mean", "scale", "factors", "state"],
    meta_fields=[],
)
@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(Approximation):
    r"""A mixture of Gaussians of equal weight, each with a diagonal plus low-rank covariance.

    .. math:: q(w) = \tfrac{1}{S} \sum_s N\left(\mu_s, \operatorname{diag}(\sigma_s^2) + F_s F_s^\top\right)

    Attributes:
      mean: the means. Every leaf of this and of the other fields has a leading axis of the components.
      scale: the standard deviations sigma of the diagonal part.
      factors: the columns of F along the second axis; there may be none.
      state: the network's state for each component.
    """

    mean: Params
    scale: Params
    factors: Params
    state: NetworkState = ()

    like_params = ("mean", "scale", "factors")
    like_state = ("state",)
    leading_axes = 1

    @property
    def components(self) -> int:
        """The number of components."""
        return jax.tree.leaves(self.mean)[0].shape[0]

    def _facts(self) -> list[str]:
        rank = jax.tree.leaves(self.factors)[0].shape[1]
        return [count(self.components, "components"), f"rank {rank}"]

    def samples(self, key: Key, count: int | None) -> Samples:
        """``count`` draws, by default 30 per component, generated when they are needed.

        Each component contributes the same number of draws, or one more than another.
        """
        count = NUM_SAMPLES * self.components if count is None else count
        order_key, key = jax.random.split(key)
        order = np.asarray(jax.random.permutation(order_key, self.components))
        which = order[np.arange(count) % self.components]
        keys = jax.random.split(key, count)

        def take(begin, end):
            chosen = np.minimum(np.arange(begin, end), count - 1)
            return _draw_many(self, which[chosen], keys[chosen])

        return Samples(np.full(count, -math.log(count)), take)

    def sample(self, key: Key, count: int) -> Draw:
        """``count`` independent draws, stacked along a leading axis."""
        which_key, key = jax.random.split(key)
        which = jax.random.randint(which_key, (count,), 0, self.components)
        return _draw_many(self, np.asarray(which), jax.random.split(key, count))


@jax.jit
def _draw_many(mixture: GaussianMixture, which: Array, keys: Key) -> Draw:
    def one(args):
        which, key = args
        own_key, shared_key = jax.random.split(key)
        q = jax.tree.map(lambda leaf: leaf[which], mixture)
        own = random.noise_like(own_key, q.mean)
        first = jax.tree.leaves(q.factors)[0]
        shared = random.noise(shared_key, first.shape[:1], first.dtype)

        def leaf(mean, scale, factors, noise):
            return mean + scale * noise + jnp.tensordot(shared.astype(mean.dtype), factors, 1)

        return Draw(jax.tree.map(leaf, q.mean, q.scale, q.factors, own), q.state)

    return lax.map(one, (which, keys))
