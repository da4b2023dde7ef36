"""The devices of a run as a mesh: replicas over its first axis, rows over its second, states over its third."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from credax.core import hosts
from credax.core.checks import integer, must
from credax.inference.method import Method

AXES = ("replica", "data", "model")
REPLICA = PartitionSpec("replica")
LEAST = 256
"""The fewest numbers of an array that each device along ``model`` holds; smaller arrays are not divided."""


def mesh_for(given: Any, method: Method, data: Any, endless: bool) -> Mesh | None:
    """The mesh of a run; ``None`` for a single device.

    Args:
      given: the argument ``mesh`` of ``fit``.
      method: the method.
      data: the data of the run, or ``None``.
      endless: whether all replicas of the method end at the same step.
    """
    most = 0 if data is None else method.batch_size or data.rows
    if given is not None:
        mesh = _given(given, method, data, endless, most)
    elif hosts.count() > 1:
        mesh = _over_hosts(method, most, endless)
    else:
        mesh = _of_replicas(method) if endless else None
    if mesh is not None and jax.__version__ == "0.11.2":
        # Its new partitioner crashes on the branches of HMC and NUTS; 0.11.1 and 0.12 do not.
        jax.config.update("jax_use_shardy_partitioner", False)
    return mesh


def _given(given: Any, method: Method, data: Any, endless: bool, most: int) -> Mesh | None:
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


def _over_hosts(method: Method, rows: int, endless: bool) -> Mesh:
    """As many devices as can be used, the same number of each host: first for replicas, then for rows."""
    count, devices = hosts.count(), _of_each_host()
    for each in range(len(devices) // count, 0, -1):
        total = each * count
        replicas = [r for r in range(1, total + 1) if total % r == 0 and r <= method.replicas]
        for replica in reversed(replicas if endless else [1]):
            if total // replica <= max(rows, 1):
                return _checked({"replica": replica, "data": total // replica})
    raise ValueError(
        f"{type(method).__name__} has too few replicas, {method.replicas}, and too few rows in a batch, "
        f"{rows}, to be divided among {count} hosts. Run it on one host."
    )


def _of_each_host() -> list[Any]:
    """All devices, host by host, as many of each as the host that has fewest."""
    if hosts.count() == 1:
        return jax.local_devices()
    places: dict[int, list[Any]] = {}
    for device in sorted(jax.devices(), key=lambda device: (device.process_index, device.id)):
        places.setdefault(device.process_index, []).append(device)
    each = min(map(len, places.values()))
    return [device for devices in places.values() for device in devices[:each]]


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
        devices = _of_each_host()
    shape = [sizes_of.get(name, 1) for name in AXES]
    count = math.prod(shape)
    if count > len(devices):
        raise ValueError(
            f"fit(mesh=...) must have at most as many devices as there are, {len(devices)}; got {count}."
        )
    if grid is None and hosts.count() > 1:
        devices = _evenly(devices, count)
    arranged = np.array(devices[:count]).reshape(shape)
    if len({device.process_index for device in arranged.flat}) < hosts.count():
        raise ValueError(
            f"fit(mesh=...) must have devices of all {hosts.count()} hosts; got a mesh of {count}."
        )
    return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _evenly(devices: list[Any], count: int) -> list[Any]:
    """``count`` of the devices, as many of each host, host by host: most traffic then stays within a host."""
    places = hosts.count()
    if count % places:
        raise ValueError(
            f"fit(mesh=...) must have a multiple of {places} devices, as many on each host; got {count}."
        )
    each, own = count // places, len(devices) // places
    return [device for i in range(places) for device in devices[i * own : i * own + each]]


def sizes(mesh: Mesh | None) -> tuple[int, int]:
    """The number of devices along ``replica`` and along ``data``."""
    shape = {} if mesh is None else dict(mesh.shape)
    return shape.get("replica", 1), shape.get("data", 1)


def model_size(mesh: Mesh | None) -> int:
    """The number of devices along ``model``."""
    return 1 if mesh is None else dict(mesh.shape).get("model", 1)


def mapped(mesh: Mesh | None) -> bool:
    """Whether each device along ``replica`` runs a program of its own replicas.

    It does not if their arrays are divided: the devices of one replica then exchange parts in ways for which
    all devices have to meet, and replicas whose loops differ in length would wait for each other for ever. All
    loops are then as long as the longest.
    """
    return sizes(mesh)[0] > 1 and model_size(mesh) == 1


def padded(mesh: Mesh | None, replicas: int) -> int:
    """The number of replicas with those that make it a multiple of the devices; they are not kept."""
    devices = sizes(mesh)[0]
    return -(-replicas // devices) * devices


def refilled(stored: Any, replicas: int, count: int) -> Any:
    """``count`` replicas from those of a mesh of another size, of which the first ``replicas`` were kept."""
    chosen = np.minimum(np.arange(count), replicas - 1)
    return stored if len(stored) == count else stored[chosen]


# -- arrays on the mesh ----------------------------------------------------------------------------


def put(value: Any, sharding: Any) -> Any:
    """An array or keys, the same on all hosts, on the devices of a sharding."""
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = np.asarray(jax.random.key_data(value))
        plain = put(words, NamedSharding(sharding.mesh, PartitionSpec()))
        wrap = lambda plain: jax.random.wrap_key_data(plain, impl=jax.random.key_impl(value))  # noqa: E731
        return jax.jit(wrap, out_shardings=sharding)(plain)
    value = np.asarray(value)
    # Not device_put, in which all hosts would compare their values.
    return jax.make_array_from_callback(value.shape, sharding, lambda part: value[part])


def everywhere(mesh: Mesh | None, tree: Any) -> Any:
    """The arrays of a tree, whole on every device of a mesh that has devices of other hosts; else unchanged."""
    if mesh is None or hosts.count() == 1:
        return tree
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: put(leaf, whole), tree)


def on_host(leaf: Any) -> np.ndarray:
    """An array in the memory of this host, whichever hosts hold its parts. All of them must call this."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return np.asarray(leaf)
    return np.asarray(_whole(leaf.sharding.mesh)(leaf))


def here(tree: Any) -> Any:
    """A tree of arrays or keys, each gathered from the hosts that hold its parts; else unchanged."""
    if hosts.count() == 1:
        return tree

    def one(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = on_host(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        return jnp.asarray(on_host(leaf))

    return jax.tree.map(one, tree)


def _whole(mesh: Mesh) -> Any:
    return jax.jit(lambda leaf: leaf, out_shardings=NamedSharding(mesh, PartitionSpec()))


def placed(mesh: Mesh | None, method: Method, data: Any) -> Any:
    """The data on the devices of the mesh: a part of the rows on each if all of them are one batch."""
    rows = sizes(mesh)[1]
    if mesh is None or data is None or (rows == 1 and hosts.count() == 1):
        return data
    parts = method.batch_size is None and data.rows % rows == 0
    spec = PartitionSpec("data") if parts and rows > 1 else PartitionSpec()
    whole = NamedSharding(mesh, PartitionSpec())
    over = lambda leaf: NamedSharding(mesh, spec) if leaf.ndim else whole  # noqa: E731
    return jax.tree.map(lambda leaf: put(leaf, over(leaf)), data)


def over_rows(mesh: Mesh | None, batch: Any) -> Any:
    """The rows of a batch, divided among the devices along ``data``.

    This is a hint to the compiler, which then divides every sum over the rows and adds up its parts. The result
    is that of one device, up to rounding.
    """
    if sizes(mesh)[1] == 1 or batch is None:
        return batch
    place = lambda leaf: _hinted(mesh, leaf, PartitionSpec("data")) if leaf.ndim else leaf  # noqa: E731
    return jax.tree.map(place, batch)


def over_model(mesh: Mesh | None, state: Any) -> Any:
    """The arrays of the state of one replica, divided among the devices along ``model``; a hint as well."""
    if model_size(mesh) == 1:
        return state

    def place(leaf):
        spec = model_spec(mesh, leaf.shape)
        return _hinted(mesh, leaf, spec) if len(spec) else leaf

    return jax.tree.map(place, state)


def _hinted(mesh: Any, leaf: Any, spec: Any) -> Any:
    # Within the map over replicas, the mesh is known; elsewhere it is named.
    where = spec if mapped(mesh) else NamedSharding(mesh, spec)
    return jax.lax.with_sharding_constraint(leaf, where)


def model_spec(mesh: Mesh | None, shape: tuple[int, ...], before: tuple = ()) -> PartitionSpec:
    """How an array is divided: along its longest axis that the number of devices along ``model`` divides.

    Args:
      mesh: the mesh.
      shape: the shape of the array, without the axes of ``before``.
      before: how the axes before those of ``shape`` are divided.
    """
    devices = model_size(mesh)
    axes = [i for i, length in enumerate(shape) if length and length % devices == 0]
    if devices == 1 or not axes or math.prod(shape) < LEAST * devices:
        return PartitionSpec(*before)
    longest = max(axes, key=lambda i: shape[i])
    return PartitionSpec(*before, *(None,) * longest, "model")


def state_shardings(mesh: Mesh, states: Any) -> Any:
    """Where the states of all replicas are placed."""
    place = lambda leaf: NamedSharding(mesh, model_spec(mesh, leaf.shape[1:], ("replica",)))  # noqa: E731
    return jax.tree.map(place, states)


def check_divisible(mesh: Mesh | None, states: Any) -> None:
    """Refuse a ``model`` axis along which no array of the states can be divided."""
    devices = model_size(mesh)
    if devices == 1:
        return
    leaves = jax.tree.leaves(states)
    if any(len(model_spec(mesh, leaf.shape[1:])) for leaf in leaves):
        return
    shapes = ", ".join(str(leaf.shape[1:]) for leaf in leaves[:6]) + ", ..." * (len(leaves) > 6)
    raise ValueError(
        f"fit(mesh=...) must have a number of devices along 'model' that divides an axis of at least one array "
        f"of the method's state with at least {LEAST} numbers for each device; got {devices}, and arrays of "
        f"the shapes {shapes}."
    )
