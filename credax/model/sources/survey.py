"""What a model learns from a source before a fit: shapes, classes, the centre and the scale of each column.

A source of few rows is read as a whole, so that the model is exactly that of the arrays. Of a larger one, means
and standard deviations are computed from all rows, in one pass; medians and quartiles from a random sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from credax.core.errors import SourceError
from credax.core.scaling import GROSS, ROUNDING, Positions, Scaling, few_are_far, robust_scale
from credax.model.frame import Frame, as_rows
from credax.model.sources.source import Rows, Source
from credax.model.sources.streamed import BLOCK, SourceData, as_arrays, check_rows_of
from credax.model.sources.window import Sample

SAMPLE, SAMPLE_BYTES = 65_536, 64 << 20
"""The most rows, and the most bytes of inputs, of a sample."""
KEPT, KEPT_BYTES = 8192, 32 << 20
"""The most rows, and the most bytes of inputs, of the part of the sample that is kept for the fit."""


def prepare(model: Any, source: Source) -> tuple[Any, SourceData]:
    """The model bound to the rows of a source, and the data of a fit."""
    rows, numbers = _sample(source)
    if rows.y is None:
        raise SourceError("This source has no targets, which a fit needs.")
    scaled = bool(model.standardise)
    classes = getattr(model.likelihood, "num_classes", 0) is None
    whole = source.countable and len(rows.x) == source.rows
    if not source.countable and (scaled or classes):
        what = "standardise=False" if scaled else "num_classes=... of the likelihood"
        raise SourceError(
            f"All rows of {source!r}, a function, cannot be read before the fit: use {what}."
        )
    seen = None
    if not whole and source.countable and (source.quick or scaled or classes):
        seen = _survey(source, scaled, classes)
    if classes and seen is not None:
        labels = model.likelihood.check_targets(np.array(sorted(seen.labels)))
        model = replace(model, likelihood=model.likelihood.bind(labels))
    check_rows_of(rows)
    bound, _ = model.prepare((rows.x, rows.y))
    if bound.divided:
        raise TypeError(
            "A source gives one array of targets per row; for positions or heads, load the rows as arrays."
        )
    frame = replace(bound.frame, x_names=source.x_names, y_names=source.y_names)
    if seen is not None and scaled:
        frame = _rescaled(frame, rows, seen)
    bound = replace(bound, frame=frame)
    x, y = as_arrays(bound, rows)
    few = min(len(x), KEPT, max(32, KEPT_BYTES // max(1, x[0].nbytes)))
    kept = np.linspace(0, len(x) - 1, few).astype(int)
    return bound, SourceData(bound, source, Sample(x[kept], y[kept], source.rows), numbers[kept])


def _sample(source: Source) -> tuple[Rows, np.ndarray]:
    """Some rows, random ones if the source has many, and their numbers."""
    if not source.countable:
        rows = next(source.draw(min(source.rows, 1024), 1024))  # pyright: ignore[reportAttributeAccessIssue]
        return rows, np.arange(len(rows.x))
    one = max(1, source.read([0]).x.nbytes)
    most = SAMPLE if source.quick else SAMPLE // 16
    numbers = source.some(min(most, max(32, SAMPLE_BYTES // one)))
    return source.read(numbers), numbers


@dataclass
class Moments:
    """The mean, the sum of squared deviations and the range of each column, of all numbers so far."""

    count: int = 0
    mean: Any = 0.0
    squares: Any = 0.0
    lowest: Any = np.inf
    highest: Any = -np.inf

    def add(self, values: np.ndarray) -> None:
        """Add rows of numbers, ``(rows, columns)`` (Chan, Golub & LeVeque, 1983)."""
        values = np.asarray(values, np.float64)
        count, mean = len(values), values.mean(0)
        total, ahead = self.count + count, mean - self.mean
        self.squares = (
            self.squares + ((values - mean) ** 2).sum(0) + ahead**2 * (self.count * count / total)
        )
        self.mean = self.mean + ahead * (count / total)
        self.count = total
        self.lowest = np.minimum(self.lowest, values.min(0))
        self.highest = np.maximum(self.highest, values.max(0))

    def scaling(self, sample: np.ndarray) -> Scaling:
        """The scaling of all rows, with medians and quartiles from a sample of them."""
        sample = np.asarray(sample, np.float64)
        largest = np.maximum(np.abs(self.lowest), np.abs(self.highest))
        constant = self.highest - self.lowest <= ROUNDING * largest
        sd, robust = np.sqrt(self.squares / self.count), robust_scale(sample)
        gross = (robust > ROUNDING * largest) & (sd > GROSS * robust)
        outliers = gross & few_are_far(sample)
        centre = np.where(outliers, np.median(sample, 0), self.mean)
        centre = np.where(constant, sample[0], centre)
        scale = np.where(constant, 1.0, np.where(outliers, robust, sd))
        return Scaling(tuple(centre.tolist()), tuple(scale.tolist()), tuple(outliers.tolist()))


@dataclass
class Survey:
    """What one pass over all rows found."""

    x: Moments
    y: Moments
    labels: set[float]


def _survey(source: Source, scaled: bool, classes: bool) -> Survey:
    """Read all rows once, check them, and find the moments and the classes that the model needs."""
    seen = Survey(Moments(), Moments(), set())
    for rows in source.blocks(BLOCK):
        check_rows_of(rows)
        assert rows.y is not None, "prepare has refused sources without targets"
        if scaled:
            seen.x.add(as_rows(rows.x))
            seen.y.add(as_rows(rows.y))
        if classes:
            seen.labels.update(np.unique(rows.y).tolist())
    return seen


def _rescaled(frame: Frame, rows: Rows, seen: Survey) -> Frame:
    """The frame with the scales of all rows instead of those of the sample."""
    assert rows.y is not None
    x_scaling, y_scaling = frame.x_scaling, frame.y_scaling
    if x_scaling is not None:
        scaling = seen.x.scaling(as_rows(rows.x))
        x_scaling = (
            replace(x_scaling, scaling=scaling) if isinstance(x_scaling, Positions) else scaling
        )
    if y_scaling is not None:
        y_scaling = seen.y.scaling(as_rows(rows.y))
    return replace(frame, x_scaling=x_scaling, y_scaling=y_scaling)
