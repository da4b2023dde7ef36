"""The prior as a Laplace approximation needs it: its slope, and its precision along given directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.trees import Flat, as_leaf, as_matrix, named_leaves
from credax.core.typing import Array, Params
from credax.model.priors import Kronecker


def leaf_priors(model: Any, params: Params) -> list[Any]:
    """The prior of each leaf of the network's weights; ``None`` for all if the weights are correlated."""
    if model.correlated_prior:
        return [None] * len(jax.tree.leaves(model.split(params)[0]))
    return jax.tree.leaves(model.split(model.leaf_priors(params))[0])


def check_correlated(method: Any, model: Any) -> None:
    """Refuse correlations under the prior that the structure of the approximation does not have."""
    if not model.correlated_prior or method.structure == "full":
        return
    if isinstance(model.prior, Kronecker) and method.structure in ("kronecker", "diagonal"):
        return
    raise ValueError(
        f"Laplace(structure={method.structure!r}) needs a prior under which the weights are independent; got "
        f"{type(model.prior).__name__}. Use structure='full', or posterior.as_prior(structure='diagonal')."
    )


def prior_curvature(prior: Any, leaf: Array) -> Array:
    """For each weight, minus the second derivative of the log prior density."""
    slope = jax.grad(lambda w: jnp.sum(prior.log_density(w)))
    return -jax.jvp(slope, (leaf,), (jnp.ones_like(leaf),))[1]


def _prior_scale(prior: Any, leaf: Array) -> Array:
    """The standard deviation of the prior, or of the normal with the same curvature at the mode."""
    normal = prior.gaussian(leaf.shape)
    if normal is None:
        return lax.rsqrt(widened(prior_curvature(prior, leaf)))
    if isinstance(normal[1], float):
        return jnp.full((), normal[1], jnp.result_type(float))
    return widened(normal[1])


def prior_scales(model: Any, params: Params) -> tuple[Array, ...]:
    """The prior's standard deviations of each leaf of the network's weights, which are independent."""
    leaves = jax.tree.leaves(model.split(params)[0])
    each = zip(leaf_priors(model, params), leaves, strict=True)
    return tuple(_prior_scale(prior, jnp.asarray(leaf)) for prior, leaf in each)


@jit(static_argnames=("model",))
def all_scales(model: Any, params: Params) -> Array:
    """The prior's standard deviations of all weights of the network, which are independent, as one vector."""
    leaves = jax.tree.leaves(model.split(params)[0])
    return _as_vector(prior_scales(model, params), leaves)


def _as_vector(scales: Any, leaves: Any) -> Array:
    each = [
        jnp.broadcast_to(scale, leaf.shape).reshape(-1)
        for scale, leaf in zip(scales, leaves, strict=True)
    ]
    return jnp.concatenate(each)


@dataclass(frozen=True, eq=False)
class PriorAt:
    """The prior at a point.

    Attributes:
      prior: the prior of the network.
      paths: the path of each leaf of the network.
      network: the weights.
      scales: the standard deviations of each free leaf; ``None`` if its weights are correlated.
      slopes: the gradient of the log prior density, by leaf.
      log_density: the log prior density of the free leaves.
      penalty: the sum of the squared distances from the prior mean, in units of the standard deviations.
      flat: the number of weights at which the log prior density is not concave.
    """

    prior: Any
    paths: list[str]
    network: Params
    scales: dict[int, Array | None]
    slopes: dict[int, Array]
    log_density: Array
    penalty: Array
    flat: Array

    def joint(self, curvature: Array, slope: Array) -> tuple[Array, ...]:
        """The entries of ``Found`` for all free leaves together."""
        none = jnp.zeros((0, 0), slope.dtype)
        scales = list(self.scales.values())
        if any(scale is None for scale in scales):
            root = self._root(slope.dtype)
            values, vectors = jnp.linalg.eigh(root.T @ curvature @ root)
            ones = jnp.ones(len(slope), slope.dtype)
            return none, root @ vectors, values, slope @ root @ vectors, ones
        scale = self._joint_scale()
        values, vectors = jnp.linalg.eigh(scale[:, None] * curvature * scale)
        return none, vectors, values, (scale * slope) @ vectors, scale

    def low_rank(self, values: Array, vectors: Array, slope: Array) -> tuple[Array, ...]:
        """Like :meth:`joint`, from some eigenvectors of the curvature in units of the standard deviations.

        One more value stands for all directions without curvature.
        """
        scale = self._joint_scale()
        slope = scale * slope
        along = slope @ vectors
        rest = jnp.sqrt(jnp.maximum(jnp.sum(slope**2) - jnp.sum(along**2), 0))
        values, along = jnp.append(values, jnp.zeros_like(rest)), jnp.append(along, rest)
        return jnp.zeros((0, 0), slope.dtype), vectors, values, along, scale

    def _joint_scale(self) -> Array:
        """The standard deviations of all free leaves, as one vector."""
        leaves = jax.tree.leaves(self.network)
        return _as_vector(self.scales.values(), [leaves[i] for i in self.scales])

    def _root(self, dtype: Any) -> Array:
        """The matrix C with which w = mean + C epsilon."""
        flat = self.prior.residual(self.network)
        column = lambda e: self.prior.colour(Flat(e, flat.structure, flat.leaves))  # noqa: E731
        size = flat.vector.size
        return jax.vmap(column, out_axes=1)(jnp.eye(size, dtype=flat.vector.dtype)).astype(dtype)

    def along(self, i: int, layout: tuple[int, ...], inputs: Array, outputs: Array) -> Array:
        r"""The standard deviations of a leaf along the directions of Kronecker factors.

        The precision of a direction is kept, its correlations with the others are not, since the sum of two
        Kronecker-factored precisions has no common eigenvectors (as in George et al., 2018, for one of them).

        Args:
          i: the number of the leaf.
          layout: how it is arranged as a matrix; ``()`` for a vector.
          inputs: orthogonal directions of the rows; empty for each row by itself. If they are fewer than the
            rows, there is one more entry for all others.
          outputs: orthogonal directions of the columns; empty for each column by itself.
        """
        scale = self.scales[i]
        if scale is not None and scale.ndim == 0:
            return scale
        if scale is None:
            own_inputs, own_outputs, own = self.prior.leaf(self.paths[i], jnp.result_type(float))
            precision = own.reshape(-1, len(own_outputs) or own.shape[-1]) ** -2
        else:
            own_inputs = own_outputs = jnp.zeros((0, 0), scale.dtype)
            precision = as_matrix(scale, layout) ** -2
        rows = math.prod(precision.shape[:1]) if not own_inputs.size else len(own_inputs)
        precision = _rotated(precision, own_outputs, outputs)
        if own_inputs.size and own_inputs.shape[1] < rows:
            others = precision[-1]
            precision = precision[:-1] - others  # added to `others` in every direction
        else:
            others = jnp.zeros_like(precision[-1])
        found = _rotated(precision.T, own_inputs, inputs).T + others
        if inputs.size and inputs.shape[1] < rows:
            total = jnp.sum(precision, axis=0) + rows * others
            rest = (total - jnp.sum(found, axis=0)) / (rows - inputs.shape[1])
            found = jnp.concatenate([found, rest[None]])
        return lax.rsqrt(found)

    def each(self, i: int, shape: tuple[int, ...]) -> Array:
        """The standard deviations of the weights of a leaf, each given all others, in the shape of the leaf."""
        scale = self.scales[i]
        if scale is not None:
            return scale
        layout, none = self.prior.layouts[i], jnp.zeros((0, 0), jnp.result_type(float))
        return as_leaf(self.along(i, layout, none, none), layout, shape)

    def joint_log_volume(self) -> Array:
        """The sum of the logarithms of the standard deviations by which joint directions are measured."""
        if any(scale is None for scale in self.scales.values()):
            return widened(self.prior.log_volume(self.prior.residual(self.network)))
        leaves = jax.tree.leaves(self.network)
        none = jnp.zeros((0, 0), jnp.result_type(float))
        return sum(log_volume(s, leaves[i].shape, none) for i, s in self.scales.items())  # pyright: ignore[reportArgumentType,reportReturnType]


def log_volume(scale: Array, shape: tuple[int, ...], inputs: Array) -> Array:
    """The sum of the logarithms of the standard deviations of a leaf along the directions of ``inputs``."""
    if inputs.shape[1] < inputs.shape[0] and scale.ndim:
        others = inputs.shape[0] - inputs.shape[1]
        return jnp.sum(jnp.log(scale[:-1])) + others * jnp.sum(jnp.log(scale[-1]))
    return jnp.sum(jnp.log(scale if scale.ndim else jnp.broadcast_to(scale, shape)))


def _rotated(precision: Array, own: Array, new: Array) -> Array:
    """The diagonal of a precision along new directions of its columns, given along its own directions."""
    if not own.size and not new.size:
        return precision
    turn = new if not own.size else own.T if not new.size else own.T @ new
    return precision @ turn**2


def prior_at(model: Any, params: Params, free: list[int]) -> PriorAt:
    """The prior at the network's weights, of which the ``free`` leaves count."""
    network, _ = model.split(params)
    leaves, paths = jax.tree.leaves(network), [path for path, _ in named_leaves(network)]
    if model.correlated_prior:
        prior = model.prior
        value, slope = jax.value_and_grad(prior.log_prob)(network)
        slopes = dict(enumerate(map(widened, jax.tree.leaves(slope))))
        penalty = jnp.sum(widened(prior.whiten(prior.residual(network))) ** 2)
        scales: dict[int, Any] = dict.fromkeys(free)
        return PriorAt(
            *(prior, paths, network, scales, slopes, widened(value), penalty),
            jnp.zeros((), jnp.int32),
        )
    priors = leaf_priors(model, params)
    log_prior = {i: lambda w, p=priors[i]: jnp.sum(widened(p.log_density(w))) for i in free}
    slopes = {i: widened(jax.grad(log_prior[i])(leaves[i])) for i in free}
    scales = {i: _prior_scale(priors[i], leaves[i]) for i in free}
    means = {i: (priors[i].gaussian(leaves[i].shape) or (0.0,))[0] for i in free}
    distances = [(widened(leaves[i]) - means[i]) / scales[i] for i in free]
    value = sum(log_prior[i](leaves[i]) for i in free)
    penalty = jnp.sum(jnp.stack([jnp.sum(distance**2) for distance in distances]))
    flat = jnp.sum(jnp.stack([jnp.sum(~jnp.isfinite(scales[i])) for i in free]))
    return PriorAt(model.prior, paths, network, scales, slopes, value, penalty, flat)  # pyright: ignore[reportArgumentType]
