"""The compiled program of a run: a loop over steps, with one function for each layout of the replicas.

Every function here takes and returns all replicas of a device, stacked along a leading axis. The bounds of a
chunk are traced arguments, so all chunks use the same program.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from credax.core import hosts
from credax.core.programs import jit, known_options
from credax.fit.computing import saves_memory
from credax.fit.mesh import (
    REPLICA,
    mapped,
    model_size,
    model_spec,
    over_model,
    over_rows,
    padded,
    sizes,
    state_shardings,
)
from credax.inference.method import Layout, Method
from credax.model.data import ArrayData
from credax.model.sources.window import Window
from credax.tracing.convolutions import has_convolutions, rearranged
from credax.tracing.jaxprs import every_equation

WAKE_SECONDS = 0.5
"""The time after which a chunk ends, for progress and checkpoints."""
LONG = {"dot_general", "conv_general_dilated", "while", "scan"}
"""Primitives that may take long, so that it pays to compile them well even if they run once."""
LARGE = 1_000_000
"""The size of a replica's state (in numbers) from which ``_advance_large`` is used on a GPU."""


def begin(method, model, mesh, key, data, starts):
    """For each replica, two keys (one for its rows, one for its steps) and its first state.

    The program runs once. If it only draws weights, it is compiled in less time: that of a small ResNet in half
    a second instead of ten.
    """
    return _beginning(method, model, mesh, key, data, starts)(
        method, model, mesh, key, data, starts
    )


def _beginning(*arguments: Any) -> Any:
    """The program of ``begin``: compiled quickly, unless its first states take products or loops."""
    traced: Any = _begin.quick.trace(*arguments)
    names = {equation.primitive.name for equation in every_equation(traced.jaxpr)}
    return _begin if names & LONG else _begin.quick


def first_shapes(*arguments: Any) -> tuple[Any, Any]:
    """The shapes of what ``begin`` returns for these arguments."""
    return _begin.quick.eval_shape(*arguments)


@jit(static_argnames=("method", "model", "mesh"))
def _begin(method, model, mesh, key, data, starts):
    return _first(method, model, mesh, key, data, starts)


def _first(method, model, mesh, key, data, starts):
    keys = jax.random.split(key, method.replicas)
    numbers = jnp.arange(method.replicas, dtype=jnp.int32)
    count = padded(mesh, method.replicas)
    if count > method.replicas:  # with copies of the last one, so that each device has as many
        chosen = jnp.minimum(jnp.arange(count, dtype=jnp.int32), method.replicas - 1)
        keys, numbers, starts = jax.tree.map(lambda leaf: leaf[chosen], (keys, numbers, starts))

    def one(key, number, start):
        own = None if data is None else replace(data, replica=number)
        return method.init(key, model if start is None else model.starting_at(start), own)

    states = jax.vmap(one, in_axes=(0, 0, None if starts is None else 0))(keys, numbers, starts)
    # A weakly typed leaf would make the loop compile twice.
    states = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), states)
    keys = jax.vmap(jax.random.split)(keys)
    if mesh is None:
        return keys, states
    keys = lax.with_sharding_constraint(keys, NamedSharding(mesh, REPLICA))
    return keys, lax.with_sharding_constraint(states, state_shardings(mesh, states))


def kept(method: Method, states: Any) -> Any:
    """The states without those of the replicas that were added to fill the devices."""
    count = jax.tree.leaves(states)[0].shape[0]
    if count == method.replicas:
        return states
    return jax.tree.map(lambda leaf: leaf[: method.replicas], states)


@jit(static_argnames=("method", "model", "mesh"), inline=True)
def _step(method, model, mesh, data, keys, state, step):
    """One step of one replica: its next state, and its info.

    This is jitted so that Python traces it once, both for the shapes below and for the loop.
    """
    data_key, step_key = keys[0], keys[1]
    batch = None if data is None else over_rows(mesh, method.batch(data_key, model, data, step))
    state, info = method.step(jax.random.fold_in(step_key, step), state, model, batch, step)
    return over_model(mesh, state), info


@jit(static_argnames=("method", "model", "mesh"))
def shapes(method, model, mesh, states, keys, data, step):
    """The infos and draws of one step of all replicas; it is only used through ``eval_shape``."""

    def show(states, keys, shared):
        data, step = shared
        step_all = _each(mesh, partial(_step, method, model, mesh, data))
        states, info = step_all(keys, states, step)
        return info, jax.vmap(method.keep)(states)

    # With the mesh of the run, since with another mesh the step would be traced again.
    per_replica = _on(mesh, show, (REPLICA, REPLICA))(states, keys, (data, step))
    return jax.tree.map(lambda leaf: leaf[: method.replicas], per_replica)


def traced(method, model, key, data, starts, states, keys) -> tuple[Any, Any]:
    """What JAX traces of ``begin`` and of ``shapes`` for one device, which together determine a run."""
    first: Any = _begin.quick
    steps: Any = shapes
    key, data, starts, states, keys = jax.tree.map(_abstract, (key, data, starts, states, keys))
    count = method.replicas
    kept = lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype)  # noqa: E731
    states, keys = jax.tree.map(kept, (states, keys))
    return (
        first.trace(method, model, None, key, data, starts).jaxpr,
        steps.trace(method, model, None, states, keys, data, np.int32(0)).jaxpr,
    )


def _abstract(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


@jit(static_argnames=("method", "model"))
def begin_each(method, model, keys, x, ys):
    """``begin`` for each of several sets of targets at the same inputs, stacked along a leading axis."""

    def one(key, y):
        return _first(method, model, None, key, ArrayData(x, y), None)

    return jax.vmap(one)(keys, ys)


@jit(static_argnames=("method", "model", "capacity"), donate_argnames=("states",))
def advance_each(method, model, capacity, states, keys, x, ys, begin, end):
    """Steps ``begin`` to ``end`` of all replicas for all sets of targets, as one batch.

    As in ``_together``, a fit that has finished stays as it is until all of them have. The infos and draws have
    the axes (step or draw, set of targets, replica).
    """
    each = rearranged(partial(_step, method, model, None))
    replicas = jax.vmap(each, in_axes=(None, 0, 0, None))

    def step(keys, states, step):
        one = lambda y, keys, state: replicas(ArrayData(x, y), keys, state, step)  # noqa: E731
        return jax.vmap(one)(ys, keys, states)

    finished = None
    if not endless(method):
        done = jax.vmap(jax.vmap(method.finished))
        finished = lambda states: jnp.all(done(states))  # noqa: E731
    keep = jax.vmap(jax.vmap(method.keep))
    return _loop(method, step, keep, finished, capacity, states, keys, begin, end)


def compiled(
    method: Method, model: Any, mesh: Mesh | None, capacity: Any, states: Any, draws: Any = None
):
    """The program that advances all replicas: ``advance(states, keys, data, begin, end)``.

    It returns the states, the step that was reached (less than ``end`` if all replicas have finished), and
    arrays for ``capacity`` infos and draws, of which those of the steps made are filled. ``draws`` are arrays
    with the axes (replica, draw), of any number of draws.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(states)) // method.replicas
    several = mesh is not None and hosts.count() > 1
    uneven = sizes(mesh)[1] > 1 or padded(mesh, method.replicas) > method.replicas
    if mesh is not None and (several or uneven or model_size(mesh) > 1):
        program = _advance_placed(mesh, *_places(mesh, states, draws))
    elif mesh is not None and mesh.devices.flat[0].platform == "cpu":
        program = _advance_lean(on_cores=True) if saves_memory(model) else _advance_on_cores
    elif jax.default_backend() == "cpu" and saves_memory(model):
        program = _advance_lean()
    elif jax.default_backend() == "gpu" and size >= LARGE:
        program = _advance_large
    else:
        program = _advance
    return partial(program, method, model, mesh, capacity)


def _all_steps(method, model, mesh, capacity, states, keys, data, begin, end):
    """Steps ``begin`` to ``end`` of all replicas on all devices."""
    run = partial(_on_device, method, model, mesh, capacity)
    per_step = PartitionSpec(None, "replica")
    outputs = (REPLICA, PartitionSpec(), per_step, per_step)
    result = _on(mesh, run, outputs)(states, keys, (data, begin, end))
    if padded(mesh, method.replicas) == method.replicas:
        return result
    states, reached, *shown = result
    return states, reached, *jax.tree.map(lambda leaf: leaf[:, : method.replicas], shown)


def _on(mesh, run, outputs):
    """``run(states, keys, shared)`` on each device of the mesh, for the replicas that are placed there."""
    if not mapped(mesh):
        return run
    # Not GSPMD, with which a while loop in a step (NUTS) would make all devices wait for the slowest chain. The
    # rows of a batch are left to it.
    axes: dict[str, Any] = {} if sizes(mesh)[1] == 1 else {"axis_names": {"replica"}}

    def spread(states, keys, shared):
        data, *bounds = shared
        inputs = (REPLICA, REPLICA, (_data_spec(data), *(PartitionSpec() for _ in bounds)))
        each = jax.shard_map(
            run, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False, **axes
        )
        return each(states, keys, shared)

    return spread


def _data_spec(data: Any) -> Any:
    """Every device has all rows of arrays; of the batches of a source, those of its own replicas."""
    if not isinstance(data, Window):
        return PartitionSpec()
    batches = dict.fromkeys(("words", "steps", "inputs", "targets"), REPLICA)
    return replace(data, **batches, sample=PartitionSpec())  # pyright: ignore[reportArgumentType]


_jit = jit(
    also=(_step, shapes),
    static_argnames=("method", "model", "mesh", "capacity"),
    donate_argnames=("states",),
)
_advance = _jit(_all_steps)
# Each device is a core here; threads within a product would compete with the other devices.
_ON_CORES = {"xla_cpu_multi_thread_eigen": False}
_advance_on_cores = _jit(_all_steps, compiler_options=_ON_CORES)
# On GPUs, XLA's own matrix products are faster for small networks, those of the vendor's library for large
# ones. On an H200, a step of 784-1200-1200-10 takes 0.20 ms with the library and 0.24 ms without it; HMC on
# 8-50-1 takes 1.4 times as long with it.
_advance_large = _jit(_all_steps, compiler_options={"xla_gpu_enable_triton_gemm": False})


def _places(mesh: Mesh, states: Any, draws: Any) -> tuple[Any, Any]:
    """Where the states and the draws of a chunk are placed, as something that can be hashed."""
    divided = lambda leaf: NamedSharding(mesh, model_spec(mesh, leaf.shape[2:], (None, None)))  # noqa: E731
    leaves, tree = jax.tree.flatten((state_shardings(mesh, states), jax.tree.map(divided, draws)))
    return tuple(leaves), tree


@cache
def _advance_lean(on_cores: bool = False) -> Any:
    """The program on CPUs if it is to be arranged for little memory."""
    options = {**(_ON_CORES if on_cores else {}), **(known_options("LEAN") or {})}
    return _jit(_all_steps, compiler_options=options)


@cache
def _advance_placed(mesh: Mesh, leaves: tuple, tree: Any) -> Any:
    """The program where it must be said how results are placed.

    The compiler would divide those of a batch's rows, or of replicas that do not divide evenly, in unequal
    parts. Infos and draws are whole on every device, so that every host can read them; only the arrays of
    draws that are divided along ``model`` stay so.
    """
    states, draws = jax.tree.unflatten(tree, leaves)
    everywhere = NamedSharding(mesh, PartitionSpec())
    placed = (states, everywhere, everywhere, draws)
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    return _jit(_all_steps, out_shardings=placed, compiler_options=_ON_CORES if on_cpu else None)


# -- one function for each layout ------------------------------------------------------------------


def _on_device(method, model, mesh, capacity, states, keys, shared):
    """The steps of the replicas that are placed on one device."""
    replicas, layout = keys.shape[0], _together
    if replicas == 1:
        layout = _alone
    elif endless(method) and model_size(mesh) == 1:  # otherwise nothing may wait, see ``mapped``
        at_once = _at_once(method, model, mesh, states, keys, shared)
        layout = _together if at_once == replicas else partial(_in_turn, at_once)
    return layout(method, model, mesh, capacity, states, keys, shared)


def _at_once(method: Method, model: Any, mesh: Mesh | None, states, keys, shared) -> int:
    """How many of the replicas on a device run as one batch.

    This depends only on what the identity of a run contains: the method, the model, the data and the backend.
    """
    (data, begin, _), replicas = shared, keys.shape[0]
    if isinstance(method.layout, int):
        return min(method.layout, replicas)
    first = jax.tree.map(lambda leaf: leaf[0], (keys, states))
    if has_convolutions(jax.make_jaxpr(partial(_step, method, model, mesh))(data, *first, begin)):
        # A batch of convolutions with a kernel each is one with groups, for which libraries have no fast code:
        # on an H200, four of them take seven times as long as one.
        return 1
    if method.layout is Layout.TOGETHER or jax.default_backend() != "cpu":
        return replicas
    network = getattr(model, "network", None)
    if method.layout is Layout.IN_TURN_IF_SMALL and network is not None:
        return replicas if network.rows_last(data.rows) else 1
    return 1


def _arranged(method, model, mesh, data):
    """One step of one replica, with its convolutions as the backend computes them fast in a loop."""
    return partial(rearranged(partial(_step, method, model, mesh)), data)


def _each(mesh: Mesh | None, step: Any) -> Any:
    """A step of one replica as a step of all of them, ``step(keys, states, number)``."""
    whole = not mapped(mesh) and sizes(mesh)[0] > 1
    return jax.vmap(step, in_axes=(0, 0, None), spmd_axis_name="replica" if whole else None)


def _together(method, model, mesh, capacity, states, keys, shared):
    """All replicas as one batch."""
    data, begin, end = shared
    step = _each(mesh, _arranged(method, model, mesh, data))
    finished = None
    if not endless(method):
        finished = lambda states: jnp.all(jax.vmap(method.finished)(states))  # noqa: E731
    return _loop(method, step, jax.vmap(method.keep), finished, capacity, states, keys, begin, end)


def _in_turn(at_once, method, model, mesh, capacity, states, keys, shared):
    """One replica after the other, or one batch of replicas after the other if the layout allows it."""
    data, begin, end = shared
    step = _arranged(method, model, mesh, data)

    def one(state_and_keys):
        state, keys = state_and_keys
        return _loop(method, step, method.keep, None, capacity, state, keys, begin, end)

    batch_size = at_once if at_once > 1 else None
    states, reached, infos, draws = lax.map(one, (states, keys), batch_size=batch_size)
    infos, draws = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), (infos, draws))
    return states, jnp.max(reached), infos, draws


def _alone(method, model, mesh, capacity, states, keys, shared):
    """One replica without a batch axis.

    Products with a batch axis of length one are slower, and an axis that is removed and added at every step
    makes the compiler copy the whole state.
    """
    data, begin, end = shared
    state, key = jax.tree.map(lambda leaf: lax.squeeze(leaf, [0]), (states, keys))
    step, finished = _arranged(method, model, mesh, data), None
    if not endless(method):
        finished = method.finished
    state, reached, info, draw = _loop(
        method, step, method.keep, finished, capacity, state, key, begin, end
    )
    expand = lambda axis: lambda leaf: lax.expand_dims(leaf, [axis])  # noqa: E731
    info, draw = jax.tree.map(expand(1), (info, draw))
    return jax.tree.map(expand(0), state), reached, info, draw


def _loop(method, step_all, keep_all, finished, capacity, states, keys, begin, end):
    """The steps of a chunk; the infos and draws are stacked along the first axis."""
    _, info = jax.eval_shape(step_all, keys, states, begin)
    draw = jax.eval_shape(keep_all, states)
    room = lambda length: lambda a: jnp.zeros((length, *a.shape), a.dtype)  # noqa: E731
    put = partial(lax.dynamic_update_index_in_dim, axis=0)

    def goes_on(stop):
        if finished is None:
            return lambda carry: carry[0] < stop
        return lambda carry: (carry[0] < stop) & ~finished(carry[1])

    def advance(carry):
        step, states, infos = carry
        states, info = step_all(keys, states, step)
        infos = jax.tree.map(lambda room, value: put(room, value, step - begin), infos, info)
        return step + 1, states, infos

    def advance_to_draw(carry):
        step, states, infos, draws, kept = carry
        stop = jnp.minimum(_next_kept(method, step), end) if jax.tree.leaves(draw) else end
        step, states, infos = lax.while_loop(goes_on(stop), advance, (step, states, infos))
        # A chunk that ends between two draws writes one draw too many, for which there is space.
        draws = jax.tree.map(lambda room, value: put(room, value, kept), draws, keep_all(states))
        return step, states, infos, draws, kept + 1

    infos = jax.tree.map(room(capacity.steps), info)
    draws = jax.tree.map(room(capacity.draws + 1), draw)
    carry = (begin, states, infos, draws, jnp.zeros_like(begin))
    step, states, infos, draws, _ = lax.while_loop(goes_on(end), advance_to_draw, carry)
    return states, step, infos, draws


def _next_kept(method, step):
    """The number of steps at the first draw after ``step`` steps."""
    kept = jnp.maximum(step - method.num_warmup, 0) // method.thin
    return method.num_warmup + (kept + 1) * method.thin


def endless(method: Method) -> bool:
    """Whether the method's runs never end before ``num_steps``."""
    return type(method).finished is Method.finished


def next_length(steps: int, seconds: float) -> int:
    """The number of steps that take ``WAKE_SECONDS``, but at most ten times the last number."""
    return max(1, min(10 * steps, int(steps * WAKE_SECONDS / max(seconds, 1e-6))))
