r"""Active learning: choose the rows whose labels would tell the posterior most.

BALD (Houlsby et al., 2011) chooses the row with the largest mutual information between its label and the
weights,

.. math:: I(y; w \mid x, D) = H\bigl[E_w\, p(y \mid x, w)\bigr] - E_w H\bigl[p(y \mid x, w)\bigr].

Several rows that are labelled together should not carry the same information. BatchBALD (Kirsch et al., 2019)
therefore maximises the joint mutual information of all their labels, adding one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.special import entr

from credax.core import random
from credax.core.checks import integer, must, one_of
from credax.core.display import html_table, text_table
from credax.diagnostics.calibration import Scores
from credax.fit import fit
from credax.model import Model
from credax.model.data import check_array, check_lengths, pair
from credax.model.frame import column_names, in_order

if TYPE_CHECKING:
    from credax.inference.method import Method
    from credax.posterior import Posterior
    from credax.posterior.predictive import Predictive

RULES = ("bald", "batch_bald", "variance", "entropy", "margin", "random")
SAMPLES = 100
"""Number of weight samples used to estimate a joint mutual information."""
LABELLINGS = 2_048
"""Largest number of joint labellings that is summed exactly; beyond it, this many are sampled."""
TABLE = 4 << 20
"""Largest number of probabilities (labellings x rows x classes) held in memory at once."""


# -- the loop -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """The result of :func:`active_learning`. It prints as a table of the scores.

    Attributes:
      chosen: for each round, the indices of the pool rows whose labels were requested, best first.
      labels: the number of labelled rows behind each posterior; one entry more than there are rounds.
      scores: the scores of each posterior on the test rows; empty if no test rows were given.
      posterior: the posterior after the last round.
    """

    chosen: list[np.ndarray]
    labels: list[int]
    scores: list[Scores]
    posterior: Posterior

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names = [name for name, _ in self.scores[0]]
        rows = [
            [str(labels), *(str(getattr(scores, name)) for name in names)]
            for labels, scores in zip(self.labels, self.scores, strict=True)
        ]
        return ["labels", *(name.replace("_", " ") for name in names)], rows

    def __repr__(self) -> str:
        if self.scores:
            return text_table(*self._table())
        rounds = f"{len(self.chosen)} round{'' if len(self.chosen) == 1 else 's'}"
        return f"History({rounds}, {self.labels[0]} to {self.labels[-1]} labels)"

    def _repr_html_(self) -> str | None:
        return html_table(*self._table()) if self.scores else None


def active_learning(
    model: Model,
    data: tuple[Any, Any],
    pool: tuple[Any, Any],
    method: Method,
    *,
    rule: str = "bald",
    rounds: int = 10,
    count: int = 1,
    test: tuple[Any, Any] | None = None,
    warm_start: bool = False,
    key: Any = 0,
    progress: bool = False,
) -> History:
    """Fit, request the most informative labels, and fit again, for several rounds.

    Args:
      model: the model to fit.
      data: the rows that are labelled from the start, ``(x, y)``.
      pool: the rows to choose from, ``(x, y)``. ``y`` may be a function that takes the indices of the chosen
        rows and returns their labels.
      method: the inference method of each fit, e.g. ``cx.DeepEnsemble()``.
      rule: the acquisition rule; see :func:`acquire`.
      rounds: the number of times that labels are requested.
      count: the number of labels requested per round.
      test: rows on which each posterior is evaluated, ``(x, y)``.
      warm_start: if true, each fit starts from the previous posterior. It then needs fewer steps, but stays
        influenced by the fit to fewer rows.
      key: an int or a JAX key.
      progress: whether to show a progress bar for each fit.
    """
    rounds = integer("active_learning", "rounds", rounds, minimum=0)
    count = integer("active_learning", "count", count)
    one_of("active_learning", "rule", rule, RULES)
    bound, (x, y), pool_x, oracle = _prepared(model, data, pool)
    if rounds * count > len(pool_x):
        allowed = f"at most the number of pool rows, {len(pool_x)}, summed over all rounds"
        raise ValueError(must("active_learning", "count", allowed, rounds * count))
    left = np.arange(len(pool_x))
    chosen, labels, scores, posterior = [], [], [], None
    for number, round_key in enumerate(jax.random.split(random.key(key), rounds + 1)):
        fit_key, choice_key = jax.random.split(round_key)
        start = posterior if warm_start else None
        posterior = fit(bound, (x, y), method, key=fit_key, start=start, progress=progress)
        labels.append(len(x))
        if test is not None:
            scores.append(posterior.evaluate(*pair(test)))
        if number < rounds:
            picked = left[acquire(posterior, pool_x[left], count, rule=rule, key=choice_key)]
            x, y = np.concatenate([x, pool_x[picked]]), np.concatenate([y, oracle(picked)])
            left = np.setdiff1d(left, picked)
            chosen.append(picked)
    assert posterior is not None
    return History(chosen, labels, scores, posterior)


def _prepared(model: Model, data: Any, pool: Any) -> tuple[Model, Any, np.ndarray, Callable]:
    """Check the arguments of :func:`active_learning`.

    Returns:
      The model bound to the shapes of the data, the labelled rows, the inputs of the pool, and a function from
      pool indices to labels.
    """
    if not isinstance(model, Model):
        raise TypeError(must("active_learning", "model", "a cx.Model", model))
    keep = model.network.integer_inputs
    x, labels = pair(data)
    names = column_names(x)
    x, y = check_array("x", x, keep_integers=keep), check_array("y", labels, keep_integers=True)
    check_lengths(x, y)
    pool_x, pool_y = pair(pool)
    pool_x = in_order("pool[0]", pool_x, names)
    pool_x = check_array("pool[0]", pool_x, keep_integers=keep)
    if pool_x.shape[1:] != x.shape[1:]:
        allowed = f"made of rows of shape {x.shape[1:]}, as in data"
        raise ValueError(must("active_learning", "pool", allowed, pool_x))

    def checked(found: Any, rows: int) -> np.ndarray:
        found = check_array("pool[1]", found, keep_integers=True)
        if found.shape != (rows, *y.shape[1:]):
            allowed = f"rows with one label each, of shape {(rows, *y.shape[1:])}"
            raise ValueError(must("active_learning", "pool", allowed, found))
        return found

    if callable(pool_y):
        return model.bind((x, y)), (x, y), pool_x, lambda rows: checked(pool_y(rows), len(rows))
    pool_y = checked(pool_y, len(pool_x))
    # The number of classes comes from all labels: the rows labelled at the start may not show every class.
    bound = model.bind((np.concatenate([x, pool_x]), np.concatenate([y, pool_y])))
    return bound, (x, y), pool_x, lambda rows: pool_y[rows]


# -- the choice -----------------------------------------------------------------------------------


def acquire(
    posterior: Posterior, x: Any, count: int = 1, *, rule: str = "bald", key: Any = 0
) -> np.ndarray:
    """Return the indices of the rows of ``x`` that should be labelled next, best first.

    For regression the predictive distribution is treated as normal, and ``"bald"`` and ``"entropy"`` treat the
    targets of a row as independent.

    Args:
      posterior: the posterior given the labels so far.
      x: the rows to choose from.
      count: the number of rows to choose.
      rule: one of

        - ``"bald"``: the mutual information between a row's label and the weights;
        - ``"batch_bald"``: the joint mutual information between all chosen labels and the weights;
        - ``"variance"``: the epistemic variance;
        - ``"entropy"``: the total predictive entropy, epistemic and aleatoric;
        - ``"margin"`` (classification only): the smallest difference between the probabilities of the two most
          probable classes;
        - ``"random"``: rows drawn uniformly without replacement.
      key: an int or a JAX key.
    """
    one_of("acquire", "rule", rule, RULES)
    count = integer("acquire", "count", count)
    if not isinstance(posterior.model, Model):
        raise TypeError("acquire needs a Model with a network; this posterior is of a LogDensity.")
    posterior.model.check_undivided("acquire")
    x = posterior.model.check_inputs(x)
    if count > len(x):
        raise ValueError(must("acquire", "count", f"at most the number of rows, {len(x)}", count))
    draw_key, choice_key = jax.random.split(random.key(key))
    if rule == "random":
        return np.asarray(jax.random.permutation(choice_key, len(x)))[:count]
    classes = posterior.model.likelihood.task == "classification"
    if rule == "batch_bald":
        predictive = posterior.predict(x, num_samples=SAMPLES, key=draw_key)
        weights = np.exp(predictive.log_weights)
        if classes:  # _class_probs raises if there are several labels per row
            return batch_bald(_class_probs(predictive), weights, count, choice_key)
        noise = predictive.aleatoric.reshape(len(x), -1)
        return spread_out(predictive.means, noise, weights, count)
    value = (_of_classes if classes else _of_numbers)(posterior.predict(x, key=draw_key), rule)
    return np.argsort(-value, kind="stable")[:count]


def _of_classes(predictive: Predictive, rule: str) -> np.ndarray:
    if rule == "margin":
        likeliest = np.sort(predictive.probs, axis=1)
        return likeliest[:, -2] - likeliest[:, -1]
    if rule == "variance":
        return predictive.epistemic.reshape(len(predictive.mean), -1).sum(1)
    return predictive.mutual_information if rule == "bald" else predictive.entropy


def _of_numbers(predictive: Predictive, rule: str) -> np.ndarray:
    """For a normal y, the mutual information is half the log ratio of the total to the aleatoric variance."""
    if rule == "margin":
        raise ValueError('acquire(rule="margin") is for classification; use "bald" for regression.')
    if rule == "variance":
        value = predictive.epistemic
    else:
        value = 0.5 * np.log(predictive.variance)
        value = value - 0.5 * np.log(predictive.aleatoric) if rule == "bald" else value
    return value.reshape(len(value), -1).sum(1)


# -- several rows together: classes ---------------------------------------------------------------


def _class_probs(predictive: Predictive) -> np.ndarray:
    """p(class | x, w) for each weight sample, ``(samples, rows, classes)``."""
    means = np.asarray(predictive.means, np.float64)
    if predictive.probs.shape[1] == means.shape[2]:
        return means
    return np.concatenate([1 - means, means], axis=2)


def batch_bald(probs: np.ndarray, weights: np.ndarray, count: int, key: Any) -> np.ndarray:
    r"""Choose rows whose labels have the largest joint mutual information with the weights, greedily.

    Given the rows b chosen so far, a further row n adds

    .. math:: I(y_n; w \mid y_b) = E_{y_b} H\bigl[p(y_n \mid y_b)\bigr] - E_w H\bigl[p(y_n \mid w)\bigr].

    Each labelling :math:`y_b` of the chosen rows reweights the samples of w by Bayes' rule, and
    :math:`p(y_n \mid y_b)` is the reweighted mean of :math:`p(y_n \mid w)`.

    Args:
      probs: the probability of each class under each weight sample, ``(samples, rows, classes)``.
      weights: the probability of each weight sample; they sum to one.
      count: the number of rows to choose.
      key: an int or a JAX key, used to sample labellings when there are too many to sum over.
    """
    probs, weights = np.asarray(probs, np.float64), np.asarray(weights, np.float64)
    expected = np.einsum("s,snc->n", weights, entr(probs))
    offsets = np.asarray(jax.random.uniform(random.key(key), (count,)), np.float64)
    belief = weights[:, None]  # p(sample | labelling), one column per labelling
    share = np.ones(1)  # p(labelling)
    chosen: list[int] = []
    for offset in offsets:
        gain = _conditional_entropy(belief, share, probs) - expected
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        belief, share = _labelled(belief, share, probs[:, best], offset)
    return np.array(chosen)


def _labelled(
    belief: np.ndarray, share: np.ndarray, probs: np.ndarray, offset: float
) -> tuple[np.ndarray, np.ndarray]:
    """Extend every labelling by each possible label of one further row.

    Args:
      belief: p(sample | labelling), ``(samples, labellings)``.
      share: p(labelling), ``(labellings,)``.
      probs: the class probabilities of the further row, ``(samples, classes)``.
      offset: a uniform random number for the systematic resampling of labellings.
    """
    joint = (belief[:, :, None] * probs[:, None, :]).reshape(len(probs), -1)
    evidence = joint.sum(0)
    share = np.repeat(share, probs.shape[1]) * evidence
    possible = share > 0
    share, belief = share[possible], joint[:, possible] / evidence[possible]
    if len(share) <= LABELLINGS:
        return belief, share
    # Systematic resampling: points at equal distances along the cumulative probabilities.
    steps = (np.arange(LABELLINGS) + offset) / LABELLINGS * share.sum()
    drawn = np.minimum(np.searchsorted(np.cumsum(share), steps), len(share) - 1)
    return belief[:, drawn], np.full(LABELLINGS, 1 / LABELLINGS)


def _conditional_entropy(belief: np.ndarray, share: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """The expected entropy of each row's label given a labelling, computed in blocks of rows."""
    samples, rows, classes = probs.shape
    size = max(1, TABLE // (len(share) * classes))
    found = []
    for begin in range(0, rows, size):
        block = probs[:, begin : begin + size]
        table = (belief.T @ block.reshape(samples, -1)).reshape(len(share), -1, classes)
        # Several times faster than scipy's entr; nearly all of the time is spent on this line.
        log = np.log(np.maximum(table, np.finfo(table.dtype).tiny))
        found.append(-(share @ np.einsum("lnc,lnc->ln", table, log)))
    return np.concatenate(found)


# -- several rows together: numbers ---------------------------------------------------------------


def spread_out(means: np.ndarray, noise: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    r"""BatchBALD for a normal y: choose rows greedily by their joint mutual information.

    .. math:: I(y_b; w) = \tfrac{1}{2} \log\det\bigl(I + A_b^\top A_b\bigr)

    where the columns of A are the deviations of E[y | w] from its mean over w, in units of the noise standard
    deviation. Each step chooses the row that adds most and conditions all columns on it, as in a pivoted
    Cholesky factorisation.

    Args:
      means: E[y | w] for each weight sample, ``(samples, rows, targets)``.
      noise: the variance of y given the weights, ``(rows, targets)``.
      weights: the probability of each weight sample; they sum to one.
      count: the number of rows to choose.
    """
    means, weights = np.asarray(means, np.float64), np.asarray(weights, np.float64)[:, None, None]
    deviation = (means - (weights * means).sum(0)) / np.sqrt(noise)
    columns = np.sqrt(weights) * deviation
    targets = columns.shape[2]
    chosen: list[int] = []
    for _ in range(count):
        covariance = np.einsum("snt,snu->ntu", columns, columns)
        gain = 0.5 * np.linalg.slogdet(np.eye(targets) + covariance)[1]
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        for target in range(targets):
            # Subtracts k k' / (1 + |a|^2) from A' A, with k = A' a: the covariance that remains once the
            # column a has been observed with unit noise.
            seen = columns[:, best, target]
            root = np.sqrt(1 + seen @ seen)
            along = np.einsum("s,snt->nt", seen, columns)
            columns = columns - seen[:, None, None] * along / (root * (root + 1))
    return np.array(chosen)
