r"""Recalibration: predictions corrected with rows that were held out of the fit.

Conformal intervals cover the target with at least the stated probability for any model, as long as the held-out
rows and the new rows are exchangeable (Vovk et al., 2005). Given n scores that measure how far each held-out
target lies outside its interval, the correction is the
:math:`\lceil (n + 1)\, \text{level} \rceil`-th smallest of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax, xlogy

from credax.core.checks import fraction, must, one_of
from credax.diagnostics.calibration import Scores, score
from credax.model import Model
from credax.model.frame import in_order
from credax.model.sources.source import refuse_source
from credax.posterior import services

if TYPE_CHECKING:
    from credax.posterior import Posterior
    from credax.posterior.predictive import Predictive

NUMBERS, CLASSES = ("quantile", "residual"), ("temperature",)


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated:
    """A posterior whose predictions are corrected with held-out rows. It predicts as a posterior does.

    Attributes:
      posterior: the original posterior.
      method: the method of correction: ``"quantile"``, ``"residual"`` or ``"temperature"``.
      held_out: the original predictions for the held-out rows.
      y: the targets of the held-out rows.
      temperature: the number by which the log probabilities of the classes are divided; above 1 if the original
        posterior was overconfident.
    """

    posterior: Posterior
    method: str
    held_out: Predictive
    y: np.ndarray
    temperature: float = 1.0

    def __repr__(self) -> str:
        temperature = f", temperature {self.temperature:.3g}" if self.method in CLASSES else ""
        return f"Calibrated({self.method!r}, {len(self.y)} held-out rows{temperature})"

    def predict(
        self, x: Any, *, num_samples: int | None = None, key: Any = 0
    ) -> CalibratedPredictive:
        """Corrected predictions; the arguments are those of :meth:`credax.Posterior.predict`."""
        refuse_source("predict", x)
        return CalibratedPredictive(
            self, self.posterior.predict(x, num_samples=num_samples, key=key)
        )

    def evaluate(self, x: Any, y: Any, *, key: Any = 0) -> Scores:
        """Scores of the corrected predictions; the arguments are those of :meth:`credax.Posterior.evaluate`."""
        model: Any = self.posterior.model
        y = in_order("y", y, model.frame.y_names)
        return score(self.predict(x, key=key), model.likelihood.task, y)  # pyright: ignore[reportArgumentType]


def calibrate(
    posterior: Posterior, x: Any, y: Any, method: str | None = None, key: Any = 0
) -> Calibrated:
    """Correct a posterior's predictions with held-out rows; see :meth:`credax.Posterior.calibrate`."""
    refuse_source("calibrate", x)
    if isinstance(posterior.model, Model):
        posterior.model.check_undivided("calibrate")
    predictive = posterior.predict(x, key=key)
    likelihood = posterior.model.likelihood  # pyright: ignore[reportAttributeAccessIssue]
    y = posterior.model.check_targets(y, len(posterior.model.check_inputs(x)))  # pyright: ignore[reportAttributeAccessIssue]
    allowed = CLASSES if likelihood.task == "classification" else NUMBERS
    chosen: str = one_of("calibrate", "method", allowed[0] if method is None else method, allowed)
    if chosen != "temperature":
        return Calibrated(posterior, chosen, predictive, np.asarray(y, np.float64))
    labels = np.reshape(y, -1).astype(int)
    temperature = _best_temperature(predictive.probs, labels)
    return Calibrated(posterior, chosen, predictive, labels, temperature)


class CalibratedPredictive:
    """A prediction with corrected intervals (regression) or corrected class probabilities (classification).

    For regression, ``interval`` and ``quantile`` are corrected; for classification ``probs``, ``mean``,
    ``label``, ``entropy``, ``log_prob`` and ``prediction_set``. All other attributes are those of the original
    prediction.
    """

    def __init__(self, calibrated: Calibrated, predictive: Predictive):
        self._calibrated, self._predictive = calibrated, predictive

    def __repr__(self) -> str:
        return f"CalibratedPredictive({len(self._predictive.mean)} rows, {self._calibrated!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._predictive, name)

    def plot(self, x: Any = None, y: Any = None, *, kind: str | None = None, **options: Any) -> Any:
        """Draw the corrected predictions with matplotlib; see :meth:`credax.Predictive.plot`."""
        return services.plot_predictive(self, x, y, kind, **options)

    # -- regression ---------------------------------------------------------------------------------

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends of an interval that contains y with probability at least ``level``."""
        lower, upper = self._intervals(np.array([fraction("interval", "level", level)]))
        return lower[0], upper[0]

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles, as ends of corrected central intervals.

        A level q below one half is the lower end of the interval of level ``1 - 2 q``; a level above one half
        is the upper end of the interval of level ``2 q - 1``.
        """
        self._predictive._only("quantile", classification=False)
        levels = np.asarray(q, np.float64)
        if levels.size == 0 or not np.all((levels > 0) & (levels < 1)):
            raise ValueError(must("quantile", "q", "between 0 and 1, both excluded", q))
        found = np.empty((levels.size, *self._predictive.mean.shape))
        central, flat = np.abs(1 - 2 * levels.ravel()), levels.ravel()
        found[central == 0] = self._predictive.quantile(0.5)
        wanted, place = np.unique(central[central > 0], return_inverse=True)
        if len(wanted):
            found[central > 0] = np.where(
                (flat < 0.5)[central > 0].reshape(-1, *[1] * (found.ndim - 1)),
                *(ends[place] for ends in self._intervals(wanted)),
            )
        return found.reshape(*levels.shape, *found.shape[1:])

    def _intervals(self, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the corrected intervals, with the levels along the first axis."""
        held_out, y = self._calibrated.held_out, self._calibrated.y
        here = self._predictive
        if self._calibrated.method == "residual":
            scores = np.abs(y - held_out.mean) / held_out.std
            reach = np.stack([conformal_quantile(scores, level) * here.std for level in levels])
            return here.mean - reach, here.mean + reach
        lower, upper = _central(held_out, levels)
        outside = np.maximum(lower - y, y - upper)
        # If the intervals were too wide, the correction is negative and shrinks them.
        reach = [conformal_quantile(o, level) for o, level in zip(outside, levels, strict=True)]
        lower, upper = _central(here, levels)
        reach, middle = np.expand_dims(np.stack(reach), 1), (lower + upper) / 2
        return np.minimum(lower - reach, middle), np.maximum(upper + reach, middle)

    # -- classification -----------------------------------------------------------------------------

    @property
    def probs(self) -> np.ndarray:
        """The corrected probability of each class: the softmax of log p divided by the temperature."""
        return _tempered(self._predictive.probs, self._calibrated.temperature)

    @property
    def mean(self) -> np.ndarray:
        """E[y]; for classification, the corrected class probabilities."""
        mean = self._predictive.mean
        if self._calibrated.method != "temperature":
            return mean
        one_label = mean.size == len(mean)
        return self.probs[:, 1].reshape(mean.shape) if one_label else self.probs

    @property
    def label(self) -> np.ndarray:
        """The most probable class."""
        return np.argmax(self.probs, axis=1)

    @property
    def entropy(self) -> np.ndarray:
        """The entropy of the corrected probabilities."""
        return -np.sum(xlogy(self.probs, self.probs), axis=1)

    def log_prob(self, y: Any) -> np.ndarray:
        """The log density of each row's target; for classification, by the corrected probabilities."""
        if self._calibrated.method != "temperature":
            return self._predictive.log_prob(y)
        labels = np.reshape(y, -1).astype(int)
        return np.log(np.maximum(self.probs[np.arange(len(labels)), labels], np.finfo(float).tiny))

    def prediction_set(self, level: float = 0.9) -> np.ndarray:
        """Sets of classes that contain the true one with probability at least ``level``.

        The result is boolean, ``(rows, classes)``. A set contains the classes whose probability reaches a
        threshold (Sadinle et al., 2019). It is empty for a row whose most probable class stays below it.
        """
        if self._calibrated.method != "temperature":
            raise AttributeError(
                "prediction_set is for classification; use interval for regression."
            )
        level = fraction("prediction_set", "level", level)
        labels = self._calibrated.y
        held_out = _tempered(self._calibrated.held_out.probs, self._calibrated.temperature)
        threshold = conformal_quantile(-held_out[np.arange(len(labels)), labels], level)
        return -self.probs <= threshold


def _central(predictive: Predictive, levels: np.ndarray) -> np.ndarray:
    """The ends of the central intervals, with axes (lower or upper, level, row, ...)."""
    tails = np.stack([(1 - levels) / 2, (1 + levels) / 2])
    return np.asarray(predictive.quantile(tails), np.float64)


def conformal_quantile(scores: np.ndarray, level: float) -> np.ndarray:
    """The smallest bound that a new score satisfies with probability at least ``level``, for each column."""
    n = len(scores)
    rank = math.ceil(
        (n + 1) * level - 1e-9
    )  # rounding may put (n + 1) * 0.9 just above a whole number
    if rank > n:
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise ValueError(
            f"calibrate(x=...) must have at least {needed} rows for intervals of {100 * level:g} %; got {n}."
        )
    return np.sort(scores, axis=0)[rank - 1]


def _tempered(probs: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return softmax(np.log(np.asarray(probs, np.float64)) / temperature, axis=1)


def _best_temperature(probs: np.ndarray, labels: np.ndarray) -> float:
    """The temperature that maximises the likelihood of the held-out rows (Guo et al., 2017)."""
    logs = np.log(np.maximum(np.asarray(probs, np.float64), np.finfo(float).tiny))
    rows = np.arange(len(labels))

    def loss(log_temperature):
        return -np.mean(log_softmax(logs / math.exp(log_temperature), axis=1)[rows, labels])

    bounds = (math.log(0.05), math.log(20))
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)


services.calibrate = calibrate
