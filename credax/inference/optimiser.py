"""The settings ``learning_rate`` and ``optimiser``, which all gradient-based optimisation shares."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import optax

from credax.core.checks import must, positive

LearningRate = float | optax.Schedule


def learning_rate(owner: str, name: str, value: Any) -> LearningRate:
    """Check for a positive number or an optax schedule; return it."""
    return value if callable(value) else positive(owner, name, value)


def optimiser(owner: str, name: str, value: Any) -> Any:
    """Check for the name of an optimiser in ``optax``, or an optax transformation; return it."""
    made = value
    if isinstance(value, str) and callable(getattr(optax, value, None)):
        with contextlib.suppress(TypeError):  # not every function of optax takes a learning rate
            made = getattr(optax, value)(1.0)
    if not isinstance(made, optax.GradientTransformation):
        allowed = 'the name of an optax optimiser, e.g. "adam", or an optax transformation'
        raise ValueError(must(owner, name, allowed, value))
    return value


def make_optimiser(method: Any) -> optax.GradientTransformation:
    """The optax transformation for the settings ``optimiser`` and ``learning_rate`` of a method."""
    optimiser, rate = method.optimiser, method.learning_rate
    if isinstance(optimiser, str):
        if not callable(rate):
            # A rate that decays to zero lets the last steps converge to the optimum.
            rate = optax.cosine_decay_schedule(rate, method.num_steps)
        optimiser = getattr(optax, optimiser)(rate)

    def update(gradient, state, params=None):
        # optax mixes integer counts with floats, which strict dtype promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(gradient, state, params)

    return optax.GradientTransformation(optimiser.init, update)
