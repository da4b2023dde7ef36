r"""Model selection: which network, prior and likelihood the data support.

.. math:: p(D \mid M) = \int p(D \mid w, M)\, p(w \mid M)\, \mathrm{d}w

The evidence penalises models that could have explained almost any data (Occam's razor). Where it is not
available, models can be compared by how well they predict rows that the fit has not seen: rows that were held
out, or every row in turn, left out by importance weights (PSIS-LOO; Vehtari et al., 2017).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from credax.core import random
from credax.core.checks import fraction, must, one_of
from credax.core.display import html_table, text_table
from credax.core.special import logsumexp
from credax.diagnostics.leave_one_out import leave_one_out
from credax.fit import fit
from credax.inference.laplace import Laplace
from credax.model import Model
from credax.posterior import Estimate

if TYPE_CHECKING:
    from credax.inference.method import Method
    from credax.posterior import Posterior

CRITERIA = ("log_evidence", "loo", "waic", "held_out")
LEAST = 25
"""The fewest draws from which Pareto smoothing works: it fits the largest fifth of them, at least five."""
FULL_WEIGHTS = 2_048
"""The largest number of weights for which the default approximation has the full matrix."""
PARETO_K = 0.7
"""Above this Pareto k, importance weights cannot stand in for a fit without the row."""


def log_evidence(posterior: Posterior) -> Estimate:
    """The estimate of the log evidence that comes with a posterior, or else its evidence lower bound.

    Raises:
      ValueError: if the method estimates neither.
    """
    if posterior.log_evidence is not None:
        return posterior.log_evidence
    if posterior.elbo is not None:
        value, standard_error = posterior.elbo
        errs = "too low: a lower bound, by KL(q || posterior) below the log evidence"
        return Estimate(value, standard_error, errs)
    raise ValueError(
        f"{_name(posterior)} estimates no evidence. Laplace, SMC, ImportanceSampling and "
        "Enumeration do; BayesByBackprop, BlackBoxVI and IVON bound it from below; loo and waic need draws."
    )


def _name(posterior: Posterior) -> str:
    """The class name of the method. A loaded posterior holds a description in place of the method."""
    method = posterior.method
    return str(method.get("type")) if isinstance(method, Mapping) else type(method).__name__


class Pointwise(NamedTuple):
    """An estimate of the log predictive density of new rows, summed over the rows of the fit.

    Attributes:
      value: the sum over rows.
      standard_error: the standard error of the sum.
      each: the contribution of each row.
      effective_parameters: the effective number of parameters.
      pareto_k: the Pareto shape of each row's importance weights; ``None`` except for :func:`loo`.
    """

    value: float
    standard_error: float
    each: np.ndarray
    effective_parameters: float
    pareto_k: np.ndarray | None = None

    def __repr__(self) -> str:
        return (
            f"Pointwise({self.value:.4g} ± {self.standard_error:.2g} over {len(self.each)} rows, "
            f"{self.effective_parameters:.3g} effective parameters)"
        )


def loo(posterior: Posterior, x: Any, y: Any) -> Pointwise:
    """The leave-one-out log predictive density, by Pareto-smoothed importance sampling (PSIS-LOO).

    Args:
      posterior: a posterior with more than one draw.
      x: the rows that it was fitted to.
      y: their targets.
    """
    each, log_weights = _log_likelihoods(posterior, x, y)
    if len(each) < LEAST:
        raise ValueError(
            f"loo needs at least {LEAST} draws of the weights, from whose tail it learns how heavy the "
            f"importance weights are; {_name(posterior)} gave {len(each)}. Use waic, or a method that "
            "keeps more draws."
        )
    values, pareto_k = leave_one_out(each, log_weights)
    return _pointwise(values, logsumexp(each.T + log_weights, axis=1) - values, pareto_k)


def waic(posterior: Posterior, x: Any, y: Any) -> Pointwise:
    r"""The widely applicable information criterion (Watanabe, 2010), on the scale of a log density.

    .. math:: \sum_i \log E_w\, p(y_i \mid w) - \operatorname{Var}_w \log p(y_i \mid w)

    Args:
      posterior: a posterior with more than one draw.
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
    if isinstance(posterior.model, Model):
        posterior.model.check_undivided("loo and waic")
    predictive = posterior.predict(x)
    each = np.asarray(predictive.log_probs(y), np.float64)
    log_weights = predictive.log_weights
    weighs = log_weights > -np.inf  # the log likelihood of a draw without weight may be infinite
    if weighs.sum() < 2:
        raise ValueError(
            f"loo and waic need several draws of the weights; {_name(posterior)} gave only one."
        )
    return each[weighs], log_weights[weighs]


# -- ranking ------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """One of the models that :func:`select` compared.

    Attributes:
      name: the name of the model.
      value: the criterion; larger is better.
      standard_error: its standard error.
      behind: the difference to the best candidate, zero or positive.
      behind_error: the standard error of that difference.
      note: a caveat, such as the bias of an estimate of the log evidence; an empty text if there is none.
      posterior: the fitted posterior.
    """

    name: str
    value: float
    standard_error: float
    behind: float
    behind_error: float
    note: str
    posterior: Posterior

    def __repr__(self) -> str:
        behind = f"{self.behind:.3g} ± {self.behind_error:.2g} behind" if self.behind else "best"
        return f"Candidate({self.name!r}, {self.value:.4g} ± {self.standard_error:.2g}, {behind})"


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """The result of :func:`select`. It prints as a table.

    Attributes:
      criterion: the criterion by which the models are ranked.
      candidates: the models with their values, best first.
    """

    criterion: str
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate with the largest value."""
        return self.candidates[0]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [
                each.name,
                f"{each.value:.4g} ± {each.standard_error:.2g}",
                f"{each.behind:.3g} ± {each.behind_error:.2g}",
            ]
            for each in self.candidates
        ]
        return ["", self.criterion.replace("_", " "), "behind the best"], rows

    def _notes(self) -> list[str]:
        """Each caveat once, with the names of the models that it applies to."""
        named: dict[str, list[str]] = {}
        for each in self.candidates:
            if each.note:
                named.setdefault(each.note, []).append(each.name)
        return [f"{', '.join(names)}: {note}." for note, names in named.items()]

    def __repr__(self) -> str:
        return "\n".join([text_table(*self._table()), *self._notes()])

    def _repr_html_(self) -> str:
        return html_table(*self._table(), notes=self._notes())


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
    """Fit several models to the same data and rank them.

    Args:
      models: the models by name, or a sequence of models, which are then named "0", "1", ...
      data: ``(x, y)``, the same for all models.
      method: the inference method. If ``None``, a Laplace approximation with the full matrix if every model has
        at most 2,048 weights, and with Kronecker factors, whose evidence is rougher, otherwise.
      criterion: ``"log_evidence"`` (the ELBO for methods that estimate only a bound), ``"loo"``, ``"waic"`` or
        ``"held_out"`` (the log predictive density of rows kept out of the fit).
      held_out: the fraction of rows kept out of the fit; used by the criterion ``"held_out"`` only.
      key: an int or a JAX key.
      progress: whether to show a progress bar for each fit.
    """
    one_of("select", "criterion", criterion, CRITERIA)
    share = fraction("select", "held_out", held_out)
    if not isinstance(models, Mapping | Sequence):
        raise TypeError(must("select", "models", "a mapping or a sequence of models", models))
    named = (
        dict(models) if isinstance(models, Mapping) else {str(i): m for i, m in enumerate(models)}
    )
    if not named:
        raise ValueError(must("select", "models", "at least one model", models))
    method = _laplace(named.values(), data) if method is None else method
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


def _laplace(models: Iterable[Model], data: Any) -> Laplace:
    """The same approximation for all models, since evidences of different ones cannot be compared."""
    key = jax.random.key(0)
    params = [jax.eval_shape(model.bind(data).init, key) for model in models]
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in params]
    return Laplace("full" if max(sizes) <= FULL_WEIGHTS else "kronecker")


def _judge(posterior: Posterior, criterion: str, rows: Any) -> tuple[Any, str]:
    if criterion == "log_evidence":
        evidence = log_evidence(posterior)
        return evidence, f"the estimate errs {evidence.errs}"
    if criterion == "held_out":
        predictive = posterior.predict(rows[0])
        if getattr(predictive, "positions", None) is not None:  # rows are compared, not positions
            each = np.asarray(predictive.log_prob(rows[1], joint=True), np.float64)
        else:
            each = np.asarray(predictive.log_prob(rows[1]), np.float64)
        return _pointwise(each, np.zeros_like(each)), ""
    found = (loo if criterion == "loo" else waic)(posterior, *rows)
    bad = 0 if found.pareto_k is None else int(np.sum(found.pareto_k > PARETO_K))
    return (
        found,
        f"{bad} rows are too influential for importance weights (Pareto k above {PARETO_K})"
        if bad
        else "",
    )


def _candidate(item: Any, best: Any) -> Candidate:
    name, posterior, found, note = item
    behind = best[2].value - found.value
    if isinstance(found, Pointwise):
        # The standard error of the sum of the rows' differences: what is common to both models cancels.
        error = _error_of_sum(best[2].each - found.each)
    else:
        error = float(np.hypot(best[2].standard_error, found.standard_error)) if behind else 0.0
    return Candidate(name, found.value, found.standard_error, behind, error, note, posterior)
