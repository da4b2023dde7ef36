"""How often each row of a scikit-learn estimator counts: ``sample_weight`` and ``class_weight``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_consistent_length

from credax.core.checks import must


def counted(
    rows: Any, y: np.ndarray, sample_weight: Any
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """The rows that count, their targets and how often they count; ``None`` if each of them counts once.

    Args:
      rows: an array or a pandas data frame.
      y: the targets.
      sample_weight: how often each row counts; one number for all rows, or ``None`` for 1.
    """
    if sample_weight is None:
        return rows, y, None
    given = np.asarray(sample_weight)
    if given.ndim == 0:
        given = np.full(len(y), given)
    weights = np.array(
        check_array(given, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    )
    if weights.ndim != 1:
        raise ValueError(f"Sample weights must be 1D array or scalar, got {weights.ndim}D array.")
    check_consistent_length(y, weights)
    if (weights < 0).any():
        at = int(np.argmax(weights < 0))
        raise ValueError(
            f"Negative values in data passed to `sample_weight`: {weights[at]} at {at}."
        )
    used = weights > 0
    if not used.any():
        raise ValueError("sample_weight must be positive for at least one row; got only zeros.")
    if not used.all():
        rows = rows[used] if isinstance(rows, np.ndarray) else rows.iloc[np.flatnonzero(used)]
        y, weights = y[used], weights[used]
    return rows, y, None if np.all(weights == 1) else weights


def class_weights(
    given: Mapping[Any, float] | str | None,
    classes: np.ndarray,
    numbers: np.ndarray,
    weights: np.ndarray | None,
) -> np.ndarray | None:
    """How often each row counts, if its class is taken into account.

    Args:
      given: the argument ``class_weight``.
      classes: the labels.
      numbers: the number of the class of each row.
      weights: how often each row counts by itself; ``None`` for 1.
    """
    if given is None:
        return weights
    own = np.ones(len(numbers)) if weights is None else weights
    if isinstance(given, str) and given == "balanced":
        sizes = np.bincount(numbers, own, len(classes))
        return own * (own.sum() / (len(classes) * sizes))[numbers]
    allowed = "None, 'balanced', or a dictionary from classes to numbers of at least 0"
    if not isinstance(given, Mapping):
        raise ValueError(must("BayesianClassifier", "class_weight", allowed, given))
    labels = list(classes.tolist())
    unknown = [label for label in given if label not in labels]
    if unknown:
        raise ValueError(
            f"BayesianClassifier(class_weight=...) must have the classes of y, {labels}; got {unknown[0]!r}."
        )
    factors = np.array([given.get(label, 1.0) for label in labels], np.float64)
    if not np.all(np.isfinite(factors) & (factors >= 0)):
        raise ValueError(must("BayesianClassifier", "class_weight", allowed, given))
    return own * factors[numbers]
