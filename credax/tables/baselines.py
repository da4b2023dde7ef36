"""Baselines beside which the methods are judged: a linear model and boosted trees, of other libraries.

They know no uncertainty of their own. The noise of a number is taken to be normal, of the size of the errors on
rows that were left out of a fit.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

FOLDS = 5
"""The number of parts of the rows, each of which is left out once to find the size of the noise."""
TREES = 200
"""The number of boosted trees."""
LEAST_NOISE = 1e-6
"""The least noise, as a part of the standard deviation of the target: an exact fit has none."""
LEAST_PROBABILITY = 1e-6
"""What all classes share of the probability, so that none is impossible."""
FEW = 20_000
"""Up to this number of rows, one thread grows trees faster than several, which wait for each other."""


@dataclass(frozen=True)
class Normals:
    """Numbers that are predicted by normal distributions.

    Attributes:
      mean: the mean of each row.
      std: the standard deviation of each row.
    """

    mean: np.ndarray
    std: np.ndarray

    def log_prob(self, y: Any) -> np.ndarray:
        """The log density of each target."""
        return stats.norm.logpdf(y, self.mean, self.std)

    def cdf(self, t: Any) -> np.ndarray:
        """The distribution function of each row."""
        return stats.norm.cdf(t, self.mean, self.std)

    def quantile(self, q: Any) -> np.ndarray:
        """The quantiles of each row, ``(levels, rows)``."""
        levels = np.asarray(q, float)
        return stats.norm.ppf(levels[..., None], self.mean, self.std)

    def crps(self, y: Any) -> np.ndarray:
        """The continuous ranked probability score of each target (Gneiting & Raftery, 2007)."""
        z = (np.asarray(y, float) - self.mean) / self.std
        inside = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
        return self.std * inside


@dataclass(frozen=True)
class Classes:
    """Classes that are predicted by their probabilities.

    Attributes:
      probs: the probability of each class, ``(rows, classes)``.
    """

    probs: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The probability of each class."""
        return self.probs

    def log_prob(self, y: Any) -> np.ndarray:
        """The log probability of the class of each row."""
        return np.log(self.probs[np.arange(len(self.probs)), np.asarray(y, int)])


def baselines(task: str) -> dict[str, Callable[[], Any]]:
    """The baselines that are installed: for each name, a function that makes an estimator.

    Args:
      task: ``"regression"`` or ``"classification"``.
    """
    if importlib.util.find_spec("sklearn") is None:
        return {}
    library = next(name for name in _BOOSTING if importlib.util.find_spec(name) is not None)
    return {
        "linear model": lambda: _linear(task),
        f"boosting ({_NAMES[library]})": lambda: _BOOSTING[library](task),
    }


def fit_baseline(
    make: Callable[[], Any], x: np.ndarray, y: np.ndarray, classes: int
) -> Callable[[np.ndarray], Normals | Classes]:
    """Fit a baseline, and return the function that predicts.

    Args:
      make: makes the estimator.
      x: the encoded rows.
      y: the targets: numbers, or the numbers of classes.
      classes: the number of classes; 0 for numbers.
    """
    estimator = make()  # which imports its library, whose threads can be limited only then
    with _quietly(len(x)):
        estimator.fit(x, y)
        if classes:
            return lambda rows: Classes(_all_classes(estimator, rows, classes))
        errors = np.empty(len(y))
        parts = np.arange(len(y)) % min(FOLDS, len(y))
        for part in np.unique(parts):
            out = parts == part
            errors[out] = y[out] - make().fit(x[~out], y[~out]).predict(x[out])
    noise = max(float(np.sqrt(np.mean(errors**2))), LEAST_NOISE * float(np.std(y)), 1e-300)

    def predict(rows: np.ndarray) -> Normals:
        with _quietly(len(rows)):
            mean = np.asarray(estimator.predict(rows), float)
        return Normals(mean, np.full(len(mean), noise))

    return predict


@contextmanager
def _quietly(rows: int) -> Iterator[None]:
    """Without warnings, such as those about few rows, and without threads that wait for each other."""
    with warnings.catch_warnings(), threadpool_limits(1 if rows <= FEW else None, "openmp"):
        warnings.simplefilter("ignore")
        yield


def _all_classes(estimator: Any, rows: np.ndarray, classes: int) -> np.ndarray:
    """The probabilities of all classes, also of those that no fitted row has."""
    probs = np.zeros((len(rows), classes))
    with _quietly(len(rows)):
        probs[:, np.asarray(estimator.classes_, int)] = estimator.predict_proba(rows)
    return (1 - LEAST_PROBABILITY) * probs + LEAST_PROBABILITY / classes


def _linear(task: str) -> Any:
    from sklearn.linear_model import LogisticRegression, RidgeCV

    if task == "classification":
        return LogisticRegression(max_iter=1_000)
    return RidgeCV(np.logspace(-3, 3, 13))


def _catboost(task: str) -> Any:
    import catboost

    kind = catboost.CatBoostClassifier if task == "classification" else catboost.CatBoostRegressor
    return kind(iterations=TREES, random_seed=0, verbose=False, allow_writing_files=False)


def _lightgbm(task: str) -> Any:
    import lightgbm

    kind = lightgbm.LGBMClassifier if task == "classification" else lightgbm.LGBMRegressor
    return kind(n_estimators=TREES, random_state=0, verbose=-1)


def _sklearn(task: str) -> Any:
    from sklearn import ensemble

    name = "Classifier" if task == "classification" else "Regressor"
    kind = getattr(ensemble, f"HistGradientBoosting{name}")
    return kind(max_iter=TREES, random_state=0)


_BOOSTING: dict[str, Callable[[str], Any]] = {
    "catboost": _catboost,
    "lightgbm": _lightgbm,
    "sklearn": _sklearn,
}
_NAMES = {"catboost": "CatBoost", "lightgbm": "LightGBM", "sklearn": "scikit-learn"}
