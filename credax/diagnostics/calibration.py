r"""Scores of predictions: their accuracy, and whether their probabilities are calibrated.

Every score is a function of means over the rows, so its standard error is that of the same function over rows
that are resampled with replacement (the bootstrap; Efron, 1979).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from credax.core.display import html_table
from credax.model import Model
from credax.model.frame import in_order
from credax.posterior import services
from credax.posterior.heads import HeadsPredictive

if TYPE_CHECKING:
    from credax.posterior import Posterior

LEVELS = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2))
"""Levels of the central intervals whose coverage is measured."""
BINS = 15
"""Number of bins of the expected calibration error, as in Guo et al. (2017)."""
RESAMPLES = 500
"""Number of bootstrap resamples behind a standard error."""


class Score(float):
    """A float with a standard error, e.g. ``0.914 ± 0.012``."""

    standard_error: float

    def __new__(cls, value: float, standard_error: float = float("nan")) -> Score:
        """Make a score of a value and its standard error."""
        score = super().__new__(cls, value)
        score.standard_error = float(standard_error)
        return score

    def __repr__(self) -> str:
        return f"{float(self):.4g} ± {self.standard_error:.2g}"

    __str__ = __repr__


@dataclass(frozen=True, repr=False)
class Scores:
    """The result of :meth:`credax.Posterior.evaluate`. ``print`` shows it as a table.

    Each score is a float with a ``standard_error``. Scores that do not apply to the task are ``None``.

    Attributes:
      rows: the number of rows that were evaluated; of positions, if rows are divided into them.
      log_likelihood: the mean log predictive density (or probability) of the targets.
      rmse: the root mean squared error of the predictive mean.
      mae: the mean absolute error of the predictive median.
      crps: the continuous ranked probability score, in the units of y; it is the absolute error if the
        prediction is a point.
      coverage: the fraction of targets inside their 90 % interval.
      width: the mean width of the 90 % intervals.
      calibration_error: the mean absolute difference between level and coverage over the levels 5 %, 10 %, ...,
        95 %.
      sharpness: the mean predictive standard deviation; for classification, the mean probability of the most
        probable class.
      accuracy: the fraction of rows whose most probable class is correct.
      brier: the mean over rows of the squared distance between the class probabilities and the one-hot label.
      ece: the expected calibration error of the most probable class, with bins of equal width.
      ece_equal_mass: the same with bins that contain equally many rows.
      levels: the levels of ``coverage_at`` and ``width_at``.
      coverage_at: the fraction of targets inside the interval of each level.
      width_at: the mean width of the intervals of each level.
      pit: the probability integral transform P(y' <= y) of each target under its predictive distribution,
        uniform if the predictions are calibrated; for counts, the mean of P(y' < y) and P(y' <= y).
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
    levels: np.ndarray | None = None
    coverage_at: np.ndarray | None = None
    width_at: np.ndarray | None = None
    pit: np.ndarray | None = None

    def __iter__(self) -> Iterator[tuple[str, Score]]:
        """The names and values of the scores that apply to the task."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Score):
                yield item.name, value

    def __repr__(self) -> str:
        scores = ", ".join(f"{name}={value}" for name, value in self)
        return f"Scores(rows={self.rows}, {scores})"

    def __str__(self) -> str:
        rows = [
            (name.replace("_", " "), f"{value:.4g}", value.standard_error) for name, value in self
        ]
        wide = max(len(name) for name, *_ in rows)
        lines = [f"{name:<{wide}}  {value:>9}  ± {error:.2g}" for name, value, error in rows]
        return "\n".join([f"{self.rows} rows", *lines])

    def _repr_html_(self) -> str:
        rows = [
            (name.replace("_", " "), f"{value:.4g}", f"± {value.standard_error:.2g}")
            for name, value in self
        ]
        return html_table(("", "score", "standard error"), rows, caption=f"{self.rows} rows")


def evaluate(posterior: Posterior, x: Any, y: Any, *, weights: Any = None, key: Any = 0) -> Any:
    """Score a posterior on rows that its fit has not seen. See :meth:`credax.Posterior.evaluate`."""
    predictive, model = posterior.predict(x, key=key), posterior.model
    assert isinstance(model, Model), "predict has refused all others"
    if isinstance(predictive, HeadsPredictive):
        model.likelihood_targets(y, len(predictive.x), weights)  # refuses other names
        of_head = weights if isinstance(weights, Mapping) else dict.fromkeys(predictive, weights)
        tasks = {name: model.likelihood[name].task for name in predictive}  # pyright: ignore[reportIndexIssue]
        return {
            name: score(each, tasks[name], y[name], of_head.get(name))
            for name, each in predictive.items()
        }
    y = in_order("y", y, model.frame.y_names)
    return score(predictive, model.likelihood.task, y, weights)


def score(predictive: Any, task: str, y: Any, weights: Any = None) -> Scores:
    """Score predictions against their targets.

    Args:
      predictive: the predictions.
      task: ``"classification"``, ``"regression"`` or ``"count"``.
      y: the targets.
      weights: how much each row or position counts; ``None`` if all count once.
    """
    if weights is not None or getattr(predictive, "positions", None) is not None:
        return _score_parts(predictive, task, y, weights)
    log_prob = predictive.log_prob(y).astype(np.float64)
    of = _of_classes if task == "classification" else partial(_of_numbers, task)
    sums, arrays = of(predictive, np.asarray(y))
    found = {"log_likelihood": Sums(log_prob[:, None], _first), **sums}
    scores = dict(zip(found, bootstrap(list(found.values())), strict=True))
    return Scores(len(log_prob), **scores, **arrays)


def _score_parts(predictive: Any, task: str, y: Any, weights: Any) -> Scores:
    """Score the predictions of all positions, or of rows, that have a positive weight."""
    log_prob = predictive.log_prob(y, weights=weights)  # checks y and weights
    each = np.ones(log_prob.shape) if weights is None else np.asarray(weights, np.float64)
    if each.shape != log_prob.shape:
        each = each.reshape(-1, *[1] * (log_prob.ndim - 1))
    each = np.broadcast_to(each, log_prob.shape)
    seen = each > 0
    part = Seen(predictive, y, seen)
    of = _of_classes if task == "classification" else partial(_of_numbers, task)
    sums, arrays = of(part, part.y)
    found = {"log_likelihood": Sums(log_prob[seen][:, None].astype(np.float64), _first), **sums}
    rows = np.nonzero(seen)[0]
    scores = weighted_bootstrap(list(found.values()), each[seen], rows)
    named = dict(zip(found, scores, strict=True))
    return Scores(int(seen.sum()), **named, **arrays)


class Seen:
    """The predictions of those rows or positions that count, one after the other, like those of rows."""

    def __init__(self, predictive: Any, y: Any, seen: np.ndarray):
        self._predictive, self._seen = predictive, seen
        whole = np.asarray(y)
        # At other positions any target may stand, so a valid one takes its place.
        self._whole = whole.copy()
        self._whole[~seen] = whole[seen][0]
        self.y = whole[seen]

    def _of(self, values: Any, axes: int = 0) -> np.ndarray:
        values = np.asarray(values)
        return values[(slice(None),) * axes + (self._seen,)]

    @property
    def mean(self) -> np.ndarray:
        """E[y]; for classification, the probability of each class."""
        return self._of(self._predictive.mean)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of y."""
        return self._of(self._predictive.std)

    @property
    def probs(self) -> np.ndarray:
        """The probability of each class."""
        return self._of(self._predictive.probs)

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles of y, with a leading axis for the levels."""
        return self._of(self._predictive.quantile(q), 1)

    def crps(self, y: Any) -> np.ndarray:
        """The continuous ranked probability score of the targets."""
        return self._of(self._predictive.crps(self._whole))

    def cdf(self, t: np.ndarray) -> np.ndarray:
        """P(y <= t)."""
        whole = np.array(self._whole, np.float64)
        whole[self._seen] = t
        return self._of(self._predictive.cdf(whole))


# -- the scores, as functions of means over rows ----------------------------------------------------


class Sums(NamedTuple):
    """A score that is the function ``of`` of the column means of ``rows``."""

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
    if np.ndim(y) == 2 and y.shape[1] > 1:  # several labels per row
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
    r"""The contribution of each row to each bin of the expected calibration error.

    .. math:: \mathrm{ECE} = \sum_b \Bigl| \tfrac{1}{n} \sum_{i \in b} (r_i - c_i) \Bigr|

    where r_i is one if the most probable class is correct and zero otherwise, and c_i is its probability. The
    ECE is the sum over bins of the absolute mean of the returned array over rows. Each bin includes its upper
    edge, as in Guo et al. (2017).
    """
    bins = np.searchsorted(edges, confidence, side="left")
    held = bins[..., None] == np.arange(len(edges) + 1)
    return np.mean((right - confidence)[..., None] * held, axis=1)


def bootstrap(sums: list[Sums], resamples: int = RESAMPLES, seed: int = 0) -> list[Score]:
    """Each score with its bootstrap standard error; all scores share the same resamples of the rows."""
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


def weighted_bootstrap(
    sums: list[Sums], weights: np.ndarray, rows: np.ndarray, seed: int = 0
) -> list[Score]:
    """As :func:`bootstrap`, of weighted means; positions of one row are resampled together.

    Args:
      sums: the scores.
      weights: the weight of each position.
      rows: the number of the row that each position belongs to.
      seed: the seed of the resamples.
    """
    joined = np.concatenate([each.rows for each in sums], axis=1)
    ends = np.cumsum([each.rows.shape[1] for each in sums])
    numbers, own = np.unique(rows, return_inverse=True)
    n = len(numbers)
    totals, sizes = np.zeros((n, joined.shape[1])), np.zeros(n)
    np.add.at(totals, own, weights[:, None] * joined)
    np.add.at(sizes, own, weights)
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    means = counts @ totals / (counts @ sizes)[:, None]
    mean = totals.sum(0) / sizes.sum()
    scores = []
    for each, end in zip(sums, ends, strict=True):
        part = slice(end - each.rows.shape[1], end)
        error = np.std(each.of(means[:, part]), ddof=1) if n > 1 else np.nan
        scores.append(Score(float(each.of(mean[part])), float(error)))
    return scores


# -- out of distribution ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detection:
    """How well a measure of uncertainty separates out-of-distribution rows from in-distribution rows.

    Attributes:
      auroc: the area under the ROC curve: the probability that an out-of-distribution row is more uncertain
        than an in-distribution row.
      aupr: the area under the precision-recall curve, with out-of-distribution rows as positives.
    """

    auroc: float
    aupr: float


def detect(
    posterior: Posterior, x_inside: Any, x_outside: Any, *, key: Any = 0
) -> Mapping[str, Detection]:
    """Measure how well each kind of uncertainty detects out-of-distribution rows.

    Args:
      posterior: any posterior of a ``Model``.
      x_inside: in-distribution rows, like those of the fit.
      x_outside: out-of-distribution rows.
      key: an int or a JAX key, for the posterior samples used in prediction.

    Returns:
      A detection for each measure. For classification: ``"entropy"``, ``"mutual_information"`` and
      ``"variance"`` (the epistemic variance summed over the classes). For regression: ``"variance"`` (total)
      and ``"epistemic"`` (its epistemic part).
    """
    inside, outside = (_uncertainties(posterior, x, key) for x in (x_inside, x_outside))
    return {name: Detection(*detection(inside[name], outside[name])) for name in inside}


def _uncertainties(posterior: Any, x: Any, key: Any) -> dict[str, np.ndarray]:
    predictive = posterior.predict(x, key=key)
    rowwise = lambda values: np.reshape(values, (len(values), -1)).sum(1)  # noqa: E731
    if isinstance(predictive, HeadsPredictive):
        raise TypeError("detect is for one target; this model has several heads.")
    if posterior.model.likelihood.task != "classification":
        return {
            "variance": rowwise(predictive.variance),
            "epistemic": rowwise(predictive.epistemic),
        }
    return {
        "entropy": rowwise(predictive.entropy),
        "mutual_information": rowwise(predictive.mutual_information),
        "variance": rowwise(predictive.epistemic),
    }


def detection(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """AUROC and AUPR (average precision) of a score that should be higher for ``outside``."""
    scores = np.concatenate([inside, outside])
    positive = np.repeat([False, True], [len(inside), len(outside)])
    ranks = rankdata(scores)[positive]
    auroc = (ranks.sum() - len(outside) * (len(outside) + 1) / 2) / (len(inside) * len(outside))
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    # Rows of equal score are one step of the curve.
    last = np.append(scores[1:] != scores[:-1], True)
    found, looked = np.cumsum(positive)[last], np.arange(1, len(scores) + 1)[last]
    recall = found / len(outside)
    aupr = np.sum(np.diff(recall, prepend=0.0) * found / looked)
    return float(auroc), float(aupr)


services.evaluate = evaluate
