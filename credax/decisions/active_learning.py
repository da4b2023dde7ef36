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

from credax import random
from credax.checks import integer, must, one_of
from credax.diagnostics.calibration import Scores

if TYPE_CHECKING:
    from credax.inference.method import Method
    from credax.model import Model
    from credax.posterior import Posterior

RULES = ("bald", "batch_bald", "variance", "entropy", "margin", "random")
CONFIGURATIONS = 4_096
"""Labellings of a batch that are summed over; of more, so many are drawn."""
SAMPLES = 100
"""Draws of the weights behind a joint mutual information."""


@dataclass(frozen=True, eq=False)
class History:
    """What :func:`active_learning` returns.

    Attributes:
      chosen: the rows of the pool in the order in which they were labelled, a list a round.
      labels: how many labelled rows each posterior had seen.
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
    warm_start: bool = True,
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
      test: rows to judge each posterior on.
      warm_start: whether each fit starts from the posterior before.
      key: an int or a JAX key.
      progress: shows the progress bar of each fit.
    """
    from credax.fit import fit

    x, y = (np.asarray(part) for part in data)
    pool_x, oracle = np.asarray(pool[0]), _oracle(pool)
    rounds, count = (
        integer("active_learning", "rounds", rounds, 0),
        integer("active_learning", "count", count),
    )
    if rounds * count > len(pool_x):
        allowed = f"at most the rows of the pool, {len(pool_x)}, in all rounds together"
        raise ValueError(must("active_learning", "count", allowed, rounds * count))
    one_of("active_learning", "rule", rule, RULES)
    left = np.arange(len(pool_x))
    chosen, labels, scores, posterior = [], [], [], None
    for number, round_key in enumerate(jax.random.split(random.key(key), rounds + 1)):
        fit_key, choice_key = jax.random.split(round_key)
        start = posterior if warm_start else None
        posterior = fit(model, (x, y), method, key=fit_key, start=start, progress=progress)
        labels.append(len(x))
        if test is not None:
            scores.append(posterior.evaluate(*test))
        if number < rounds:
            picked = left[acquire(posterior, pool_x[left], count, rule=rule, key=choice_key)]
            x, y = np.concatenate([x, pool_x[picked]]), np.concatenate([y, oracle(picked)])
            left = np.setdiff1d(left, picked)
            chosen.append(picked)
    assert posterior is not None
    return History(chosen, labels, scores, posterior)


def _oracle(pool: Any) -> Callable[[np.ndarray], np.ndarray]:
    y = pool[1]
    if callable(y):
        return lambda rows: np.asarray(y(rows))
    y = np.asarray(y)
    if len(y) != len(pool[0]):
        raise ValueError(
            f"active_learning(pool=...) must have as many labels as rows, {len(pool[0])}; got {len(y)}."
        )
    return lambda rows: y[rows]


def acquire(
    posterior: Posterior, x: Any, count: int = 1, *, rule: str = "bald", key: Any = 0
) -> np.ndarray:
    """The rows of ``x`` that should be labelled next, the best first.

    Args:
      posterior: what is known.
      x: the rows to choose from.
      count: how many.
      rule: ``"bald"`` (mutual information of a label and the weights), ``"batch_bald"`` (of all chosen labels
        together), ``"variance"`` (epistemic), ``"entropy"`` (of the label, whatever its reason), ``"margin"``
        (classes only: the smallest difference between the two likeliest) or ``"random"``.
      key: an int or a JAX key.
    """
    count = integer("acquire", "count", count)
    one_of("acquire", "rule", rule, RULES)
    rows = len(np.asarray(x))
    if count > rows:
        raise ValueError(must("acquire", "count", f"at most the number of rows, {rows}", count))
    key = random.key(key)
    if rule == "random":
        return np.asarray(jax.random.permutation(key, rows))[:count]
    classes = posterior.model.likelihood.task == "classification"  # pyright: ignore[reportAttributeAccessIssue]
    if rule == "batch_bald":
        predictive = posterior.predict(x, num_samples=SAMPLES, key=key)
        if classes:
            return batch_bald(_class_probs(posterior, predictive), count, key)
        return _spread_out(predictive.means, predictive.aleatoric, count)
    value = (_of_classes if classes else _of_numbers)(posterior.predict(x, key=key), rule)
    return np.argsort(-value, kind="stable")[:count]


def _of_classes(predictive: Any, rule: str) -> np.ndarray:
    if rule == "bald":
        return predictive.mutual_information
    if rule == "entropy":
        return predictive.entropy
    if rule == "variance":
        return predictive.epistemic.reshape(len(predictive.mean), -1).sum(1)
    likeliest = np.sort(predictive.probs, axis=1)
    return likeliest[:, -2] - likeliest[:, -1]


def _of_numbers(predictive: Any, rule: str) -> np.ndarray:
    """Of a normal y: the mutual information is half the logarithm of total over aleatoric variance."""
    total, aleatoric = predictive.variance, predictive.aleatoric
    if rule == "margin":
        raise ValueError('acquire(rule="margin") is for classes; use "bald" for numbers.')
    value = {
        "bald": 0.5 * np.log(total / aleatoric),
        "entropy": 0.5 * np.log(total),
        "variance": predictive.epistemic,
    }[rule]
    return value.reshape(len(value), -1).sum(1)


def _class_probs(posterior: Any, predictive: Any) -> np.ndarray:
    """p(class | x, w) of each draw, ``(samples, rows, classes)``."""
    means = np.asarray(predictive.means, np.float64)
    return np.concatenate([1 - means, means], axis=-1) if means.shape[-1] == 1 else means


def batch_bald(probs: np.ndarray, count: int, key: Any) -> np.ndarray:
    """The rows whose labels together say most about the weights, chosen one after the other.

    Args:
      probs: of each class, ``(samples, rows, classes)``.
      count: how many rows.
      key: for the labellings that are drawn where there are too many to sum over.
    """
    samples, _, classes = probs.shape
    expected = entr(probs).sum(-1).mean(0)  # E_w H[y | w]: labels are independent given the weights
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    joint = np.ones((samples, 1))  # p(labels so far | w), a column a labelling
    log_drawn, chosen, known = None, [], 0.0
    for _ in range(count):
        # p(labels so far, next label) of every row: (labelling, rows, classes)
        table = np.einsum("sl,snc->lnc", joint, probs) / samples
        if log_drawn is None:
            entropy = entr(table).sum((0, 2))
        else:
            # Labellings were drawn with probability exp(log_drawn): each stands for 1 / that many.
            weight = np.exp(-log_drawn) / len(log_drawn)
            entropy = np.einsum("lnc,l->n", entr(table), weight)
        gain = entropy - expected - known
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        known += expected[best]
        joint = (joint[:, :, None] * probs[:, None, best, :]).reshape(samples, -1)
        log_drawn = None if log_drawn is None else np.repeat(log_drawn, classes)
        if joint.shape[1] > CONFIGURATIONS:
            joint, log_drawn = _thin_out(joint, log_drawn, generator)
    return np.array(chosen)


def _thin_out(joint: np.ndarray, log_drawn: Any, generator: np.random.Generator) -> Any:
    """So many labellings, drawn by their probability, in place of all."""
    probability = joint.mean(0)
    weights = probability if log_drawn is None else probability * np.exp(-log_drawn)
    share = weights / weights.sum()
    drawn = generator.choice(len(share), CONFIGURATIONS, p=share)
    with np.errstate(divide="ignore"):
        log_drawn = np.log(probability[drawn])
    return joint[:, drawn], log_drawn


def _spread_out(means: np.ndarray, aleatoric: np.ndarray, count: int) -> np.ndarray:
    """The rows whose targets together say most, for a normal y: each given the ones before.

    The joint mutual information is half a log determinant, so a step takes the row of the largest variance that
    is left, relative to its noise, when the chosen ones are known: a pivoted Cholesky factorisation.
    """
    samples = len(means)
    noise = np.sqrt(aleatoric).reshape(means.shape[1:])
    # In units of the noise; the targets of a row side by side.
    scaled = ((means - means.mean(0)) / noise / np.sqrt(samples)).astype(np.float64)
    chosen: list[int] = []
    for _ in range(count):
        gain = 0.5 * np.log1p((scaled**2).sum(0)).sum(-1)
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        for target in range(scaled.shape[-1]):
            # What is left of every function when this one has been seen with noise of variance one.
            seen = scaled[:, best, target]
            covariance = np.einsum("s,snt->nt", seen, scaled)
            shrink = (1 - 1 / np.sqrt(1 + seen @ seen)) / (seen @ seen) if seen @ seen > 0 else 0.0
            scaled = scaled - shrink * seen[:, None, None] * covariance
    return np.array(chosen)
