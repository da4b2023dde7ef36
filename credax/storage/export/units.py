"""Between the user's units and those of the model, in compiled code and in double precision.

The same formulas stand in :mod:`credax.core.scaling` and :mod:`credax.model.frame` for NumPy.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from credax.core.scaling import REACH, Positions, Scaling
from credax.core.typing import Array
from credax.model.frame import Frame


def standard_x(frame: Frame, x: Array) -> Array:
    """The rows as the network gets them."""
    scaling = frame.x_scaling
    if scaling is None:
        return x
    if isinstance(scaling, Positions):
        positions = [_position(x[:, i], knots) for i, knots in enumerate(scaling.knots)]
        standard = _draw_in(_standard(scaling.scaling, x))
        return jnp.concatenate([jnp.stack(positions, 1), standard], axis=1)
    z = _standard(scaling, x if x.ndim == 2 else x[..., None])
    return jnp.where(np.array(scaling.outliers), _draw_in(z), z).reshape(x.shape)


def standard_y(frame: Frame, y: Array) -> Array:
    """Values of y, ``(..., targets)``, as the likelihood gets them."""
    return y if frame.y_scaling is None else _standard(frame.y_scaling, y)


def value_of_y(frame: Frame, z: Array) -> Array:
    """Values of standardised targets, ``(..., targets)``, in the units of y."""
    if frame.y_scaling is None:
        return z
    return np.array(frame.y_scaling.centre) + np.array(frame.y_scaling.scale) * z


def squared_width_in_y(frame: Frame, width: Array) -> Array:
    """Squared differences of standardised targets, ``(..., targets)``, in the squared units of y."""
    return width if frame.y_scaling is None else np.array(frame.y_scaling.scale) ** 2 * width


def _standard(scaling: Scaling, values: Array) -> Array:
    return (values - np.array(scaling.centre)) / np.array(scaling.scale)


def _draw_in(z: Array) -> Array:
    beyond = jnp.maximum(jnp.abs(z) - REACH, 0)
    return jnp.sign(z) * (jnp.abs(z) - beyond + jnp.log1p(beyond))


def _position(column: Array, knots: tuple[float, ...]) -> Array:
    if len(knots) == 1:
        return jnp.zeros_like(column)
    return jnp.interp(column, np.array(knots), np.arange(len(knots), dtype=np.float64))
