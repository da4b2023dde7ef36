"""Checks of a run: its arguments and the network's state before it starts, and NaN while it runs and after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import integer, must
from credax.core.errors import DivergedError
from credax.core.mapped import pieces
from credax.core.settings import flag
from credax.fit.checkpoint import SavedRun
from credax.fit.record import Record
from credax.fit.sharded import Checkpoint
from credax.inference.method import Method
from credax.model import LogDensity, Model
from credax.posterior import Posterior


def check_arguments(model, method, progress, checkpoint, start, chunk_steps) -> None:
    """Refuse arguments of ``fit`` that have the wrong type."""
    flag("fit", "progress", progress)
    if not isinstance(model, Model | LogDensity):
        raise TypeError(must("fit", "model", "a cx.Model or a cx.LogDensity", model))
    if not isinstance(method, Method):
        hint = " (with parentheses)" if isinstance(method, type) else ""
        allowed = f"a method such as cx.MAP() or cx.DeepEnsemble(){hint}"
        raise TypeError(must("fit", "method", allowed, method))
    if not isinstance(checkpoint, Checkpoint):
        folder("checkpoint", checkpoint)
    if start is not None and not isinstance(start, Posterior):
        raise TypeError(must("fit", "start", "a posterior", start))
    if chunk_steps is not None:
        integer("fit", "chunk_steps", chunk_steps)


def folder(name: str, value: Any) -> Path | None:
    """Check that an argument of ``fit`` is the path of a folder, or ``None``."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise TypeError(must("fit", name, "the path of a folder", value))
    if not str(value).strip():
        raise ValueError(must("fit", name, "the path of a folder", value))
    return Path(value)


def functions_of(callbacks: Any) -> tuple[Callable, ...]:
    """The callbacks as a tuple; a single function is one callback."""
    if callable(callbacks):
        return (callbacks,)
    found = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for callback in found:
        if not callable(callback):
            raise TypeError(must("fit", "callbacks", "functions of an Event", callback))
    return found


def check_state(model: Any, method: Method, start: Posterior | None) -> None:
    """Refuse untrained batch statistics for a method that keeps them fixed."""
    held = "trained state" in method.needs and start is None
    if not held or not jax.tree.leaves(model.init_state()) or model.network.pretrained:
        return
    name = type(method).__name__
    raise ValueError(
        f"{name} holds the batch statistics of a network as they are, and those of this network are not "
        f"trained yet. Start from a posterior with trained statistics: fit(model, data, {name}(...), "
        "start=cx.fit(model, data, cx.MAP()))."
    )


def check_finite(
    record: Record, step: int, model: Any, method: Method, saved: SavedRun | None
) -> None:
    """Stop a run whose infos contain NaN or infinity."""
    found = record.first_not_finite(step)
    if found is not None:
        at, replica, name, value = found
        which = f" of replica {replica}" if method.replicas > 1 else ""
        raise _diverged(model, method, f"{name} = {value} at step {at}{which}", saved)


def check_posterior(
    posterior: Posterior, step: int, model: Any, method: Method, saved: SavedRun | None
) -> None:
    """Refuse NaN in the weights; the infos do not show NaN that arises in the last step."""
    for leaf in jax.tree.leaves(list(vars(posterior.approximation).values())):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and _any_nan(leaf):
            raise _diverged(model, method, f"NaN in the weights at step {step - 1}", saved)


def _any_nan(leaf: Any) -> bool:
    """Whether an array holds NaN; of a large one, some megabytes are looked at after the other."""
    return any(bool(np.isnan(piece).any()) for piece in pieces(np.asanyarray(leaf)))


def _diverged(model: Any, method: Method, what: str, saved: SavedRun | None) -> DivergedError:
    where = "no checkpoint was kept"
    if saved is not None:
        where = f"the last good checkpoint is at step {saved.step} in {saved.folder}"
    advice = method.when_diverged
    if any(leaf.dtype == jnp.float16 for leaf in jax.tree.leaves(_shapes(model))):
        advice = (
            "The network has weights in float16, which holds numbers up to 65504 and none below 6e-8: use "
            f"float32 or bfloat16. {advice}"
        )
    return DivergedError(f"{type(method).__name__} met {what}; {where}. {advice}")


def _shapes(model: Any) -> Any:
    return jax.eval_shape(model.init, jax.random.key(0))
