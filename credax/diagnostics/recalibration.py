r"""Recalibration: predictions corrected with rows that were held out of the fit.

Conformal intervals cover the target with at least the stated probability for any model, as long as the held-out
rows and the new rows are exchangeable (Vovk et al., 2005). Given n scores that measure how far each held-out
target lies outside its interval, the correction is the
:math:`\lceil (n + 1)\, \text{level} \rceil`-th smallest of them.

If rows are divided into positions, the positions of a row depend on each other, and only whole rows are
exchangeable. The scores of each of n rows then share the weight :math:`1 / (n + 1)`, and the correction is the
smallest score up to which the weights add up to the level. An interval then covers the target at a random
position of a new row with at least that probability (Lee, Barber & Willett, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax, xlogy

from credax.core.checks import fraction, must, one_of
from credax.diagnostics.calibration import Scores, score
from credax.model import Model
from credax.model.data import check_weights
from credax.model.frame import in_order
from credax.model.sources.source import refuse_source
from credax.posterior import services
from credax.posterior.heads import HeadsPredictive

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
      y: the targets of the held-out rows, or of their positions, one after the other; only those that count.
      temperature: the number by which the log probabilities of the classes are divided; above 1 if the original
        posterior was overconfident.
      seen: which rows or positions count, ``(rows, positions...)``; ``None`` if rows have no positions and all
        of them count.
      head: the name of the head that is corrected, if the model has several.
    """

    posterior: Posterior
    method: str
    held_out: Predictive
    y: np.ndarray
    temperature: float = 1.0
    seen: np.ndarray | None = None
    head: str | None = None

    def __repr__(self) -> str:
        temperature = f", temperature {self.temperature:.3g}" if self.method in CLASSES else ""
        what = "rows" if self.seen is None or self.seen.ndim == 1 else "positions"
        return f"Calibrated({self.method!r}, {len(self.y)} held-out {what}{temperature})"

    def predict(
        self, x: Any, *, num_samples: int | None = None, key: Any = 0
    ) -> CalibratedPredictive:
        """Corrected predictions; the arguments are those of :meth:`credax.Posterior.predict`."""
        refuse_source("predict", x)
        found: Any = self.posterior.predict(x, num_samples=num_samples, key=key)
        return CalibratedPredictive(self, found if self.head is None else found[self.head])

    def evaluate(self, x: Any, y: Any, *, weights: Any = None, key: Any = 0) -> Scores:
        """Scores of the corrected predictions; the arguments are those of :meth:`credax.Posterior.evaluate`."""
        model: Any = self.posterior.model
        task = (model.likelihood if self.head is None else model.likelihood[self.head]).task
        y = in_order("y", y, model.frame.y_names)
        return score(self.predict(x, key=key), task, y, weights)

    def of_held_out(self, values: Any, axes: int = 0) -> np.ndarray:
        """Values for the held-out rows, after some leading axes: those that belong to ``y``."""
        values = np.asarray(values)
        return values if self.seen is None else values[(slice(None),) * axes + (self.seen,)]

    def correction(self, scores: np.ndarray, level: float) -> np.ndarray:
        """The smallest bound that a new score satisfies with probability at least ``level``."""
        if self.seen is None or self.seen.ndim == 1:
            return conformal_quantile(scores, level)
        return conformal_quantile(scores, level, np.nonzero(self.seen)[0])


class CalibratedHeads(Mapping[str, Calibrated]):
    """The corrections of a model with several heads, by their names. It predicts as a posterior does."""

    def __init__(self, posterior: Posterior, heads: Mapping[str, Calibrated]):
        self._posterior, self._heads = posterior, dict(heads)

    def __getitem__(self, name: str) -> Calibrated:
        return self._heads[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {each!r}" for name, each in self.items())

    def predict(
        self, x: Any, *, num_samples: int | None = None, key: Any = 0
    ) -> dict[str, CalibratedPredictive]:
        """The corrected predictions of each head."""
        refuse_source("predict", x)
        found: Any = self._posterior.predict(x, num_samples=num_samples, key=key)
        return {name: CalibratedPredictive(each, found[name]) for name, each in self.items()}

    def evaluate(self, x: Any, y: Any, *, weights: Any = None, key: Any = 0) -> dict[str, Scores]:
        """The scores of each head; the arguments are those of :meth:`credax.Posterior.evaluate`."""
        model: Any = self._posterior.model
        model.likelihood_targets(y, len(model.check_inputs(x)), weights)  # refuses other names
        return {
            name: score(each, model.likelihood[name].task, y[name], _of_head(weights, name))
            for name, each in self.predict(x, key=key).items()
        }


def calibrate(
    posterior: Posterior,
    x: Any,
    y: Any,
    method: str | None = None,
    weights: Any = None,
    key: Any = 0,
) -> Any:
    """Correct a posterior's predictions with held-out rows; see :meth:`credax.Posterior.calibrate`."""
    refuse_source("calibrate", x)
    predictive, model = posterior.predict(x, key=key), posterior.model
    rows = len(model.check_inputs(x))  # pyright: ignore[reportAttributeAccessIssue]
    likelihood: Any = model.likelihood  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(predictive, HeadsPredictive):
        model.likelihood_targets(y, rows, weights)  # pyright: ignore[reportAttributeAccessIssue]
        heads = {
            name: _corrected(
                posterior,
                each,
                likelihood[name].task,
                y[name],
                method,
                _of_head(weights, name),
                name,
            )
            for name, each in predictive.items()
        }
        return CalibratedHeads(posterior, heads)
    if isinstance(model, Model) and model.divided:
        model.likelihood_targets(y, rows, weights)
    else:
        y, weights = model.check_targets(y, rows), check_weights(weights, rows)  # pyright: ignore[reportAttributeAccessIssue]
    return _corrected(posterior, predictive, likelihood.task, y, method, weights)


def _corrected(
    posterior: Posterior,
    predictive: Any,
    task: str,
    y: Any,
    method: str | None,
    weights: Any,
    head: str | None = None,
) -> Calibrated:
    """The correction of one array of predictions, whose targets have been checked."""
    allowed = CLASSES if task == "classification" else NUMBERS
    chosen: str = one_of("calibrate", "method", allowed[0] if method is None else method, allowed)
    y, seen, counts = np.asarray(y), None, None
    positions = getattr(predictive, "positions", None) or ()
    if positions or weights is not None:
        counts = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
        if counts.ndim == 1:
            counts = counts.reshape(-1, *[1] * len(positions))
        counts = np.broadcast_to(counts, (len(y), *positions))
        seen = counts > 0
        y, counts = y[seen], counts[seen]
    found = Calibrated(posterior, chosen, predictive, y, seen=seen, head=head)
    if chosen != "temperature":
        return replace(found, y=y.astype(np.float64))
    labels = y.reshape(-1).astype(int)
    temperature = _best_temperature(found.of_held_out(predictive.probs), labels, counts)
    return replace(found, y=labels, temperature=temperature)


def _of_head(weights: Any, name: str) -> Any:
    """The weights of one head, from those of some heads or from those of the rows."""
    return weights.get(name) if isinstance(weights, Mapping) else weights


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
        self._calibrated.posterior.model.check_undivided("plot")  # pyright: ignore[reportAttributeAccessIssue]
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
        known, here = self._calibrated, self._predictive
        held_out, y = known.held_out, known.y
        if known.method == "residual":
            scores = np.abs(y - known.of_held_out(held_out.mean)) / known.of_held_out(held_out.std)
            reach = np.stack([known.correction(scores, level) * here.std for level in levels])
            return here.mean - reach, here.mean + reach
        lower, upper = known.of_held_out(_central(held_out, levels), 2)
        outside = np.maximum(lower - y, y - upper)
        # If the intervals were too wide, the correction is negative and shrinks them.
        reach = [known.correction(o, level) for o, level in zip(outside, levels, strict=True)]
        lower, upper = _central(here, levels)
        # The axes of the levels and the targets, and between them those of the rows and their positions.
        reach, middle = np.stack(reach), (lower + upper) / 2
        reach = reach.reshape(len(levels), *[1] * (lower.ndim - reach.ndim), *reach.shape[1:])
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
        probs = self.probs
        return probs if probs.size == mean.size else probs[..., 1].reshape(mean.shape)

    @property
    def label(self) -> np.ndarray:
        """The most probable class."""
        return np.argmax(self.probs, axis=-1)

    @property
    def entropy(self) -> np.ndarray:
        """The entropy of the corrected probabilities."""
        return -np.sum(xlogy(self.probs, self.probs), axis=-1)

    def log_prob(self, y: Any, *, weights: Any = None) -> np.ndarray:
        """The log density of each row's target; for classification, by the corrected probabilities.

        Args:
          y: the targets.
          weights: the weights of the rows, or of the positions. Where one is zero, the result is zero.
        """
        given = {} if weights is None else {"weights": weights}
        found = self._predictive.log_prob(y, **given)  # checks both
        if self._calibrated.method != "temperature":
            return found
        probs = self.probs.reshape(-1, self.probs.shape[-1])
        seen = np.ones(len(probs), bool)
        if weights is not None:
            each = np.asarray(weights)
            each = each.reshape(*each.shape, *[1] * (found.ndim - each.ndim))
            seen = np.broadcast_to(each > 0, found.shape).reshape(-1)
        labels = np.where(seen, np.reshape(y, -1), 0).astype(int)
        logs = np.log(np.maximum(probs[np.arange(len(probs)), labels], np.finfo(float).tiny))
        return np.where(seen, logs, 0.0).reshape(found.shape)

    def prediction_set(self, level: float = 0.9) -> np.ndarray:
        """Sets of classes that contain the true one with probability at least ``level``.

        The result is boolean, ``(rows, positions..., classes)``. A set contains the classes whose probability
        reaches a threshold (Sadinle et al., 2019). It is empty where the most probable class stays below it.
        """
        if self._calibrated.method != "temperature":
            raise AttributeError(
                "prediction_set is for classification; use interval for regression."
            )
        level = fraction("prediction_set", "level", level)
        known, labels = self._calibrated, self._calibrated.y
        held_out = _tempered(known.of_held_out(known.held_out.probs), known.temperature)
        threshold = known.correction(-held_out[np.arange(len(labels)), labels], level)
        return -self.probs <= threshold


def _central(predictive: Predictive, levels: np.ndarray) -> np.ndarray:
    """The ends of the central intervals, with axes (lower or upper, level, row, ...)."""
    tails = np.stack([(1 - levels) / 2, (1 + levels) / 2])
    return np.asarray(predictive.quantile(tails), np.float64)


def conformal_quantile(
    scores: np.ndarray, level: float, rows: np.ndarray | None = None
) -> np.ndarray:
    """The smallest bound that a new score satisfies with probability at least ``level``, for each column.

    Args:
      scores: the scores of the targets that were held out, along the first axis.
      level: the probability.
      rows: the number of the row that each score belongs to; ``None`` if every row has one score.
    """
    if rows is None:
        n, shares = len(scores), None
    else:
        _, own, sizes = np.unique(rows, return_inverse=True, return_counts=True)
        n, shares = len(sizes), 1 / sizes[own]
    rank = math.ceil(
        (n + 1) * level - 1e-9
    )  # rounding may put (n + 1) * 0.9 just above a whole number
    if rank > n:
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise ValueError(
            f"calibrate(x=...) must have at least {needed} rows for intervals of {100 * level:g} %; got {n}."
        )
    if shares is None:
        return np.sort(scores, axis=0)[rank - 1]
    order = np.argsort(scores, axis=0, kind="stable")
    reached = np.cumsum(shares[order], axis=0) >= (n + 1) * level - 1e-9
    return np.take_along_axis(scores, order, 0)[
        np.argmax(reached, axis=0), *np.indices(scores.shape[1:])
    ]


def _tempered(probs: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return softmax(np.log(np.asarray(probs, np.float64)) / temperature, axis=-1)


def _best_temperature(
    probs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """The temperature that maximises the likelihood of the held-out rows (Guo et al., 2017)."""
    logs = np.log(np.maximum(np.asarray(probs, np.float64), np.finfo(float).tiny))
    rows = np.arange(len(labels))

    def loss(log_temperature):
        found = log_softmax(logs / math.exp(log_temperature), axis=1)[rows, labels]
        return -np.average(found, weights=weights)

    bounds = (math.log(0.05), math.log(20))
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)


services.calibrate = calibrate
