"""Independent normal priors around given weights, such as those of a pretrained network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import must, positive
from credax.core.settings import REQUIRED, setting
from credax.core.trees import named_leaves
from credax.core.typing import Array, Params, PyTree
from credax.core.weights import Weights, nested
from credax.model.priors.elementwise import Elementwise, Prior, scaled_normal_log_density


def fixed(owner: str, name: str, weights: PyTree) -> Weights:
    """Convert a pytree of arrays to weights, which are hashable."""
    if isinstance(weights, Weights):
        return weights
    leaves = jax.tree.leaves(weights)
    if not leaves or any(_kind(leaf) not in "fiuV" for leaf in leaves):
        allowed = "a pytree of arrays of numbers"
        if callable(getattr(weights, "as_prior", None)):
            allowed += " (the prior from a posterior is posterior.as_prior())"
        raise TypeError(must(owner, name, allowed, weights))
    return Weights.of(weights)


def _kind(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    kind = getattr(np.asarray(leaf).dtype if dtype is None else dtype, "kind", "O")
    return kind if isinstance(kind, str) else "O"


def fixed_scales(owner: str, name: str, scale: Any) -> float | Weights:
    """Check a positive number, or convert a pytree of positive arrays to weights."""
    if isinstance(scale, Weights):
        return scale
    if not isinstance(scale, list | tuple | dict) and np.ndim(scale) == 0:
        return positive(owner, name, scale)
    held = fixed(owner, name, scale)
    for path, array in held.arrays.items():
        bad = ~(np.isfinite(array) & (array > 0))
        if bad.any():
            raise ValueError(must(owner, name, f"positive at {path!r}", float(array[bad][0])))
    return held


def between(mean: PyTree, draw: PyTree) -> PyTree:
    """A point a tenth of the way from the mean to a draw, so that replicas start close to it, but differ."""
    return jax.tree.map(lambda m, w: m + (w - m) * 0.1, mean, draw)


def check_shapes(owner: str, name: str, held: Weights, like: PyTree, axes: int = 0) -> None:
    """Refuse arrays by path whose shapes, after ``axes`` leading axes, are not those of the parameters."""
    for path, leaf in named_leaves(like):
        if path not in held.arrays:
            raise ValueError(
                f"{owner}({name}=...) must hold every parameter of the network; {path!r} is not among "
                f"{sorted(held.arrays)}."
            )
        shape = held.arrays[path].shape[axes:]
        if shape != tuple(leaf.shape):
            raise ValueError(
                f"{owner}({name}=...) must have the shapes of the network's parameters, "
                f"{tuple(leaf.shape)} at {path!r}; got {shape}."
            )


@dataclass(frozen=True)
class Around(Prior):
    r"""A normal distribution centred at given weights, such as those of a pretrained network.

    .. math:: w_i \sim N(w_{0i}, \sigma_i^2)

    Args:
      weights: w_0, a pytree with the structure of the network's parameters. A pretrained network gives them by
        ``network.init(key)``.
      scale: sigma, the standard deviation around w_0: one number, or a pytree with one for each weight.
    """

    weights: PyTree = setting(REQUIRED, fixed)
    scale: float | PyTree = setting(1.0, fixed_scales)

    def at(self, path: str) -> Elementwise:
        """The prior centred at the weights of this path."""
        if path not in self.weights.arrays:
            raise ValueError(
                f"Around(weights=...) must hold every parameter of the network; {path!r} is not among "
                f"{sorted(self.weights.arrays)}."
            )
        scale = self.scale.arrays[path] if isinstance(self.scale, Weights) else self.scale
        return _NormalAround(self.weights.arrays[path], scale)

    def near(self, key, like):
        """Close to w_0 if every weight has its own scale, which then comes from an earlier fit."""
        if not isinstance(self.scale, Weights):
            return like
        return between(self.weights.like(like), self.sample(key, like))

    def check(self, like: PyTree) -> None:
        """Raise an error also if the shapes of the weights differ from those of the parameters."""
        check_shapes("Around", "weights", self.weights, like)
        if isinstance(self.scale, Weights):
            check_shapes("Around", "scale", self.scale, like)
        super().check(like)


def around_moments(prior: Prior, mean: Params, variance: Params) -> Around | None:
    """The normal distribution that a prior is where its scales were learned from weights with these moments.

    ``None`` if the prior of some weights is not normal.
    """
    locs, scales = {}, {}
    for (path, m), (_, v) in zip(named_leaves(mean), named_leaves(variance), strict=True):
        normal = prior.at(path).matched(m, v)
        if normal is None:
            return None
        locs[path], scales[path] = (
            np.broadcast_to(np.asarray(value, m.dtype), m.shape) for value in normal
        )
    return Around(nested(locs), nested(scales))


@dataclass(frozen=True, eq=False)
class _NormalAround(Elementwise):
    """The prior of one leaf under :class:`Around`."""

    loc: Any = field(repr=False)
    scale: Any

    def _moments(self, dtype: Any) -> tuple[Array, float | Array]:
        scale = self.scale if isinstance(self.scale, float) else jnp.asarray(self.scale, dtype)
        return jnp.asarray(self.loc, dtype), scale

    def gaussian(self, shape):
        return self._moments(jnp.result_type(float))

    def expected_log_density(self, mean, variance):
        loc, scale = self._moments(mean.dtype)
        return scaled_normal_log_density(mean - loc, scale) - variance / (2 * scale**2)

    def log_density(self, x):
        loc, scale = self._moments(x.dtype)
        return scaled_normal_log_density(x - loc, scale)

    def draw(self, key, shape, dtype):
        loc, scale = self._moments(dtype)
        return loc + scale * jax.random.normal(key, shape, dtype)
