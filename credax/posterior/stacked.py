r"""Several posteriors as one: their predictive distributions are averaged with weights.

.. math:: p(y \mid x, D) = \sum_k \omega_k\, p_k(y \mid x, D), \qquad \omega_k \ge 0, \quad \sum_k \omega_k = 1

The weights maximise the log density of rows that the posteriors have not seen (stacking of predictive
distributions; Yao et al., 2018):

.. math:: \hat\omega = \arg\max_\omega \sum_i \log \sum_k \omega_k\, p_k(y_i \mid x_i, D_{-i})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.special import xlogy

from credax.core import random
from credax.core.checks import integer, must
from credax.core.display import html_table, text_table
from credax.core.special import logsumexp
from credax.model import Model
from credax.model.sources.source import refuse_source
from credax.posterior import display, services
from credax.posterior.posterior import Posterior
from credax.posterior.predictive import SHOWN, Predictive

if TYPE_CHECKING:
    from credax.diagnostics.calibration import Scores
    from credax.diagnostics.recalibration import Calibrated

ITERATIONS = 500
"""The most iterations of the algorithm that finds the weights, each of which raises the objective."""
BISECTIONS = 30
"""How many times the bracket of a quantile is halved."""
CRPS_POINTS = 200
"""The number of points at which the distribution function is evaluated for a CRPS."""


def stacking_weights(log_probs: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """The weights with which a mixture of predictions gives held-out rows the highest density.

    The objective is concave. The EM algorithm raises it at every iteration, and needs no step size.

    Args:
      log_probs: the log density of each held-out row under each candidate, ``(candidates, rows)``.
      counts: how often each row counts, its weight. If ``None``, every row counts once.

    >>> stacking_weights(np.log([[0.5, 0.5, 0.5], [0.1, 0.1, 0.1]])).round(3)
    array([1., 0.])
    """
    log_probs = np.asarray(log_probs, np.float64)
    log_weights = np.full(len(log_probs), -np.log(len(log_probs)))
    counted = np.ones(log_probs.shape[1]) if counts is None else counts
    log_probs, counted = log_probs[:, counted > 0], counted[counted > 0]
    for _ in range(ITERATIONS):
        joint = log_weights[:, None] + log_probs
        shares = joint - logsumexp(joint, axis=0)
        updated = logsumexp(shares, axis=1, b=counted) - np.log(counted.sum())
        moved = np.max(np.abs(np.exp(updated) - np.exp(log_weights)))
        log_weights = updated
        if moved < 1e-6:
            break
    weights = np.exp(log_weights)
    return weights / weights.sum()


def methods_of(posterior: Posterior | StackedPosterior) -> str:
    """The names of the methods behind a posterior, with their weights if there are several."""
    if isinstance(posterior, Posterior):
        return display.method_name(posterior.method)
    pairs = zip(posterior.components, posterior.weights, strict=True)
    return ", ".join(f"{weight:.0%} {display.method_name(part.method)}" for part, weight in pairs)


@dataclass(frozen=True, eq=False, repr=False)
class StackedPosterior:
    """Several posteriors of the same data, whose predictions are averaged with weights.

    It predicts, is judged, diagnosed and saved as any :class:`Posterior`. Where a question has no answer for
    several models together (``model``, ``method``, ``approximation``), the answer is that of the component with
    the largest weight, ``leading``.

    Attributes:
      components: the posteriors.
      weights: the weight of each of them; positive numbers that add up to one.
      info: what the fit recorded.
    """

    components: tuple[Posterior, ...]
    weights: tuple[float, ...]
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.components:
            raise ValueError(must("StackedPosterior", "components", "at least one posterior", ()))
        for part in self.components:
            if isinstance(part.model, Model):
                part.model.check_undivided("StackedPosterior")
        weights = np.asarray(self.weights, np.float64)
        good = len(weights) == len(self.components) and np.all(weights > 0)
        if not good or abs(weights.sum() - 1) > 1e-6:
            allowed = f"{len(self.components)} positive numbers that add up to 1"
            raise ValueError(must("StackedPosterior", "weights", allowed, self.weights))

    def __repr__(self) -> str:
        parts = [
            f"{weight:.0%} {display.method_name(part.method)} with {part.model.likelihood!r}"  # pyright: ignore[reportAttributeAccessIssue]
            for part, weight in zip(self.components, self.weights, strict=True)
        ]
        return f"StackedPosterior({', '.join(parts)})"

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{weight:.0%}",
                display.method_name(part.method),
                repr(getattr(part.model, "likelihood", None)),
                display.count(part.approximation.num_weights, "weights"),
            )
            for part, weight in zip(self.components, self.weights, strict=True)
        ]
        return html_table(("weight", "method", "likelihood", "size"), rows, "StackedPosterior")

    @property
    def leading(self) -> Posterior:
        """The component with the largest weight."""
        return self.components[int(np.argmax(self.weights))]

    @property
    def model(self) -> Any:
        """The model of the leading component."""
        return self.leading.model

    @property
    def method(self) -> Any:
        """The method of the leading component."""
        return self.leading.method

    @property
    def approximation(self) -> Any:
        """The distribution over the parameters of the leading component."""
        return self.leading.approximation

    @property
    def examination(self) -> Mapping[str, Any]:
        """What :meth:`diagnose` knows from the rows of the fit, about the leading component."""
        return self.leading.examination

    def predict(self, x: Any, *, num_samples: int | None = None, key: Any = 0) -> StackedPredictive:
        """The predictive distribution of new rows, averaged over the components.

        Args:
          x: rows with the same columns as in the fit.
          num_samples: the number of draws of each component to average over. If ``None``, its default.
          key: an int or a JAX key, with which the draws are chosen.
        """
        refuse_source("predict", x)
        keys = jax.random.split(random.key(key), len(self.components))
        parts = [
            part.predict(x, num_samples=num_samples, key=each)
            for part, each in zip(self.components, keys, strict=True)
        ]
        return StackedPredictive(parts, self.weights)

    def evaluate(self, x: Any, y: Any, *, key: Any = 0) -> Scores:
        """Scores of the predictions for rows that were not used in the fit; print it for a table."""
        return services.evaluate(self, x, y, key=key)

    def calibrate(
        self, x: Any, y: Any, *, method: str | None = None, weights: Any = None, key: Any = 0
    ) -> Calibrated:
        """This posterior with its predictions corrected on rows that were not used in the fit."""
        return services.calibrate(self, x, y, method, weights, key)

    def diagnose(self, x: Any = None, y: Any = None) -> Any:
        """The problems of this posterior in words, each with the number behind it.

        The predictions are those of all components together; the run and the distribution are those of each
        component.
        """
        return services.diagnose(self, x, y)

    def convergence(self, x: Any = None) -> Any:
        """R-hat and effective sample sizes of the leading component."""
        return self.leading.convergence(x)

    def plot(self, kind: str | None = None, x: Any = None, y: Any = None, **options: Any) -> Any:
        """Draw the run of the leading component, or the predictions; see :meth:`Posterior.plot`."""
        return services.plot_posterior(self, kind, x, y, **options)

    def save(self, path: str | Path) -> None:
        """Write the posterior to one file, which ``cx.load`` reads."""
        services.save(self, path)

    def export(self, path: str | Path, **options: Any) -> None:
        """Write the predictions to one file that runs without credax.

        Args:
          path: the file, whose name ends in ``.npz``.
          **options: those of :meth:`Posterior.export`; ``num_samples`` is that of each component.
        """
        services.export(self, path, **options)


class StackedPredictive:
    """The predictive distribution of each row, a weighted average of those of several models.

    Fields have the shapes of those of :class:`Predictive`.

    Args:
      parts: the predictive distributions.
      weights: the weight of each of them.
    """

    def __init__(self, parts: Sequence[Predictive], weights: Sequence[float]):
        self._parts, self._weights = tuple(parts), np.asarray(weights, np.float64)

    def __repr__(self) -> str:
        title, table, more = self._table()
        return "\n".join(filter(None, (title, text_table(*table), more)))

    def _repr_html_(self) -> str:
        title, table, more = self._table()
        return html_table(*table, title, (more,) if more else ())

    def _table(self) -> tuple[str, tuple[list[str], list[list[str]]], str]:
        """A title, the headings and cells of the first rows, and how many rows more there are."""
        rows = len(self.mean)
        names = ["mean", "std", "epistemic", "aleatoric"]
        if self._parts[0]._model.likelihood.task == "classification":
            names = ["label", "entropy", "mutual_information"]
        columns = [getattr(self, name) for name in names]
        cells = [
            [str(row), *(display.cell(column[row]) for column in columns)]
            for row in range(min(rows, SHOWN))
        ]
        title = f"StackedPredictive({display.count(rows, 'rows')}, {len(self._parts)} models)"
        more = f"... {display.count(rows - SHOWN, 'more rows')}" if rows > SHOWN else ""
        return title, (["", *(name.replace("_", " ") for name in names)], cells), more

    def plot(self, x: Any = None, y: Any = None, *, kind: str | None = None, **options: Any) -> Any:
        """Draw the predictions with matplotlib; see :meth:`Predictive.plot`."""
        return services.plot_predictive(self, x, y, kind, **options)

    def _average(self, of: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        found = [of(part) for part in self._parts]
        total = sum(
            w * np.asarray(a, np.float64) for w, a in zip(self._weights, found, strict=True)
        )
        return np.asarray(total).astype(found[0].dtype)

    # -- every likelihood -------------------------------------------------------------------------

    @cached_property
    def mean(self) -> np.ndarray:
        """E[y]; for classification, the probability of each class."""
        return self._average(lambda part: part.mean)

    @cached_property
    def epistemic(self) -> np.ndarray:
        """The variance of E[y | w] over models and weights."""
        return self._average(lambda part: part.epistemic + (part.mean - self.mean) ** 2)

    @cached_property
    def aleatoric(self) -> np.ndarray:
        """The mean of Var[y | w] over models and weights."""
        return self._average(lambda part: part.aleatoric)

    variance, std = Predictive.variance, Predictive.std

    def log_prob(self, y: Any) -> np.ndarray:
        """The log density of each row's target, ``(rows,)``."""
        found = np.stack([part.log_prob(y) for part in self._parts])
        return logsumexp(found, axis=0, b=self._weights[:, None]).astype(found.dtype)

    @property
    def means(self) -> np.ndarray:
        """E[y | w] for every sample of every model, ``(samples, rows, targets or classes)``."""
        return np.concatenate([part.means for part in self._parts])

    @property
    def log_weights(self) -> np.ndarray:
        """The normalised log weight of every sample, ``(samples,)``."""
        pairs = zip(self._weights, self._parts, strict=True)
        return np.concatenate([np.log(weight) + part.log_weights for weight, part in pairs])

    def log_probs(self, y: Any) -> np.ndarray:
        """log p(y | w) of each row's target for every sample of every model, ``(samples, rows)``."""
        return np.concatenate([part.log_probs(y) for part in self._parts])

    def sample(self, key: Any, n: int) -> np.ndarray:
        """Draws of y from the predictive distribution, ``(n, rows)`` or ``(n, rows, targets)``."""
        n = integer("sample", "n", n)
        which_key, key = jax.random.split(random.key(key))
        uniform = np.asarray(jax.random.uniform(which_key, (n,)), np.float64)
        last = len(self._parts) - 1
        which = np.minimum(np.searchsorted(np.cumsum(self._weights), uniform, side="right"), last)
        pieces, places = [], []
        for i, part in enumerate(self._parts):
            here = np.flatnonzero(which == i)
            if len(here):
                pieces.append(part.sample(jax.random.fold_in(key, i), len(here)))
                places.append(here)
        return np.concatenate(pieces)[np.argsort(np.concatenate(places), kind="stable")]

    # -- regression and counts --------------------------------------------------------------------

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles of y. The result has the shape of ``q``, then that of ``mean``."""
        found = np.stack([part.quantile(q) for part in self._parts]).astype(np.float64)
        # The distribution function of a mixture lies between those of its components, so do its quantiles.
        lower, upper = found.min(0), found.max(0)
        levels = np.asarray(q, np.float64)[(..., *(None,) * self.mean.ndim)]
        for _ in range(BISECTIONS):
            middle = (lower + upper) / 2
            below = self.cdf(middle) < levels
            lower, upper = np.where(below, middle, lower), np.where(below, upper, middle)
        return ((lower + upper) / 2).astype(self.mean.dtype)

    interval = Predictive.interval

    def cdf(self, t: Any) -> np.ndarray:
        """P(y <= t) for each target; ``t`` has the shape of ``mean``, after any leading axes."""
        return self._average(lambda part: part.cdf(t))

    def crps(self, y: Any) -> np.ndarray:
        r"""The continuous ranked probability score of each target, in the units of y: lower is better.

        .. math:: \int \bigl( P(y' \le t) - 1[y \le t] \bigr)^2 \,\mathrm{d}t

        The integral is computed between extreme quantiles, at points that are denser where y is likely.
        """
        y = np.asarray(y, np.float64).reshape(self.mean.shape)
        ends = np.stack([part.quantile([1e-4, 1 - 1e-4]) for part in self._parts]).astype(
            np.float64
        )
        lower, upper = np.minimum(ends[:, 0].min(0), y), np.maximum(ends[:, 1].max(0), y)
        shape = (CRPS_POINTS, *(1,) * y.ndim)
        # Half of the points on each side of y, where the integrand jumps; squared distances are denser there.
        place = np.linspace(0, 1, CRPS_POINTS).reshape(shape) ** 2
        left, right = y - (y - lower) * place[::-1], y + (upper - y) * place
        below, above = self.cdf(left) ** 2, (self.cdf(right) - 1) ** 2
        return np.trapezoid(below, left, axis=0) + np.trapezoid(above, right, axis=0)

    # -- classification ---------------------------------------------------------------------------

    @cached_property
    def probs(self) -> np.ndarray:
        """The probability of each class, ``(rows, classes)``."""
        return self._average(lambda part: part.probs)

    label = Predictive.label

    @property
    def entropy(self) -> np.ndarray:
        """The entropy of the class probabilities in nats: the total uncertainty of each row."""
        return -np.sum(xlogy(self.probs, self.probs), axis=1)

    @cached_property
    def expected_entropy(self) -> np.ndarray:
        """The entropy of p(class | x, w), averaged over models and weights."""
        return self._average(lambda part: part.expected_entropy)

    mutual_information = Predictive.mutual_information
