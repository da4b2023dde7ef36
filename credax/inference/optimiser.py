"""The settings ``learning_rate`` and ``optimiser``, which all gradient-based optimisation shares."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import optax

from credax.core.checks import must, one_of, positive
from credax.storage import methods as _stored

LearningRate = float | optax.Schedule

DTYPES = ("bfloat16", "float32")
"""The float types of an optimiser's running mean of gradients."""
ARGUMENTS = ("mu_dtype", "accumulator_dtype")
"""The arguments by which the optimisers of optax take that float type."""


@dataclass(frozen=True)
class Compact:
    """An optimiser of optax whose running mean of gradients has a float type of its own.

    Running means of squares keep theirs: in bfloat16, the small share by which each step changes them would be
    rounded away.

    Attributes:
      name: the name of the optimiser in ``optax``.
      dtype: the float type, e.g. ``"bfloat16"``.
    """

    name: str
    dtype: str

    def __call__(self, rate: Any, **arguments: Any) -> optax.GradientTransformation:
        """The transformation with this learning rate."""
        arguments[_argument(self.name) or ""] = self.dtype
        return getattr(optax, self.name)(rate, **arguments)

    def __repr__(self) -> str:
        return f"{self.name} in {self.dtype}"


_stored.PARTS["Compact"] = Compact


def _argument(name: str) -> str | None:
    """The argument of an optimiser for the float type; ``None`` if it has none."""
    return next((argument for argument in ARGUMENTS if argument in _taken(name)), None)


def _taken(name: str) -> Mapping[str, Any]:
    """The arguments of an optimiser of optax."""
    return inspect.signature(getattr(optax, name)).parameters


def compact(method: Any, dtype: Any) -> Any:
    """The method with the running means of its optimiser in this float type; ``None`` changes nothing."""
    if dtype is None:
        return method
    one_of("fit", "optimiser_dtype", dtype, DTYPES)
    owner, found = type(method).__name__, getattr(method, "optimiser", None)
    if found is None:
        raise ValueError(
            must(
                "fit",
                "optimiser_dtype",
                f"None for {owner}, which has no optimiser of optax",
                dtype,
            )
        )
    if isinstance(found, Compact):
        found = found.name
    if not isinstance(found, str):
        allowed = (
            "None for an optax transformation: set its own, e.g. optax.adam(1e-3, mu_dtype=...)"
        )
        raise ValueError(must("fit", "optimiser_dtype", allowed, dtype))
    if _argument(found) is None:
        allowed = (
            f"None for the optimiser {found!r}, whose state has no float type of its own in optax"
        )
        raise ValueError(must("fit", "optimiser_dtype", allowed, dtype))
    return replace(method, optimiser=Compact(found, dtype))


def learning_rate(owner: str, name: str, value: Any) -> LearningRate:
    """Check for a positive number or an optax schedule; return it."""
    return value if callable(value) else positive(owner, name, value)


def optimiser(owner: str, name: str, value: Any) -> Any:
    """Check for the name of an optimiser in ``optax``, or an optax transformation; return it."""
    made = value(1.0) if isinstance(value, Compact) else value
    if isinstance(value, str) and callable(getattr(optax, value, None)):
        with contextlib.suppress(TypeError):  # not every function of optax takes a learning rate
            made = getattr(optax, value)(1.0)
    if not isinstance(made, optax.GradientTransformation):
        allowed = 'the name of an optax optimiser, e.g. "adam", or an optax transformation'
        raise ValueError(must(owner, name, allowed, value))
    return value


def make_optimiser(method: Any) -> optax.GradientTransformation:
    """The optax transformation for the settings ``optimiser`` and ``learning_rate`` of a method.

    If the method has a ``beta2``, a named optimiser gets it too, if it takes one.
    """
    optimiser, rate = method.optimiser, method.learning_rate
    if isinstance(optimiser, str | Compact):
        if not callable(rate):
            # A rate that decays to zero lets the last steps converge to the optimum.
            rate = optax.cosine_decay_schedule(rate, method.num_steps)
        compact = isinstance(optimiser, Compact)
        name = optimiser.name if compact else optimiser
        made = optimiser if compact else getattr(optax, name)
        beta2 = {"b2": method.beta2} if hasattr(method, "beta2") and "b2" in _taken(name) else {}
        optimiser = made(rate, **beta2)

    def update(gradient, state, params=None):
        # optax mixes integer counts with floats, which strict dtype promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return optimiser.update(gradient, state, params)

    return optax.GradientTransformation(optimiser.init, update)
