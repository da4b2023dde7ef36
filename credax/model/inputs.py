"""Inputs that consist of several arrays: dictionaries, tuples and lists of arrays with the same rows.

Whole numbers, such as the numbers of words in a vocabulary, stay whole numbers; true and false stay so as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.rows import RowTree
from credax.model.data import check_array, to_numpy
from credax.model.frame import take_rows

KINDS = {"b": "true or false", "i": "whole numbers", "f": "floating-point numbers"}
"""What an array of each kind of dtype holds."""


@dataclass(frozen=True)
class InputTree:
    """The shape of one row of a tree of inputs, which takes the place of the shape of one array.

    Attributes:
      names: where each array is in the tree, e.g. ``"['tokens']"``.
      shapes: the shape of one row of each array.
      dtypes: the name of the dtype of each array.
      form: the containers of the tree, as text.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    form: str

    def rows(self, count: int) -> Any:
        """The tree of the shapes and dtypes of ``count`` rows."""
        each = zip(self.shapes, self.dtypes, strict=True)
        leaves = [jax.ShapeDtypeStruct((count, *shape), jnp.dtype(dtype)) for shape, dtype in each]
        return _built(json.loads(self.form), leaves)

    def __str__(self) -> str:
        each = zip(self.names, self.shapes, self.dtypes, strict=True)
        shown = (f"x{n} ({', '.join(['rows', *map(str, s)])}) of {d}" for n, s, d in each)
        return ", ".join(shown)


def is_tree(x: Any) -> bool:
    """Whether inputs are a tree of arrays: a mapping, or a tuple of arrays or of further containers.

    A list, or a tuple of numbers or lists, is one array.
    """
    if isinstance(x, Mapping | RowTree):
        return True
    if isinstance(x, tuple):
        return any(isinstance(part, Mapping) or _has_axes(part) or is_tree(part) for part in x)
    return isinstance(x, list) and any(isinstance(part, Mapping) for part in x)


def _has_axes(value: Any) -> bool:
    return len(getattr(value, "shape", ())) > 0


def leaves_of(x: Any) -> list[Any]:
    """The arrays of inputs, targets or weights that may be a tree; the value itself if it is one array."""
    if not is_tree(x):
        return [x]
    parts = (
        x.values()
        if isinstance(x, Mapping)
        else jax.tree.leaves(x)
        if isinstance(x, RowTree)
        else x
    )
    return [leaf for part in parts for leaf in leaves_of(part)]


def take(argument: str, x: Any, rows: np.ndarray) -> Any:
    """Some rows of inputs, targets or weights that may be a tree; data frames keep the names of columns."""
    if isinstance(x, RowTree):
        return x[rows]
    if isinstance(x, Mapping):
        return {key: take(argument, part, rows) for key, part in x.items()}
    if is_tree(x):
        return type(x)(take(argument, part, rows) for part in x)
    return take_rows(argument, x, rows)


def row_shape(x: Any) -> tuple[int, ...] | InputTree:
    """The shape of one row of an array or of a :class:`RowTree`."""
    if not isinstance(x, RowTree):
        return tuple(x.shape[1:])
    places = jax.tree_util.tree_flatten_with_path(x.tree)[0]
    return InputTree(
        tuple(jax.tree_util.keystr(path) for path, _ in places),
        tuple(tuple(leaf.shape[1:]) for _, leaf in places),
        tuple(str(leaf.dtype) for _, leaf in places),
        json.dumps(_form(x.tree, iter(range(len(places))))),
    )


def check_tree(x: Any, like: InputTree | None = None) -> RowTree:
    """Check a tree of inputs; return it as NumPy arrays.

    Args:
      x: dictionaries, tuples and lists of arrays.
      like: the shape of a row in the fit, which the rows must have as well; ``None`` in the fit itself.
    """
    if isinstance(x, RowTree):
        x = x.tree
    kinds = None if like is None else dict(zip(like.names, like.dtypes, strict=True))
    tree = RowTree(_checked("x", x, "", kinds))
    places = jax.tree_util.tree_flatten_with_path(tree.tree)[0]
    if not places:
        raise ValueError("x must hold at least one array; got an empty tree.")
    rows = {f"x{jax.tree_util.keystr(path)}": leaf.shape[0] for path, leaf in places}
    if len(set(rows.values())) > 1:
        raise ValueError(f"All arrays of x must have the same number of rows; got {rows}.")
    if like is not None:
        _compare(row_shape(tree), like)  # pyright: ignore[reportArgumentType]
    return tree


def _compare(got: InputTree, want: InputTree) -> None:
    """Refuse a tree with other names or shapes than in the fit."""
    missing = [name for name in want.names if name not in got.names]
    unexpected = [name for name in got.names if name not in want.names]
    if missing or unexpected:
        parts = [f"{', '.join(missing)} missing"] if missing else []
        parts += [f"{', '.join(unexpected)} unexpected"] if unexpected else []
        raise ValueError(
            f"x must have the arrays of the fit, {', '.join(want.names)}; got {' and '.join(parts)}."
        )
    if got.form != want.form:
        raise ValueError(f"x must have the containers of the fit, {want.form}; got {got.form}.")
    for name, wanted, given in zip(want.names, want.shapes, got.shapes, strict=True):
        if wanted != given:
            wanted, given = (", ".join(["rows", *map(str, s)]) for s in (wanted, given))
            raise ValueError(f"x{name} must have shape ({wanted}), as in the fit; got ({given}).")


def _checked(whole: str, value: Any, place: str, kinds: Mapping[str, str] | None) -> Any:
    """The part of a tree at a place, with its arrays checked."""
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str)]
        if odd:
            raise TypeError(f"{whole} must have names that are text; got {odd[0]!r}.")
        return {
            k: _checked(f"{whole}[{k!r}]", v, f"{place}[{k!r}]", kinds) for k, v in value.items()
        }
    if hasattr(value, "_fields"):
        raise TypeError(
            f"{whole} must be an array, or a dictionary, tuple or list of arrays; got the named tuple "
            f"{type(value).__name__}. Use a dictionary."
        )
    if isinstance(value, tuple) or (isinstance(value, list) and is_tree(value)):
        each = enumerate(value)
        return type(value)(_checked(f"{whole}[{i}]", v, f"{place}[{i}]", kinds) for i, v in each)
    return _leaf(whole, value, None if kinds is None else kinds.get(place))


def _leaf(name: str, value: Any, want: str | None) -> np.ndarray:
    """One array: in the dtype of the fit if it is known."""
    given = to_numpy(name, value)
    kind = "i" if given.dtype.kind in "iu" else given.dtype.kind
    if want is not None and np.dtype(want).kind in "bi" and kind in "bif":
        needed = np.dtype(want).kind
        if kind != needed:
            raise TypeError(
                f"{name} must hold {KINDS[needed]}, as in the fit; got dtype {given.dtype}."
            )
    if kind == "b":
        check_array(name, given)
        return np.ascontiguousarray(given)
    return check_array(name, given, keep_integers=want is None or np.dtype(want).kind == "i")


def _form(tree: Any, numbers: Any) -> Any:
    """The containers of a tree, with the number of each array; dictionaries in the order of JAX."""
    if isinstance(tree, dict):
        return {"dict": {key: _form(tree[key], numbers) for key in sorted(tree)}}
    if isinstance(tree, tuple | list):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [_form(part, numbers) for part in tree]}
    return next(numbers)


def _built(form: Any, leaves: list[Any]) -> Any:
    """The tree of a form."""
    if isinstance(form, int):
        return leaves[form]
    ((kind, parts),) = form.items()
    if kind == "dict":
        return {key: _built(part, leaves) for key, part in parts.items()}
    return {"tuple": tuple, "list": list}[kind](_built(part, leaves) for part in parts)
