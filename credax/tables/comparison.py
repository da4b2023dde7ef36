"""Every method on the same rows of a table, under the same budget of time."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credax.core.errors import CredaxError, PosteriorWarning
from credax.diagnostics.calibration import Scores, score
from credax.diagnostics.doctor import Diagnosis, diagnose
from credax.fit import Event, fit
from credax.inference.method import Method
from credax.posterior import Posterior
from credax.tables.preprocessing import Preprocessor
from credax.tables.rescaled import Rescaled
from credax.tables.runs import split_table, table_model

if TYPE_CHECKING:
    import pandas as pd

PILOT = 0.1
"""The share of its budget that a method may use to find its pace."""
SCALED = ("num_steps", "num_warmup", "num_draws", "training_steps", "tuning_steps")
"""Settings that say how long a run is."""


@dataclass(frozen=True, eq=False)
class Entry:
    """How one method did.

    Attributes:
      name: of the method.
      method: its settings, shortened where the budget asked for it.
      scores: on the held-out rows.
      seconds: of the run, compiling apart.
      megabytes: that the posterior takes.
      findings: what the doctor says.
      shortened: what share of the default run the budget allowed.
      posterior: what it found.
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
      entries: the best first, by the log likelihood of the held-out rows.
      refused: methods that cannot be used here, each with the reason.
      preprocessor: how the table became numbers.
      rows: how many were fitted to, and how many held out.
    """

    entries: tuple[Entry, ...]
    refused: Mapping[str, str]
    preprocessor: Preprocessor
    rows: tuple[int, int]

    def recommendation(self) -> str:
        """Which method to use, and why, in a sentence or two."""
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
            f"{best.seconds:.1f} s: use it where time counts."
        )


def _as_good(entry: Entry, best: Entry) -> bool:
    """Within two standard errors, those of the difference being at most those of both."""
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
    """Fits each method to the same rows, each for at most the same share of the budget.

    Args:
      table: the rows.
      target: the column to predict.
      methods: by name.
      budget: seconds for all of them together, compiling apart.
      task: ``"regression"`` or ``"classification"``; ``None``: by the kind of the target.
      drop: columns to leave out.
      held_out: the share of rows that they are judged on.
      key: an int or a JAX key.
      progress: shows a progress bar for each.
      report: called with the name of each method when it begins.
    """
    preprocessor = Preprocessor.learn(table, target, task=task, drop=drop)
    table = table[table[target].notna()].reset_index(drop=True)
    rest, test = split_table(table, held_out, key)
    if not len(test):
        raise CredaxError("compare needs held-out rows: --held-out must be above 0.")
    data = (preprocessor.encode(rest), preprocessor.encode_target(rest))
    rows = (preprocessor.encode(test), preprocessor.encode_target(test))
    model = table_model(preprocessor)
    entries, refused = [], {}
    for name, kind in methods.items():
        report(name)
        try:
            method = kind()
            method.check(*model.prepare(data))
            method, share = within(method, model, data, budget / len(methods), key)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PosteriorWarning)  # they stand among the findings
                posterior = fit(model, data, method, key=key, progress=progress)
            seconds = float(posterior.info["seconds"])
        except (ValueError, TypeError, CredaxError) as error:
            refused[name] = str(error)
            continue
        predictive: Any = posterior.predict(rows[0])
        truth = rows[1]
        if preprocessor.task == "regression":
            predictive = Rescaled(predictive, preprocessor.centre, preprocessor.scale)
            truth = preprocessor.centre + preprocessor.scale * truth
        scores = score(predictive, preprocessor.task, truth)
        findings = diagnose(posterior)
        entries.append(
            Entry(name, method, scores, seconds, _megabytes(posterior), findings, share, posterior)
        )
    entries.sort(key=lambda entry: -float(entry.scores.log_likelihood))
    return Comparison(tuple(entries), refused, preprocessor, (len(rest), len(test)))


class _Stop(Exception):
    """Ends a pilot run."""


def within(method: Any, model: Any, data: Any, seconds: float, key: Any) -> tuple[Method, float]:
    """The method, shortened where it would take longer than so many seconds, and the share that is left.

    A short pilot finds its pace. All settings that say how long a run is shrink alike.
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
    if share == 1.0:
        return method, share
    lengths = {
        item.name: getattr(method, item.name)
        for item in dataclasses.fields(method)
        if item.name in SCALED and item.init and isinstance(getattr(method, item.name), int)
    }
    shorter = {
        name: max(1 if value else 0, round(share * value)) for name, value in lengths.items()
    }
    return dataclasses.replace(method, **shorter), share


def _megabytes(posterior: Posterior) -> float:
    approximation: Any = posterior.approximation
    parts = [getattr(approximation, item.name) for item in dataclasses.fields(approximation)]
    leaves = [leaf for leaf in jax.tree.leaves(parts) if hasattr(leaf, "nbytes")]
    return sum(leaf.nbytes for leaf in leaves) / 1e6
