"""Targets at the positions of a row, and targets of several heads: checked, and bound to their likelihoods.

The network decides what the axes of ``y`` mean. If it returns ``(rows, positions..., outputs)``, then ``y`` is
``(rows, positions...)`` or ``(rows, positions..., targets)``, and the likelihood applies at each position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from credax.core.rows import Observed, RowTree, some_rows
from credax.core.scaling import Scaling
from credax.model.data import check_array, check_weights, to_numpy
from credax.model.frame import Frame
from credax.model.inputs import InputTree, row_shape
from credax.model.likelihoods import Heads, Likelihood, PerPosition
from credax.model.networks.shaped import Part, Shaped

if TYPE_CHECKING:
    from credax.model.model import Model


@dataclass(frozen=True)
class Schema:
    """The shapes of the data in a fit, which new data must have as well.

    Attributes:
      input_shape: the shape of one row of ``x``.
      targets: the number of targets per row or position; ``None`` if ``y`` had no axis for them.
      outputs: the number of outputs of the network for one row that the likelihood needs.
      positions: the lengths of the axes between rows and targets; ``None`` if rows are not divided.
      heads: the shapes of each head, in the order of the likelihood; empty if there are none.
    """

    input_shape: tuple[int, ...] | InputTree
    targets: int | None
    outputs: int
    positions: tuple[int, ...] | None = None
    heads: tuple[Schema, ...] = ()


class Bound(NamedTuple):
    """What is known of the targets of a model or of one head, when they have been checked.

    Attributes:
      likelihood: the likelihood, completed with what depends on the targets.
      y: the targets, as the likelihood takes them.
      weights: the weight of each row; ``None`` if every row counts once, or if positions have weights.
      schema: the shapes, without those of the inputs.
      frame: the names and scales of the columns of y.
    """

    likelihood: Likelihood
    y: Any
    weights: np.ndarray | None
    schema: Schema
    frame: Frame


class Raw(NamedTuple):
    """What a network returns.

    Attributes:
      network: the network, completed for the rows.
      outputs: the shapes of its outputs for some rows.
      rows: their number, which no other axis of the inputs has.
    """

    network: Any
    outputs: Any
    rows: int


def raw_outputs(network: Any, x: Any) -> Raw:
    """What a network returns for rows like these; nothing is compiled."""
    built = network.build(row_shape(x), 1)
    dims = {length for leaf in jax.tree.leaves(x) for length in leaf.shape[1:]}
    some = next(n for n in range(2, 99) if n not in dims)
    rows = some_rows(x, some)
    params, outputs = built.shapes(rows.tree if isinstance(rows, RowTree) else rows)
    if not jax.tree.leaves(params):
        raise ValueError("Model(network=...) must have parameters; its init returned none.")
    return Raw(built, outputs, some)


def has_positions(network: Any, x: Any, y: Any) -> bool:
    """Whether the network divides a row into positions, each of which has targets.

    Only targets of two or more axes can say so; nothing is traced for others.
    """
    if np.ndim(y) < 2:
        return False
    return np.ndim(raw_outputs(network, x).outputs) > 2


def bind(model: Model, x: Any, y: Any, weights: Any, scales_y: bool) -> tuple[Any, Bound]:
    """The network as methods see it, and the targets bound to the likelihood of positions or heads."""
    built, outputs, count = raw_outputs(model.network, x)
    likelihood = model.likelihood
    if not isinstance(likelihood, Heads):
        _check_rows(outputs, count)
        bound = _bind(likelihood, outputs, y, weights, len(x), scales_y)
        return Shaped(built), bound
    if not isinstance(outputs, Mapping):
        got = getattr(outputs, "shape", type(outputs).__name__)
        raise ValueError(
            f"Model(network=...) must return a dictionary of outputs with the names of the heads, "
            f"{', '.join(likelihood.names)}; got {got}."
        )
    _check_names("Model(network=...) must return outputs for", likelihood.names, outputs)
    own, given = _per_head(likelihood.names, y, weights, len(x))
    parts = {}
    for name in likelihood.names:
        try:
            _check_rows(outputs[name], count)
            given_y, own_weights = y[name], _spread(given.get(name), outputs[name].shape[1:-1])
            parts[name] = _bind(
                likelihood[name], outputs[name], given_y, own_weights, len(x), False
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"Head {name!r}: {error}") from None
    sizes = tuple(part.schema.outputs for part in parts.values())
    pairs = tuple((name, part.likelihood) for name, part in parts.items())
    whole = replace(likelihood, likelihoods=pairs, sizes=sizes)  # pyright: ignore[reportArgumentType]
    schema = Schema((), None, sum(sizes), heads=tuple(part.schema for part in parts.values()))
    targets = RowTree({name: part.y for name, part in parts.items()})
    return Shaped(built, likelihood.names), Bound(whole, targets, own, schema, Frame())


def check_targets(model: Model, y: Any, rows: int, weights: Any) -> Any:
    """New targets of a bound model with positions or heads, as its likelihood takes them."""
    schema: Any = model.schema
    if not isinstance(model.likelihood, Heads):
        return _checked(model.likelihood, schema, y, weights, rows, model.frame)
    names = model.likelihood.names
    _, given = _per_head(names, y, weights, rows)
    parts = {}
    for name, part in zip(names, schema.heads, strict=True):
        try:
            own_weights = _spread(given.get(name), part.positions or ())
            parts[name] = _checked(
                model.likelihood[name], part, y[name], own_weights, rows, Frame()
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"Head {name!r}: {error}") from None
    return RowTree(parts)


def bound_as(likelihood: Likelihood, earlier: Likelihood) -> Likelihood:
    """The likelihood that a user gave, completed like that of an earlier fit."""
    if isinstance(earlier, PerPosition) and not isinstance(likelihood, PerPosition):
        return replace(earlier, likelihood=likelihood.bind_as(earlier.likelihood))
    if isinstance(earlier, Heads) and isinstance(likelihood, Heads):
        _check_names("Model(likelihood=...) must have the heads", earlier.names, likelihood.names)
        pairs = tuple((name, bound_as(likelihood[name], earlier[name])) for name in earlier.names)
        return replace(likelihood, likelihoods=pairs, sizes=earlier.sizes)  # pyright: ignore[reportArgumentType]
    return likelihood.bind_as(earlier)


def unbound(model: Model) -> Model:
    """The model as it was given, without what a fit has put around its network and its likelihoods."""
    network, likelihood = model.network, _unbound(model.likelihood)
    network = network.network if isinstance(network, Shaped) else network
    return replace(model, network=network, likelihood=likelihood, schema=None, frame=Frame())


def _unbound(likelihood: Likelihood) -> Likelihood:
    if isinstance(likelihood, Heads):
        pairs = {name: _unbound(likelihood[name]) for name in likelihood.names}
        return replace(likelihood, likelihoods=pairs, sizes=None)
    return likelihood.likelihood if isinstance(likelihood, PerPosition) else likelihood


def head(model: Model, name: str) -> Model:
    """The model of one head: the same parameters, and only its outputs and targets."""
    likelihood: Any = model.likelihood
    if name not in likelihood.names:
        raise KeyError(f"There is no head {name!r}; the heads are {', '.join(likelihood.names)}.")
    schemas: Any = dict(zip(likelihood.names, model.schema.heads, strict=True))  # pyright: ignore[reportOptionalMemberAccess]
    schema = replace(schemas[name], input_shape=model.schema.input_shape)  # pyright: ignore[reportOptionalMemberAccess]
    where = likelihood.slices()[name]
    network = Part(model.network, where.start, where.stop, where.stop - where.start)
    return replace(
        model,
        network=network,
        likelihood=likelihood[name],
        schema=schema,
        frame=replace(model.frame, y_names=None),
        _head=(name, likelihood.learned),
    )


def flattened(model: Model) -> Model:
    """The model whose rows are the positions; the model itself if rows are not divided."""
    likelihood = model.likelihood
    if not isinstance(likelihood, PerPosition):
        return model
    outputs: int = model.schema.outputs  # pyright: ignore[reportOptionalMemberAccess]
    width = outputs // likelihood.size
    schema = replace(model.schema, outputs=width, positions=None)  # pyright: ignore[reportArgumentType]
    network = Part(model.network, 0, outputs, width)
    return replace(model, network=network, likelihood=likelihood.likelihood, schema=schema)


def _per_head(
    names: tuple[str, ...], y: Any, weights: Any, rows: int
) -> tuple[np.ndarray | None, Mapping[str, Any]]:
    """The weights of the rows, and those of single heads; checks the names of both and of the targets."""
    if not isinstance(y, Mapping):
        raise TypeError(
            f"y must be a dictionary of targets with the names of the heads, {', '.join(names)}; got "
            f"{type(y).__name__}."
        )
    _check_names("y must have targets for", names, y)
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in names]
        if unknown:
            raise ValueError(
                f"weights must have names of heads, {', '.join(names)}; got {unknown[0]!r}."
            )
        return None, weights
    return check_weights(weights, rows), {}


def _check_names(what: str, names: Any, given: Any) -> None:
    missing = [name for name in names if name not in given]
    unexpected = [str(name) for name in given if name not in names]
    if missing or unexpected:
        parts = [f"{', '.join(missing)} missing"] if missing else []
        parts += [f"{', '.join(unexpected)} unexpected"] if unexpected else []
        raise ValueError(f"{what} {', '.join(names)}; got {' and '.join(parts)}.")


def _check_rows(outputs: Any, rows: int) -> None:
    """Refuse outputs that are no array whose first axis runs over the rows."""
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) < 2 or shape[0] != rows:
        got = type(outputs).__name__ if shape is None else f"{shape} for {rows} rows"
        raise ValueError(
            f"Model(network=...) must return arrays of shape (rows, ..., outputs); got {got}."
        )


def _spread(weights: Any, positions: tuple[int, ...]) -> Any:
    """The weights of a head: those of its rows count for all of their positions."""
    if weights is None or np.ndim(weights) != 1:
        return weights
    each = np.asarray(weights).reshape(-1, *[1] * len(positions))
    return np.broadcast_to(each, (len(each), *positions))


def _bind(likelihood, outputs, y, weights, rows: int, scales: bool) -> Bound:
    """The targets of one array of outputs, and the likelihood completed for them."""
    shape = outputs.shape
    positions = tuple(shape[1:-1])
    values = to_numpy("y", y)
    own, each = _weights_of(weights, rows, positions)
    divided = bool(positions) or each is not None
    _check_axes(likelihood, values, rows, positions, shape)
    values = check_array("y", _filled(values, each), keep_integers=True)
    flat = _flat(values, len(positions))
    checked = likelihood.check_targets(flat)
    frame = Frame()
    if scales:
        double = _flat(
            check_array("y", _filled(to_numpy("y", y), each), double=True), len(positions)
        )
        counts = np.ones((rows, *positions)) if each is None else each
        if own is not None:
            counts = counts * own.reshape(rows, *[1] * len(positions))
        table = double[:, None] if double.ndim == 1 else double
        frame = Frame(y_scaling=Scaling.learn(table, counts.reshape(-1)))
        checked = likelihood.check_targets(frame.standard_y(double))
    bound = likelihood.bind(checked)
    width = bound.num_outputs(checked)
    if shape[-1] != width:
        want = ", ".join(["rows", *map(str, positions), str(width)])
        raise ValueError(
            f"Model(network=...) must map x to outputs of shape ({want}) for "
            f"{type(likelihood).__name__} and y of shape {_rows_text(values.shape)}; got {_rows_text(shape)}."
        )
    targets = None if values.ndim == 1 + len(positions) else values.shape[-1]
    if not divided:
        return Bound(bound, checked, own, Schema((), targets, width), frame)
    size = math.prod(positions)
    schema = Schema((), targets, size * width, positions)
    observed = _observed(checked, each, rows, size)
    return Bound(PerPosition(bound, positions), observed, own, schema, frame)


def _checked(likelihood, schema: Schema, y, weights, rows: int, frame: Frame) -> Any:
    """New targets of one array of outputs, which have the shapes of the fit."""
    positions = schema.positions or ()
    values = to_numpy("y", y)
    _, each = _weights_of(weights, rows, positions)
    if values.shape[:1] != (rows,):
        got = len(values) if values.ndim else "a single value"
        raise ValueError(f"y must have as many rows as x, {rows}; got {got}.")
    want = (*positions, *(() if schema.targets is None else (schema.targets,)))
    if values.shape[1:] != want:
        wanted = ", ".join(["rows", *map(str, want)])
        raise ValueError(
            f"y must have shape ({wanted}), as in the fit; got {_rows_text(values.shape)}."
        )
    scaled = frame.y_scaling is not None
    filled = check_array("y", _filled(values, each), keep_integers=not scaled, double=scaled)
    flat = _flat(filled, len(positions))
    inner = likelihood.likelihood if isinstance(likelihood, PerPosition) else likelihood
    checked = inner.check_targets(frame.standard_y(flat) if scaled else flat)
    if not isinstance(likelihood, PerPosition):
        return checked
    return _observed(checked, each, rows, math.prod(positions))


def _observed(flat: np.ndarray, weights: np.ndarray | None, rows: int, size: int) -> Observed:
    values = flat.reshape(rows, size, *flat.shape[1:])
    return Observed(values, None if weights is None else weights.reshape(rows, size))


def _weights_of(
    weights: Any, rows: int, positions: tuple[int, ...]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The weights of the rows, and those of the positions ``(rows, *positions)``: one of them is ``None``.

    If rows have no positions, as those of a head, the weights of the rows are those of its targets.
    """
    if weights is None:
        return None, None
    given = check_array("weights", weights)
    if given.shape == (rows,) and positions:
        return check_weights(given, rows), None
    if given.shape != (rows, *positions):
        each = ", ".join(map(str, (rows, *positions)))
        allowed = (
            f"({rows},), one for each row, or ({each}), one for each position"
            if positions
            else f"({rows},)"
        )
        raise ValueError(f"weights must have shape {allowed}; got {given.shape}.")
    if (given < 0).any():
        raise ValueError(f"weights must not be negative; got {given[given < 0][0]}.")
    if not (given > 0).any():
        raise ValueError("weights must be positive for at least one position; they hide all.")
    return None, given


def _check_axes(likelihood, y: np.ndarray, rows: int, positions, shape) -> None:
    """Refuse targets whose axes are not those of the outputs."""
    if y.ndim and y.shape[0] != rows:
        raise ValueError(f"x and y must have the same number of rows; got {rows} and {y.shape[0]}.")
    count = 1 + len(positions)
    if y.ndim not in (count, count + 1) or y.shape[1:count] != positions:
        axes = ", ".join(["rows", *map(str, positions)])
        raise ValueError(
            f"y must have shape ({axes}) or ({axes}, targets) for {type(likelihood).__name__} and a network "
            f"with outputs of shape {_rows_text(shape)}; got {_rows_text(y.shape)}."
        )


def _filled(y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """The targets with those at hidden positions replaced by one that is not hidden, so that all are valid."""
    if weights is None or (weights > 0).all():
        return y
    seen = weights > 0
    y = y.copy()
    y[~seen] = y[tuple(np.argwhere(seen)[0])]
    return y


def _flat(y: np.ndarray, positions: int) -> np.ndarray:
    """The targets with each position as a row, and one axis of targets if there was one."""
    return y.reshape(-1, *y.shape[1 + positions :])


def outputs_text(outputs: Any, rows: int) -> str:
    """What a network returned for this number of rows, as text."""
    if isinstance(outputs, Mapping):
        names = ", ".join(map(repr, outputs))
        return (
            f"a dictionary of {names}. Let the network return one array, or give a likelihood of each head, "
            f"likelihood={{{next(iter(outputs))!r}: ...}}"
        )
    shape = getattr(outputs, "shape", None)
    if shape is None:
        return type(outputs).__name__
    return _rows_text(shape) if shape[:1] == (rows,) else str(shape)


def _rows_text(shape: tuple[int, ...]) -> str:
    """A shape as text, with the first axis named."""
    inner = ", ".join(["rows", *map(str, shape[1:])])
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
