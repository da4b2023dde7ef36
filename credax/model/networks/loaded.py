"""Weights from safetensors files, as the model hubs of other libraries hold them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from credax.core import checks
from credax.core.checks import must
from credax.core.errors import StorageError
from credax.core.reprs import brief
from credax.core.trees import named_leaves
from credax.core.typing import Array, Key, Params, PyTree
from credax.core.weights import Weights
from credax.model.networks.frozen import (
    check_network,
    check_patterns,
    matching,
    path_patterns,
    replaced,
)
from credax.model.networks.network import AbstractNetwork

MOST_LISTED = 8
"""The largest number of names that an error message lists of each kind."""

Rename = Mapping[str, str] | Callable[[str], str]


def load_weights(
    network: AbstractNetwork,
    path: str | Path | Sequence[str | Path],
    rename: Rename | None = None,
    *,
    transpose: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    keep: str | Sequence[str] = (),
) -> Loaded:
    r"""Begin a network at the weights of a safetensors file.

    A name in the file, such as ``h.0.attn.c_attn.weight``, stands for the parameter at the path with ``/`` in
    place of each dot, ``h/0/attn/c_attn/weight``. Batch statistics are read in the same way. Every parameter of
    the network must be in the file, with its shape, and every tensor of the file must be a parameter; what
    differs is listed in the error.

    Args:
      network: any network.
      path: the file, or the files among which the tensors are divided.
      rename: how names in the file become names in the network: a mapping from regular expressions to
        replacements, which are applied in their order, such as ``{r"^transformer\.": "", r"weight$":
        "kernel"}``; or a function of the name.
      transpose: path patterns of matrices that the file holds with outputs first, as PyTorch does, and the
        network with inputs first, as Flax does (or the reverse). They are never guessed, since a square matrix
        would not show the mistake.
      ignore: patterns for tensors of the file that are not used, by their renamed paths, such as
        ``"lm_head/*"``.
      keep: path patterns of parameters that begin as the network initialises them, such as a new head.
    """
    check_network("load_weights", network)
    paths: tuple[Any, ...] = tuple(path) if isinstance(path, list | tuple) else (path,)
    if not paths:
        raise ValueError(must("load_weights", "path", "a file or several files", path))
    if rename is not None and not callable(rename) and not isinstance(rename, Mapping):
        allowed = "a mapping from regular expressions to replacements, or a function of a name"
        raise TypeError(must("load_weights", "rename", allowed, rename))
    chosen = {
        name: () if value in ((), []) else path_patterns("load_weights", name, value)
        for name, value in {"transpose": transpose, "ignore": ignore, "keep": keep}.items()
    }
    arrays: dict[str, np.ndarray] = {}
    for file in paths:
        for name, array in _read(checks.path("load_weights", "path", file)).items():
            new = _renamed(name, rename).replace(".", "/")
            if new in arrays:
                raise ValueError(
                    f"load_weights(rename=...) must give every tensor a name of its own; {name!r} and "
                    f"another one become {new!r}."
                )
            arrays[new] = array
    for argument in ("transpose", "ignore"):
        check_patterns("load_weights", argument, chosen[argument], list(arrays))
    used = {
        path: _transposed(path, array, chosen["transpose"])
        for path, array in arrays.items()
        if not matching(chosen["ignore"], path)
    }
    return Loaded(network, Weights.of(used), chosen["keep"])


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise FileNotFoundError(must("load_weights", "path", "a file that exists", str(path)))
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, AttributeError, TypeError, ValueError) as error:
        raise StorageError(f"{path} cannot be read as a safetensors file: {error}.") from error


def _renamed(name: str, rename: Rename | None) -> str:
    if rename is None:
        return name
    if callable(rename):
        new = rename(name)
        if not isinstance(new, str):
            allowed = "a function that returns a name"
            raise TypeError(
                f"{must('load_weights', 'rename', allowed, new)} It was given {name!r}."
            )
        return new
    for pattern, replacement in rename.items():
        try:
            name = re.sub(pattern, replacement, name)
        except (re.error, TypeError) as error:
            allowed = "a mapping from regular expressions to replacements"
            got = {pattern: replacement}
            raise ValueError(f"{must('load_weights', 'rename', allowed, got)} {error}.") from error
    return name


def _transposed(path: str, array: np.ndarray, patterns: tuple[str, ...]) -> np.ndarray:
    if not matching(patterns, path):
        return array
    if array.ndim != 2:
        raise ValueError(
            f"load_weights(transpose=...) must match matrices; {path!r} has shape {array.shape}."
        )
    return array.T


@dataclass(frozen=True, repr=False)
class Loaded(AbstractNetwork):
    """A network that begins at given weights. Made by :func:`load_weights`.

    Attributes:
      network: the network.
      weights: the values of its parameters and of its state, by path.
      keep: patterns for the paths of parameters that begin as the network initialises them.
    """

    network: AbstractNetwork
    weights: Weights
    keep: tuple[str, ...] = ()

    @property
    def integer_inputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner network keeps integers."""
        return self.network.integer_inputs

    @property
    def pretrained(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all parameters are given."""
        return not self.keep

    def __repr__(self):
        return brief(self)

    def rows_last(self, rows):
        """As the inner network computes."""
        return self.network.rows_last(rows)

    def build(self, input_shape, outputs):
        """The network completed for these rows, after a comparison of all names and shapes."""
        built = replace(self, network=self.network.build(input_shape, outputs))
        built._check(jax.eval_shape(built.network.init, jax.random.key(0)))
        return built

    def init(self, key: Key) -> Params:
        """The given weights, and those that are kept as the network initialises them."""
        made = self.network.init(key)
        self._check(made)
        return self._given(made)

    def init_state(self):
        """The given batch statistics."""
        return self._given(self.network.init_state())

    def call(self, params, x: Array, *, state, key, train):
        """The outputs of the network and its next state."""
        return self.network.call(params, x, state=state, key=key, train=train)

    def _given(self, tree: PyTree) -> PyTree:
        """A pytree of the network with the leaves that the file has."""
        leaves = {
            path: jnp.asarray(self.weights.arrays[path]).astype(leaf.dtype)
            for path, leaf in named_leaves(tree)
            if path in self.weights.arrays and not matching(self.keep, path)
        }
        return replaced(tree, leaves)

    def _check(self, like: Params) -> None:
        """Refuse a file whose names, shapes or values do not fit, and list what differs."""
        leaves = dict(named_leaves(like)) | dict(named_leaves(self.network.init_state()))
        check_patterns("load_weights", "keep", self.keep, list(leaves))
        wanted = {path: leaf for path, leaf in leaves.items() if not matching(self.keep, path)}
        got = self.weights.arrays
        missing = [path for path in wanted if path not in got]
        unknown = [path for path in got if path not in leaves]
        common = [path for path in wanted if path in got]
        shapes = [
            f"{path!r} {tuple(wanted[path].shape)}, in the file {got[path].shape}"
            for path in common
            if tuple(wanted[path].shape) != got[path].shape
        ]
        parts = [
            _listed("parameters that are not in the file", [_near(p, unknown) for p in missing]),
            _listed("tensors that are not in the network", list(map(repr, unknown))),
            _listed("other shapes", shapes),
        ]
        if any(parts):
            raise ValueError(
                "load_weights must find the network's parameters in the file, by name and shape. There are "
                f"{'; '.join(filter(None, parts))}. See the arguments rename, transpose, ignore and keep."
            )
        for path in common:
            self._check_values(path, got[path], np.dtype(wanted[path].dtype))

    def _check_values(self, path: str, array: np.ndarray, dtype: np.dtype) -> None:
        if not np.all(np.isfinite(array)):
            raise ValueError(f"load_weights: {path!r} holds values that are not finite.")
        largest = float(np.max(np.abs(array), initial=0.0))
        if largest > float(jnp.finfo(dtype).max):
            raise ValueError(
                f"load_weights: {path!r} holds {largest:.3g}, which is more than the network's {dtype} can "
                "hold. Use a network in float32."
            )


def _near(path: str, others: list[str]) -> str:
    """A name, with the most similar one among others."""
    found = difflib.get_close_matches(path, others, n=1, cutoff=0.6)
    return f"{path!r} (similar: {found[0]!r})" if found else repr(path)


def _listed(title: str, texts: list[str]) -> str:
    if not texts:
        return ""
    more = f" and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else ""
    return f"{title}: {', '.join(texts[:MOST_LISTED])}{more}"
