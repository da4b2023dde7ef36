"""Shapes, dtypes and checks of targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from credax.core.typing import Array

if TYPE_CHECKING:
    from credax.model.likelihoods.likelihood import Likelihood


def width(y: np.ndarray) -> int:
    """The number of targets per row."""
    return 1 if y.ndim == 1 else y.shape[1]


def check_shape(owner: Likelihood, y: np.ndarray) -> np.ndarray:
    """Check that the targets have shape ``(rows,)`` or ``(rows, targets)``; return them."""
    if y.ndim not in (1, 2) or y.size == 0:
        name = type(owner).__name__
        raise ValueError(f"y must have shape (rows,) or (rows, targets) for {name}; got {y.shape}.")
    return y


def as_floats(y: np.ndarray) -> np.ndarray:
    """Convert the targets to the default float type; raise an error if they exceed its range."""
    dtype = jnp.result_type(float)
    with np.errstate(over="ignore"):
        floats = y.astype(dtype)
    if not np.all(np.isfinite(floats)):
        got = np.abs(y.astype(np.float64)).max()
        raise ValueError(f"y must fit {dtype}: rescale it, or enable jax_enable_x64; got {got:g}.")
    return floats


def integral(y: np.ndarray) -> bool:
    """Whether all targets are whole numbers."""
    return bool(np.all(y == np.floor(y)))


def plain(value: Any) -> str:
    """The text of a number of any dtype: ``3``, not ``3.0`` or ``np.int64(3)``."""
    return str(int(value)) if value == int(value) else f"{float(value):g}"


def points(t: Any, dtype: Any) -> Array:
    """Values to compare with an array ``(rows, targets)``; a single axis runs over the rows."""
    t = jnp.asarray(t).astype(dtype)
    return t[:, None] if t.ndim == 1 else t


def like_outputs(owner: Likelihood, y: Array, outputs: Array) -> Array:
    """The targets in the dtype of the outputs.

    Their shapes must be equal: broadcasting would hide a mistake.
    """
    y = points(y, outputs.dtype)
    if y.ndim == outputs.ndim - 1 and outputs.shape[-1] == 1:  # one target at each position
        y = y[..., None]
    if y.shape != outputs.shape:
        raise ValueError(
            f"{type(owner).__name__} needs y in the shape of the outputs' targets, "
            f"{outputs.shape}; got {y.shape}."
        )
    return y
