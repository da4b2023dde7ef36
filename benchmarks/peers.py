"""The libraries with which credax is compared on tables, each as a careful user would run it.

A library is a function ``fit(task, x, y)`` of the training rows that returns a function of the test rows, which
gives their predictions. ``task`` is ``"regression"``, where ``y`` is standardised, or ``"classification"``,
where ``y`` has the numbers of the classes from 0. A prediction has ``log_prob(y)``; of numbers also ``mean``,
``crps(y)`` and ``interval(level)``, and of classes also ``label``.

All settings are the defaults of the library, except two: fits run on two threads, and where a library offers
early stopping, a tenth of the training rows is held out and decides how many trees are used. There are at most
1,000 (the default of CatBoost), but 500 for NGBoost (its own default), whose fits take longest. bde has the
settings of its paper. A package is imported only when it is used.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

THREADS = 2
TREES, NGBOOST_TREES = 1_000, 500
"""The most trees where early stopping decides."""
PATIENCE = 50
"""Fits stop early when so many trees in a row did not improve the held-out rows."""
SMALLEST = 1e-12
"""Class probabilities below this are set to it."""


# -- predictions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Normals:
    """Each target is predicted by a normal distribution."""

    mean: np.ndarray
    sd: np.ndarray

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        return stats.norm.logpdf(y, self.mean, self.sd)

    def crps(self, y: np.ndarray) -> np.ndarray:
        """The continuous ranked probability score in closed form (Gneiting & Raftery, 2007)."""
        z = (y - self.mean) / self.sd
        inside = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
        return self.sd * inside

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        return stats.norm.interval(level, self.mean, self.sd)


@dataclass(frozen=True)
class Mixtures:
    """Each target is predicted by a mixture of normal distributions with equal weights.

    ``means`` and ``sds`` have the shape ``(components, rows)``.
    """

    means: np.ndarray
    sds: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.means.mean(0)

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        each = stats.norm.logpdf(y, self.means, self.sds)
        return np.logaddexp.reduce(each, axis=0) - np.log(len(each))

    def crps(self, y: np.ndarray) -> np.ndarray:
        """The sum over pairs of components of Grimit et al. (2006), row by row."""
        return np.array([self._crps(*row) for row in zip(y, self.means.T, self.sds.T, strict=True)])

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        tail = (1 - level) / 2
        return self._quantile(tail), self._quantile(1 - tail)

    @staticmethod
    def _crps(y: float, means: np.ndarray, sds: np.ndarray) -> float:
        def distance(m, s):
            return m * (2 * stats.norm.cdf(m / s) - 1) + 2 * s * stats.norm.pdf(m / s)

        between = distance(means[:, None] - means, np.hypot(sds[:, None], sds))
        return float(distance(y - means, sds).mean() - between.mean() / 2)

    def _quantile(self, level: float) -> np.ndarray:
        """By bisection between the outermost quantiles of the components."""
        each = stats.norm.ppf(level, self.means, self.sds)
        low, high = each.min(0), each.max(0)
        for _ in range(50):
            middle = (low + high) / 2
            below = stats.norm.cdf(middle, self.means, self.sds).mean(0) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class Classes:
    """Each row has a probability of each class; of no class less than ``smallest``."""

    probs: np.ndarray
    smallest: float = SMALLEST

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        probs = np.maximum(self.probs, self.smallest)
        return np.log((probs / probs.sum(1, keepdims=True))[np.arange(len(y)), y])

    @property
    def label(self) -> np.ndarray:
        return self.probs.argmax(1)


Predict = Callable[[np.ndarray], Any]


def held_out(task: str, x: np.ndarray, y: np.ndarray) -> tuple:
    """Nine tenths of the rows, and the other tenth; each class keeps its share of both."""
    from sklearn.model_selection import train_test_split

    strata = y if task == "classification" else None
    x, x_out, y, y_out = train_test_split(x, y, test_size=0.1, random_state=0, stratify=strata)
    return x, y, x_out, y_out


# -- libraries --------------------------------------------------------------------------------------


def credax(task: str, x: np.ndarray, y: np.ndarray) -> Predict:
    """The estimators of credax with their default arguments."""
    import credax as cx

    estimator = cx.BayesianRegressor() if task == "regression" else cx.BayesianClassifier()
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        return estimator.fit(x, y).predict_distribution


def catboost(task: str, x: np.ndarray, y: np.ndarray) -> Predict:
    """CatBoost: its loss for a predicted mean and variance, or its classifier; with early stopping."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    settings: dict[str, Any] = {"thread_count": THREADS, "random_seed": 0}
    settings |= {"verbose": False, "allow_writing_files": False}
    settings |= {"iterations": TREES, "early_stopping_rounds": PATIENCE}
    x, y, x_out, y_out = held_out(task, x, y)
    if task == "classification":
        model = CatBoostClassifier(**settings).fit(x, y, eval_set=(x_out, y_out))
        return lambda rows: Classes(model.predict_proba(rows))
    regressor = CatBoostRegressor(loss_function="RMSEWithUncertainty", **settings)
    regressor.fit(x, y, eval_set=(x_out, y_out))

    def predict(rows: np.ndarray) -> Normals:
        mean, variance = regressor.predict(rows, prediction_type="RMSEWithUncertainty").T
        return Normals(mean, np.sqrt(variance))

    return predict


def lightgbm(task: str, x: np.ndarray, y: np.ndarray) -> Predict:
    """LightGBM with early stopping; the noise of numbers is normal, of the size of the held-out residuals."""
    import lightgbm

    settings: dict[str, Any] = {"n_estimators": TREES, "n_jobs": THREADS, "verbose": -1}
    settings |= {"random_state": 0}
    stopping = [lightgbm.early_stopping(PATIENCE, verbose=False)]
    x, y, x_out, y_out = held_out(task, x, y)
    if task == "classification":
        model = lightgbm.LGBMClassifier(**settings)
        model.fit(x, y, eval_X=x_out, eval_y=y_out, callbacks=stopping)
        return lambda rows: Classes(np.asarray(model.predict_proba(rows)))
    regressor = lightgbm.LGBMRegressor(**settings)
    regressor.fit(x, y, eval_X=x_out, eval_y=y_out, callbacks=stopping)
    noise = np.sqrt(np.mean((y_out - regressor.predict(x_out)) ** 2))

    def predict(rows: np.ndarray) -> Normals:
        return Normals(np.asarray(regressor.predict(rows)), np.full(len(rows), noise))

    return predict


def ngboost(task: str, x: np.ndarray, y: np.ndarray) -> Predict:
    """NGBoost with normal or categorical predictions and early stopping."""
    from ngboost import NGBClassifier, NGBRegressor
    from ngboost.distns import Normal, k_categorical

    settings: dict[str, Any] = {"n_estimators": NGBOOST_TREES, "verbose": False}
    settings |= {"random_state": 0}
    x, y, x_out, y_out = held_out(task, x, y)
    held: dict[str, Any] = {"X_val": x_out, "Y_val": y_out, "early_stopping_rounds": PATIENCE}
    if task == "classification":
        model = NGBClassifier(Dist=k_categorical(int(y.max()) + 1), **settings).fit(x, y, **held)
        # NGBoost stops early, but predicts with all trees unless it is told otherwise.
        return lambda rows: Classes(model.predict_proba(rows, model.best_val_loss_itr + 1))
    regressor = NGBRegressor(Dist=Normal, **settings).fit(x, y, **held)

    def predict(rows: np.ndarray) -> Normals:
        found = regressor.pred_dist(rows, regressor.best_val_loss_itr + 1)
        return Normals(found.loc, found.scale)

    return predict


def random_forest(task: str, x: np.ndarray, y: np.ndarray) -> Predict:
    """scikit-learn's random forest.

    The variance of a number is that of the predictions of the trees plus the mean squared error of the rows out
    of the bag. The probability of a class is at least that of half a tree.
    """
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    settings: dict[str, Any] = {"n_jobs": THREADS, "random_state": 0}
    if task == "classification":
        model = RandomForestClassifier(**settings).fit(x, y)
        return lambda rows: Classes(model.predict_proba(rows), 0.5 / len(model.estimators_))
    forest = RandomForestRegressor(oob_score=True, **settings).fit(x, y)
    noise = np.mean((y - forest.oob_prediction_) ** 2)

    def predict(rows: np.ndarray) -> Normals:
        each = np.stack([tree.predict(np.asarray(rows, np.float32)) for tree in forest.estimators_])
        return Normals(each.mean(0), np.sqrt(each.var(0) + noise))

    return predict


def gaussian_process(task: str, x: np.ndarray, y: np.ndarray) -> Predict:
    """scikit-learn's Gaussian process: a Matérn kernel with a length scale for each standardised column."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kernel = ConstantKernel() * Matern(np.ones(x.shape[1]))
    if task == "classification":
        process: Any = GaussianProcessClassifier(kernel, random_state=0)
    else:
        process = GaussianProcessRegressor(kernel + WhiteKernel(), random_state=0)
    model = make_pipeline(StandardScaler(), process)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(x, y)
    if task == "classification":
        return lambda rows: Classes(model.predict_proba(rows))
    return lambda rows: Normals(*model.predict(rows, return_std=True))


def bde(task: str, x: np.ndarray, y: np.ndarray) -> Predict:
    """bde: microcanonical ensembles of networks, with standardised columns, run by another interpreter.

    ``BDE_PYTHON`` names a Python with ``sklearn-contrib-bde``, which needs another BlackJAX than credax.
    """
    folder = tempfile.TemporaryDirectory()
    y = y.astype(np.int32 if task == "classification" else np.float32)
    np.savez(f"{folder.name}/train.npz", x=x, y=y, task=task)
    said = Path(folder.name) / "said.txt"  # it reports its progress many times a second
    with said.open("w") as errors:
        child = subprocess.Popen(
            [os.environ["BDE_PYTHON"], str(Path(__file__).parent / "bde_child.py"), folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert child.stdin is not None
    assert child.stdout is not None
    while (line := child.stdout.readline()) != "fitted\n":
        if not line:
            raise RuntimeError(f"bde ended with status {child.wait()}: {said.read_text()[-500:]}")

    def predict(rows: np.ndarray) -> Mixtures | Classes:
        with folder:
            np.save(f"{folder.name}/test.npy", rows)
            child.communicate("predict\n")
            found = dict(np.load(f"{folder.name}/found.npz"))
        return Mixtures(**found) if task == "regression" else Classes(found["probs"])

    return predict


@dataclass(frozen=True)
class Library:
    """How a library is run, what it needs, and the most rows of a table on which it is run.

    It needs a module, or, if it has its own ``interpreter``, an environment variable that names this.
    """

    fit: Callable[[str, np.ndarray, np.ndarray], Predict]
    module: str
    most_rows: float = np.inf
    interpreter: str | None = None

    @property
    def missing(self) -> str | None:
        """What has to be done before the library can be run, if anything."""
        if self.interpreter is not None:
            ready = os.environ.get(self.interpreter)
            return None if ready else f"set {self.interpreter} to a Python that has {self.module}"
        ready = importlib.util.find_spec(self.module)
        return None if ready else f"install the package {self.module}"


LIBRARIES = {
    "credax": Library(credax, "credax"),
    "CatBoost": Library(catboost, "catboost"),
    "LightGBM": Library(lightgbm, "lightgbm"),
    "NGBoost": Library(ngboost, "ngboost"),
    "random forest": Library(random_forest, "sklearn"),
    "Gaussian process": Library(gaussian_process, "sklearn", 2_000),
    "bde": Library(bde, "sklearn-contrib-bde", 2_000, interpreter="BDE_PYTHON"),
}
ASKED_FOR = ("bde",)
"""These run only when they are named: they take minutes for a small table."""
