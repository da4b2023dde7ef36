"""Fixed arrays inside a network or a prior. They are hashable and compare by value, as settings must.

A compiled program may get such arrays as arguments instead of holding them; see :mod:`credax.core.programs`. It
is then traced for their shapes alone: the weights in its settings are hollow, and are filled with what is
traced.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
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

    def hollow(self) -> Weights:
        """The paths, dtypes and shapes alone."""
        shapes = [(path, str(a.dtype), tuple(a.shape)) for path, a in sorted(self.arrays.items())]
        return Weights(f"any of {shapes}", arrays={})

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


_FILLED = itertools.count()


def weights_in(value: Any) -> list[Weights]:
    """All weights inside a setting, a dataclass of settings, or a tuple of them."""
    if isinstance(value, Weights):
        return [value]
    if isinstance(value, tuple):
        return [held for item in value for held in weights_in(item)]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    return weights_in(tuple(getattr(value, name) for name in _compared(value)))


def hollowed(value: Any) -> Any:
    """A setting in which all weights are hollow."""
    return _replaced(value, lambda weights: weights.hollow())


def filled(value: Any, arrays: list[Mapping[str, Any]]) -> Any:
    """A setting in which hollow weights hold these arrays, in the order of :func:`weights_in`.

    No two fillings are equal, because the arrays are those of one trace.
    """
    left = iter(arrays)
    return _replaced(value, lambda _: Weights(f"traced {next(_FILLED)}", arrays=next(left)))


def _replaced(value: Any, change: Any) -> Any:
    if isinstance(value, Weights):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_replaced(item, change) for item in value)
    if not weights_in(value):
        return value
    fields = {name: _replaced(getattr(value, name), change) for name in _compared(value)}
    return dataclasses.replace(value, **fields)


def _compared(value: Any) -> list[str]:
    return [item.name for item in dataclasses.fields(value) if item.compare]
