r"""Normal priors under which weights are correlated, such as those that come from a posterior.

Each is given by an invertible map C from independent standard normal numbers to the weights:

.. math:: w = \mu + C \epsilon, \qquad \log p(w) = \log N(C^{-1}(w - \mu); 0, I) - \log|\det C|
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from credax.core.checks import must
from credax.core.precision import at_least_single
from credax.core.settings import REQUIRED, setting
from credax.core.special import normal_log_density
from credax.core.trees import Flat, as_leaf, as_matrix, named_leaves, tree_paths
from credax.core.typing import Array, Params, PyTree
from credax.core.weights import Weights
from credax.model.priors.around import between, check_shapes, fixed, fixed_scales
from credax.model.priors.elementwise import Elementwise, Prior


def _paths(flat: Flat) -> list[str]:
    """The path of each leaf."""
    return tree_paths(jax.tree.unflatten(flat.structure, range(len(flat.leaves))))


class Correlated(Prior):
    """A normal prior with correlations. Leaves have no prior of their own."""

    independent: ClassVar[bool] = False

    weights: PyTree

    @abstractmethod
    def whiten(self, residual: Flat) -> Array:
        """The independent standard normal numbers, as a vector, that w minus its mean stands for."""

    @abstractmethod
    def colour(self, noise: Flat) -> Array:
        """The inverse of :meth:`whiten`: w minus its mean, as a vector."""

    @abstractmethod
    def log_volume(self, like: Flat) -> Array:
        """The log determinant of the map C."""

    def mean(self, like: PyTree) -> Params:
        """The mean, in the structure and dtypes of these parameters."""
        return self.weights.like(like)

    def at(self, path: str) -> Elementwise:
        """Refused, since the weights are not independent."""
        raise ValueError(
            f"A prior under which the weights are independent is needed here; got {type(self).__name__}. "
            "From a posterior, use posterior.as_prior(structure='diagonal')."
        )

    def log_prob(self, params):
        residual = self.residual(params)
        z = normal_log_density(self.whiten(residual))
        return jnp.sum(z) - self.log_volume(residual)

    def near(self, key, like):
        """Close to the mean."""
        return between(self.mean(like), self.sample(key, like))

    def residual(self, params: Params) -> Flat:
        """The parameters minus their mean, at least in single precision."""
        wide = jax.tree.map(at_least_single, params)
        return Flat.of(jax.tree.map(jnp.subtract, wide, self.mean(wide)))

    def sample(self, key, like):
        zeros = jax.tree.map(lambda leaf: at_least_single(jnp.zeros(leaf.shape, leaf.dtype)), like)
        flat = Flat.of(zeros)
        noise = jax.random.normal(key, flat.vector.shape, flat.vector.dtype)
        moved = self.colour(Flat(noise, flat.structure, flat.leaves))
        away = Flat(moved, flat.structure, flat.leaves).tree
        add = lambda mean, w, leaf: (mean + w).astype(leaf.dtype)  # noqa: E731
        return jax.tree.map(add, self.mean(zeros), away, like)

    def check(self, like):
        """Raise an error also if the shapes of the mean differ from those of the parameters."""
        check_shapes(self._owner, "weights", self.weights, like)
        for path, leaf in named_leaves(like):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(
                    f"Every parameter must be a floating-point array; got {leaf.dtype} at {path!r}."
                )


# -- full -------------------------------------------------------------------------------------------


def _triangle(owner: str, name: str, factor: Any) -> Weights:
    if isinstance(factor, Weights):
        return factor
    held = fixed(owner, name, factor)
    array = held.arrays.get("")
    allowed = "a lower triangular matrix with a positive diagonal"
    if array is None or array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(must(owner, name, allowed, factor))
    if not np.all(np.isfinite(array)) or np.any(np.diag(array) <= 0) or np.any(np.triu(array, 1)):
        raise ValueError(must(owner, name, allowed, factor))
    return held


@dataclass(frozen=True)
class FullCovariance(Correlated):
    r"""A normal prior with any covariance: :math:`w \sim N(\mu, L L^\top)`.

    Args:
      weights: mu, a pytree with the structure of the network's parameters.
      factor: L, lower triangular with a positive diagonal, over all weights in the order of the leaves.
    """

    weights: PyTree = setting(REQUIRED, fixed)
    factor: Any = setting(REQUIRED, _triangle)

    def _lower(self, dtype: Any) -> Array:
        return jnp.asarray(self.factor.arrays[""], dtype)

    def whiten(self, residual):
        lower = self._lower(residual.vector.dtype)
        return solve_triangular(lower, residual.vector, lower=True)

    def colour(self, noise):
        return jnp.dot(self._lower(noise.vector.dtype), noise.vector, precision="highest")

    def log_volume(self, like):
        return jnp.sum(jnp.log(jnp.diagonal(self._lower(like.vector.dtype))))

    def check(self, like):
        super().check(like)
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))
        if len(self.factor.arrays[""]) != size:
            allowed = f"{size} by {size}, for the weights of the network"
            raise ValueError(must(self._owner, "factor", allowed, self.factor))


# -- low rank ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LowRank(Correlated):
    r"""A normal prior whose covariance is a diagonal, stretched along a few directions.

    .. math:: C = \operatorname{diag}(\sigma)\, (I + U (S - I) U^\top), \qquad U^\top U = I

    A covariance :math:`\operatorname{diag}(\sigma^2) + F F^\top` has this form; see :meth:`of_factors`.

    Args:
      weights: the mean, a pytree with the structure of the network's parameters.
      scale: sigma, a pytree of the same structure.
      directions: the columns of U: the same structure, every leaf with a leading axis of the directions.
      stretch: the diagonal of S, one positive number for each direction.
    """

    weights: PyTree = setting(REQUIRED, fixed)
    scale: PyTree = setting(REQUIRED, fixed_scales)
    directions: PyTree = setting(REQUIRED, fixed)
    stretch: Any = setting(REQUIRED, fixed_scales)

    @classmethod
    def of_factors(cls, weights: PyTree, scale: PyTree, factors: PyTree) -> LowRank:
        """The prior with covariance diag(scale²) + F F', where leaves of ``factors`` have a leading axis."""
        flat = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(factors)]
        sigma = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(scale)]
        parts = [(f / s).reshape(len(f), -1) for f, s in zip(flat, sigma, strict=True)]
        _, lengths, rows = np.linalg.svd(np.concatenate(parts, axis=1), full_matrices=False)
        cuts = np.cumsum([part.shape[1] for part in parts])[:-1]
        each = zip(np.split(rows, cuts, axis=1), flat, strict=True)
        leaves = [part.reshape(len(rows), *f.shape[1:]) for part, f in each]
        directions = jax.tree.unflatten(jax.tree.structure(factors), leaves)
        return cls(weights, scale, directions, np.sqrt(1 + lengths**2))

    def _parts(self, like: Flat) -> tuple[Array, Array, Array]:
        """Sigma as a vector, U' as a matrix, and the diagonal of S."""
        dtype = like.vector.dtype
        paths = _paths(like)
        held = self.directions.arrays
        sigma = jnp.concatenate(
            [jnp.ravel(jnp.asarray(self.scale.arrays[p], dtype)) for p in paths]
        )
        rows = [jnp.asarray(held[p], dtype).reshape(held[p].shape[0], -1) for p in paths]
        stretch = jnp.asarray(self.stretch.arrays[""], dtype)
        return sigma, jnp.concatenate(rows, axis=1), stretch

    def whiten(self, residual):
        sigma, rows, stretch = self._parts(residual)
        z = residual.vector / sigma
        with jax.default_matmul_precision("highest"):
            return z + ((1 / stretch - 1) * (rows @ z)) @ rows

    def colour(self, noise):
        sigma, rows, stretch = self._parts(noise)
        z = noise.vector
        with jax.default_matmul_precision("highest"):
            return sigma * (z + ((stretch - 1) * (rows @ z)) @ rows)

    def log_volume(self, like):
        sigma, _, stretch = self._parts(like)
        return jnp.sum(jnp.log(sigma)) + jnp.sum(jnp.log(stretch))

    def check(self, like):
        super().check(like)
        check_shapes(self._owner, "scale", self.scale, like)
        check_shapes(self._owner, "directions", self.directions, like, axes=1)


# -- Kronecker --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kronecker(Correlated):
    r"""A normal prior with independent leaves, whose covariances are Kronecker-factored.

    .. math:: W = W_0 + U_A\, (S \circ E)\, U_G^\top, \qquad E_{ij} \sim N(0, 1)

    The fields are those of ``cx.approximations.KroneckerNormal``, the posterior of ``Laplace()``.

    Args:
      weights: :math:`W_0`, a pytree with the structure of the network's parameters.
      inputs: :math:`U_A` of each leaf; an empty matrix stands for the identity. It may have fewer columns than
        rows, if all directions orthogonal to them have the same standard deviations, the last row of S.
      outputs: :math:`U_G` of each leaf; an empty matrix stands for the identity.
      scale: the standard deviations S of each leaf.
      layouts: how each leaf is arranged as a matrix, in the order of the leaves.
    """

    weights: PyTree = setting(REQUIRED, fixed)
    inputs: PyTree = setting(REQUIRED, fixed)
    outputs: PyTree = setting(REQUIRED, fixed)
    scale: PyTree = setting(REQUIRED, fixed_scales)
    layouts: tuple[tuple[int, ...], ...] = ()

    def leaf(self, path: str, dtype: Any) -> tuple[Array, Array, Array]:
        """U_A, U_G and S of one leaf."""
        held = (self.inputs, self.outputs, self.scale)
        inputs, outputs, scale = (jnp.asarray(part.arrays[path], dtype) for part in held)
        return inputs, outputs, scale

    def whiten(self, residual):
        leaves = jax.tree.leaves(residual.tree)
        each = zip(leaves, _paths(residual), self.layouts, strict=True)
        parts = [
            _whitened(leaf, layout, *self.leaf(path, leaf.dtype)) for leaf, path, layout in each
        ]
        return jnp.concatenate([jnp.ravel(part).astype(residual.vector.dtype) for part in parts])

    def colour(self, noise):
        leaves = jax.tree.leaves(noise.tree)
        each = zip(leaves, _paths(noise), self.layouts, strict=True)
        parts = [
            _coloured(leaf, layout, *self.leaf(path, leaf.dtype)) for leaf, path, layout in each
        ]
        return jnp.concatenate([jnp.ravel(part).astype(noise.vector.dtype) for part in parts])

    def log_volume(self, like):
        dtype = like.vector.dtype
        return sum(_log_volume(*self.leaf(path, dtype)) for path in _paths(like))


def _whitened(leaf, layout, inputs, outputs, scale):
    with jax.default_matmul_precision("highest"):
        rotated = as_matrix(leaf, layout)
        if outputs.size:
            rotated = rotated.reshape(-1, len(outputs)) @ outputs
        if inputs.shape[1] < inputs.shape[0]:
            others = 1 / scale[-1]
            return others * rotated + inputs @ ((1 / scale[:-1] - others) * (inputs.T @ rotated))
        rotated = inputs.T @ rotated if inputs.size else rotated.reshape(scale.shape)
        return rotated / scale


def _coloured(noise, layout, inputs, outputs, scale):
    with jax.default_matmul_precision("highest"):
        if inputs.shape[1] < inputs.shape[0]:
            matrix = noise.reshape(len(inputs), scale.shape[1])
            along = (scale[:-1] - scale[-1]) * (inputs.T @ matrix)
            coloured = scale[-1] * matrix + inputs @ along
        else:
            coloured = scale * noise.reshape(scale.shape)
            coloured = inputs @ coloured if inputs.size else coloured
        if outputs.size:
            coloured = coloured.reshape(-1, len(outputs)) @ outputs.T
        return as_leaf(coloured, layout, noise.shape)


def _log_volume(inputs, outputs, scale):
    if inputs.shape[1] < inputs.shape[0]:
        others = inputs.shape[0] - inputs.shape[1]
        return jnp.sum(jnp.log(scale[:-1])) + others * jnp.sum(jnp.log(scale[-1]))
    return jnp.sum(jnp.log(scale))
