"""Networks from Equinox modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.checks import must
from credax.core.precision import widest
from credax.core.reprs import labelled
from credax.core.trees import named_leaves
from credax.core.typing import Key
from credax.core.weights import Weights, nested
from credax.model.networks.network import AbstractNetwork
from credax.model.networks.wrapped import (
    check_pretrained,
    finite_weights,
    first_weights,
    library,
    next_state,
)


def from_equinox(model: Any, state: Any = None, *, pretrained: bool = False) -> EquinoxNetwork:
    """Make a network from an Equinox module that maps one row to one vector of outputs.

    A row may also be a dictionary or tuple of arrays, and the outputs of a row may be of another shape; see
    ``cx.Model``.

    As is usual in Equinox, the module is written for a single row, and every floating-point array in it is a
    weight. If its call has arguments ``key`` and ``state``, they are found by these names; ``eqx.nn.BatchNorm``
    sees all rows of a batch.

    Args:
      model: a module, or a function ``key -> module`` that makes one (or ``key -> (module, state)``, such as
        ``lambda key: eqx.nn.make_with_state(Model)(key=key)``).
      state: the state that ``eqx.nn.make_with_state`` returned together with the module, if it was made so.
      pretrained: whether every replica starts from the module's own weights. If ``False``, it starts from
        weights that the function draws; if a module was given, from its own weights shuffled within each
        array.

    Networks are equal if their modules have the same structure and equal weights. A posterior can be saved, but
    the network must be passed again to ``cx.load``.
    """
    equinox = library("equinox")

    construct = None
    if not isinstance(model, equinox.Module):
        if not callable(model) or state is not None:
            allowed = "an Equinox module, or (with no state given) a function key -> module"
            raise TypeError(must("from_equinox", "model", allowed, model))
        construct = model
        model, state = _pair(construct(jax.random.key(0)))
        if not isinstance(model, equinox.Module):
            raise TypeError(must("from_equinox", "model", "a function key -> module", construct))
    check_pretrained("from_equinox", pretrained, construct is None)
    carried, state_structure = jax.tree.flatten(state)
    return EquinoxNetwork(
        jax.tree.structure(model),
        tuple(_place(path, leaf) for path, leaf in named_leaves(model)),
        state_structure,
        finite_weights("from_equinox", "model", _weights(model)),
        Weights.of(carried),
        construct,
        pretrained,
    )


@dataclass(frozen=True)
class EquinoxNetwork(AbstractNetwork):
    """An Equinox module, separated into its weights and everything else. Made by :func:`from_equinox`.

    Attributes:
      structure: the tree structure of the module.
      leaves: the leaves of the module, in which a placeholder stands for each array.
      state_structure: the tree structure of its ``eqx.nn.State``.
      weights: the values of the weights.
      carried: the values of the state.
      construct: a function that makes a new module, or ``None``.
      pretrained: whether every replica starts from the weights.
    """

    structure: Any
    leaves: tuple[Any, ...]
    state_structure: Any
    weights: Weights
    carried: Weights
    construct: Callable[[Key], Any] | None = None
    pretrained: bool = False

    integer_inputs = True

    def __repr__(self):
        kind, _ = self.structure.node_data()
        return labelled(self, module=kind, weights=self.weights, pretrained=self.pretrained)

    def init(self, key: Key):
        """The weights as nested dictionaries, by the attributes of the module."""
        if self.construct is None:
            return first_weights(self.weights, key, self.pretrained)
        with jax.numpy_dtype_promotion("standard"):
            model, _ = _pair(self.construct(random.native(key)))
        return nested({path: widest(leaf) for path, leaf in _weights(model).items()})

    def init_state(self):
        """The leaves of ``eqx.nn.State``, by their numbers."""
        return self.carried.tree or ()

    def call(self, params, x: Any, *, state, key, train):
        """Call the module for each row."""
        names = inspect.signature(self._module(params).__call__).parameters
        has_state, has_key = "state" in names, "key" in names
        module = _switched(self._module(params), drop=key is not None, update=train)
        keys = (
            jax.random.split(random.native(key), jax.tree.leaves(x)[0].shape[0])
            if has_key and key is not None
            else None
        )

        def one(row, carried, key):
            arguments = {"key": key} if has_key else {}
            if has_state:
                return module(row, carried, **arguments)
            return module(row, **arguments), carried

        carried = [state[str(i)] for i in range(len(state))]
        carried = jax.tree.unflatten(self.state_structure, carried)
        each = jax.vmap(one, (0, None, 0), (0, None), axis_name=_axis_name(module))
        with jax.numpy_dtype_promotion("standard"):
            outputs, carried = each(x, carried, keys)
        if train and state != ():
            new = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(carried))}
            state = next_state(new, state)
        return outputs, state

    def module_with(self, params, state):
        """A new module, set to predict; with the state if it has one."""
        module = _switched(self._module(params), drop=False, update=False)
        if state == ():
            return module
        carried = [state[str(i)] for i in range(len(state))]
        return module, jax.tree.unflatten(self.state_structure, carried)

    def _module(self, params):
        weights = dict(named_leaves(params))
        leaves = [leaf.of(weights) if isinstance(leaf, _Place) else leaf for leaf in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)


class _Place(NamedTuple):
    """A placeholder for an array: the path of a weight, or the values of an array that never changes."""

    path: str
    fixed: Weights | None

    def of(self, weights: dict[str, Any]) -> Any:
        return weights[self.path] if self.fixed is None else self.fixed.arrays[""]


def _place(path: str, leaf: Any) -> Any:
    """A leaf of the module in a form that is hashable and compares by value."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return leaf
    return _Place(path, None if _is_weight(leaf) else Weights.of(leaf))


def _pair(made: Any) -> tuple[Any, Any]:
    return made if isinstance(made, tuple) else (made, None)


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _weights(model: Any) -> dict[str, Any]:
    return {path: leaf for path, leaf in named_leaves(model) if _is_weight(leaf)}


def _with(attribute: str, module: Any) -> list[Any]:
    found = lambda node: hasattr(node, attribute)  # noqa: E731
    return [node for node in jax.tree.leaves(module, is_leaf=found) if found(node)]


def _switched(module: Any, *, drop: bool, update: bool) -> Any:
    """The module with dropout and the update of batch statistics each switched on or off, by ``inference``."""
    equinox = library("equinox")

    layers = _with("inference", module)
    if not layers:
        return module
    normalising = equinox.nn.BatchNorm
    values = [not (update if isinstance(layer, normalising) else drop) for layer in layers]
    where = lambda module: [layer.inference for layer in _with("inference", module)]  # noqa: E731
    return equinox.tree_at(where, module, values)


def _axis_name(module: Any) -> Any:
    """The name that batch normalisation uses for the axis of the rows."""
    names = {layer.axis_name for layer in _with("axis_name", module)}
    if len(names) > 1:
        raise ValueError(
            f"The BatchNorm layers must have one axis_name; got {sorted(map(str, names))}."
        )
    return names.pop() if names else "batch"
