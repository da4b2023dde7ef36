"""What is fitted to a table if the user does not choose: a recommendation that is made from the data.

:func:`recommend` looks at the rows, the columns and the targets, and names a few candidates: models, each with
a method. :func:`fit_recommended` fits them, and combines them by how well they predict rows that they have not
seen.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from credax.core import random
from credax.core.checks import must, number, one_of
from credax.core.display import html_table
from credax.core.errors import DataWarning, DivergedError, PosteriorWarning
from credax.core.scaling import Scaling
from credax.fit import fit
from credax.inference import CrossFitEnsemble, Method, MicrocanonicalEnsemble
from credax.model import Model
from credax.model.data import check_array
from credax.model.likelihoods import Categorical, Gaussian, Likelihood, MixtureDensity
from credax.model.networks import mlp, tabular
from credax.model.networks.network import AbstractNetwork
from credax.model.priors import Normal, Prior
from credax.posterior import Posterior, StackedPosterior, stacking_weights
from credax.tables.speed import LEAST, steps_within

BUDGET = 30.0
"""The default time for a recommendation to be fitted, in seconds."""
LEAST_BUDGET = 5.0
"""The least time, in seconds: compiling the program of one candidate takes most of it."""
FEWEST_ROWS = 4
"""The fewest rows for which something is recommended: two members leave out half of them each."""
SEVERAL = 4
"""There are several candidates if the budget is at least this many times the least one."""
TASKS = ("regression", "classification")
MOST_CLASSES = 20
"""Whole numbers with at most this many distinct values, without gaps, are taken for classes."""
EQUAL_NOISE = "The noise is the same for all rows; its scale is learned."
MODERATE = 10_000
"""The largest number of rows for which there is time for several candidates."""
MOST_CHAIN = 12_000
"""The most steps of a chain: more of them change little."""
LEAST_CHAIN = 1_000
"""The fewest steps of a chain. If there is time for less than a third of them, there is no chain."""
MOST_KEPT = 1 << 30
"""The bytes that the snapshots of an ensemble may take, about."""
MANY_COLUMNS, VERY_MANY_COLUMNS = 256, 2_048
"""From these numbers of columns on, their embeddings and the hidden layers are narrower."""
SMALL = 3_000
"""The largest number of rows for which a chain whose every step uses all rows takes only seconds."""
FOLDS = 8
"""The number of parts into which the rows are divided: each member of a candidate leaves out one of them."""
FEW_VALUES = 30
"""A numeric target with at most this many distinct values, evenly spaced, is taken to be rounded."""
PATIENCE = 1.2
"""A fit may take this many times its budget before it is cut short."""
LEAST_WEIGHT = 0.02
"""Candidates with less weight than this are left out."""


@dataclass(frozen=True)
class Candidate:
    """A model and a method for a table, with the reasons for each part.

    Attributes:
      network: the network.
      prior: the prior of its weights.
      likelihood: the likelihood of the standardised targets, or of the numbers of the classes.
      method: how to find the posterior.
      reasons: a sentence for each of the four.
    """

    network: AbstractNetwork
    prior: Prior
    likelihood: Likelihood
    method: Method
    reasons: Mapping[str, str] = dataclasses.field(compare=False)

    @property
    def model(self) -> Model:
        """The model; it standardises its data."""
        return Model(self.network, self.prior, self.likelihood, standardise=True)

    def __str__(self) -> str:
        parts = ("network", "prior", "likelihood", "method")
        return "\n".join(
            f"{part:<11} {getattr(self, part)!r}\n            {self.reasons[part]}"
            for part in parts
        )


def _of_the_first(name: str) -> Any:
    """A property of a recommendation: that of its first candidate."""
    return property(
        lambda self: getattr(self.candidates[0], name), doc=f"The {name} of the first candidate."
    )


@dataclass(frozen=True)
class Recommendation:
    """What to fit to a table: a few candidates, the first of which is the most important one.

    ``network``, ``prior``, ``likelihood``, ``method`` and ``reasons`` are those of the first candidate. Print
    it for all candidates.

    Attributes:
      candidates: the candidates.
      task: ``"regression"`` or ``"classification"``.
      budget: the time in seconds that all candidates together may take.
    """

    candidates: tuple[Candidate, ...]
    task: str
    budget: float

    network = _of_the_first("network")
    prior = _of_the_first("prior")
    likelihood = _of_the_first("likelihood")
    method = _of_the_first("method")
    model = _of_the_first("model")
    reasons = _of_the_first("reasons")

    def fit(
        self, x: Any, y: Any, *, key: Any = 0, progress: bool = True, weights: Any = None
    ) -> Any:
        """Fit the candidates; see :func:`fit_recommended`."""
        return fit_recommended(self, (x, y), key=key, progress=progress, weights=weights)

    def _repr_html_(self) -> str:
        parts = ("network", "prior", "likelihood", "method")
        rows = [
            (str(i + 1), part, repr(getattr(each, part)), each.reasons[part])
            for i, each in enumerate(self.candidates)
            for part in parts
        ]
        title = f"{self.task}, about {self.budget:g} s"
        return html_table(("candidate", "part", "choice", "reason"), rows, title)

    def __str__(self) -> str:
        title = f"{self.task}, about {self.budget:g} s"
        several = len(self.candidates) > 1
        parts = [
            f"candidate {i + 1}\n{each}" if several else str(each)
            for i, each in enumerate(self.candidates)
        ]
        end = ["The candidates are weighted by how well they predict rows that they have not seen."]
        return "\n\n".join([title, *parts, *(end if several else [])])


def recommend(x: Any, y: Any, *, budget: float = BUDGET, task: str | None = None) -> Recommendation:
    """A good network, prior, likelihood and method for a table, with a reason for each.

    Args:
      x: the rows, ``(rows, columns)``.
      y: the targets: numbers, or the numbers of classes.
      budget: the time that fitting may take on this machine, in seconds.
      task: ``"regression"`` or ``"classification"``. If ``None``, text, booleans and whole numbers from 0 or 1
        on without gaps are classes, if there are at most 20 of them; all other targets are numbers.

    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> recommend(x, x[:, 0] > 0).likelihood
    Categorical(num_classes=2)
    """
    budget = _checked_budget(budget)
    rows = check_array("x", x)
    if rows.ndim != 2:
        raise ValueError(f"x must be a table, of shape (rows, columns); got shape {rows.shape}.")
    targets = np.asarray(y)
    if len(targets) != len(rows):
        raise ValueError(
            f"x and y must have the same number of rows; got {len(rows)} and {len(targets)}."
        )
    if len(rows) < FEWEST_ROWS:
        raise ValueError(
            f"recommend needs at least {FEWEST_ROWS} rows, some of which judge the others; got {len(rows)}. "
            "Choose a method, e.g. cx.BayesianRegressor('hmc')."
        )
    chosen = _task(targets) if task is None else str(one_of("recommend", "task", task, TASKS))
    if chosen == "classification":
        classes = len(np.unique(targets))
        likelihood: Likelihood = Categorical(max(classes, 2))
        reason = f"The target has {classes} classes."
    else:
        likelihood, reason = noise_of(check_array("y", targets))
    candidates = _candidates(rows, targets, chosen, likelihood, reason, budget)
    return Recommendation(tuple(candidates), chosen, budget)


def _candidates(
    x: np.ndarray, y: np.ndarray, task: str, likelihood: Likelihood, noise: str, budget: float
) -> list[Candidate]:
    """A flexible model for every table; and, for tables of moderate size, others that complement it."""
    rows = len(x)
    deep = lambda share: _ensemble(x, y, likelihood, noise, share * budget)  # noqa: E731
    if budget < SEVERAL * LEAST_BUDGET or rows < 4 * FOLDS:
        return [deep(1.0)]
    if task == "regression" and rows <= SMALL:
        chains = [
            _chains(x, y, (50,), Gaussian(scale=None), EQUAL_NOISE, 0.35 * budget),
            _chains(x, y, (16, 16), _two_components(likelihood), noise, 0.3 * budget),
        ]
        return [deep(0.35), *(chain for chain in chains if chain is not None)]
    if task == "classification" and rows <= MODERATE:
        hidden = (16,) if rows <= SMALL else (256,)
        return [deep(0.5), _ensemble(x, y, likelihood, noise, 0.5 * budget, hidden)]
    return [deep(1.0)]


def _checked_budget(budget: Any) -> float:
    seconds = number("recommend", "budget", budget, "a number of seconds")
    if not seconds >= LEAST_BUDGET:
        allowed = f"at least {LEAST_BUDGET:g} seconds, of which compiling one candidate takes most"
        raise ValueError(must("recommend", "budget", allowed, budget))
    return seconds


def _task(targets: np.ndarray) -> str:
    if targets.dtype.kind in "OUSb":
        return "classification"
    if targets.ndim > 1 or targets.dtype.kind not in "iu":
        return "regression"
    distinct = np.unique(targets)
    gapless = len(distinct) == distinct[-1] - distinct[0] + 1 and distinct[0] in (0, 1)
    return "classification" if gapless and len(distinct) <= MOST_CLASSES else "regression"


# -- the candidates ---------------------------------------------------------------------------------


def _ensemble(
    x: np.ndarray,
    y: np.ndarray,
    likelihood: Likelihood,
    noise: str,
    seconds: float,
    hidden: tuple[int, ...] | None = None,
) -> Candidate:
    """Networks with embedded columns that leave out different rows and stop early on them."""
    rows, columns = x.shape
    wide = columns > MANY_COLUMNS
    very_wide = columns > VERY_MANY_COLUMNS
    if hidden is None:
        hidden = (32, 32) if very_wide else (64, 64) if wide else (128, 128)
    regression = likelihood.task == "regression"
    bins = max(2, min(int(np.clip(rows // 15, 8, 128)), 4096 // columns))
    # With many rows, dropout would keep a regression from following small details.
    dropout = 0.0 if regression and rows > SMALL else 0.25
    network = tabular(
        hidden, bins=bins, embedding=1 if very_wide else 2 if wide else 8, dropout=dropout
    )
    # Few members that train for long are best where noise is small; many where it is large.
    members = 5 if regression and rows > SMALL else FOLDS
    members, folds = (members, FOLDS) if rows >= 2 * FOLDS else (2, 2)
    batch_size = min(256, rows - rows // folds)
    outputs = likelihood.num_outputs(y if y.dtype.kind == "f" else np.zeros(len(y), np.int32))
    widths = (columns * (network.embedding + 1), *hidden, outputs)
    products = columns * bins * network.embedding + _products(widths)
    most = 4_000 if rows > SMALL else 1_200 if regression else 400
    members, steps = _members_and_steps(seconds, products, batch_size, members, most)
    snapshots = int(np.clip(MOST_KEPT // (4 * products * members), 5, 40))
    what = "so that numbers may act in steps and whole numbers as categories"
    reasons = {
        "network": (
            f"Each of the {columns} columns has an embedding of up to {bins} bins, {what}."
        ),
        "prior": "It limits the weights; stopping early on unseen rows does the rest.",
        "likelihood": noise,
        "method": (
            f"{members} members, each of which leaves out one of {folds} parts of the rows and stops when "
            f"the members predict these parts best; {steps:,} steps take about {seconds:.0f} s here."
        ),
    }
    rate = 8e-3 if regression or rows > MODERATE else 4e-3
    rate = 2e-3 if rows <= SMALL and hidden else rate
    method = CrossFitEnsemble(
        members, steps, batch_size, learning_rate=rate, folds=folds, snapshots=snapshots
    )
    return Candidate(network, Normal(1.0), likelihood, method, reasons)


def _members_and_steps(
    seconds: float, products: int, batch_size: int, members: int, most: int
) -> tuple[int, int]:
    """How many members are trained for how many steps; fewer members if there is no time for all."""

    def steps_of(members: int) -> int:
        weights = products * members
        return steps_within(seconds, weights * batch_size, most, weights)

    for count in (members, 5, 3):
        if count <= members and steps_of(count) > LEAST:
            return count, steps_of(count)
    return min(members, 3), LEAST


def _chains(
    x: np.ndarray,
    y: np.ndarray,
    hidden: tuple[int, ...],
    likelihood: Likelihood,
    noise: str,
    seconds: float,
) -> Candidate | None:
    """Chains for a small table, whose function may be smooth and whose noise may be small.

    Returns ``None`` if the table has so many columns that there is no time for them.
    """
    rows, columns = x.shape
    members, draws = 4, 100
    targets = np.asarray(y, np.float64)
    products = _products((columns, *hidden, likelihood.num_outputs(targets)))
    # A step of a chain computes two gradients.
    steps = steps_within(seconds, 2 * products * members * rows, MOST_CHAIN, products * members)
    if steps < LEAST_CHAIN / 3:
        return None
    steps = max(steps, LEAST_CHAIN)
    thin = max(1, 2 * steps // (5 * draws))
    reasons = {
        "network": "A small network describes a smooth function of the columns.",
        "prior": "It suits inputs and targets of unit variance.",
        "likelihood": noise,
        "method": (
            f"{members} chains draw from the posterior: with {rows:,} rows, a step that uses all of them is "
            "quick."
        ),
    }
    method = MicrocanonicalEnsemble(
        members, num_warmup=steps - draws * thin, num_draws=draws, thin=thin, folds=FOLDS
    )
    return Candidate(mlp(hidden), Normal(1.0), likelihood, method, reasons)


def _products(widths: Sequence[int]) -> int:
    """The number of multiplications per row of dense layers."""
    return sum(a * b for a, b in itertools.pairwise(widths))


def _two_components(likelihood: Any) -> Likelihood:
    return dataclasses.replace(likelihood, components=2)


def noise_of(y: np.ndarray) -> tuple[Likelihood, str]:
    """The likelihood of numeric targets after standardisation, and the reason for it."""
    columns = np.asarray(y, np.float64).reshape(len(y), -1)
    if columns.shape[1] == 1:
        distinct = np.unique(columns)
        gaps = np.diff(distinct) / Scaling.learn(columns).scale[0]
        if 2 <= len(distinct) <= FEW_VALUES and _even(gaps):
            step = float(gaps.min())
            reason = (
                f"The target has {len(distinct)} values: its density is that of an interval around each, so "
                "that narrow peaks at them gain nothing."
            )
            return MixtureDensity(3, min_scale=max(step / 10, 1e-3), rounding=step), reason
        if 2 <= len(distinct) < len(columns) / 4:
            floor = float(np.clip(gaps.min() / 10, 1e-3, 0.1))
            reason = "The noise may have any shape; its scale stays above a tenth of the target's resolution."
            return MixtureDensity(3, min_scale=floor), reason
    reason = (
        "The noise may have any shape and another one for each row, and no target is impossible."
    )
    return MixtureDensity(3, min_scale=2e-3), reason


def _even(gaps: np.ndarray) -> bool:
    """Whether all gaps are multiples of the smallest, up to rounding."""
    ratio = gaps / gaps.min()
    return bool(np.all(np.abs(ratio - np.round(ratio)) < 1e-3 * ratio))


# -- fitting ----------------------------------------------------------------------------------------


def fit_recommended(
    recommendation: Recommendation,
    data: tuple[Any, Any],
    *,
    key: Any = 0,
    progress: bool = True,
    weights: Any = None,
) -> Posterior | StackedPosterior:
    """Fit all candidates, and weight them by the density that they give to rows they have not seen.

    A candidate that fails is left out, with a warning that says why, unless none remains.

    Args:
      recommendation: what to fit.
      data: ``(x, y)``; classes as numbers from 0 on.
      key: an int or a JAX key.
      progress: whether to show progress bars.
      weights: how often each row counts, in the fits and where the candidates are weighted. If ``None``, every
        row counts once.

    Returns:
      The posterior of the only candidate that has weight, or several of them as one.
    """
    began, found, failure = time.perf_counter(), [], None
    latest = began + PATIENCE * recommendation.budget
    for i, candidate in enumerate(recommendation.candidates):
        if found and time.perf_counter() > latest:
            break
        try:
            with warnings.catch_warnings():
                # Chains that are judged by rows they have not seen need not have mixed.
                warnings.simplefilter("ignore", PosteriorWarning)
                posterior = fit(
                    candidate.model,
                    data,
                    candidate.method,
                    key=jax.random.fold_in(random.key(key), i),
                    progress=progress,
                    callbacks=_ends_when_late(candidate.method, latest),
                    weights=weights,
                )
            found.append(posterior)
        except DivergedError as error:
            failure = error
            text = f"{type(candidate.method).__name__} is left out of the result: {error}"
            warnings.warn(text, DataWarning, stacklevel=2)
    if not found:
        assert failure is not None
        raise failure
    return combined(found, weights)


def _ends_when_late(method: Method, latest: float) -> Any:
    """A callback that ends a run which goes on for too long, once it has got far enough to be of use."""
    usable = method.num_warmup + (method.num_steps - method.num_warmup) // 2
    return lambda event: event.step >= usable and time.perf_counter() > latest


def combined(posteriors: Sequence[Posterior], counts: Any = None) -> Posterior | StackedPosterior:
    """Posteriors as one, weighted by the log density of the rows that all of them have left out.

    Args:
      posteriors: the posteriors.
      counts: how often each row of the fit counts. If ``None``, every row counts once.
    """
    usable = [part for part in posteriors if np.all(np.isfinite(_of_counted_rows(part, counts)))]
    parts = usable or list(posteriors)[:1]
    if len(parts) == 1:
        return parts[0]
    count = min(len(part.info["held_out_log_prob"]) for part in parts)
    log_probs = np.stack([part.info["held_out_log_prob"][:count] for part in parts])
    rows = parts[0].info["held_out_rows"][:count]
    own = None if counts is None else np.asarray(counts, np.float64)[rows]
    weights = stacking_weights(log_probs, own)
    kept = weights >= LEAST_WEIGHT
    weights = weights[kept] / weights[kept].sum()
    parts = [part for part, used in zip(parts, kept, strict=True) if used]
    if len(parts) == 1:
        return parts[0]
    seconds = sum(float(part.info["seconds"]) for part in posteriors)
    return StackedPosterior(tuple(parts), tuple(weights.tolist()), {"seconds": seconds})


def _of_counted_rows(posterior: Posterior, counts: Any) -> np.ndarray:
    """The log densities of the rows that were left out, without those that count for nothing."""
    found = posterior.info["held_out_log_prob"]
    if counts is None:
        return found
    return found[np.asarray(counts)[posterior.info["held_out_rows"]] > 0]


# -- settings of a chosen method --------------------------------------------------------------------


def recommended_method(rows: int) -> Method:
    """A good method for a plain network that is fitted to this many rows."""
    if rows <= SMALL:
        return MicrocanonicalEnsemble(members=4, num_warmup=3_000, num_draws=100, thin=20)
    return CrossFitEnsemble(num_steps=3_000, batch_size=256)


def with_settings(method: Method, settings: Mapping[str, Any]) -> Method:
    """The method with some of its settings replaced.

    Raises:
      ValueError: the method has no setting of that name, or does not allow the value.

    >>> with_settings(recommended_method(100), {"members": 2}).members
    2
    """
    found: Any = method
    known = [item.name for item in dataclasses.fields(found) if item.init]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{type(method).__name__} has no setting {name!r}.{hint} It has {', '.join(known)}."
            )
    return dataclasses.replace(found, **settings)


def recommended_network(hidden: Sequence[int] | None = None) -> AbstractNetwork:
    """A plain network for a table, with hidden layers of these widths; if ``None``, one layer of 50 units."""
    return mlp((50,) if hidden is None else hidden)


def recommended_prior() -> Prior:
    """A good prior for the weights of a network whose inputs and targets have unit variance."""
    return Normal(1.0)
