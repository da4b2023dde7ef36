"""Names for the leaves of a pytree: ``"layer_0/kernel"``, ``"layers/1/weight"``."""

from typing import Any

import jax

from credax.typing import PyTree


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
