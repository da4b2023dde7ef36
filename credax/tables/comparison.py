"""Compares methods on the same rows of a table, each within the same share of a time budget."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credax.core.checks import positive
from credax.core.errors import CredaxError, PosteriorWarning
from credax.diagnostics.calibration import Scores, score
from credax.diagnostics.doctor import Diagnosis, diagnose
from credax.fit import Event, fit
from credax.inference.method import Method
from credax.posterior import Posterior
from credax.tables.preprocessing import Preprocessor
from credax.tables.rescaled import Rescaled
from credax.tables.runs import prepare_table, table_model

if TYPE_CHECKING:
    import pandas as pd

PILOT = 0.1
"""The share of a method's budget that its pilot run, which measures the time per step, may take."""
SCALED = ("num_steps", "num_warmup", "num_draws", "training_steps", "tuning_steps")
"""The settings that say how long a run is."""


@dataclass(frozen=True, eq=False)
class Entry:
    """The result of one method.

    Attributes:
      name: the name of the method.
      method: the method as it was run, shortened if the budget demanded it.
      scores: the scores on the held-out rows.
      seconds: the duration of the run, without compilation.
      megabytes: the size of the posterior in memory.
      findings: what :func:`credax.diagnostics.doctor.diagnose` found.
      shortened: the length of the run as a share of the default; 1 if it was not shortened.
      posterior: the posterior that the method found.
    """

    name: str
    method: Method
    scores: Scores
    seconds: float
    megabytes: float
    findings: Diagnosis
    shortened: float
    posterior: Posterior


@dataclass(frozen=True, eq=False)
class Comparison:
    """What :func:`compare_table` returns.

    Attributes:
      entries: the results, best first, by the log likelihood of the held-out rows.
      refused: the methods that cannot be used on this table, each with the reason.
      preprocessor: how rows of the table became the inputs and targets of the network.
      rows: the number of fitted and of held-out rows.
    """

    entries: tuple[Entry, ...]
    refused: Mapping[str, str]
    preprocessor: Preprocessor
    rows: tuple[int, int]

    def recommendation(self) -> str:
        """One or two sentences on which method to use, and why."""
        if not self.entries:
            return "No method could be used on this table."
        best = self.entries[0]
        near = [entry for entry in self.entries if _as_good(entry, best)]
        sound = [entry for entry in near if not any(f.grave for f in entry.findings)] or near
        fastest = min(sound, key=lambda entry: entry.seconds)
        value = best.scores.log_likelihood
        text = f"{best.name} predicts the held-out rows best (log likelihood {value})."
        if fastest is best:
            return f"Use {best.name}: {text[0].lower() + text[1:]}"
        return (
            f"{text} {fastest.name} is as good within the error and takes {fastest.seconds:.1f} s instead of "
            f"{best.seconds:.1f} s: use it if time matters."
        )


def _as_good(entry: Entry, best: Entry) -> bool:
    """Whether an entry is worse than the best by at most two standard errors of the difference.

    They are computed as if the errors of both entries were independent. The rows are the same, so that the
    true standard error is usually smaller.
    """
    a, b = entry.scores.log_likelihood, best.scores.log_likelihood
    return float(b) - float(a) <= 2 * np.hypot(a.standard_error, b.standard_error)


def compare_table(
    table: pd.DataFrame,
    target: str,
    methods: Mapping[str, type[Method]],
    *,
    budget: float = 60.0,
    task: str | None = None,
    drop: tuple[str, ...] = (),
    held_out: float = 0.2,
    key: Any = 0,
    progress: bool = False,
    report: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Fit each method to the same rows, within the same share of the budget, and score it on the others.

    Args:
      table: the rows. Those without a target are left out.
      target: the column to predict.
      methods: the methods to compare, by name.
      budget: seconds for all runs together, without compilation.
      task: ``"regression"`` or ``"classification"``. If ``None``, the kind of the target decides.
      drop: columns to leave out.
      held_out: the share of rows that are held out from the fit to score the methods on.
      key: an int or a JAX key.
      progress: whether to show a progress bar for each method.
      report: called with the name of each method before its run.
    """
    positive("compare_table", "budget", budget)
    preprocessor, rest, test = prepare_table(
        table, target, task=task, drop=drop, held_out=held_out, key=key
    )
    if not len(test):
        raise CredaxError("compare needs held-out rows: --held-out must be above 0.")
    data = (preprocessor.encode(rest), preprocessor.encode_target(rest))
    x_test, truth = preprocessor.encode(test), preprocessor.targets(test)
    model = table_model(preprocessor)
    entries, refused = [], {}
    for name, kind in methods.items():
        report(name)
        try:
            method = kind()
            method.check(*model.prepare(data))
            method, share = within(method, model, data, budget / len(methods), key)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PosteriorWarning)  # the findings say the same
                posterior = fit(model, data, method, key=key, progress=progress)
            seconds = float(posterior.info["seconds"])
        except (ValueError, TypeError, CredaxError) as error:
            refused[name] = str(error)
            continue
        predictive: Any = posterior.predict(x_test)
        if preprocessor.task == "regression":
            predictive = Rescaled(predictive, preprocessor.centre, preprocessor.scale)
        scores = score(predictive, preprocessor.task, truth)
        findings = diagnose(posterior)
        entries.append(
            Entry(name, method, scores, seconds, _megabytes(posterior), findings, share, posterior)
        )
    entries.sort(key=lambda entry: -float(entry.scores.log_likelihood))
    return Comparison(tuple(entries), refused, preprocessor, (len(rest), len(test)))


class _Stop(Exception):
    """Ends a pilot run once the time per step is known."""


def within(method: Any, model: Any, data: Any, seconds: float, key: Any) -> tuple[Method, float]:
    """Shorten a method whose run would take longer than ``seconds``.

    A short pilot run measures the time per step.

    Returns:
      The method, and the length of its run as a share of what it was.
    """
    pace: list[tuple[int, float]] = []
    began: list[float] = []

    def watch(event: Event) -> None:
        began.append(event.seconds) if not began else None
        pace.append((event.step, event.seconds))
        if event.seconds - began[0] > PILOT * seconds:
            raise _Stop

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PosteriorWarning)
            fit(model, data, method, key=key, progress=False, callbacks=(watch,))
    except _Stop:
        pass
    (first, at), (last, end) = pace[0], pace[-1]
    if last == first:
        needed = end / max(last, 1) * method.num_steps
    else:
        needed = (end - at) / (last - first) * method.num_steps
    share = min(1.0, seconds / max(needed, 1e-9))
    return shorter(method, share), share


def shorter(method: Any, share: float) -> Any:
    """The method with every setting that says how long a run is multiplied by ``share``, at most 1."""
    if share >= 1:
        return method
    lengths = {
        item.name: getattr(method, item.name)
        for item in dataclasses.fields(method)
        if item.name in SCALED and item.init and isinstance(getattr(method, item.name), int)
    }
    changed = {
        name: max(1 if value else 0, round(share * value)) for name, value in lengths.items()
    }
    return dataclasses.replace(method, **changed)


def _megabytes(posterior: Posterior) -> float:
    approximation: Any = posterior.approximation
    parts = [getattr(approximation, item.name) for item in dataclasses.fields(approximation)]
    leaves = [leaf for leaf in jax.tree.leaves(parts) if hasattr(leaf, "nbytes")]
    return sum(leaf.nbytes for leaf in leaves) / 1e6
