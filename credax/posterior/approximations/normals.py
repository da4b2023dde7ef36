r"""Normal distributions over the weights, as curvature at a mode gives them.

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
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.model import Model
from credax.posterior.approximations.approximation import Generated
from credax.tracing.backward import BLOCK_BYTES, Backward, backward, row_bytes
from credax.tracing.products import Rows, as_leaf, as_matrix


class Normal(Generated):
    """A normal distribution around a mode."""

    mean: Params
    linearised: bool
    state: NetworkState
    like_state = ("state",)

    @abc.abstractmethod
    def deviation(self, key: Key) -> Params:
        """A draw of w less its mean."""

    @abc.abstractmethod
    def of_row(self, model: Model, rows: Rows, row: Array) -> Array:
        """J Sigma J' of one row, ``(outputs, outputs)``."""

    @abc.abstractmethod
    def bytes_of_row(self, model: Model, rows: Rows) -> int:
        """Memory that this takes."""

    @property
    def centre(self) -> Draw | None:
        """The mode, where predictions are linearised."""
        return Draw(self.mean, self.state) if self.linearised else None

    def generate(self, key):
        return Draw(jax.tree.map(jnp.add, self.mean, self.deviation(key)), self.state)

    def starts(self, key: Key, replicas: int) -> Draw:
        """One replica starts at the mode, several start around it."""
        if replicas > 1:
            return self.sample(key, replicas)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], Draw(self.mean, self.state))

    def output_covariance(self, model: Model, x: Array) -> Array:
        """J Sigma J' of each row, ``(rows, outputs, outputs)``."""
        return _covariances(model, self, x)


@partial(jax.jit, static_argnames=("model",))
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
@dataclass(frozen=True, eq=False)
class KroneckerNormal(Normal):
    r"""Independent leaves, each a matrix of independent numbers between two rotations.

    .. math:: W = \hat W + U_A\, (S \circ E)\, U_G^\top, \qquad E_{ij} \sim N(0, 1)

    Attributes:
      mean: the mode.
      inputs: :math:`U_A` of each leaf; an empty matrix stands for the identity.
      outputs: :math:`U_G` likewise.
      scale: S of each leaf, in the shape of the matrix; zero where a leaf is known.
      layouts: how each leaf is a matrix; ``()``: a vector in the leaf's own order.
      linearised: whether predictions are those of the linear expansion.
      state: the network's.
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
    noise = scale * random.noise(key, scale.shape, scale.dtype)
    if inputs.size:
        noise = inputs @ noise
    if outputs.size:
        noise = noise.reshape(-1, len(outputs)) @ outputs.T
    return as_leaf(noise, layout, leaf.shape).astype(leaf.dtype)


def _variance(rows: Rows, found: Backward, i: int, inputs, outputs, scale) -> Array:
    """J Sigma J' of one row, a leaf's part of it."""
    if i not in rows.products:
        g = found.leaves[i].reshape(len(found.leaves[i]), -1)
        along = (g @ outputs if outputs.size else g) * scale.reshape(-1)
        return along @ along.T
    # The derivative with respect to the matrix is the sum of a g' over the places; both are rotated first.
    a, g = found.inputs[i], found.results[i]
    if inputs.size:
        a, g = a @ inputs, g @ outputs
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
@dataclass(frozen=True, eq=False)
class FullNormal(Normal):
    r"""One covariance of all free leaves: :math:`w = \hat w + R \epsilon`, :math:`\Sigma = R R^\top`.

    Attributes:
      mean: the mode.
      root: R, over the free leaves end to end.
      free: which leaves are; the others are known.
      linearised: whether predictions are those of the linear expansion.
      state: the network's.
    """

    mean: Params
    root: Array
    free: tuple[bool, ...]
    linearised: bool
    state: NetworkState = ()

    like_params = ("mean",)

    def covariance(self) -> Array:
        """Sigma."""
        return self.root @ self.root.T

    def deviation(self, key):
        noise = jnp.asarray(self.root) @ random.noise(key, (len(self.root),), self.root.dtype)
        leaves, tree = jax.tree.flatten(self.mean)
        parts, begin = [], 0
        for leaf, free in zip(leaves, self.free, strict=True):
            end = begin + leaf.size if free else begin
            part = noise[begin:end].reshape(leaf.shape) if free else jnp.zeros_like(leaf)
            parts.append(part.astype(leaf.dtype))
            begin = end
        return jax.tree.unflatten(tree, parts)

    def of_row(self, model, rows, row):
        leaves = jax.tree.leaves(model.split(self.mean)[0])
        _, found = backward(rows, [], self._free(model), leaves, self.state, row, _identity)
        jacobian = jnp.concatenate([g.reshape(len(g), -1) for g in found.leaves.values()], axis=1)
        along = jacobian @ self.root
        return along @ along.T

    def bytes_of_row(self, model, rows):
        leaves = jax.tree.leaves(model.split(self.mean)[0])
        columns = model.schema.outputs  # pyright: ignore[reportOptionalMemberAccess]
        return row_bytes(rows, [], self._free(model), leaves, columns, outer=False)

    def _free(self, model: Model) -> list[int]:
        """The free leaves, counted among those of the network."""
        flags = jax.tree.unflatten(jax.tree.structure(self.mean), self.free)
        return [i for i, free in enumerate(jax.tree.leaves(model.split(flags)[0])) if free]
