r"""Normal distributions over the weights, whose covariance comes from the curvature at a mode.

.. math::
    q(w) = N(\hat w, \Sigma), \qquad
    f(x, w) \approx f(x, \hat w) + J(x) (w - \hat w) \;\Rightarrow\; \operatorname{Var} f = J \Sigma J^\top
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.trees import as_leaf, as_matrix
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.model import Model
from credax.posterior.approximations.approximation import Generated
from credax.tracing.backward import BLOCK_BYTES, Backward, backward, row_bytes
from credax.tracing.products import Rows


class Normal(Generated):
    """A normal distribution around a mode."""

    mean: Params
    linearised: bool
    state: NetworkState
    like_state = ("state",)

    @abc.abstractmethod
    def deviation(self, key: Key) -> Params:
        """A draw of w minus its mean."""

    @abc.abstractmethod
    def of_row(self, model: Model, rows: Rows, row: Array) -> Array:
        """The covariance J Sigma J' of the outputs of one row, ``(outputs, outputs)``."""

    @abc.abstractmethod
    def bytes_of_row(self, model: Model, rows: Rows) -> int:
        """The bytes of memory that ``of_row`` needs."""

    @property
    def centre(self) -> Draw | None:
        """The mode if predictions are linearised, else ``None``."""
        return Draw(self.mean, self.state) if self.linearised else None

    def generate(self, key):
        return Draw(jax.tree.map(jnp.add, self.mean, self.deviation(key)), self.state)

    def starts(self, key: Key, replicas: int) -> Draw:
        """The mode for a single replica; independent draws for several."""
        if replicas > 1:
            return self.sample(key, replicas)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], Draw(self.mean, self.state))

    def _facts(self) -> list[str]:
        return ["linearised"] if self.linearised else []

    def output_covariance(self, model: Model, x: Array) -> Array:
        """The covariance J Sigma J' of the outputs of each row, ``(rows, outputs, outputs)``."""
        return _covariances(model, self, x)


@jit(static_argnames=("model",))
def _covariances(model: Model, normal: Normal, x: Array) -> Array:
    rows = Rows(model.network, model.split(normal.mean)[0], normal.state, x)
    size = max(1, min(len(x), BLOCK_BYTES // normal.bytes_of_row(model, rows)))
    with jax.default_matmul_precision("highest"):
        return lax.map(lambda row: normal.of_row(model, rows, row), x, batch_size=size)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mean", "inputs", "outputs", "scale", "state"],
    meta_fields=["layouts", "linearised"],
)
@dataclass(frozen=True, eq=False, repr=False)
class KroneckerNormal(Normal):
    r"""A normal distribution with independent leaves, whose covariances are Kronecker-factored.

    Each leaf is a matrix of independent normal numbers between two rotations:

    .. math:: W = \hat W + U_A\, (S \circ E)\, U_G^\top, \qquad E_{ij} \sim N(0, 1)

    Attributes:
      mean: the mode.
      inputs: :math:`U_A` of each leaf; an empty matrix stands for the identity. It may have fewer columns than
        rows, if all directions orthogonal to them have the same standard deviations, the last row of S.
      outputs: :math:`U_G` of each leaf; an empty matrix stands for the identity.
      scale: the standard deviations S of each leaf, in the shape of the matrix; zero for a leaf that is fixed.
      layouts: how each leaf is arranged as a matrix; ``()`` for a vector in the order of the leaf.
      linearised: whether predictions use the linear expansion of the network at the mode.
      state: the network's state.
    """

    mean: Params
    inputs: Params
    outputs: Params
    scale: Params
    layouts: tuple[tuple[int, ...], ...]
    linearised: bool
    state: NetworkState = ()

    like_params = ("mean", "inputs", "outputs", "scale")

    def deviation(self, key):
        leaves, tree = jax.tree.flatten(self.mean)
        keys = jax.random.split(key, len(leaves))
        parts = zip(leaves, *self._factors(), self.layouts, keys, strict=True)
        return jax.tree.unflatten(tree, [_deviation(*part) for part in parts])

    def _factors(self) -> list[list[Array]]:
        return [jax.tree.leaves(tree) for tree in (self.inputs, self.outputs, self.scale)]

    def of_row(self, model, rows, row):
        leaves = jax.tree.leaves(model.split(self.mean)[0])
        tapped, wanted = self._opened(model, rows)
        _, found = backward(rows, tapped, wanted, leaves, self.state, row, _identity)
        factors = [
            jax.tree.leaves(model.split(t)[0]) for t in (self.inputs, self.outputs, self.scale)
        ]
        each = zip(*factors, strict=True)
        return sum(_variance(rows, found, i, *each) for i, each in enumerate(each))

    def bytes_of_row(self, model, rows):
        leaves = jax.tree.leaves(model.split(self.mean)[0])
        columns = model.schema.outputs  # pyright: ignore[reportOptionalMemberAccess]
        return row_bytes(rows, *self._opened(model, rows), leaves, columns, outer=True)

    def _opened(self, model: Model, rows: Rows) -> tuple[list[int], list[int]]:
        count = len(jax.tree.leaves(model.split(self.mean)[0]))
        tapped = [i for i in range(count) if i in rows.products]
        return tapped, [i for i in range(count) if i not in tapped]


def _identity(outputs: Array) -> Array:
    return jnp.eye(len(outputs), dtype=outputs.dtype)


def _deviation(leaf, inputs, outputs, scale, layout, key):
    if _low_rank(inputs):
        noise = random.noise(key, (len(inputs), scale.shape[1]), scale.dtype)
        along = inputs.T @ noise
        noise = scale[-1] * noise + inputs @ ((scale[:-1] - scale[-1]) * along)
    else:
        noise = scale * random.noise(key, scale.shape, scale.dtype)
        noise = inputs @ noise if inputs.size else noise
    if outputs.size:
        noise = noise.reshape(-1, len(outputs)) @ outputs.T
    return as_leaf(noise, layout, leaf.shape).astype(leaf.dtype)


def _low_rank(inputs: Array) -> bool:
    return inputs.shape[1] < inputs.shape[0]


def _variance(rows: Rows, found: Backward, i: int, inputs, outputs, scale) -> Array:
    """The part of J Sigma J' of one row that belongs to one leaf."""
    if i not in rows.products:
        g = found.leaves[i].reshape(len(found.leaves[i]), -1)
        along = (g @ outputs if outputs.size else g) * scale.reshape(-1)
        return along @ along.T
    # The derivative with respect to the matrix is the sum of a g' over the places; a and g are rotated first.
    a, g = found.inputs[i], found.results[i]
    if inputs.size:
        along = a @ inputs
        if _low_rank(inputs):  # the length of the part that is orthogonal to all columns
            rest = jnp.linalg.norm(a - along @ inputs.T, axis=1, keepdims=True)
            along = jnp.concatenate([along, rest], axis=1)
        a, g = along, g @ outputs
    else:
        scale = as_matrix(scale, rows.products[i].layout)
    if len(a) == 1:
        weight = (a[0] ** 2) @ scale**2
        return (g[:, 0] * weight) @ g[:, 0].T
    along = (jnp.einsum("pi,cpj->cij", a, g) * scale).reshape(len(g), -1)
    return along @ along.T


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mean", "root", "state"],
    meta_fields=["free", "linearised"],
)
@dataclass(frozen=True, eq=False, repr=False)
class FullNormal(Normal):
    r"""A normal distribution of full covariance: :math:`w = \hat w + R \epsilon`, :math:`\Sigma = R R^\top`.

    Attributes:
      mean: the mode.
      root: R, a matrix over the concatenated free leaves.
      free: whether each leaf is free; the others are fixed at the mode.
      linearised: whether predictions use the linear expansion of the network at the mode.
      state: the network's state.
    """

    mean: Params
    root: Array
    free: tuple[bool, ...]
    linearised: bool
    state: NetworkState = ()

    like_params = ("mean",)

    def covariance(self) -> Array:
        """The covariance matrix Sigma of the free leaves."""
        return self.root @ self.root.T

    def deviation(self, key):
        noise = jnp.asarray(self.root) @ random.noise(key, (len(self.root),), self.root.dtype)
        return _unravelled(self, noise)

    def of_row(self, model, rows, row):
        leaves = jax.tree.leaves(model.split(self.mean)[0])
        _, found = backward(rows, [], free_leaves(self, model), leaves, self.state, row, _identity)
        jacobian = jnp.concatenate([g.reshape(len(g), -1) for g in found.leaves.values()], axis=1)
        along = jacobian @ self.root
        return along @ along.T

    def bytes_of_row(self, model, rows):
        leaves = jax.tree.leaves(model.split(self.mean)[0])
        columns = model.schema.outputs  # pyright: ignore[reportOptionalMemberAccess]
        return row_bytes(rows, [], free_leaves(self, model), leaves, columns, outer=False)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["mean", "vectors", "shares", "scale", "state"],
    meta_fields=["free", "linearised"],
)
@dataclass(frozen=True, eq=False, repr=False)
class LowRankNormal(Normal):
    r"""A normal distribution that is narrower than its prior along a few directions.

    .. math:: \Sigma = S \left(I - V \operatorname{diag}(\gamma)\, V^\top\right) S

    Attributes:
      mean: the mode.
      vectors: V, orthonormal columns over the concatenated free leaves.
      shares: gamma, by how much the data narrow each direction; between zero and one.
      scale: S, the standard deviation of each free weight without data.
      free: whether each leaf is free; the others are fixed at the mode.
      linearised: whether predictions use the linear expansion of the network at the mode.
      state: the network's state.
    """

    mean: Params
    vectors: Array
    shares: Array
    scale: Array
    free: tuple[bool, ...]
    linearised: bool
    state: NetworkState = ()

    like_params = ("mean",)

    def _facts(self) -> list[str]:
        return [f"rank {self.vectors.shape[1]}", *super()._facts()]

    def covariance(self) -> Array:
        """The covariance matrix Sigma of the free leaves."""
        inner = np.eye(len(self.scale)) - (self.vectors * self.shares) @ self.vectors.T
        return self.scale[:, None] * inner * self.scale

    def deviation(self, key):
        noise = random.noise(key, self.scale.shape, self.scale.dtype)
        # The root of I - V gamma V' is I - V (1 - sqrt(1 - gamma)) V'.
        less = 1 - jnp.sqrt(1 - jnp.asarray(self.shares))
        vectors = jnp.asarray(self.vectors)
        return _unravelled(self, self.scale * (noise - vectors @ (less * (vectors.T @ noise))))

    def of_row(self, model, rows, row):
        # A column after the other, each by a pass backward and one forward: the Jacobian, outputs times
        # weights, would not fit in memory for a large network with many outputs.
        leaves = jax.tree.leaves(model.split(self.mean)[0])
        chosen = {i: leaves[i] for i in free_leaves(self, model)}

        def outputs(chosen):
            merged = [chosen.get(i, leaf) for i, leaf in enumerate(leaves)]
            return rows.outputs(merged, self.state, row, {})[0]

        found, pull = jax.vjp(outputs, chosen)

        def backward(z):
            parts = pull(z.astype(found.dtype))[0]
            return self.scale * jnp.concatenate([widened(g).ravel() for g in parts.values()])

        def column(z):
            scaled = backward(z)
            narrowed = self.vectors @ (self.shares * (scaled @ self.vectors))
            return forward(scaled - narrowed)[0]

        # The transpose of a backward pass, which networks with a derivative of their own have too.
        each = jnp.eye(len(found), dtype=self.scale.dtype)
        forward = jax.linear_transpose(backward, each[0])
        return lax.map(column, each)

    def bytes_of_row(self, model, rows):
        return 4 * self.scale.size * self.scale.dtype.itemsize


def _unravelled(normal: FullNormal | LowRankNormal, vector: Array) -> Params:
    """A vector over the free leaves as a pytree of parameters, with zeros in all other leaves."""
    leaves, tree = jax.tree.flatten(normal.mean)
    parts, begin = [], 0
    for leaf, free in zip(leaves, normal.free, strict=True):
        end = begin + leaf.size if free else begin
        part = vector[begin:end].reshape(leaf.shape) if free else jnp.zeros_like(leaf)
        parts.append(part.astype(leaf.dtype))
        begin = end
    return jax.tree.unflatten(tree, parts)


def free_leaves(normal: FullNormal | LowRankNormal, model: Model) -> list[int]:
    """The indices of the free leaves among the leaves of the network's weights."""
    flags = jax.tree.unflatten(jax.tree.structure(normal.mean), normal.free)
    return [i for i, free in enumerate(jax.tree.leaves(model.split(flags)[0])) if free]
