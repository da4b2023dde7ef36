"""Shapes, dtypes and checks of targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from credax.core.checks import must
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


def check_labels(
    name: str, y: np.ndarray, num_classes: int | None, fewest: int, order: str, advice: str
) -> np.ndarray:
    """The labels of one class per row, ``(rows,)``, after checks.

    Args:
      name: the name of the likelihood, for messages.
      y: the targets.
      num_classes: the number of classes K; ``None`` if each of 0, 1, ..., K - 1 must be among the targets.
      fewest: the fewest classes.
      order: what to say of the order of the labels.
      advice: how to make the labels right.
    """
    if y.ndim not in (1, 2) or width(y) != 1:
        raise ValueError(f"y must have shape (rows,) for {name}; got {y.shape}.")
    labels = np.unique(y)
    listed = ", ".join(map(plain, labels[:8])) + (", ..." if len(labels) > 8 else "")
    if num_classes is not None:
        if not integral(labels) or labels[0] < 0 or labels[-1] >= num_classes:
            raise ValueError(
                f"y must hold whole numbers from 0 to {num_classes - 1} for "
                f"{name}(num_classes={num_classes}); got labels {listed}."
            )
    elif len(labels) < fewest or not np.array_equal(labels, np.arange(len(labels))):
        count = {2: "two", 3: "three"}[fewest]
        raise ValueError(
            f"y must hold the labels 0, 1, ..., K - 1{order} for {name}(), {count} or more, each at "
            f"least once; got labels {listed}. {advice}, or pass num_classes=."
        )
    return y.reshape(-1).astype(np.int32)


def classes_of(owner: Likelihood, given: int | None, earlier: int | None) -> int | None:
    """The number of classes of an earlier fit, which must be the given one if there is one."""
    if given is not None and given != earlier:
        allowed = f"{earlier}, as in the fit that the prior comes from, or None"
        raise ValueError(must(owner._owner, "num_classes", allowed, given))
    return earlier


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
