"""The settings of an optimiser, as every method that climbs a gradient has them."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import optax

from credax.core.checks import must, positive

LearningRate = float | optax.Schedule


def check_learning_rate(method: Any) -> None:
    """A positive number or an optax schedule; the optimiser a name in optax or a transformation."""
    name = type(method).__name__
    if not callable(method.learning_rate):
        rate = positive(name, "learning_rate", method.learning_rate)
        object.__setattr__(method, "learning_rate", rate)
    optimiser = method.optimiser
    if isinstance(optimiser, str) and callable(getattr(optax, optimiser, None)):
        with contextlib.suppress(TypeError):  # not every function of optax takes a learning rate
            optimiser = getattr(optax, optimiser)(1.0)
    if not isinstance(optimiser, optax.GradientTransformation):
        allowed = 'the name of an optax optimiser, e.g. "adam", or an optax transformation'
        raise ValueError(must(name, "optimiser", allowed, method.optimiser))


def make_optimiser(method: Any) -> optax.GradientTransformation:
    """The optax transformation that the settings describe."""
    optimiser, rate = method.optimiser, method.learning_rate
    if isinstance(optimiser, str):
        if not callable(rate):
            # A rate that ends at zero lets the last steps settle, so that the point is the optimum.
            rate = optax.cosine_decay_schedule(rate, method.num_steps)
        optimiser = getattr(optax, optimiser)(rate)

    def update(gradient, state, params=None):
        # optax mixes its integer counts with floats, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(gradient, state, params)

    return optax.GradientTransformation(optimiser.init, update)
