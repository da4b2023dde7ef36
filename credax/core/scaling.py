r"""Standardisation: the centre and the scale of each column, learned once from the rows of a fit.

.. math:: z = \frac{x - c}{s}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

ROUNDING = 16 * np.finfo(np.float64).eps
"""A column whose values differ by no more than this part of the largest is constant: the rest is rounding."""
GROSS = 10.0
"""A column has gross outliers if its standard deviation is more than this many times its robust estimate."""
REACH = 8.0
"""In a column with gross outliers, values beyond this many scales from the centre are drawn in."""
FEW = 0.1
"""The largest share of rows beyond that reach that are outliers. If there are more, as in a column of a
designed experiment with a few levels, the quartiles say little about its scale."""
QUARTILES = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations."""


def is_constant(values: np.ndarray) -> np.ndarray:
    """Whether each column holds the same number in every row, up to rounding errors.

    The standard deviation cannot tell: that of a column of 0.1 is 1e-17 and not zero.

    >>> is_constant(np.array([[0.3, 1.0], [0.1 + 0.2, 1.1]]))
    array([ True, False])
    """
    lowest, highest = values.min(0), values.max(0)
    return highest - lowest <= ROUNDING * np.maximum(np.abs(lowest), np.abs(highest))


def robust_scale(values: np.ndarray) -> np.ndarray:
    """The standard deviation of each column as its quartiles suggest; single values cannot change it."""
    lower, upper = np.percentile(values, (25, 75), axis=0)
    return (upper - lower) / QUARTILES


def has_outliers(values: np.ndarray) -> np.ndarray:
    """Whether a few values decide the standard deviation of each column.

    A column of which half the rows or more are equal, such as that of a rare category, has none.
    """
    robust = robust_scale(values)
    gross = (robust > ROUNDING * np.abs(values).max(0)) & (values.std(0) > GROSS * robust)
    return gross & few_are_far(values)


def few_are_far(values: np.ndarray) -> np.ndarray:
    """Whether at most a tenth of the rows of each column are far from the others.

    >>> few_are_far(np.array([[0, 0], [1, 1], [2, 2], [3, 3], [4, 90]] * 4))
    array([ True, False])
    """
    distance = np.abs(values - np.median(values, 0))
    return np.mean(distance > REACH * robust_scale(values), axis=0) <= FEW


def outlier_text(values: np.ndarray, labels: Sequence[Any] | None = None) -> str:
    """Say in which rows the outliers of one column are.

    Args:
      values: the column, ``(rows,)``.
      labels: the names of the rows. If ``None``, they are counted from 0.

    >>> outlier_text(np.array([1.0, 2.0, 3.0, 4.0, 500.0]))
    'gross outliers in 1 of 5 rows: 500 in row 4'
    """
    distance = np.abs(values - np.median(values)) / robust_scale(values)
    far = np.flatnonzero(distance > REACH)
    first = far[np.argsort(-distance[far], kind="stable")][:3]
    rows = [f"{values[i]:g} in row {i if labels is None else labels[i]}" for i in first]
    more = ", ..." if len(far) > len(first) else ""
    return f"gross outliers in {len(far)} of {len(values)} rows: {', '.join(rows)}{more}"


@dataclass(frozen=True)
class Scaling:
    """The centre and the scale of each column.

    These are the mean and the standard deviation. In a column with gross outliers they are the median and a
    scale computed from the quartiles. The scale of a constant column is one.

    Attributes:
      centre: c, one number per column.
      scale: s, one number per column.
      outliers: whether each column had gross outliers.
    """

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    outliers: tuple[bool, ...]

    @classmethod
    def learn(cls, values: np.ndarray, weights: np.ndarray | None = None) -> Self:
        """Learn the scaling from rows of numbers, ``(rows, columns)``.

        Rows of weight zero are left out. The weights count in the mean and the standard deviation; medians and
        quartiles, of columns with gross outliers, are those of the other rows.
        """
        values = np.asarray(values, np.float64)
        unit = _unit(values)
        values = values / unit
        mean, deviation = values.mean(0), values.std(0)
        if weights is not None:
            values, weights = values[weights > 0], weights[weights > 0].astype(np.float64)
            mean = np.average(values, 0, weights)
            deviation = np.sqrt(np.average((values - mean) ** 2, 0, weights))
        constant, outliers = is_constant(values), has_outliers(values)
        centre = np.where(outliers, np.median(values, 0), mean)
        centre = unit * np.where(constant, values[0], centre)
        scale = unit * np.where(outliers, robust_scale(values), deviation)
        scale = np.where(constant, 1.0, scale)
        return cls(tuple(centre.tolist()), tuple(scale.tolist()), tuple(outliers.tolist()))

    def standard(self, values: np.ndarray) -> np.ndarray:
        """The standardised values, ``(..., columns)``, in double precision."""
        return (np.asarray(values, np.float64) - np.array(self.centre)) / np.array(self.scale)

    def inputs(self, values: np.ndarray) -> np.ndarray:
        """The standardised values for a network, where the outliers of a column that has some are drawn in.

        Beyond ``REACH`` scales from the centre the values grow with the logarithm only. Their order is kept,
        and a value of a million does not exceed all weights of the network.
        """
        z = self.standard(values)
        return np.where(np.array(self.outliers), draw_in(z), z)


def _unit(values: np.ndarray) -> np.ndarray:
    """The largest value of columns whose squares double precision cannot hold; 1 for all others."""
    largest = np.abs(values).max(0, initial=0.0)
    return np.where((largest > 1e-150) & (largest < 1e150) | (largest == 0), 1.0, largest)


def draw_in(z: np.ndarray) -> np.ndarray:
    """Standardised values that grow with the logarithm only beyond ``REACH``; their order is kept."""
    beyond = np.maximum(np.abs(z) - REACH, 0)
    return np.sign(z) * (np.abs(z) - beyond + np.log1p(beyond))


@dataclass(frozen=True)
class Positions:
    """The place of each value among some values of its column, its knots, beside its standardised value.

    Half of the knots divide the rows evenly, and half of them the distinct values. A column in which nearly all
    rows are zero thus has knots among the other values too. A column with few distinct values has a knot at
    each of them, so that a network can treat them as categories.

    Attributes:
      scaling: the centre and the scale of each column.
      knots: the knots of each column, in increasing order.
    """

    scaling: Scaling
    knots: tuple[tuple[float, ...], ...]

    @classmethod
    def learn(cls, values: np.ndarray, bins: int, weights: np.ndarray | None = None) -> Self:
        """Learn at most ``bins + 1`` knots for each column of rows of numbers, ``(rows, columns)``.

        The knots are those of the rows of positive weight.
        """
        values = np.asarray(values, np.float64)
        seen = values if weights is None else values[weights > 0]
        knots = tuple(tuple(_knots(column, bins).tolist()) for column in seen.T)
        return cls(Scaling.learn(values, weights), knots)

    def inputs(self, values: np.ndarray) -> np.ndarray:
        """The positions of all columns, followed by their standardised values: ``(rows, 2 columns)``.

        A value at knot i has position i, and a value between two knots a position in proportion. The
        standardised values are drawn in beyond ``REACH`` scales, as a position is beyond the first and the last
        knot.
        """
        values = np.asarray(values, np.float64)
        positions = [
            np.interp(column, knots, np.arange(len(knots), dtype=float))
            for column, knots in zip(values.T, self.knots, strict=True)
        ]
        standard = draw_in(self.scaling.standard(values))
        return np.concatenate([np.stack(positions, 1), standard], axis=1)


def _knots(column: np.ndarray, bins: int) -> np.ndarray:
    distinct = np.unique(column)
    if len(distinct) <= bins + 1:
        return distinct
    of_rows = np.quantile(column, np.linspace(0, 1, bins // 2 + 1), method="nearest")
    of_values = np.quantile(
        distinct, np.linspace(0, 1, bins - bins // 2 + 2)[1:-1], method="nearest"
    )
    return np.unique(np.concatenate([of_rows, of_values]))
