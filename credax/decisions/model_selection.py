r"""Model selection: which network and prior the data speak for.

.. math:: p(D \mid M) = \int p(D \mid w, M)\, p(w \mid M)\, \mathrm{d}w

The evidence punishes a model that could have explained anything (Occam's razor). Where it is not known, how
well rows are predicted that a fit has not seen says the same: held out, or left out one by one and put in again
by importance weights (PSIS-LOO; Vehtari et al., 2017).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from credax.core import random
from credax.core.checks import fraction, must, one_of

if TYPE_CHECKING:
    from credax.inference.method import Method
    from credax.model import Model
    from credax.posterior import Posterior

CRITERIA = ("log_evidence", "loo", "waic", "held_out")
PARETO_K = 0.7
"""Above it, a row left out cannot be judged by importance weights."""


class Evidence(NamedTuple):
    """The log evidence of a model, with its standard error and the side it errs to."""

    value: float
    standard_error: float
    bias: str


def log_evidence(posterior: Posterior) -> Evidence:
    """The log evidence that a posterior knows of, or its lower bound.

    Raises:
      ValueError: the method estimates neither.
    """
    if posterior.log_evidence is not None:
        return Evidence(*posterior.log_evidence, _bias(posterior))
    if posterior.elbo is not None:
        return Evidence(
            *posterior.elbo, "a lower bound: the evidence is higher by KL(q || posterior)"
        )
    raise ValueError(
        f"{_name(posterior)} estimates no evidence. Laplace, SMC, ImportanceSampling and "
        "Enumeration do; BayesByBackprop, BlackBoxVI and IVON bound it from below; loo and waic need draws."
    )


def _name(posterior: Posterior) -> str:
    """The method's; a posterior that was loaded knows it by a description."""
    method = posterior.method
    return str(method.get("type")) if isinstance(method, Mapping) else type(method).__name__


def _bias(posterior: Posterior) -> str:
    from credax.inference import METHODS

    known = {method.__name__: method.evidence_bias for method in METHODS.values()}
    return getattr(posterior.method, "evidence_bias", known.get(_name(posterior), "not known"))


class Pointwise(NamedTuple):
    """A sum over rows of how well each is predicted when it is left out."""

    value: float
    standard_error: float
    each: np.ndarray
    effective_parameters: float
    pareto_k: np.ndarray | None = None


def loo(posterior: Posterior, x: Any, y: Any) -> Pointwise:
    """The expected log density of new rows, by leaving out each row of the fit (PSIS-LOO).

    Args:
      posterior: with more than one draw.
      x: the rows that it was fitted to.
      y: their targets.
    """
    from arviz_stats.base import array_stats

    each, log_weights = _log_likelihoods(posterior, x, y)
    # Without row i the posterior is the one with it, over p(y_i | w); it wants the logarithm of the inverse.
    ratios, pareto_k = array_stats.psislw(each.T - log_weights, axis=-1)
    values = logsumexp(ratios + each.T, axis=1)
    return _pointwise(values, logsumexp(each.T + log_weights, axis=1) - values, pareto_k)


def waic(posterior: Posterior, x: Any, y: Any) -> Pointwise:
    r"""The widely applicable information criterion (Watanabe, 2010), on the scale of a log density.

    .. math:: \sum_i \log E_w\, p(y_i \mid w) - \operatorname{Var}_w \log p(y_i \mid w)

    Args:
      posterior: with more than one draw.
      x: the rows that it was fitted to.
      y: their targets.
    """
    each, log_weights = _log_likelihoods(posterior, x, y)
    weights = np.exp(log_weights)
    variance = weights @ (each - weights @ each) ** 2 / (1 - weights @ weights)
    return _pointwise(logsumexp(each.T + log_weights, axis=1) - variance, variance)


def _pointwise(values: np.ndarray, parameters: np.ndarray, pareto_k: Any = None) -> Pointwise:
    return Pointwise(
        float(values.sum()), _error_of_sum(values), values, float(parameters.sum()), pareto_k
    )


def _error_of_sum(values: np.ndarray) -> float:
    return float(np.sqrt(len(values) * values.var(ddof=1))) if len(values) > 1 else float("nan")


def _log_likelihoods(posterior: Posterior, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """log p(y_i | w_s), ``(samples, rows)``, and the log weight of each sample."""
    predictive = posterior.predict(x)
    each = np.asarray(predictive.log_probs(y), np.float64)
    log_weights = predictive.log_weights
    weighs = log_weights > -np.inf  # what weighs nothing may be infinite
    if weighs.sum() < 2:
        raise ValueError(
            f"loo and waic need several draws of the weights; {_name(posterior)} left one."
        )
    return each[weighs], log_weights[weighs]


# -- ranking ------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """One of the models that :func:`select` compared."""

    name: str
    value: float
    standard_error: float
    behind: float
    """How far behind the best."""
    behind_error: float
    note: str
    posterior: Posterior


@dataclass(frozen=True, eq=False)
class Selection:
    """What :func:`select` returns: the candidates, the best first. Print it for a table."""

    criterion: str
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The first of them."""
        return self.candidates[0]

    def __str__(self) -> str:
        wide = max(len(candidate.name) for candidate in self.candidates)
        lines = [f"{'':<{wide}}  {self.criterion.replace('_', ' '):>18}  behind the best"]
        for name, value, error, behind, behind_error, note, _ in self.candidates:
            line = (
                f"{name:<{wide}}  {value:>10.4g} ± {error:<5.2g}  {behind:.3g} ± {behind_error:.2g}"
            )
            lines.append(f"{line}  {note}".rstrip())
        return "\n".join(lines)


def select(
    models: Mapping[str, Model] | Sequence[Model],
    data: Any,
    method: Method | None = None,
    *,
    criterion: str = "log_evidence",
    held_out: float = 0.2,
    key: Any = 0,
    progress: bool = False,
) -> Selection:
    """Ranks networks, priors and likelihoods by what the data say of them.

    Args:
      models: by name, or a sequence (then numbered from 0).
      data: ``(x, y)``, the same for all of them.
      method: how to fit; ``None``: a Laplace approximation.
      criterion: ``"log_evidence"`` (or the ELBO, where the method gives only that), ``"loo"``, ``"waic"`` or
        ``"held_out"`` (the log density of rows kept from the fit).
      held_out: the share of rows kept from the fit, for that criterion.
      key: an int or a JAX key.
      progress: shows the progress bar of each fit.
    """
    from credax.fit import fit

    one_of("select", "criterion", criterion, CRITERIA)
    share = fraction("select", "held_out", held_out)
    named = (
        dict(models) if isinstance(models, Mapping) else {str(i): m for i, m in enumerate(models)}
    )
    if not named:
        raise ValueError(must("select", "models", "at least one model", models))
    method = _default_method() if method is None else method
    key, split_key = jax.random.split(random.key(key))
    x, y = data
    rest = x, y
    test = None
    if criterion == "held_out":
        order = np.asarray(jax.random.permutation(split_key, len(y)))
        cut = max(1, round(share * len(y)))
        x, y = np.asarray(x), np.asarray(y)
        test, rest = (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])
    judged = []
    for name, model in named.items():
        posterior = fit(model, rest, method, key=key, progress=progress)
        judged.append((name, posterior, *_judge(posterior, criterion, test or rest)))
    judged.sort(key=lambda item: -item[2].value)
    return Selection(criterion, tuple(_candidate(item, judged[0]) for item in judged))


def _default_method() -> Method:
    from credax.inference.laplace import Laplace

    return Laplace()


def _judge(posterior: Posterior, criterion: str, rows: Any) -> tuple[Any, str]:
    if criterion == "log_evidence":
        evidence = log_evidence(posterior)
        return evidence, evidence.bias
    if criterion == "held_out":
        each = np.asarray(posterior.predict(rows[0]).log_prob(rows[1]), np.float64)
        return _pointwise(each, np.zeros_like(each)), ""
    found = (loo if criterion == "loo" else waic)(posterior, *rows)
    bad = 0 if found.pareto_k is None else int(np.sum(found.pareto_k > PARETO_K))
    return (
        found,
        f"{bad} rows too influential to be judged (Pareto k above {PARETO_K})" if bad else "",
    )


def _candidate(item: Any, best: Any) -> Candidate:
    name, posterior, found, note = item
    behind = best[2].value - found.value
    if isinstance(found, Pointwise):
        # Row by row: what both find hard does not count.
        error = _error_of_sum(best[2].each - found.each)
    else:
        error = float(np.hypot(best[2].standard_error, found.standard_error)) if behind else 0.0
    return Candidate(name, found.value, found.standard_error, behind, error, note, posterior)
