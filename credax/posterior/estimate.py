"""A number that was estimated: its value, its standard error, and to which side it errs."""

from __future__ import annotations

import math
from typing import Any


class Estimate(tuple[float, float]):
    """An estimated number with its standard error: a tuple ``(value, standard_error)``.

    It unpacks, indexes, hashes and compares as that tuple does; ``errs`` takes no part in comparisons.

    ``value`` is the estimate. ``standard_error`` is its standard deviation over repeated runs, zero for a value
    without Monte Carlo noise. ``errs`` is a short text that says to which side the estimate is biased, and why.

    >>> bound = Estimate(-12.3148, 0.0413, "too low: a lower bound")
    >>> bound
    -12.31 ± 0.04 (too low: a lower bound)
    >>> value, standard_error = bound
    >>> bound.value, bound.errs
    (-12.3148, 'too low: a lower bound')
    """

    _errs: str

    def __new__(cls, value: float, standard_error: float, errs: str = "unknown") -> Estimate:
        self = super().__new__(cls, (float(value), float(standard_error)))
        self._errs = str(errs)
        return self

    @classmethod
    def of(cls, pair: Any) -> Estimate | None:
        """The estimate that ``pair`` stands for.

        Args:
          pair: an estimate, ``(value, standard_error)``, ``(value, standard_error, errs)`` or ``None``.
        """
        return pair if pair is None or isinstance(pair, cls) else cls(*pair)

    @property
    def value(self) -> float:
        """The estimate itself."""
        return self[0]

    @property
    def standard_error(self) -> float:
        """The standard deviation of the estimate over repeated runs."""
        return self[1]

    @property
    def errs(self) -> str:
        """To which side the estimate is biased, and why."""
        return self._errs

    def shifted(self, by: float) -> Estimate:
        """The same estimate with a known number added to it."""
        return Estimate(self.value + by, self.standard_error, self._errs)

    def __getnewargs__(self) -> tuple[float, float, str]:
        return self.value, self.standard_error, self._errs

    def __repr__(self) -> str:
        value, error = self
        if not (math.isfinite(value) and math.isfinite(error) and error > 0):
            return f"{value:.6g} ± {error:.6g} ({self._errs})"
        # At most two digits of the error, and no more than two decimals unless it is smaller than those.
        exponent = math.floor(math.log10(error))
        decimals = max(0, min(2, 1 - exponent)) if exponent >= -2 else min(-exponent, 12)
        return f"{value:.{decimals}f} ± {error:.{decimals}f} ({self._errs})"
