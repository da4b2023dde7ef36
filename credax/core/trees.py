"""Pytrees: the path of each leaf (``"layer_0/kernel"``), all leaves as one vector, a leaf as a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.reprs import labelled
from credax.core.typing import Array, PyTree


def path_name(path: tuple[Any, ...]) -> str:
    """The text of a key path of ``jax.tree_util``: its keys, indices and attribute names, joined by ``/``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Pairs of path and leaf, in the order of ``jax.tree.leaves``.

    >>> named_leaves({"layer_0": {"bias": 0.0, "kernel": 1.0}, "scales": [2.0]})
    [('layer_0/bias', 0.0), ('layer_0/kernel', 1.0), ('scales/0', 2.0)]
    """
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def tree_paths(tree: PyTree) -> list[str]:
    """The paths of the leaves. The path of a tree that is a single leaf is ``""``."""
    return [path for path, _ in named_leaves(tree)]


@partial(
    jax.tree_util.register_dataclass, data_fields=["vector"], meta_fields=["structure", "leaves"]
)
@dataclass(frozen=True)
class Flat:
    """A pytree of arrays as one vector. It is itself a pytree, with that vector as its only leaf.

    Arithmetic on one vector compiles to one loop, arithmetic on many leaves to many loops.

    >>> flat = Flat.of({"a": jnp.zeros(2), "b": jnp.ones((2, 2))})
    >>> flat.vector.tolist()
    [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    >>> jax.tree.map(lambda vector: vector + 1, flat).tree["b"].tolist()
    [[2.0, 2.0], [2.0, 2.0]]

    Attributes:
      vector: the entries of all leaves, in a dtype that can hold those of every leaf, at least float32.
      structure: the tree structure (``PyTreeDef``).
      leaves: the shape and the dtype of each leaf.
    """

    vector: Array
    structure: Any
    leaves: tuple[tuple[tuple[int, ...], str], ...]

    @classmethod
    def of(cls, tree: PyTree) -> Flat:
        """Concatenate the leaves of a pytree of floating-point arrays."""
        leaves, structure = jax.tree.flatten(tree)
        with jax.numpy_dtype_promotion("standard"):
            # Half precision would round away the small steps of a chain and the terms of a long sum.
            dtype = jnp.result_type(jnp.float32, *leaves)
        vector = jnp.concatenate([jnp.ravel(leaf).astype(dtype) for leaf in leaves])
        return cls(vector, structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))

    @property
    def tree(self) -> PyTree:
        """The vector as the original pytree."""
        # The gradient of a split is one concatenation; that of slices is a sum of as many padded vectors.
        parts = lax.split(self.vector, [math.prod(shape) for shape, _ in self.leaves])
        if jax.default_backend() != "cpu":
            # Otherwise XLA computes gradients once more inside the loop that concatenates them, by sums that
            # a GPU takes one by one: a quarter of the time of HMC with 1,024 chains of an 8-50-1 network.
            parts = lax.optimization_barrier(parts)
        each = zip(parts, self.leaves, strict=True)
        leaves = [part.reshape(shape).astype(dtype) for part, (shape, dtype) in each]
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def size(self) -> int:
        """The number of entries."""
        return sum(math.prod(shape) for shape, _ in self.leaves)

    def __repr__(self):
        return labelled(self, vector=self.vector, leaves=len(self.leaves))


def as_matrix(leaf: Array, layout: tuple[int, ...]) -> Array:
    """A weight as the matrix of its product; as a matrix of one row if ``layout`` is empty."""
    if not layout:
        return leaf.reshape(1, -1)
    moved = leaf.transpose(layout[1:])
    return moved.reshape(math.prod(moved.shape[: layout[0]]), -1)


def as_leaf(matrix: Array, layout: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """The inverse of :func:`as_matrix`."""
    if not layout:
        return matrix.reshape(shape)
    axes = layout[1:]
    moved = matrix.reshape([shape[axis] for axis in axes])
    return moved.transpose([axes.index(axis) for axis in range(len(shape))])
