"""Some rows of a fit, which a posterior keeps while it is in memory, for a diagnosis to judge it by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS, BYTES = 1024, 32 << 20
"""The most rows, and the most bytes of inputs, that are kept."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRows:
    """A random sample of the rows of a fit, on the host and as the network got them; all rows if there are few.

    Attributes:
      x: the inputs.
      y: the targets.
      total: the number of rows of the fit.
    """

    x: np.ndarray
    y: np.ndarray
    total: int

    @classmethod
    def of(cls, data: Any) -> TrainingRows | None:
        """A sample of a data set; ``None`` if there is no data."""
        if data is None:
            return None
        row = max(1, data.x.nbytes // data.rows)
        count = min(data.rows, ROWS, max(32, BYTES // row))
        # Always the same rows for the same data, so that a diagnosis can be repeated.
        chosen = np.sort(np.random.default_rng(0).choice(data.rows, count, replace=False))
        return cls(np.asarray(data.x[chosen]), np.asarray(data.y[chosen]), data.rows)

    def __repr__(self) -> str:
        return f"TrainingRows({len(self.x)} of {self.total} rows)"
