r"""How good the predictions of a posterior are, and how far their probabilities can be believed.

Every score is a function of sums over the rows, so its standard error comes from the same sums over rows drawn
with replacement (the bootstrap of Efron, 1979).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from credax.posterior import services

if TYPE_CHECKING:
    from credax.posterior import Posterior
    from credax.posterior.predictive import Predictive

LEVELS = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2))
"""Levels at which intervals are judged."""
BINS = 15
"""Bins of an expected calibration error; those of Guo et al. (2017)."""
RESAMPLES = 500
"""Bootstrap samples behind a standard error."""


class Score(float):
    """A number that knows its standard error."""

    standard_error: float

    def __new__(cls, value: float, standard_error: float = float("nan")) -> Score:
        """The value, with its standard error."""
        score = super().__new__(cls, value)
        score.standard_error = float(standard_error)
        return score

    def __repr__(self) -> str:
        return f"{float(self):.4g} ± {self.standard_error:.2g}"

    __str__ = __repr__


@dataclass(frozen=True)
class Scores:
    """What :meth:`credax.Posterior.evaluate` returns; print it for a table.

    Each score is a float with a ``standard_error``. Those of the other kind of task are ``None``.

    Attributes:
      rows: how many rows it was judged on.
      log_likelihood: the mean log predictive density (or probability) of a row's target.
      rmse: the root of the mean squared error of the predicted mean.
      mae: the mean absolute error of the predicted median.
      crps: the continuous ranked probability score, in the units of y; for a certain prediction, its
        absolute error.
      coverage: the share of targets inside their 90 % interval.
      width: the mean width of the 90 % intervals.
      calibration_error: the mean distance between level and coverage over the levels 5 %, 10 %, ..., 95 %.
      sharpness: the mean predictive standard deviation; for classes, the mean probability of the likeliest.
      accuracy: the share of rows whose likeliest class is right.
      brier: the mean squared distance between probabilities and what happened, summed over the classes.
      ece: the expected calibration error of the likeliest class, over bins of equal width.
      ece_equal_mass: the same over bins of equally many rows.
      levels: the levels of ``coverage_at`` and ``width_at``.
      coverage_at: the share of targets inside the interval of each level.
      width_at: the mean width of the intervals of each level.
      pit: P(y' <= y) of each target under its prediction, uniform where the predictions are calibrated; for
        counts, the mean of P(y' < y) and P(y' <= y).
    """

    rows: int
    log_likelihood: Score
    rmse: Score | None = None
    mae: Score | None = None
    crps: Score | None = None
    coverage: Score | None = None
    width: Score | None = None
    calibration_error: Score | None = None
    sharpness: Score | None = None
    accuracy: Score | None = None
    brier: Score | None = None
    ece: Score | None = None
    ece_equal_mass: Score | None = None
    levels: np.ndarray | None = field(default=None, repr=False)
    coverage_at: np.ndarray | None = field(default=None, repr=False)
    width_at: np.ndarray | None = field(default=None, repr=False)
    pit: np.ndarray | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[tuple[str, Score]]:
        """The names of the scores that there are, with their values."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Score):
                yield item.name, value

    def __str__(self) -> str:
        rows = [
            (name.replace("_", " "), f"{value:.4g}", value.standard_error) for name, value in self
        ]
        wide = max(len(name) for name, *_ in rows)
        lines = [f"{name:<{wide}}  {value:>9}  ± {error:.2g}" for name, value, error in rows]
        return "\n".join([f"{self.rows} rows", *lines])


def evaluate(posterior: Posterior, x: Any, y: Any, *, key: Any = 0) -> Scores:
    """The scores of a posterior on rows that it has not seen. See :meth:`credax.Posterior.evaluate`."""
    predictive = posterior.predict(x, key=key)
    return score(predictive, posterior.model.likelihood.task, y)  # pyright: ignore[reportAttributeAccessIssue]


def score(predictive: Predictive, task: str, y: Any) -> Scores:
    """The scores of a prediction; the task is ``"classification"``, ``"regression"`` or ``"count"``."""
    log_prob = predictive.log_prob(y).astype(np.float64)
    of = _of_classes if task == "classification" else partial(_of_numbers, task)
    sums, arrays = of(predictive, np.asarray(y))
    found = {"log_likelihood": Sums(log_prob[:, None], _first), **sums}
    scores = dict(zip(found, bootstrap(list(found.values())), strict=True))
    return Scores(len(log_prob), **scores, **arrays)


# -- the scores, as functions of means over rows ----------------------------------------------------


class Sums(NamedTuple):
    """A score ``of(means)``, the means being those of the columns of ``rows``."""

    rows: np.ndarray
    of: Callable[[np.ndarray], np.ndarray]


def _first(means: np.ndarray) -> np.ndarray:
    return means[..., 0]


def _root(means: np.ndarray) -> np.ndarray:
    return np.sqrt(means[..., 0])


def _total(means: np.ndarray) -> np.ndarray:
    return np.abs(means).sum(-1)


def _of_numbers(
    task: str, predictive: Any, y: np.ndarray
) -> tuple[dict[str, Sums], dict[str, Any]]:
    y = np.asarray(y, np.float64)
    rows = len(y)
    flat = lambda values: np.asarray(values, np.float64).reshape(rows, -1)  # noqa: E731
    each = lambda values: flat(values).mean(1, keepdims=True)  # noqa: E731  (over the targets of a row)
    levels = np.array(LEVELS)
    tails = np.concatenate([(1 - levels) / 2, (1 + levels) / 2, [0.5]])
    quantiles = np.asarray(predictive.quantile(tails), np.float64).reshape(len(tails), rows, -1)
    lower, upper, median = quantiles[: len(levels)], quantiles[len(levels) : -1], quantiles[-1]
    inside = ((flat(y) >= lower) & (flat(y) <= upper)).mean(-1).T
    width = (upper - lower).mean(-1).T
    at = LEVELS.index(0.9)
    sums = {
        "rmse": Sums(each((flat(predictive.mean) - flat(y)) ** 2), _root),
        "mae": Sums(each(np.abs(median - flat(y))), _first),
        "crps": Sums(each(predictive.crps(y)), _first),
        "coverage": Sums(inside[:, [at]], _first),
        "width": Sums(width[:, [at]], _first),
        "calibration_error": Sums((inside - levels) / len(levels), _total),
        "sharpness": Sums(each(predictive.std), _first),
    }
    curves = {"levels": levels, "coverage_at": inside.mean(0), "width_at": width.mean(0)}
    pit = np.asarray(predictive.cdf(y))
    if task == "count":
        pit = (pit + predictive.cdf(y - 1)) / 2
    return sums, {**curves, "pit": pit}


def _of_classes(predictive: Any, y: np.ndarray) -> tuple[dict[str, Sums], dict[str, Any]]:
    mean = np.asarray(predictive.mean, np.float64)
    if np.ndim(y) == 2 and y.shape[1] > 1:  # several labels a row
        right = ((mean > 0.5) == y).astype(np.float64)
        confidence, brier = np.maximum(mean, 1 - mean), 2 * ((mean - y) ** 2).mean(1)
    else:
        probs, y = np.asarray(predictive.probs, np.float64), np.reshape(y, -1).astype(int)
        right = (np.argmax(probs, 1) == y)[:, None].astype(np.float64)
        confidence = probs.max(1)[:, None]
        brier = ((probs - np.eye(probs.shape[1])[y]) ** 2).sum(1)
    sums = {
        "sharpness": Sums(confidence.mean(1, keepdims=True), _first),
        "accuracy": Sums(right.mean(1, keepdims=True), _first),
        "brier": Sums(brier[:, None], _first),
        "ece": Sums(gaps(confidence, right, np.linspace(0, 1, BINS + 1)[1:-1]), _total),
    }
    edges = np.quantile(confidence, np.linspace(0, 1, BINS + 1)[1:-1])
    sums["ece_equal_mass"] = Sums(gaps(confidence, right, edges), _total)
    return sums, {}


def gaps(confidence: np.ndarray, right: np.ndarray, edges: np.ndarray) -> np.ndarray:
    r"""What each row adds to the gap of each bin, whose mean over the rows has the ECE as its absolute sum.

    .. math:: \mathrm{ECE} = \sum_b \Bigl| \tfrac{1}{n} \sum_{i \in b} (r_i - c_i) \Bigr|

    with r_i one where the likeliest class is right, and c_i its probability.

    A bin holds its upper edge, as in Guo et al. (2017).
    """
    bins = np.searchsorted(edges, confidence, side="left")
    held = bins[..., None] == np.arange(len(edges) + 1)
    return np.mean((right - confidence)[..., None] * held, axis=1)


def bootstrap(sums: list[Sums], resamples: int = RESAMPLES, seed: int = 0) -> list[Score]:
    """Each score with its standard error over rows drawn with replacement, the same for all of them."""
    joined = np.concatenate([each.rows for each in sums], axis=1)
    n, ends = len(joined), np.cumsum([each.rows.shape[1] for each in sums])
    generator = np.random.default_rng(seed)
    counts = (generator.multinomial(n, np.full(n, 1 / n)) for _ in range(resamples))
    means = np.stack([count @ joined / n for count in counts])
    scores = []
    for each, end in zip(sums, ends, strict=True):
        part = slice(end - each.rows.shape[1], end)
        value = each.of(joined[:, part].mean(0))
        error = np.std(each.of(means[:, part]), ddof=1) if n > 1 else np.nan
        scores.append(Score(float(value), float(error)))
    return scores


# -- out of distribution ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detection:
    """How well a measure of uncertainty tells rows of another kind from rows like those of the fit.

    Attributes:
      auroc: the probability that a row of another kind is less sure than one like those of the fit.
      aupr: the area under precision against recall, rows of another kind being those to find.
    """

    auroc: float
    aupr: float


def detect(
    posterior: Posterior, x_inside: Any, x_outside: Any, *, key: Any = 0
) -> Mapping[str, Detection]:
    """How well each measure of uncertainty finds rows of another kind.

    Args:
      posterior: any.
      x_inside: rows like those of the fit.
      x_outside: rows of another kind.
      key: an int or a JAX key, for the choice of the draws.

    Returns:
      For classes: ``"entropy"``, ``"mutual_information"`` and ``"variance"`` (the sum over classes of the
      epistemic variance); for numbers: ``"variance"``, and its part ``"epistemic"``.
    """
    inside, outside = (_uncertainties(posterior, x, key) for x in (x_inside, x_outside))
    return {name: Detection(*detection(inside[name], outside[name])) for name in inside}


def _uncertainties(posterior: Any, x: Any, key: Any) -> dict[str, np.ndarray]:
    predictive = posterior.predict(x, key=key)
    rowwise = lambda values: np.reshape(values, (len(values), -1)).sum(1)  # noqa: E731
    if posterior.model.likelihood.task != "classification":
        return {
            "variance": rowwise(predictive.variance),
            "epistemic": rowwise(predictive.epistemic),
        }
    return {
        "entropy": predictive.entropy,
        "mutual_information": predictive.mutual_information,
        "variance": rowwise(predictive.epistemic),
    }


def detection(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """AUROC and AUPR (average precision) of a score that should be higher outside."""
    scores = np.concatenate([inside, outside])
    positive = np.repeat([False, True], [len(inside), len(outside)])
    ranks = rankdata(scores)[positive]
    auroc = (ranks.sum() - len(outside) * (len(outside) + 1) / 2) / (len(inside) * len(outside))
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    # Rows of equal score are found together.
    last = np.append(scores[1:] != scores[:-1], True)
    found, looked = np.cumsum(positive)[last], np.arange(1, len(scores) + 1)[last]
    recall = found / len(outside)
    aupr = np.sum(np.diff(recall, prepend=0.0) * found / looked)
    return float(auroc), float(aupr)


services.evaluate = evaluate
