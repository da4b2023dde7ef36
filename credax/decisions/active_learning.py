r"""Active learning: label next what the posterior would learn most from.

BALD (Houlsby et al., 2011) asks for the row whose label says most about the weights,

.. math:: I(y; w \mid x, D) = H\bigl[E_w\, p(y \mid x, w)\bigr] - E_w H\bigl[p(y \mid x, w)\bigr],

the mutual information of the label and the weights. Several rows at once should not tell the same thing twice:
BatchBALD (Kirsch et al., 2019) takes the mutual information of all their labels together, row by row.
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
from credax.diagnostics.calibration import Scores
from credax.model import Model
from credax.model.data import check_array, check_lengths, pair

if TYPE_CHECKING:
    from credax.inference.method import Method
    from credax.posterior import Posterior
    from credax.posterior.predictive import Predictive

RULES = ("bald", "batch_bald", "variance", "entropy", "margin", "random")
SAMPLES = 100
"""Draws of the weights behind a joint mutual information."""
LABELLINGS = 2_048
"""Labellings of a batch that are summed over; of more, so many are drawn."""
TABLE = 4 << 20
"""Probabilities (labellings x rows x classes) in memory at once."""


# -- the loop -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class History:
    """What :func:`active_learning` returns.

    Attributes:
      chosen: the rows of the pool that each round asked for, in the order of the rule.
      labels: how many labelled rows each posterior had seen; one more than there are rounds.
      scores: of each posterior on the test rows; empty where none were given.
      posterior: the last one.
    """

    chosen: list[np.ndarray]
    labels: list[int]
    scores: list[Scores]
    posterior: Posterior


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
    """A loop: fit, ask for the labels that would tell most, fit again.

    Args:
      model: what to learn.
      data: the rows labelled at the start, ``(x, y)``.
      pool: the rows to choose from, ``(x, y)``; y may be a function that takes the chosen row numbers and
        returns their labels.
      method: how to fit, e.g. ``cx.DeepEnsemble()``.
      rule: how to choose; see :func:`acquire`.
      rounds: how often labels are asked for.
      count: how many labels a round.
      test: rows to judge each posterior on, ``(x, y)``.
      warm_start: whether each fit starts from the posterior before. It then needs fewer steps, but remembers
        what it made of fewer rows.
      key: an int or a JAX key.
      progress: shows the progress bar of each fit.
    """
    from credax.fit import fit

    rounds = integer("active_learning", "rounds", rounds, minimum=0)
    count = integer("active_learning", "count", count)
    one_of("active_learning", "rule", rule, RULES)
    bound, (x, y), pool_x, oracle = _prepared(model, data, pool)
    if rounds * count > len(pool_x):
        allowed = f"at most the rows of the pool, {len(pool_x)}, in all rounds together"
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
    """The model bound to all that is known of the rows, the first rows, the pool, and who labels it."""
    if not isinstance(model, Model):
        raise TypeError(must("active_learning", "model", "a cx.Model", model))
    keep = model.network.integer_inputs
    x, labels = pair(data)
    x, y = check_array("x", x, keep_integers=keep), check_array("y", labels, keep_integers=True)
    check_lengths(x, y)
    pool_x, pool_y = pair(pool)
    pool_x = check_array("pool[0]", pool_x, keep_integers=keep)
    if pool_x.shape[1:] != x.shape[1:]:
        allowed = f"made of rows of shape {x.shape[1:]}, as in data"
        raise ValueError(must("active_learning", "pool", allowed, pool_x))

    def checked(found: Any, rows: int) -> np.ndarray:
        found = check_array("pool[1]", found, keep_integers=True)
        if found.shape != (rows, *y.shape[1:]):
            allowed = f"rows with a label each, of shape {(rows, *y.shape[1:])}"
            raise ValueError(must("active_learning", "pool", allowed, found))
        return found

    if callable(pool_y):
        return model.bind((x, y)), (x, y), pool_x, lambda rows: checked(pool_y(rows), len(rows))
    pool_y = checked(pool_y, len(pool_x))
    # A class that the first rows do not show is a class all the same.
    bound = model.bind((np.concatenate([x, pool_x]), np.concatenate([y, pool_y])))
    return bound, (x, y), pool_x, lambda rows: pool_y[rows]


# -- the choice -----------------------------------------------------------------------------------


def acquire(
    posterior: Posterior, x: Any, count: int = 1, *, rule: str = "bald", key: Any = 0
) -> np.ndarray:
    """The numbers of the rows of ``x`` that should be labelled next, the best first.

    Args:
      posterior: what is known.
      x: the rows to choose from.
      count: how many.
      rule: ``"bald"`` (mutual information of a label and the weights), ``"batch_bald"`` (of all chosen labels
        together), ``"variance"`` (epistemic), ``"entropy"`` (of the label, whatever its reason), ``"margin"``
        (classes only: the smallest difference between the two likeliest) or ``"random"``. For numbers the
        prediction is taken as normal, and ``"bald"`` and ``"entropy"`` take the targets of a row by
        themselves.
      key: an int or a JAX key.
    """
    one_of("acquire", "rule", rule, RULES)
    count = integer("acquire", "count", count)
    if not isinstance(posterior.model, Model):
        raise TypeError("acquire needs a Model with a network; this posterior is of a LogDensity.")
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
        if classes:  # probs refuses several labels a row
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
    """The mutual information of a normal y is half the logarithm of total over aleatoric variance."""
    if rule == "margin":
        raise ValueError('acquire(rule="margin") is for classes; use "bald" for numbers.')
    if rule == "variance":
        value = predictive.epistemic
    else:
        value = 0.5 * np.log(predictive.variance)
        value = value - 0.5 * np.log(predictive.aleatoric) if rule == "bald" else value
    return value.reshape(len(value), -1).sum(1)


# -- several rows together: classes ---------------------------------------------------------------


def _class_probs(predictive: Predictive) -> np.ndarray:
    """p(class | x, w) of each draw, ``(samples, rows, classes)``."""
    means = np.asarray(predictive.means, np.float64)
    if predictive.probs.shape[1] == means.shape[2]:
        return means
    return np.concatenate([1 - means, means], axis=2)


def batch_bald(probs: np.ndarray, weights: np.ndarray, count: int, key: Any) -> np.ndarray:
    r"""The rows whose labels together say most about the weights, chosen one after the other.

    With the rows b chosen, each further row n adds

    .. math:: I(y_n; w \mid y_b) = E_{y_b} H\bigl[p(y_n \mid y_b)\bigr] - E_w H\bigl[p(y_n \mid w)\bigr],

    where a labelling of the chosen rows weighs the draws anew by Bayes' rule, and gives
    :math:`p(y_n \mid y_b)` as their mean.

    Args:
      probs: of each class for each draw of the weights, ``(samples, rows, classes)``.
      weights: of the draws; they add up to one.
      count: how many rows.
      key: for the labellings that are drawn where there are too many to sum over.
    """
    probs, weights = np.asarray(probs, np.float64), np.asarray(weights, np.float64)
    expected = np.einsum("s,snc->n", weights, entr(probs))
    offsets = np.asarray(jax.random.uniform(random.key(key), (count,)), np.float64)
    belief = weights[:, None]  # p(draw | labelling), a column a labelling
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
    """Belief and share with a further row labelled, each label in turn; ``probs`` is ``(samples, classes)``."""
    joint = (belief[:, :, None] * probs[:, None, :]).reshape(len(probs), -1)
    evidence = joint.sum(0)
    share = np.repeat(share, probs.shape[1]) * evidence
    possible = share > 0
    share, belief = share[possible], joint[:, possible] / evidence[possible]
    if len(share) <= LABELLINGS:
        return belief, share
    # At equal steps along the sum of their probabilities: each as often as it is likely.
    steps = (np.arange(LABELLINGS) + offset) / LABELLINGS * share.sum()
    drawn = np.minimum(np.searchsorted(np.cumsum(share), steps), len(share) - 1)
    return belief[:, drawn], np.full(LABELLINGS, 1 / LABELLINGS)


def _conditional_entropy(belief: np.ndarray, share: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """The mean over labellings of the entropy of each row's label given them, in blocks of rows."""
    samples, rows, classes = probs.shape
    size = max(1, TABLE // (len(share) * classes))
    found = []
    for begin in range(0, rows, size):
        block = probs[:, begin : begin + size]
        table = (belief.T @ block.reshape(samples, -1)).reshape(len(share), -1, classes)
        # Several times faster than scipy's entr, and this is nearly all of the time.
        log = np.log(np.maximum(table, np.finfo(table.dtype).tiny))
        found.append(-(share @ np.einsum("lnc,lnc->ln", table, log)))
    return np.concatenate(found)


# -- several rows together: numbers ---------------------------------------------------------------


def spread_out(means: np.ndarray, noise: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    r"""The rows whose targets together say most, for a normal y: each given the ones before.

    .. math:: I(y_b; w) = \tfrac{1}{2} \log\det\bigl(I + A_b^\top A_b\bigr)

    where the columns of A are the deviations of the draws from their mean, in units of the noise. A step takes
    the row that adds most, and takes from every column what the row has told: a pivoted Cholesky factorisation.

    Args:
      means: of y for each draw of the weights, ``(samples, rows, targets)``.
      noise: the variance of y given the weights, ``(rows, targets)``.
      weights: of the draws; they add up to one.
      count: how many rows.
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
            # Less k k' / (1 + |a|^2), where k = A' a: what is not known when a has been seen with unit noise.
            seen = columns[:, best, target]
            root = np.sqrt(1 + seen @ seen)
            along = np.einsum("s,snt->nt", seen, columns)
            columns = columns - seen[:, None, None] * along / (root * (root + 1))
    return np.array(chosen)
