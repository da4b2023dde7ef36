"""The shapes that a user's function returns, found by tracing, with errors that name the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from credax.core.trees import named_leaves
from credax.core.typing import PyTree

FOREIGN = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises if a function does with a traced array what only NumPy or Python can do."""


def shapes_from(call: str, function: Callable, *given: Any, hint: str = "") -> PyTree:
    """The shapes and dtypes of ``function(*given)``, without compiling or computing anything.

    Args:
      call: the call as the user would write it, for error messages.
      function: the user's function.
      *given: its arguments, or their shapes and dtypes.
      hint: a sentence that follows every error message.
    """
    try:
        # A new function, since JAX cannot remember the shapes of all callables, such as those of NumPy.
        return jax.eval_shape(lambda *arguments: function(*arguments), *given)  # noqa: PLW0108
    except FOREIGN as error:
        raise TypeError(
            f"{call} must compute with jax.numpy and without decisions that depend on values; it used "
            f"NumPy, float() or an if with a traced array. It was given {_arguments(given)}."
        ) from error
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        reason = (str(error).strip() or "no message").splitlines()[0].rstrip(".")
        raise kind(
            f"{call} failed with {type(error).__name__}: {reason}. It was given {_arguments(given)}.{hint}"
        ) from error


def _arguments(given: tuple[Any, ...]) -> str:
    return " and ".join(_text(value) for value in given)


def _text(value: Any) -> str:
    leaves = named_leaves(value)
    if len(leaves) == 1 and not leaves[0][0]:
        leaf = leaves[0][1]
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return "a JAX key"
        return f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
    listed = ", ".join(f"{path!r}: {leaf.shape}" for path, leaf in leaves[:8])
    return f"arrays of shapes {{{listed}{', ...' if len(leaves) > 8 else ''}}}"
