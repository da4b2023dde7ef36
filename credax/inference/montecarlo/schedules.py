"""Step size schedules of Langevin dynamics, and the steps at which draws are kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from credax.core import random
from credax.core.checks import integer, must, number, positive
from credax.core.programs import jit
from credax.core.trees import Flat
from credax.core.typing import Array, Draw
from credax.model import Model
from credax.model.data import ArrayData, Batch
from credax.posterior import Posterior

ROWS = 256
"""The number of rows whose gradients are in memory at the same time."""


def size_or_schedule(owner: str, name: str, value: Any) -> Any:
    """Check for a positive number, or a function of the step."""
    return value if callable(value) else positive(owner, name, value)


def above_zero_to_one(owner: str, name: str, value: Any) -> float:
    """Check for a number above 0 and at most 1."""
    result = number(owner, name, value, "above 0 and at most 1")
    if not 0 < result <= 1:
        raise ValueError(must(owner, name, "above 0 and at most 1", value))
    return result


def check_schedule(method: Any) -> None:
    """Refuse more than one schedule at the same time."""
    chosen = {
        "a function as step_size": callable(method.step_size),
        "decay": method.decay is not None,
        "cycles": method.cycles is not None,
    }
    given = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(given) > 1:
        name = type(method).__name__
        raise ValueError(f"{name} takes one schedule of its step sizes; got {' and '.join(given)}.")


def constant(method: Any) -> bool:
    """Whether all steps have the same size, so that all draws have equal weights."""
    return not callable(method.step_size) and method.decay is None and method.cycles is None


def step_size(method: Any, step: Array) -> Array:
    r"""The size of a step, by a constant, decaying or cyclical schedule.

    .. math::
        \epsilon_t = \epsilon, \qquad
        \epsilon_t = \epsilon\, (1 + t / b)^{-\gamma}, \qquad
        \epsilon_t = \tfrac{\epsilon}{2} \left(1 + \cos \frac{\pi (t \bmod L)}{L}\right)

    Here t is the number of steps since the end of the warm-up (0 during it), b is the length of the warm-up
    and L that of a cycle.
    """
    dtype = jnp.result_type(float)
    size = method.longest if method.step_size is None else method.step_size
    if callable(size):
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            return jnp.asarray(size(step), dtype)
    after = jnp.maximum(step - method.num_warmup, 0)
    if method.decay is not None:
        time = after.astype(dtype) / max(method.num_warmup, 1)
        return size * (1 + time) ** -method.decay
    if method.cycles is not None:
        length, _ = cycle(method)
        return 0.5 * size * (1 + jnp.cos(jnp.pi * (after % length).astype(dtype) / length))
    return jnp.asarray(size, dtype)


def exploring(method: Any, step: Any) -> Any:
    """Whether a step (or each step of an array) is in the part of a cycle that explores without noise."""
    if method.cycles is None:
        return step < 0
    length, explored = cycle(method)
    after = step - method.num_warmup
    return (after >= 0) & (after % length < explored)


def cycle(method: Any) -> tuple[int, int]:
    """The number of steps in a cycle, and how many of them explore.

    Both are multiples of ``thin``, so that the cycles together leave exactly ``num_draws`` draws.
    """
    draws = method.num_draws // method.cycles
    explored = max(1, round(draws * method.exploration / (1 - method.exploration)))
    return (draws + explored) * method.thin, explored * method.thin


def num_steps(method: Any) -> int:
    """The number of steps after the warm-up."""
    if method.cycles is None:
        return method.num_draws * method.thin
    return method.cycles * cycle(method)[0]


def sgd_step_size(
    posterior: Posterior, data: Any, batch_size: int, *, weights: Any = None
) -> float:
    r"""The step size at which SGD with a constant learning rate is nearest to the posterior.

    For N rows, batches of S rows, and the covariance C of the D-dimensional gradients of single rows, the KL
    divergence from the stationary distribution to the posterior is smallest at the learning rate

    .. math:: \frac{\epsilon}{2} = \frac{2 S D}{N \operatorname{tr} C}\, \frac{N - 1}{N - S}

    (Mandt, Hoffman & Blei, 2017), where the last factor accounts for batches that are drawn without
    replacement.

    Args:
      posterior: a posterior at an optimum, such as one by ``cx.MAP``; its first draw is used.
      data: ``(x, y)`` as in the fit.
      batch_size: S, as in ``cx.SGLD(sgd_batch_size=S, step_size=..., preconditioner=None)``.
      weights: the weights of the rows as in the fit. N is then their sum, except in the last factor, and the
        gradient of a row is multiplied by its weight, divided by the mean weight.
    """
    model = posterior.model
    if not isinstance(model, Model):
        raise TypeError(must("sgd_step_size", "posterior", "of a Model, which has data", model))
    _, rows = model.prepare(data, weights)
    batch_size, total = integer("sgd_step_size", "batch_size", batch_size), rows.rows
    if batch_size >= total:
        allowed = f"below the number of rows, {total}"
        raise ValueError(must("sgd_step_size", "batch_size", allowed, batch_size))
    start = posterior.starts(random.key(0), 1, model)
    draw = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], start)
    size, trace = Flat.of(draw.params).size, float(_trace_of_covariance(model, draw, rows))
    rate = 2 * batch_size * size / (float(rows.total) * trace) * (total - 1) / (total - batch_size)
    return 2 * rate


@jit(static_argnames="model")
def _trace_of_covariance(model: Model, draw: Draw, rows: ArrayData) -> Array:
    """The trace of the covariance of the gradients of single rows.

    Only the log likelihood matters, since the gradient of the prior is the same for all rows.
    """
    params = Flat.of(draw.params)
    whole = jax.grad(lambda p: model.full_log_likelihood(p.tree, rows, draw.state))(params)
    mean = whole.vector / rows.total

    def deviation(row):
        batch = Batch.of(*row)
        of_row = jax.grad(lambda p: model.log_likelihood(p.tree, batch, state=draw.state))(params)
        return jnp.sum((of_row.vector - mean) ** 2)

    weights = None if rows.weights is None else rows.weights / rows.mean_weight
    single = jax.tree.map(lambda leaf: leaf[:, None], (rows.x, rows.y, weights))
    return jnp.mean(lax.map(deviation, single, batch_size=ROWS))
