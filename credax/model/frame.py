"""What a model keeps of its data besides their shapes: the names and the scales of the columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from credax.core.scaling import Positions, Scaling
from credax.model.data import to_numpy


@dataclass(frozen=True)
class Frame:
    """The names of the columns in a fit, and how a model that standardises its data does so.

    Attributes:
      x_names: the names of the columns of ``x``; ``None`` if it was not a data frame.
      y_names: the names of the columns of ``y``; ``None`` if it was not a data frame.
      x_scaling: the centre and the scale of each column of ``x``; of all its numbers together if it was not a
        table. For a network that takes positions among quantiles, these too. ``None`` if the network gets ``x``
        as it is.
      y_scaling: the centre and the scale of each target. ``None`` if the likelihood gets ``y`` as it is.
    """

    x_names: tuple[str, ...] | None = None
    y_names: tuple[str, ...] | None = None
    x_scaling: Scaling | Positions | None = None
    y_scaling: Scaling | None = None

    @property
    def log_scale(self) -> float:
        """The sum of the logarithms of the targets' scales: a density of y is smaller by its exponential."""
        return 0.0 if self.y_scaling is None else float(np.log(self.y_scaling.scale).sum())

    def standard_x(self, x: np.ndarray) -> np.ndarray:
        """The inputs as the network gets them."""
        if self.x_scaling is None:
            return x
        if isinstance(self.x_scaling, Positions):
            return self.x_scaling.inputs(x)
        return self.x_scaling.inputs(as_columns(x)).reshape(x.shape)

    def network_shape(self, input_shape: Any) -> Any:
        """The shape of a row as the network gets it, for a row of ``x`` of this shape."""
        return (2 * input_shape[0],) if isinstance(self.x_scaling, Positions) else input_shape

    def user_shape(self, network_shape: Any) -> Any:
        """The shape of a row of ``x``, for a row of this shape as the network gets it."""
        return (network_shape[0] // 2,) if isinstance(self.x_scaling, Positions) else network_shape

    def standard_y(self, y: np.ndarray) -> np.ndarray:
        """The targets as the likelihood gets them; from ``(rows,)`` or ``(..., targets)``."""
        if self.y_scaling is None:
            return y
        return self.y_scaling.standard(y[:, None] if y.ndim == 1 else y).reshape(y.shape)

    def value_of_y(self, z: np.ndarray) -> np.ndarray:
        """Values of standardised targets, ``(..., targets)``, in the units of y."""
        if self.y_scaling is None:
            return z
        return np.array(self.y_scaling.centre) + np.array(self.y_scaling.scale) * z

    def width_in_y(self, width: np.ndarray, power: int = 1) -> np.ndarray:
        """Differences of standardised targets, ``(..., targets)``, or their powers, in the units of y."""
        return width if self.y_scaling is None else np.array(self.y_scaling.scale) ** power * width


def as_columns(values: np.ndarray) -> np.ndarray:
    """A table as it is; anything else, such as images, as one column that holds every number."""
    return values if values.ndim == 2 else values[..., None]


def as_rows(values: np.ndarray) -> np.ndarray:
    """The columns of :func:`as_columns`, with all other axes as one: ``(rows, columns)``."""
    return values if values.ndim == 2 else values.reshape(-1, 1)


def weights_of_rows(weights: np.ndarray | None, values: np.ndarray) -> np.ndarray | None:
    """The weights of the rows of :func:`as_rows`: each number of a row has the weight of its row."""
    if weights is None or values.ndim == 2:
        return weights
    return np.repeat(weights, values.size // len(values))


def column_names(value: Any) -> tuple[str, ...] | None:
    """The names of the columns of a data frame, if they are text and differ; ``None`` for all other data."""
    columns = getattr(value, "columns", None)
    if columns is None or not hasattr(value, "dtypes"):
        return None
    names = tuple(columns)
    text = all(isinstance(name, str) for name in names)
    return names if text and len(set(names)) == len(names) else None


def in_order(argument: str, value: Any, names: tuple[str, ...] | None) -> Any:
    """A data frame with its columns in the order that they had in the fit; all other data unchanged.

    Args:
      argument: the name of the argument, for error messages.
      value: the data.
      names: the names of the columns in the fit, or ``None`` if they had none.
    """
    given = column_names(value)
    if names is None or given is None or given == names:
        return value
    missing = [name for name in names if name not in given]
    unexpected = [name for name in given if name not in names]
    if missing or unexpected:
        listed = lambda found: ", ".join(map(repr, found[:8])) + ", ..." * (len(found) > 8)  # noqa: E731
        parts = [f"{listed(missing)} missing"] if missing else []
        parts += [f"{listed(unexpected)} unexpected"] if unexpected else []
        raise ValueError(
            f"{argument} must have the columns of the fit, {listed(list(names))}; got {', '.join(parts)}."
        )
    return value[list(names)]


def take_rows(argument: str, value: Any, rows: np.ndarray) -> Any:
    """Some rows of an array, a data frame or nested lists; a data frame keeps the names of its columns."""
    if hasattr(value, "iloc"):
        return value.iloc[rows]
    return value[rows] if column_names(value) is not None else to_numpy(argument, value)[rows]
