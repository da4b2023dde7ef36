"""Compares methods on the same rows of a table, each within the same share of a time budget.

All methods are scored on the same rows, some of which are harder than others for every method. So two methods
are compared by the differences of their scores row by row, whose standard error is much smaller than that of
the scores themselves.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from credax.core.checks import positive
from credax.core.display import html_table, text_table
from credax.core.errors import CredaxError, PosteriorWarning
from credax.core.version import __version__
from credax.diagnostics.calibration import Score, Scores, score
from credax.diagnostics.doctor import Diagnosis, Finding, diagnose
from credax.fit import Event, fit
from credax.inference.method import Method
from credax.posterior import Posterior
from credax.tables.baselines import baselines, fit_baseline
from credax.tables.preprocessing import Preprocessor
from credax.tables.reading import TableError
from credax.tables.rescaled import Rescaled
from credax.tables.runs import (
    Run,
    count_weights,
    judged_rows,
    scored_run,
    table_model,
)
from credax.tables.splitting import prepare_table

if TYPE_CHECKING:
    import pandas as pd

PILOT = 0.1
"""The share of a method's budget that its pilot run, which measures the time per step, may take."""
SCALED = ("num_steps", "num_warmup", "num_draws", "training_steps", "tuning_steps")
"""The settings that say how long a run is."""
COMPARISON = "comparison.json"
"""The file, in the folder of a comparison, that names the methods in their order."""


@dataclass(frozen=True, eq=False)
class Entry:
    """The result of one method, or of a baseline, which has neither a method nor a posterior.

    Attributes:
      name: the name of the method.
      method: the method as it was run, shortened if the budget demanded it.
      scores: the scores on the held-out rows.
      seconds: the duration of the run, without compilation.
      megabytes: the size of the posterior in memory.
      findings: what :func:`credax.diagnostics.doctor.diagnose` found.
      shortened: the length of the run as a share of the default; 1 if it was not shortened.
      posterior: the posterior that the method found.
      log_likelihoods: the log likelihood of each held-out row.
    """

    name: str
    method: Method | None
    scores: Scores
    seconds: float
    megabytes: float
    findings: Diagnosis
    shortened: float
    posterior: Posterior | None
    log_likelihoods: np.ndarray

    def behind(self, best: Entry) -> Score:
        """The mean over the held-out rows by which the log likelihood of another entry is higher.

        Its standard error is that of the differences row by row.
        """
        differences = best.log_likelihoods - self.log_likelihoods
        if len(differences) < 2:
            return Score(float(differences.mean()), math.nan)
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        return Score(float(differences.mean()), float(error))


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What :func:`compare_table` returns.

    Attributes:
      entries: the results, best first, by the log likelihood of the held-out rows.
      refused: the methods that cannot be used on this table, each with the reason.
      preprocessor: how rows of the table became the inputs and targets of the network.
      rows: the number of fitted and of held-out rows.
      baselines: the results of a linear model and of boosted trees, best first.
    """

    entries: tuple[Entry, ...]
    refused: Mapping[str, str]
    preprocessor: Preprocessor
    rows: tuple[int, int]
    baselines: tuple[Entry, ...] = ()

    @property
    def ranked(self) -> tuple[Entry, ...]:
        """The methods and the baselines, best first."""
        return _ranked((*self.entries, *self.baselines))

    def __repr__(self) -> str:
        notes = filter(None, (self.recommendation(), self.against_baselines()))
        return "\n".join([text_table(*self._table()), *notes])

    def _repr_html_(self) -> str:
        fitted, scored = self.rows
        notes = [note for note in (self.recommendation(), self.against_baselines()) if note]
        return html_table(*self._table(), f"{fitted} fitted rows, {scored} held-out rows", notes)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """The headings and the cells of the leaderboard."""
        found = self.ranked
        rows = [
            [
                entry.name,
                str(entry.scores.log_likelihood),
                "" if entry is found[0] else str(entry.behind(found[0])),
                f"{entry.seconds:.1f}",
                "baseline" if entry.method is None else str(len(entry.findings)),
            ]
            for entry in found
        ]
        return ["method", "log likelihood", "behind the best", "seconds", "findings"], rows

    def against_baselines(self) -> str:
        """A sentence on how the best method compares with the best baseline; empty if there is none."""
        if not self.entries or not self.baselines:
            return ""
        best, other = self.entries[0], self.baselines[0]
        ahead = other.behind(best)  # of which the error is that of the differences row by row
        text = f"by {Score(abs(ahead), ahead.standard_error)} per row"
        if abs(ahead) <= 2 * ahead.standard_error:
            return f"{other.name} is as good as {best.name} within the error: they differ {text}."
        if ahead > 0:
            return f"{best.name} is better than the best baseline, {other.name}, {text}."
        return f"The baseline {other.name} is better than every method, {text}."

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
            f"{text} {fastest.name} is as good within the error (behind by {fastest.behind(best)} per row) and "
            f"takes {fastest.seconds:.1f} s instead of {best.seconds:.1f} s: use it if time matters."
        )


def _as_good(entry: Entry, best: Entry) -> bool:
    """Whether an entry is worse than the best by at most two standard errors of the paired difference."""
    behind = entry.behind(best)
    return entry is best or float(behind) <= 2 * behind.standard_error


def compare_table(
    table: pd.DataFrame,
    target: str,
    methods: Mapping[str, type[Method]],
    *,
    budget: float = 60.0,
    task: str | None = None,
    drop: tuple[str, ...] = (),
    kinds: Mapping[str, str] | None = None,
    held_out: float = 0.2,
    key: Any = 0,
    progress: bool = False,
    folder: str | Path | None = None,
    report: Callable[[str], None] = lambda text: None,
    with_baselines: bool = False,
) -> Comparison:
    """Fit each method to the same rows, within the same share of the budget, and score it on the others.

    Args:
      table: the rows. Those without a target are left out.
      target: the column to predict.
      methods: the methods to compare, by name.
      budget: seconds for all runs together, without compilation.
      task: ``"regression"`` or ``"classification"``. If ``None``, the kind of the target decides.
      drop: columns to leave out.
      kinds: what columns hold, by name, where the values do not tell.
      held_out: the share of rows that are held out from the fit to score the methods on.
      key: an int or a JAX key.
      progress: whether to show a progress bar for each method.
      folder: a folder in which each method has a folder for its run. Runs of the same comparison that are
        already there are taken as they are, so that a comparison goes on after a kill. If ``None``, nothing is
        written.
      report: called with the name of each method before its run.
      with_baselines: whether a linear model and boosted trees, of the libraries that are installed, are fitted
        to the same rows as well.
    """
    positive("compare_table", "budget", budget)
    preprocessor, rest, test, _ = prepare_table(
        table, target, task=task, drop=drop, held_out=held_out, key=key, kinds=kinds
    )
    if not len(test):
        raise CredaxError("compare needs held-out rows: --held-out must be above 0.")
    data = (preprocessor.encode(rest), preprocessor.encode_target(rest))
    judged = judged_rows(preprocessor, test)
    model = table_model(preprocessor)
    seconds = budget / len(methods)
    about = {"rows": len(rest) + len(test), "rows_fitted": len(rest), "rows_held_out": len(test)}
    about |= {"table": "", "columns": len(table.columns) - 1}
    saved = _Saved(folder, _digest(preprocessor, rest, test, seconds, key))
    entries, refused = [], {}
    for name, kind in methods.items():
        found = saved.load(name)
        if found is not None:
            report(f"{name}: taken from {saved.place(name)}")
            entries.append(found)
            continue
        report(f"{name} ...")
        try:
            method = kind()
            method.check(*model.prepare(data))
            method, share = within(method, model, data, seconds, key)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PosteriorWarning)  # the findings say the same
                posterior = fit(model, data, method, key=key, progress=progress)
        except (ValueError, TypeError, CredaxError) as error:
            refused[name] = str(error)
            continue
        took = {"seconds": float(posterior.info["seconds"]), "weights": count_weights(posterior)}
        run = scored_run(posterior, preprocessor, test, diagnose(posterior, *judged), about | took)
        entries.append(saved.entry(name, run, share))
    others = _baselines(preprocessor, data, test, report) if with_baselines else ()
    saved.name_the_best(_ranked(entries), target)
    rows = (len(rest), len(test))
    return Comparison(_ranked(entries), refused, preprocessor, rows, _ranked(others))


def _ranked(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: -float(entry.scores.log_likelihood)))


def _baselines(
    preprocessor: Preprocessor,
    data: tuple[np.ndarray, np.ndarray],
    test: pd.DataFrame,
    report: Callable[[str], None],
) -> list[Entry]:
    """The results of the baselines on the same rows."""
    entries, y = [], preprocessor.targets(test)
    for name, make in baselines(preprocessor.task).items():
        report(f"{name} ...")
        began = time.perf_counter()
        predict = fit_baseline(make, *data, len(preprocessor.classes))
        seconds = time.perf_counter() - began
        predictive: Any = predict(preprocessor.encode(test))
        if not preprocessor.classes:
            predictive = Rescaled(predictive, preprocessor.centre, preprocessor.scale)
        scores = score(predictive, preprocessor.task, y)
        rows = np.asarray(predictive.log_prob(y), float)
        entries.append(Entry(name, None, scores, seconds, 0.0, Diagnosis(()), 1.0, None, rows))
    return entries


def best_method(folder: str | Path, target: str) -> str:
    """The name of the method that predicted best in a comparison.

    Args:
      folder: the folder of the comparison.
      target: the column that is to be predicted, which must be that of the comparison.

    Raises:
      TableError: there is no comparison, or it was of another column.
    """
    path = Path(folder) / COMPARISON
    if not path.is_file():
        raise TableError(
            f"--method best needs a comparison: there is none in {folder}. Use credax compare first, or say "
            "with --compared in which folder it is."
        )
    try:
        found = json.loads(path.read_text("utf-8"))
        compared, methods = str(found["target"]), [str(name) for name in found["methods"]]
    except (ValueError, KeyError, TypeError, UnicodeError):
        raise TableError(f"{path} is damaged; use credax compare again.") from None
    if compared != target:
        raise TableError(f"The comparison in {folder} was of column {compared!r}, not {target!r}.")
    if not methods:
        raise TableError(f"In the comparison in {folder}, no method could be used.")
    return methods[0]


class _Saved(NamedTuple):
    """The runs of a comparison on disk.

    Attributes:
      folder: the folder that holds a folder for each method; ``None`` if nothing is written.
      digest: a digest of everything on which the results depend, besides the methods.
    """

    folder: str | Path | None
    digest: str

    def place(self, name: str) -> Path:
        """The folder of a method."""
        return Path(self.folder or ".") / name

    def load(self, name: str) -> Entry | None:
        """The result of a method, if its run is there and belongs to the same comparison."""
        if self.folder is None or not self.place(name).is_dir():
            return None
        try:
            run = Run.load(self.place(name))
            compared = run.about["compared"]
            same = compared["digest"] == self.digest
            return _entry(name, run, compared) if same else None
        except (CredaxError, KeyError, TypeError):
            return None  # half a run, or something else: it is made again

    def name_the_best(self, entries: tuple[Entry, ...], target: str) -> None:
        """Write the names of the methods in their order, for ``credax fit --method best``."""
        if self.folder is not None:
            found = {"target": target, "methods": [entry.name for entry in entries]}
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            beside = Path(self.folder) / f".{COMPARISON}.partial"
            beside.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
            beside.replace(Path(self.folder) / COMPARISON)

    def entry(self, name: str, run: Run, share: float) -> Entry:
        """The result of a method, whose run is written first."""
        test = run.held_out.iloc[:, : -run.predicted_columns]
        rows = run.predictive(test).log_prob(run.preprocessor.targets(test))
        compared = {
            "digest": self.digest,
            "share": share,
            "megabytes": _megabytes(run.posterior),
            "log_likelihoods": np.asarray(rows, float).tolist(),
        }
        if self.folder is not None:
            run = dataclasses.replace(run, about=run.about | {"compared": compared})
            run.save(self.place(name))
        return _entry(name, run, compared)


def _entry(name: str, run: Run, compared: Mapping[str, Any]) -> Entry:
    assert run.scores is not None
    method: Any = run.posterior.method
    return Entry(
        name,
        method,
        run.scores,
        run.about["seconds"],
        compared["megabytes"],
        Diagnosis(Finding(**finding) for finding in run.findings),
        compared["share"],
        run.posterior,
        np.array(compared["log_likelihoods"], float),
    )


def _digest(
    preprocessor: Preprocessor, rest: pd.DataFrame, test: pd.DataFrame, seconds: float, key: Any
) -> str:
    digest = hashlib.sha256(json.dumps(preprocessor.to_json(), sort_keys=True).encode())
    for rows in (rest, test):
        digest.update(np.ascontiguousarray(preprocessor.encode(rows)).tobytes())
        digest.update(np.ascontiguousarray(preprocessor.encode_target(rows)).tobytes())
    digest.update(repr((__version__, float(seconds), str(key))).encode())
    return digest.hexdigest()


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
