"""Pytrees: names for the leaves (``"layer_0/kernel"``, ``"layers/1/weight"``), all leaves as one vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.typing import Array, PyTree


def path_name(path: tuple[Any, ...]) -> str:
    """A key path of ``jax.tree_util`` as its keys, indices and attribute names, joined by ``/``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """The leaves, each with its path, in the order of ``jax.tree.leaves``.

    >>> named_leaves({"layer_0": {"bias": 0.0, "kernel": 1.0}, "scales": [2.0]})
    [('layer_0/bias', 0.0), ('layer_0/kernel', 1.0), ('scales/0', 2.0)]
    """
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def tree_paths(tree: PyTree) -> list[str]:
    """The paths of the leaves; a tree that is one leaf has the path ``""``."""
    return [path for path, _ in named_leaves(tree)]


@partial(
    jax.tree_util.register_dataclass, data_fields=["vector"], meta_fields=["structure", "leaves"]
)
@dataclass(frozen=True)
class Flat:
    """A pytree of arrays as one vector, which is a pytree of one leaf.

    Arithmetic on one vector is one compiled loop, on many leaves it is many.

    >>> flat = Flat.of({"a": jnp.zeros(2), "b": jnp.ones((2, 2))})
    >>> flat.vector.tolist()
    [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    >>> jax.tree.map(lambda vector: vector + 1, flat).tree["b"].tolist()
    [[2.0, 2.0], [2.0, 2.0]]

    Attributes:
      vector: the entries of all leaves, in the widest of their dtypes.
      structure: the treedef.
      leaves: shape and dtype of each leaf.
    """

    vector: Array
    structure: Any
    leaves: tuple[tuple[tuple[int, ...], str], ...]

    @classmethod
    def of(cls, tree: PyTree) -> Flat:
        """The leaves of a pytree of floating-point arrays, end to end."""
        leaves, structure = jax.tree.flatten(tree)
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*leaves)
        vector = jnp.concatenate([jnp.ravel(leaf).astype(dtype) for leaf in leaves])
        return cls(vector, structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))

    @property
    def tree(self) -> PyTree:
        """The pytree again."""
        # The gradient of one split is one concatenation, that of slices a sum of as many padded vectors.
        parts = lax.split(self.vector, [math.prod(shape) for shape, _ in self.leaves])
        each = zip(parts, self.leaves, strict=True)
        leaves = [part.reshape(shape).astype(dtype) for part, (shape, dtype) in each]
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def size(self) -> int:
        """How many entries there are."""
        return sum(math.prod(shape) for shape, _ in self.leaves)
