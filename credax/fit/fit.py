"""The loop: every method runs in it.

``fit`` vmaps the replicas, lays them over the devices, feeds minibatches, runs compiled chunks with donated
state, moves kept draws to the host, shows progress, checks for NaN, checkpoints, resumes and stops early. A
method knows nothing of this.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from credax.core import random
from credax.core.checks import integer, must
from credax.core.devices import one_blas_thread
from credax.core.errors import DivergedError, PosteriorWarning
from credax.fit.checkpoint import Checkpoint
from credax.fit.progress import Bar, deferred_interrupt
from credax.fit.record import Record
from credax.fit.stopping import EarlyStopping, Stopper
from credax.inference.method import Method
from credax.model import LogDensity, Model
from credax.posterior import Posterior, services

WAKE_SECONDS = 0.5
"""How often Python wakes up for progress and checkpoints."""


class Event(NamedTuple):
    """What a callback gets after each chunk; a callback that returns ``True`` ends the run."""

    step: int
    num_steps: int
    figures: dict[str, float]
    seconds: float


def fit(
    model: Model | LogDensity,
    data: Any,
    method: Method,
    *,
    key: Any = 0,
    progress: bool = True,
    callbacks: Iterable[Callable[[Event], Any]] = (),
    checkpoint: str | Path | None = None,
    start: Posterior | None = None,
    early_stopping: EarlyStopping | bool | None = None,
    chunk_steps: int | None = None,
) -> Posterior:
    """The posterior of a model given data, by any method.

    Args:
      model: a ``Model``, or a ``LogDensity`` (then ``data`` is ``None``).
      data: ``(x, y)``, arrays or data frames.
      method: how, e.g. ``cx.DeepEnsemble(members=5)``.
      key: an int or a JAX key. The same key gives the same bits.
      progress: shows a progress bar with the method's own figures.
      callbacks: called with an ``Event`` about twice a second; one that returns ``True`` ends the run.
      checkpoint: a folder. A run killed anywhere goes on from there when called again, and ends with the
        same bits as if it had not been killed.
      start: a posterior whose draws are the starting points.
      early_stopping: ends the run, with its best state, when the held-out log likelihood stops rising;
        ``True`` holds out a tenth of the rows.
      chunk_steps: at most so many steps between two looks at the run; chosen by the clock where ``None``.

    Returns:
      What there is when it ends: Ctrl-C returns the posterior so far.
    """
    callbacks = tuple(callbacks)
    _check_arguments(model, method, callbacks, start, chunk_steps)
    key, start_key, posterior_key, split_key = jax.random.split(random.key(key), 4)
    stopping = EarlyStopping.of(early_stopping)
    if stopping is not None:
        if isinstance(model, LogDensity):
            allowed = "None for a LogDensity, which has no rows to hold out"
            raise TypeError(must("fit", "early_stopping", allowed, early_stopping))
        data, stopping = stopping.held_out(split_key, data)
    bound: Any
    bound, data = model.prepare(data)
    if stopping is not None:
        stopping.check(bound)
    method.check(bound, data)
    _check_state(bound, method, start)

    mesh = _mesh(method)
    starts = None if start is None else start.starts(start_key, method.replicas, bound)
    keys, states = _begin(method, bound, mesh, key, data, starts)
    method.check_start(states)
    shapes: Any = _shapes  # jitted, so that its shapes are remembered
    record = Record.of(
        method, *shapes.eval_shape(method, bound, mesh, states, keys, data, np.int32(0))
    )
    stopper = None if stopping is None else Stopper(stopping, bound, method)
    step = 0
    saved = None
    if checkpoint is not None:
        saved = Checkpoint(checkpoint, bound, method, data, key, mesh, starts, stopping)
        step, states = saved.restore(states, record, stopper)

    clock = time.perf_counter()
    advance = partial(_program(mesh, states, method), method, bound, mesh, record.capacity)
    trace = partial(record.trace, data=data, key=posterior_key)
    # A run that had stopped early stays so when it is called again.
    ended = "early stopping" if stopper is not None and stopper.finished else None
    with (
        one_blas_thread,
        Bar(method, progress, done=step) as bar,
        deferred_interrupt() as interrupted,
    ):
        # No steps yet: this only compiles, so that the pace below is that of the steps.
        states, *_ = jax.block_until_ready(advance(states, keys, data, *_bounds(step, step)))
        finished = False
        compiled, length = time.perf_counter(), 1
        try:
            while step < method.num_steps and not ended and not finished:
                began = time.perf_counter()
                end = record.end(step, min(length, chunk_steps or length))
                end = end if stopper is None else stopper.next_look(step, end)
                ahead, reached, infos, draws = advance(states, keys, data, *_bounds(step, end))
                finished, end = int(reached) < end, int(reached)
                if end == step:
                    states = ahead
                    break  # it had finished with the chunk before
                length = next_length(end - step, time.perf_counter() - began)
                record.add(step, end, infos, draws)
                # Together, so that no interrupt finds the state of one step and the number of another.
                states, step = ahead, end
                _check_finite(record, step, method, saved)
                figures = record.figures()
                bar.update(step, figures)
                if stopper is not None and stopper.look(step, trace(step, states)):
                    ended = "early stopping"
                if saved is not None:
                    final = ended is not None or finished or step == method.num_steps
                    saved.save(step, states, record, stopper, final=final)
                event = Event(step, method.num_steps, figures, time.perf_counter() - clock)
                answers = [callback(event) for callback in callbacks]  # all of them are called
                if any(answer is True for answer in answers):
                    ended = "callback"
                if interrupted():
                    ended = "interrupt"
        except KeyboardInterrupt:
            if any(leaf.is_deleted() for leaf in jax.tree.leaves(states)):
                raise  # in the middle of a chunk, which had taken its first state
            ended = "interrupt"
    seconds = time.perf_counter() - compiled
    if ended is not None and saved is not None:
        saved.save(step, states, record, stopper, final=True)
    if ended == "interrupt" and not record.usable(step):
        raise KeyboardInterrupt(f"interrupted at step {step}, before the first draw")
    if stopper is not None:
        states = stopper.best_state(states)
    final = trace(step, states)
    posterior = method.posterior(bound, final)
    _check_posterior(posterior, step, method, saved)
    posterior = method.finish(posterior, final)
    info = {
        **record.history(step),
        "kept": record.kept_steps(step),
        "steps": step,
        "seconds": seconds,
        "compile_seconds": compiled - clock,
        "ended": ended or "complete",
        **({} if stopper is None else {"held_out_log_likelihood": stopper.history()}),
    }
    posterior = replace(posterior, method=method, info={**info, **posterior.info})
    for finding in services.alarms(posterior):
        warnings.warn(str(finding), PosteriorWarning, stacklevel=2)
    return posterior


# -- the compiled program -------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("method", "model", "mesh"))
def _begin(method, model, mesh, key, data, starts):
    """Two keys, of its rows and of its steps, and a first state for each replica."""
    keys = jax.random.split(key, method.replicas)

    def one(key, start):
        return method.init(key, model if start is None else model.starting_at(start), data)

    states = jax.vmap(one, in_axes=(0, None if starts is None else 0))(keys, starts)
    # A weakly typed leaf would make the loop compile twice.
    states = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), states)
    keys = jax.vmap(jax.random.split)(keys)
    if mesh is None:
        return keys, states
    return lax.with_sharding_constraint((keys, states), NamedSharding(mesh, _REPLICA))


@partial(jax.jit, static_argnames=("method", "model"), inline=True)
def _step(method, model, data, keys, state, step):
    """One step of one replica: its next state, and its info.

    Jitted, so that Python goes through it once, for its shapes and for the loop.
    """
    data_key, step_key = keys[0], keys[1]
    batch = None if data is None else method.batch(data_key, model, data, step)
    return method.step(jax.random.fold_in(step_key, step), state, model, batch)


@partial(jax.jit, static_argnames=("method", "model", "mesh"))
def _shapes(method, model, mesh, states, keys, data, step):
    """What a step of all replicas shows and keeps; only its shapes are ever asked for."""

    def show(states, keys, shared):
        data, step = shared
        step_all = jax.vmap(partial(_step, method, model, data), in_axes=(0, 0, None))
        states, info = step_all(keys, states, step)
        return info, jax.vmap(method.keep)(states)

    # On the mesh, as below: for another one the step would be traced again.
    return _on(mesh, show, (_REPLICA, _REPLICA))(states, keys, (data, step))


def _steps(method, model, mesh, capacity, states, keys, data, begin, end):
    """Steps ``begin`` to ``end`` of all replicas, or fewer where all of them finish before.

    The bounds are traced, so one program serves them all.
    """
    run = partial(_advance_replicas, method, model, capacity)
    per_step = PartitionSpec(None, "replica")
    outputs = (_REPLICA, PartitionSpec(), per_step, per_step)
    return _on(mesh, run, outputs)(states, keys, (data, begin, end))


def _on(mesh, run, outputs):
    """A function of states, keys and what all replicas share, on each device for those that are there."""
    if mesh is None:
        return run
    # Not GSPMD: under it a while loop in a step (NUTS) would make all devices wait for the slowest chain.
    inputs = (_REPLICA, _REPLICA, PartitionSpec())
    return jax.shard_map(run, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)


_jit = partial(
    jax.jit, static_argnames=("method", "model", "mesh", "capacity"), donate_argnames=("states",)
)
_advance = _jit(_steps)
# Each device is a core: a program that splits its products over threads would wait for those of the others.
_advance_on_cores = _jit(_steps, compiler_options={"xla_cpu_multi_thread_eigen": False})
# XLA's own products on GPUs are the faster ones for small networks, the vendor's for large ones. On an H200 a
# step of 784-1200-1200-10 takes 0.20 ms with the vendor's instead of 0.24, HMC on 8-50-1 1.4 times as long.
_advance_large = _jit(_steps, compiler_options={"xla_gpu_enable_triton_gemm": False})
LARGE = 1_000_000
"""Numbers in a replica's state from which a network on a GPU is large."""


def _program(mesh, states, method):
    if mesh is not None and mesh.devices.flat[0].platform == "cpu":
        return _advance_on_cores
    size = sum(leaf.size for leaf in jax.tree.leaves(states)) // method.replicas
    return _advance_large if jax.default_backend() == "gpu" and size >= LARGE else _advance


def _advance_replicas(method, model, capacity, states, keys, shared):
    data, begin, end = shared
    step, replicas = partial(_step, method, model, data), keys.shape[0]
    at_once = 1 if _in_sequence(method, model, data) else method.at_once or replicas
    at_once = min(at_once, replicas)
    if replicas > 1 and (at_once == replicas or not _endless(method)):
        all_finished = lambda states: jnp.all(jax.vmap(method.finished)(states))  # noqa: E731
        finished = None if _endless(method) else all_finished
        many = jax.vmap(step, in_axes=(0, 0, None)), jax.vmap(method.keep), finished
        return _loop(method, *many, capacity, states, keys, begin, end)
    # One alone is not vmapped: products with a batch axis of one are slower, and an axis put on and off
    # at every step makes the compiler copy the whole state.
    finished = None if _endless(method) else method.finished
    one = lambda state, key: _loop(  # noqa: E731
        method, step, method.keep, finished, capacity, state, key, begin, end
    )
    if replicas > 1:
        states, reached, infos, draws = lax.map(
            lambda args: one(*args), (states, keys), batch_size=at_once if at_once > 1 else None
        )
        swap = lambda leaf: jnp.swapaxes(leaf, 0, 1)  # noqa: E731
        return states, jnp.max(reached), jax.tree.map(swap, infos), jax.tree.map(swap, draws)
    state, key = jax.tree.map(lambda leaf: lax.squeeze(leaf, [0]), (states, keys))
    state, reached, info, draw = one(state, key)
    expand = lambda axis: lambda leaf: lax.expand_dims(leaf, [axis])  # noqa: E731
    return (
        jax.tree.map(expand(0), state),
        reached,
        jax.tree.map(expand(1), info),
        jax.tree.map(expand(1), draw),
    )


def _in_sequence(method, model, data) -> bool:
    """Whether the replicas of a device take turns."""
    if not method.in_sequence or jax.default_backend() != "cpu":
        return False
    network = getattr(model, "network", None)
    return method.unequal_steps or network is None or not network.rows_last(data.rows)


def _loop(method, step_all, keep_all, finished, capacity, states, keys, begin, end):
    """Runs the steps; room for their infos and draws is along the first axis."""
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
        # A chunk that ends between two draws writes one too many; the spare place takes it.
        draws = jax.tree.map(lambda room, value: put(room, value, kept), draws, keep_all(states))
        return step, states, infos, draws, kept + 1

    infos = jax.tree.map(room(capacity.steps), info)
    draws = jax.tree.map(room(capacity.draws + 1), draw)
    carry = (begin, states, infos, draws, jnp.zeros_like(begin))
    step, states, infos, draws, _ = lax.while_loop(goes_on(end), advance_to_draw, carry)
    return states, step, infos, draws


def _next_kept(method, step):
    """How many steps are done at the first draw after ``step``."""
    kept = jnp.maximum(step - method.num_warmup, 0) // method.thin
    return method.num_warmup + (kept + 1) * method.thin


_REPLICA = PartitionSpec("replica")


def _endless(method: Method) -> bool:
    """Whether only ``num_steps`` ends the method's runs."""
    return type(method).finished is Method.finished


def _mesh(method: Method) -> Mesh | None:
    """All local devices, where the replicas divide evenly over them and end together."""
    devices = jax.local_devices()
    if len(devices) == 1 or method.replicas % len(devices) or not _endless(method):
        return None
    return Mesh(np.array(devices), ("replica",))


def _bounds(begin: int, end: int) -> tuple[np.int32, np.int32]:
    return np.int32(begin), np.int32(end)


def next_length(steps: int, seconds: float) -> int:
    """As many steps as fit between two wakes, approached by factors of ten from below."""
    return max(1, min(10 * steps, int(steps * WAKE_SECONDS / max(seconds, 1e-6))))


# -- the checks -----------------------------------------------------------------------------------


def _check_arguments(model, method, callbacks, start, chunk_steps) -> None:
    if not isinstance(model, Model | LogDensity):
        raise TypeError(must("fit", "model", "a cx.Model or a cx.LogDensity", model))
    if not isinstance(method, Method):
        hint = " (with parentheses)" if isinstance(method, type) else ""
        allowed = f"a method such as cx.MAP() or cx.DeepEnsemble(){hint}"
        raise TypeError(must("fit", "method", allowed, method))
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(must("fit", "callbacks", "functions of an Event", callback))
    if start is not None and not isinstance(start, Posterior):
        raise TypeError(must("fit", "start", "a posterior", start))
    if chunk_steps is not None:
        integer("fit", "chunk_steps", chunk_steps)


def _check_state(model: Any, method: Method, start: Posterior | None) -> None:
    """Refuses to hold batch statistics fixed that nobody has trained."""
    if method.updates_state or start is not None or not jax.tree.leaves(model.init_state()):
        return
    if model.network.pretrained:
        return
    name = type(method).__name__
    raise ValueError(
        f"{name} holds the batch statistics of a network as they are, and those of this network are not "
        f"trained yet. Start from a posterior that has them: fit(model, data, {name}(...), "
        "start=cx.fit(model, data, cx.MAP()))."
    )


def _check_finite(record: Record, step: int, method: Method, saved: Checkpoint | None) -> None:
    found = record.first_not_finite(step)
    if found is not None:
        at, replica, name, value = found
        which = f" of replica {replica}" if method.replicas > 1 else ""
        raise _diverged(method, f"{name} = {value} at step {at}{which}", saved)


def _check_posterior(
    posterior: Posterior, step: int, method: Method, saved: Checkpoint | None
) -> None:
    """The last step's info is of the state before it: what the step itself made is looked at here."""
    for leaf in jax.tree.leaves(list(vars(posterior.approximation).values())):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and np.isnan(leaf).any():
            raise _diverged(method, f"NaN in the weights at step {step - 1}", saved)


def _diverged(method: Method, what: str, saved: Checkpoint | None) -> DivergedError:
    where = "no checkpoint was kept"
    if saved is not None:
        where = f"the last good checkpoint is at step {saved.step} in {saved.folder}"
    return DivergedError(f"{type(method).__name__} met {what}; {where}. {method.when_diverged}")
