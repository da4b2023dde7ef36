"""Networks from Flax modules, both NNX and Linen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from credax.core import random
from credax.core.checks import must
from credax.core.precision import widest
from credax.core.reprs import labelled
from credax.core.trees import named_leaves
from credax.core.typing import Array, Key
from credax.core.weights import Weights, nested
from credax.model.networks.network import AbstractNetwork
from credax.model.networks.wrapped import (
    arguments,
    check_pretrained,
    finite_weights,
    first_weights,
    library,
    next_state,
)


def from_flax(
    module: Any, variables: Mapping[str, Any] | None = None, *, pretrained: bool = False
) -> FlaxNNX | FlaxLinen:
    """Make a network from a Flax module that maps rows to outputs of shape ``(rows, outputs)``.

    The module may also take a dictionary or tuple of arrays as its one argument, and return outputs of another
    shape; see ``cx.Model``.

    Parameters, batch statistics and random streams are found automatically. Dropout and the update of batch
    statistics are switched by the attributes of the layers, and by an argument ``train``, ``training`` or
    ``deterministic`` if the module's call has one.

    Args:
      module: an NNX module, a function ``rngs -> module`` that makes one, or a Linen module.
      variables: for a Linen module, its trained weights, ``{"params": ..., "batch_stats": ...}``.
      pretrained: whether every replica starts from the module's own weights. If ``False``, it starts from
        weights drawn by the module's initialisers; if a finished NNX module was given, from its own weights
        shuffled within each array.

    Networks are equal if their modules have the same structure and equal weights. A posterior can be saved, but
    the network must be passed again to ``cx.load``.
    """
    linen, nnx = library("flax.linen"), library("flax.nnx")

    if isinstance(module, linen.Module):
        if variables is not None and "params" not in variables:
            allowed = '{"params": ..., "batch_stats": ...}'
            raise ValueError(must("from_flax", "variables", allowed, list(variables)))
        check_pretrained("from_flax", pretrained, variables is not None)
        given = None
        if variables is not None:
            given = finite_weights("from_flax", "variables", _plain(variables["params"]))
        rest = {name: _plain(v) for name, v in (variables or {}).items() if name != "params"}
        carried = None if variables is None else Weights.of(rest)
        return FlaxLinen(module, given if pretrained else None, carried)
    if variables is not None:
        raise ValueError(must("from_flax", "variables", "None for an NNX module", variables))
    construct = None
    if not isinstance(module, nnx.Module):
        if not callable(module):
            allowed = "an NNX or a Linen module, or a function rngs -> module"
            raise TypeError(must("from_flax", "module", allowed, module))
        construct, module = module, module(nnx.Rngs(0))
        if not isinstance(module, nnx.Module):
            raise TypeError(must("from_flax", "module", "a function rngs -> module", construct))
    check_pretrained("from_flax", pretrained, construct is None)
    graph, state = nnx.split(module)
    places = tuple(_Place.of(path, value) for path, value in nnx.to_flat_state(state))
    weights = finite_weights("from_flax", "module", _found(places, state, "weight"))
    carried = Weights.of(_found(places, state, "carried"))
    return FlaxNNX(graph, places, weights, carried, construct, pretrained)


# -- NNX ------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The position of a variable in the module, and its role."""

    path: tuple[Any, ...]
    role: str  # "weight", "key", "count" (of keys drawn so far), or "carried"
    shape: tuple[int, ...]

    @classmethod
    def of(cls, path, variable) -> _Place:
        nnx = library("flax.nnx")

        kinds = {nnx.Param: "weight", nnx.RngKey: "key", nnx.RngCount: "count"}
        role = next((role for kind, role in kinds.items() if isinstance(variable, kind)), "carried")
        return cls(path, role, variable.get_value().shape)

    @property
    def name(self) -> str:
        return "/".join(map(str, self.path))


def _found(places: tuple[_Place, ...], state: Any, role: str) -> dict[str, Any]:
    """The values of all variables with one role, by their names."""
    nnx = library("flax.nnx")

    values = dict(nnx.to_flat_state(state))
    return {p.name: values[p.path].get_value() for p in places if p.role == role}


@dataclass(frozen=True)
class FlaxNNX(AbstractNetwork):
    """An NNX module: its graph, its variables and their values. Made by :func:`from_flax`."""

    graph: Any
    places: tuple[_Place, ...]
    weights: Weights
    carried: Weights
    construct: Callable[[Any], Any] | None = None
    pretrained: bool = False

    integer_inputs = True

    def __repr__(self):
        kind = self.graph.nodes[0].type
        return labelled(self, module=kind, weights=self.weights, pretrained=self.pretrained)

    def init(self, key: Key):
        """The weights as nested dictionaries, by the attributes of the module."""
        nnx = library("flax.nnx")

        if self.construct is None:
            return first_weights(self.weights, key, self.pretrained)
        with jax.numpy_dtype_promotion("standard"):
            state = nnx.state(self.construct(nnx.Rngs(random.native(key))))
        return nested(jax.tree.map(widest, _found(self.places, state, "weight")))

    def init_state(self):
        """The batch statistics, and all other variables that are neither weights nor random streams."""
        return self.carried.tree or ()

    def call(self, params, x: Array, *, state, key, train):
        """Call the module."""
        nnx = library("flax.nnx")

        module = self._module(params, state, key)
        module.set_attributes(deterministic=key is None, raise_if_not_found=False)
        module.set_attributes(use_running_average=not train, raise_if_not_found=False)
        flags = arguments(type(module).__call__, train, key, state != ())
        with jax.numpy_dtype_promotion("standard"):
            outputs = module(x, **flags)
        if train and state != ():
            new = _found(self.places, nnx.state(module), "carried")
            state = next_state(nested(new), state)
        return outputs, state

    def module_with(self, params, state):
        """A new module with these weights, whose layers are set to predict."""
        module = self._module(params, state, None)
        module.eval()
        return module

    def _module(self, params, state, key) -> Any:
        """The module with these values, and with its random streams seeded by a key."""
        nnx = library("flax.nnx")

        values = dict(named_leaves(params)) | dict(named_leaves(state))
        streams = jax.random.key(0) if key is None else random.native(key)
        for i, place in enumerate(self.places):
            if place.role == "key":
                stream = jax.random.fold_in(streams, i)
                values[place.name] = (
                    jax.random.split(stream, place.shape) if place.shape else stream
                )
            elif place.role == "count":
                values[place.name] = jnp.zeros(place.shape, jnp.uint32)
        flat = [(place.path, values[place.name]) for place in self.places]
        return nnx.merge(self.graph, nnx.from_flat_state(flat))


# -- Linen ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlaxLinen(AbstractNetwork):
    """A Linen module and, if it is pretrained, its weights. Made by :func:`from_flax`."""

    module: Any = field(hash=False)  # whose lists, such as those of linen.Sequential, have no hash
    weights: Weights | None = None
    carried: Weights | None = None
    rows: Any = None

    integer_inputs = True

    def __repr__(self):
        return labelled(self, module=type(self.module), pretrained=self.pretrained)

    @property
    def pretrained(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether ``init`` returns trained weights."""
        return self.weights is not None

    def build(self, input_shape, outputs):
        """The network completed for these rows: the shapes of its parameters depend on theirs."""
        rows, carried = _first(_ByType(self.module), input_shape, jnp.result_type(float))
        return replace(self, rows=rows, carried=self.carried or carried)

    def init(self, key: Key):
        """The collection ``params``."""
        if self.weights is not None:
            return self.weights.tree
        if self.rows is None:
            raise ValueError(
                "This Flax module does not know the shape of x yet: fit it, or call model.bind((x, y)) first."
            )
        return jax.tree.map(
            widest, _variables(self.module, self.rows, random.native(key))["params"]
        )

    def init_state(self):
        """All collections other than ``params``."""
        return () if self.carried is None else self.carried.tree or ()

    def call(self, params, x: Array, *, state, key, train):
        """Call the module."""
        linen = library("flax.linen")

        rngs = {}
        if key is not None:
            names = ("dropout", "params")  # Flax draws streams of other names from the last one
            keys = jax.random.split(random.native(key), len(names))
            rngs = dict(zip(names, keys, strict=True))
        changing = list(state) if train and state != () else False
        switch = _switch(deterministic=key is None, use_running_average=not train)
        flags = _flags(self.module, train, key)
        variables = {"params": params, **(state if state != () else {})}
        with jax.numpy_dtype_promotion("standard"), linen.intercept_methods(switch):
            result = self.module.apply(variables, x, rngs=rngs, mutable=changing, **flags)
        if changing is False:
            return result, state
        outputs, new = result  # pyright: ignore[reportGeneralTypeIssues]
        return outputs, next_state({**state, **new}, state)

    def module_with(self, params, state):
        """The variables of the module, as its ``apply`` takes them."""
        return {"params": params, **(state if state != () else {})}


def _flags(module: Any, train: bool, key: Key | None) -> dict[str, bool]:
    # Each layer is switched separately by _switch, so the argument cannot change the state by mistake.
    return arguments(type(module).__call__, train, key, has_state=False)


def _switch(**values: bool) -> Callable:
    """An interceptor that sets ``deterministic`` and ``use_running_average`` of every layer that has them.

    A module often has a single argument ``train`` for both, but dropout in prediction needs random masks
    without an update of the batch statistics. The layer is a copy bound for this call, so the change is not
    permanent.
    """

    def intercept(call, positional, named, context):
        layer = context.module
        for name, value in values.items():
            if context.method_name == "__call__" and name in type(layer).__dataclass_fields__:
                object.__setattr__(layer, name, None)
                named = {**named, name: value}
        return call(*positional, **named)

    return intercept


def _variables(module: Any, rows: Any, key: Key) -> dict[str, Any]:
    params, dropout = jax.random.split(key)
    # The shapes of a tree of arrays are kept in a form that is hashable.
    x = jax.tree.map(
        lambda a: jnp.zeros(a.shape, a.dtype), getattr(rows, "rows", lambda _: rows)(1)
    )
    flags = _flags(module, train=False, key=None)
    with jax.numpy_dtype_promotion("standard"):
        return _plain(module.init({"params": params, "dropout": dropout}, x, **flags))


@dataclass(frozen=True)
class _ByType:
    """A module that is compared with others as a whole, and has a hash even if a field of it has none."""

    module: Any

    def __hash__(self):
        return hash(type(self.module))


@lru_cache
def _first(hashable: _ByType, input_shape: Any, dtype: Any) -> tuple[Any, Weights]:
    """The shape and dtype of the rows that the module takes, and its initial state."""
    module = hashable.module
    one = isinstance(input_shape, tuple)
    rows = jax.ShapeDtypeStruct((1, *input_shape), dtype) if one else input_shape
    make = lambda rows: _variables(module, rows, jax.random.key(0))  # noqa: E731
    try:
        shapes = jax.eval_shape(lambda: make(rows))
    except (TypeError, ValueError):
        if not one:
            raise
        rows = jax.ShapeDtypeStruct((1, *input_shape), jnp.int32)  # token ids
        shapes = jax.eval_shape(lambda: make(rows))
    others = [name for name in shapes if name not in ("params", "intermediates")]
    if not others:
        return rows, Weights.of({})
    return rows, Weights.of(jax.jit(lambda: {name: make(rows)[name] for name in others})())


def _plain(variables: Any) -> Any:
    """The variables without the boxes that hold the names of their axes."""
    unfreeze = library("flax.core").unfreeze
    return library("flax.linen").unbox(unfreeze(variables))
