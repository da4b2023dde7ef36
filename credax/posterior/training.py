"""Some rows of a fit, which a posterior keeps while it is in memory, for a diagnosis to judge it by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from credax.core.rows import on_host
from credax.model.sources.streamed import in_memory

ROWS, BYTES = 1024, 32 << 20
"""The most rows, and the most bytes of inputs, that are kept."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRows:
    """A random sample of the rows of a fit, on the host and as the network got them; all rows if there are few.

    Attributes:
      x: the inputs.
      y: the targets.
      weights: the weight of each row; ``None`` if every row counts once.
      total: the number of rows of the fit.
    """

    x: Any
    y: Any
    total: int
    weights: np.ndarray | None = None

    @classmethod
    def of(cls, data: Any) -> TrainingRows | None:
        """A sample of a data set; ``None`` if there is no data."""
        if data is None:
            return None
        held = in_memory(data)
        rows = len(held.x)
        row = max(1, held.x.nbytes // rows)
        count = min(rows, ROWS, max(32, BYTES // row))
        # Always the same rows for the same data, so that a diagnosis can be repeated.
        chosen = np.sort(np.random.default_rng(0).choice(rows, count, replace=False))
        # All rows are taken as they are: nothing is then compiled for their number.
        part = held if count == rows else held.take(chosen)
        weights = None if part.weights is None else np.asarray(part.weights)
        return cls(on_host(part.x), on_host(part.y), data.rows, weights)

    def part(self, rows: slice) -> tuple[Any, Any, np.ndarray | None]:
        """The inputs, the targets and the weights of some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        return self.x[rows], self.y[rows], weights

    def __repr__(self) -> str:
        return f"TrainingRows({len(self.x)} of {self.total} rows)"
