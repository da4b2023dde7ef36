"""Fixed arrays inside a network or a prior. They are hashable and compare by value, as settings must."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.precision import widest
from credax.core.trees import named_leaves
from credax.core.typing import PyTree


@dataclass(frozen=True)
class Weights:
    """Arrays by their path. Two sets of weights are equal if they agree bit for bit. Made by :meth:`of`.

    Attributes:
      digest: a hash of all paths, dtypes, shapes and values.
      arrays: a mapping from path to array.
    """

    digest: str
    arrays: Mapping[str, np.ndarray] = field(compare=False, repr=False, kw_only=True)

    @classmethod
    def of(cls, tree: PyTree) -> Self:
        """Copy the leaves of a pytree."""
        leaves = named_leaves(tree)
        arrays = {path: np.array(jax.device_get(leaf)) for path, leaf in leaves}
        if len(arrays) < len(leaves):
            raise ValueError(f"Two weights have the same path, among {sorted(arrays)}; rename one.")
        digest = hashlib.sha256()
        for path in sorted(arrays):
            array = arrays[path]
            array.flags.writeable = False
            digest.update(f"\0{path}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return cls(digest.hexdigest(), arrays=arrays)

    def only(self, paths: Any) -> Weights:
        """The weights at the given paths."""
        return type(self).of(nested({path: self.arrays[path] for path in paths}))

    def like(self, tree: PyTree) -> PyTree:
        """The weights in the structure and dtypes of a pytree of arrays (or shapes) with the same paths."""
        leaves = [jnp.asarray(self.arrays[path], leaf.dtype) for path, leaf in named_leaves(tree)]
        return jax.tree.unflatten(jax.tree.structure(tree), leaves)

    @property
    def tree(self) -> dict[str, Any]:
        """The weights as nested dictionaries, single and double precision in the default float type."""
        return nested({path: widest(array) for path, array in self.arrays.items()})

    def __repr__(self):
        size = sum(array.size for array in self.arrays.values())
        return f"Weights(arrays={len(self.arrays)}, size={size}, digest={self.digest[:8]!r})"


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a mapping from path to leaf into nested dictionaries.

    >>> nested({"head/bias": 0.0, "head/kernel": 1.0, "scale": 2.0})
    {'head': {'bias': 0.0, 'kernel': 1.0}, 'scale': 2.0}
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = leaf
    return tree


def shuffled(key: jax.Array, tree: PyTree) -> PyTree:
    """Permute the entries of each array at random.

    An initialiser draws the entries of an array independently from one distribution. A permutation of its draw
    is therefore distributed like a new draw, and is available for modules that cannot be initialised again.
    """
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(len(leaves), 1))
    return jax.tree.unflatten(
        structure,
        [
            jax.random.permutation(k, leaf.reshape(-1)).reshape(leaf.shape)
            for k, leaf in zip(keys, leaves, strict=False)
        ],
    )
