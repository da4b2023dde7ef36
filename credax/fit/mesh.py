"""The devices of a run as a mesh: replicas over its first axis, the rows of a batch over its second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from credax.core.checks import integer, must
from credax.inference.method import Method

AXES = ("replica", "data")
REPLICA = PartitionSpec("replica")


def mesh_for(given: Any, method: Method, data: Any, endless: bool) -> Mesh | None:
    """The mesh of a run; ``None`` for a single device.

    Args:
      given: the argument ``mesh`` of ``fit``.
      method: the method.
      data: the data of the run, or ``None``.
      endless: whether all replicas of the method end at the same step.
    """
    if given is None:
        return _of_replicas(method) if endless else None
    mesh = _checked(given)
    replica, rows = sizes(mesh)
    if replica > 1 and not endless:
        raise ValueError(
            f"fit(mesh=...) must have at most 1 device along 'replica' for {type(method).__name__}, whose "
            f"replicas may end at different steps; got {replica}."
        )
    if replica > method.replicas:
        raise ValueError(
            f"fit(mesh=...) must have at most as many devices along 'replica' as the method has replicas, "
            f"{method.replicas}; got {replica}."
        )
    if rows > 1 and data is None:
        raise ValueError(f"fit(mesh=...) must have no 'data' axis for a LogDensity; got {rows}.")
    most = 0 if data is None else method.batch_size or data.rows
    if rows > 1 and rows > most:
        raise ValueError(
            f"fit(mesh=...) must have at most as many devices along 'data' as a batch has rows, {most}; got "
            f"{rows}."
        )
    return None if mesh.size == 1 else mesh


def _of_replicas(method: Method) -> Mesh | None:
    """As many local devices as there are replicas for, each with as many replicas, the last ones padded."""
    each = -(-method.replicas // len(jax.local_devices()))
    devices = jax.local_devices()[: -(-method.replicas // each)]
    return None if len(devices) == 1 else Mesh(np.array(devices), ("replica",))


def _checked(given: Any) -> Mesh:
    allowed = "a jax.sharding.Mesh or a mapping such as {'replica': 4, 'data': 2}"
    if not isinstance(given, Mesh | Mapping) or (isinstance(given, Mapping) and not given):
        raise TypeError(must("fit", "mesh", allowed, given))
    grid: Any = given if isinstance(given, Mesh) else None
    names = tuple(given if grid is None else grid.axis_names)
    unknown = [name for name in names if name not in AXES]
    if unknown:
        raise ValueError(must("fit", "mesh", f"of axes among {AXES}", unknown[0]))
    if grid is not None:
        order = [names.index(name) for name in AXES if name in names]
        sizes_of, devices = dict(grid.shape), list(grid.devices.transpose(order).flat)
    else:
        sizes_of = {name: integer("fit", f"mesh[{name!r}]", size) for name, size in given.items()}
        devices = jax.local_devices()
    shape = [sizes_of.get(name, 1) for name in AXES]
    count = math.prod(shape)
    if count > len(devices):
        raise ValueError(
            f"fit(mesh=...) must have at most as many devices as there are, {len(devices)}; got {count}."
        )
    arranged = np.array(devices[:count]).reshape(shape)
    return Mesh(arranged, AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def sizes(mesh: Mesh | None) -> tuple[int, int]:
    """The number of devices along ``replica`` and along ``data``."""
    shape = {} if mesh is None else dict(mesh.shape)
    return shape.get("replica", 1), shape.get("data", 1)


def padded(mesh: Mesh | None, replicas: int) -> int:
    """The number of replicas with those that make it a multiple of the devices; they are not kept."""
    devices = sizes(mesh)[0]
    return -(-replicas // devices) * devices


def placed(mesh: Mesh | None, method: Method, data: Any) -> Any:
    """The data on the devices of the mesh: a part of the rows on each if all of them are one batch."""
    rows = sizes(mesh)[1]
    if rows == 1 or data is None:
        return data
    parts = method.batch_size is None and data.rows % rows == 0
    spec = PartitionSpec("data") if parts else PartitionSpec()
    over: Any = lambda leaf: NamedSharding(mesh, spec if leaf.ndim else PartitionSpec())  # noqa: E731
    return jax.device_put(data, jax.tree.map(over, data))


def over_rows(mesh: Mesh | None, batch: Any) -> Any:
    """The rows of a batch, divided among the devices along ``data``.

    This is a hint to the compiler, which then divides every sum over the rows and adds up its parts. The result
    is that of one device, up to rounding.
    """
    if sizes(mesh)[1] == 1 or batch is None:
        return batch
    spec: Any = PartitionSpec("data")
    # Within the map over replicas, the mesh is known; elsewhere it is named.
    spec = spec if sizes(mesh)[0] > 1 else NamedSharding(mesh, spec)  # pyright: ignore[reportArgumentType]
    place = lambda leaf: jax.lax.with_sharding_constraint(leaf, spec) if leaf.ndim else leaf  # noqa: E731
    return jax.tree.map(place, batch)
