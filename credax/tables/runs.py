"""A run: the folder that ``credax fit`` writes, with everything that ``predict`` and ``report`` need.

``posterior.credax`` holds the posterior. ``run.json`` holds the preprocessing and the scores on the held-out
rows, and ``held_out.csv`` these rows with their predictions. ``calibration.csv`` holds the rows by which the
predictions are corrected, if they are. ``run.json`` also holds digests of itself and of the other files, so
that damage is noticed. The folder is written under a temporary name and renamed at the end, so that it is never
half-written. Other files in the folder belong to the user and stay where they are.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from credax.core import random
from credax.core.errors import StorageError
from credax.core.version import __version__
from credax.diagnostics.calibration import Scores, score
from credax.diagnostics.doctor import Diagnosis, diagnose
from credax.fit import fit
from credax.inference.method import Method
from credax.model import Model
from credax.model.likelihoods import Categorical, Gaussian, Likelihood, StudentT
from credax.model.priors import Prior
from credax.posterior import Posterior, StackedPosterior
from credax.storage import UNREADABLE, load
from credax.storage.describe import describe_or_name
from credax.tables.preprocessing import Preprocessor, with_target
from credax.tables.reading import TableError
from credax.tables.recommended import (
    BUDGET,
    fit_recommended,
    recommend,
    recommended_method,
    recommended_network,
    recommended_prior,
    with_settings,
)
from credax.tables.rescaled import Rescaled

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 4
"""The newest version of the folder's format that can be read.

It rises when older versions of credax can no longer read a folder. Version 1 has no digests, and version 2 no
decimal marks, units and orders of dates. Version 4 is that of runs whose predictions are corrected; all others
are written as version 3.
"""
FEWEST_CALIBRATED = 19
"""The fewest rows by which predictions are corrected: those that an interval of 95 % needs."""
JUDGED = 100
"""The number of rows at whose predictions the agreement between chains is checked."""
TESTED = 1_000
"""The largest number of held-out rows whose targets the doctor compares with their predictions."""
BLOCK = 256
"""The number of rows that are predicted at a time, by the same programs for every table."""
FILES = POSTERIOR, RUN, HELD_OUT, CALIBRATION = (
    *("posterior.credax", "run.json", "held_out.csv", "calibration.csv"),
)


@dataclass(frozen=True, eq=False)
class Run:
    """A fit of a network to a table: the posterior, the preprocessing, and how good the predictions are.

    Attributes:
      posterior: the posterior of the weights, given the preprocessed rows.
      preprocessor: how rows of the table become the inputs and targets of the network.
      held_out: the held-out rows as they are in the table, with their predictions in further columns.
      scores: the scores on the held-out rows; ``None`` if no rows were held out.
      findings: what :meth:`credax.Posterior.diagnose` found, as dictionaries.
      about: the name of the table, the numbers of rows, columns and weights, and the duration of the fit.
      calibration: the rows by which the predictions are corrected, which neither the fit nor the scores have
        used; ``None`` if the predictions are those of the posterior.
    """

    posterior: Any  # a Posterior, or a StackedPosterior
    preprocessor: Preprocessor
    held_out: pd.DataFrame
    scores: Scores | None
    findings: tuple[dict[str, Any], ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    calibration: pd.DataFrame | None = None

    def predict(
        self, table: pd.DataFrame, level: float = 0.9, quantiles: Sequence[float] = ()
    ) -> pd.DataFrame:
        """A table with one row of predictions for each row of ``table``, in their order.

        Args:
          table: rows with the same columns as the fitted table; the target is not needed.
          level: the probability that the interval from ``lower`` to ``upper`` holds the target.
          quantiles: levels of quantiles of a number, each of which gets a column such as ``q0.05``.
        """
        import pandas as pd

        x = self.preprocessor.encode(table)
        return pd.DataFrame(self.predict_inputs(x, level, quantiles), index=table.index)

    def predict_inputs(
        self, x: np.ndarray, level: float = 0.9, quantiles: Sequence[float] = ()
    ) -> dict[str, np.ndarray]:
        """The columns of :meth:`predict` for rows that are preprocessed already.

        Rows are computed in blocks of ``BLOCK``, the last of which is filled up. All blocks run the same
        programs, so that a row has the same predictions, bit for bit, whichever rows stand beside it.
        """
        columns = []
        for begin in range(0, len(x), BLOCK):
            rows = x[begin : begin + BLOCK]
            whole = np.concatenate([rows, np.repeat(rows[-1:], BLOCK - len(rows), axis=0)])
            found = self._columns(self._predictive(whole), level, quantiles)
            columns.append({name: values[: len(rows)] for name, values in found.items()})
        return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}

    def _columns(
        self, predictive: Any, level: float, quantiles: Sequence[float]
    ) -> dict[str, np.ndarray]:
        if self.preprocessor.task == "classification":
            labels = np.array(self.preprocessor.classes)
            probs = np.asarray(predictive.probs, float)
            named = {f"p({label})": probs[:, i] for i, label in enumerate(labels)}
            return {
                "label": labels[probs.argmax(1)],
                **named,
                "entropy": predictive.entropy,
                "mutual_information": predictive.mutual_information,
            }
        lower, upper = predictive.interval(level)
        return {
            "mean": predictive.mean,
            "std": predictive.std,
            "epistemic": predictive.epistemic,
            "aleatoric": predictive.aleatoric,
            "lower": lower,
            "upper": upper,
            **{f"q{q:g}": np.ravel(predictive.quantile(q)) for q in quantiles},
        }

    @property
    def predicted_columns(self) -> int:
        """The number of columns of ``held_out`` that are predictions, at its right end."""
        if self.scores is None:
            return 0
        classes = len(self.preprocessor.classes)
        return classes + 3 if classes else 6

    def predictive(self, table: pd.DataFrame) -> Any:
        """The predictive distribution of the targets of these rows, on the scale of the table."""
        return self._predictive(self.preprocessor.encode(table))

    def _predictive(self, x: np.ndarray) -> Any:
        predictive = self._predictor.predict(x)
        if self.preprocessor.task == "classification":
            return predictive
        return Rescaled(predictive, self.preprocessor.centre, self.preprocessor.scale)

    @cached_property
    def _predictor(self) -> Any:
        """The posterior, corrected by the rows that were kept back for that."""
        if self.calibration is None:
            return self.posterior
        rows = self.preprocessor.encode(self.calibration)
        return self.posterior.calibrate(rows, self.preprocessor.encode_target(self.calibration))

    # -- on disk ------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the run to a folder; an older run in its place is replaced at the end."""
        folder = check_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder.parent / f".{folder.name}-{os.getpid()}-{secrets.token_hex(4)}"
        beside.mkdir()
        try:
            self.posterior.save(beside / POSTERIOR)
            self.held_out.to_csv(beside / HELD_OUT, index=False)
            written = [POSTERIOR, HELD_OUT]
            if self.calibration is not None:
                self.calibration.to_csv(beside / CALIBRATION, index=False)
                written.append(CALIBRATION)
            content = self._as_json()
            content["files"] = {name: _digest(beside / name) for name in written}
            content["sha256"] = _digest_of_json(content)
            (beside / RUN).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
            for name in ("", *FILES):
                if (folder / name).exists() and (beside / name).exists():
                    (beside / name).chmod(stat.S_IMODE((folder / name).stat().st_mode))
            # The old run is renamed first and removed last: a crash always leaves one of the two intact.
            old = beside.with_name(f"{beside.name}-old")
            if folder.exists():
                folder.replace(old)
            beside.replace(folder)
            _keep_others(old, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _as_json(self) -> dict[str, Any]:
        return {
            "format": 3 if self.calibration is None else FORMAT,
            "version": __version__,
            "about": self.about,
            "method": describe_or_name(self.posterior.method),
            "preprocessor": self.preprocessor.to_json(),
            "scores": None if self.scores is None else scores_as_json(self.scores),
            "findings": list(self.findings),
        }

    @classmethod
    def load(cls, folder: str | Path, *, held_out: bool = True) -> Run:
        """Read a folder that :meth:`save` wrote.

        Args:
          folder: the folder.
          held_out: whether the held-out rows are needed. Predictions do without them.

        Raises:
          TableError: the folder is no run.
          StorageError: a file of the run is damaged, missing, or of a newer version.
        """
        folder = Path(folder)
        if not (folder / RUN).is_file():
            raise TableError(f"{folder} is not a run; credax fit writes one (--out).")
        try:
            return cls._read(folder, held_out)
        except StorageError:
            raise
        except (*UNREADABLE, OSError) as error:
            raise StorageError(f"{folder} is damaged: {str(error)[:200]}.") from error

    @classmethod
    def _read(cls, folder: Path, with_rows: bool) -> Run:
        found = _read_json(folder, (POSTERIOR, HELD_OUT) if with_rows else (POSTERIOR,))
        calibrated = CALIBRATION in found.get("files", {})
        preprocessor = Preprocessor.from_json(found["preprocessor"])
        posterior = load(folder / POSTERIOR)
        schema = getattr(posterior.model, "schema", None)
        if schema is None or schema.input_shape != (len(preprocessor.features),):
            raise ValueError("its preprocessing does not give the rows that its network takes")
        scores = None if found["scores"] is None else scores_from_json(found["scores"])
        held_out = _read_rows(folder / HELD_OUT, preprocessor) if with_rows else _no_rows()
        calibration = _read_rows(folder / CALIBRATION, preprocessor) if calibrated else None
        findings = tuple(dict(finding) for finding in found["findings"])
        about = dict(found["about"])
        return cls(posterior, preprocessor, held_out, scores, findings, about, calibration)


def _no_rows() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame()


def _read_json(folder: Path, needed: Sequence[str]) -> dict[str, Any]:
    """The content of ``run.json``; it and the needed files are checked against the digests in it."""
    path = folder / RUN
    found = json.loads(path.read_text("utf-8"))
    version = operator.index(found["format"])
    if version > FORMAT:
        raise StorageError(
            f"{folder} was written by credax {found.get('version', '?')}, which is newer than this one, "
            f"{__version__}. Install that version or a later one."
        )
    digest = found.pop("sha256", None)
    if version == 1 and digest is None and "files" not in found:
        return found
    if digest != _digest_of_json(found):
        raise StorageError(f"{path} is damaged: its content does not match its digest.")
    corrected = (CALIBRATION,) if CALIBRATION in found["files"] else ()
    for name in (*needed, *corrected):
        if _digest(folder / name) != found["files"][name]:
            raise StorageError(f"{folder / name} is damaged, or belongs to another run.")
    return found


def _read_rows(path: Path, preprocessor: Preprocessor) -> pd.DataFrame:
    import pandas as pd

    # Text must stay text, even if it looks like a number ("01") or like a missing value ("NA").
    text = [*preprocessor.as_written, *(["predicted_label"] if preprocessor.classes else [])]
    return pd.read_csv(path, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_json(content: Mapping[str, Any]) -> str:
    """A digest of what the JSON means, however it is indented."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_folder(folder: str | Path) -> Path:
    """Check that a run can be written to a folder: over an older run, into an empty folder or a new one.

    Returns:
      The folder itself if the path is a link to it, so that the link stays a link.

    Raises:
      TableError: something else is there, or the place cannot be written to.
    """
    found = Path(os.path.realpath(folder))
    if found.exists() and not _may_replace(found):
        raise TableError(f"{folder} exists and is not a run; choose another folder with --out.")
    above = next(path for path in (found.parent, *found.parents) if path.exists())
    if not above.is_dir():
        raise TableError(f"{folder} cannot be written, since {above} is a file.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise TableError(f"{folder} cannot be written: no permission to write to {above}.")
    return found


def _may_replace(folder: Path) -> bool:
    return folder.is_dir() and ((folder / RUN).exists() or not any(folder.iterdir()))


def _keep_others(old: Path, folder: Path) -> None:
    """Move the user's files from the folder of the older run to that of the new one, and remove the rest."""
    if not old.exists():
        return
    for path in old.iterdir():
        if path.name in FILES:
            path.unlink()
        else:
            path.replace(folder / path.name)
    old.rmdir()  # which refuses to remove a folder that is not empty


def fit_table(
    table: pd.DataFrame,
    target: str,
    *,
    method: Method | None = None,
    settings: Mapping[str, Any] | None = None,
    task: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    hidden: Sequence[int] | None = None,
    held_out: float = 0.2,
    key: Any = 0,
    progress: bool = True,
    name: str = "",
    prior: Prior | None = None,
    likelihood: Likelihood | None = None,
    checkpoint: str | Path | None = None,
    mesh: Any = None,
    calibrate: float = 0.0,
    budget: float = BUDGET,
    report: Callable[[Preprocessor], None] = lambda preprocessor: None,
) -> Run:
    """Fit a network to a table, and score its predictions on rows held out from the fit.

    If no method, setting, network, prior, likelihood or checkpoint is given, what
    :func:`credax.tables.recommended.recommend` recommends is fitted, within ``budget`` seconds.

    Args:
      table: the rows. Those without a target are left out.
      target: the column to predict.
      method: how to find the posterior. If ``None``, the method that is recommended for this many fitted rows.
      settings: settings of the method by name, which replace those of ``method`` or of the recommended one.
      task: ``"regression"`` or ``"classification"``. If ``None``, the kind of the target decides.
      drop: columns to leave out.
      kinds: what columns hold, by name, where the values do not tell (``credax fit --column``).
      hidden: the widths of the hidden layers. If ``None``, the recommended network.
      held_out: the share of rows held out from the fit; 0 for none. See :func:`prepare_table`.
      key: an int or a JAX key.
      progress: whether to show a progress bar.
      name: the name of the table, for the report.
      prior: the prior of the weights. If ``None``, the recommended one.
      likelihood: the likelihood of the standardised target, or of counts as they are. If ``None``, the one that
        suits the target.
      checkpoint: a folder from which a fit that was killed goes on.
      mesh: the devices of the fit, as for ``cx.fit``.
      calibrate: the share of rows that are kept back from the fit to correct the predictions by, beside those
        that are held out; 0 for no correction. See :meth:`credax.Posterior.calibrate`.
      budget: the time in seconds that fitting may take if nothing else is chosen.
      report: called with the preprocessing before the fit, which may take hours.
    """
    preprocessor, fitted, test, kept = prepare_table(
        table,
        target,
        task=task,
        drop=drop,
        held_out=held_out,
        key=key,
        kinds=kinds,
        calibrate=calibrate,
    )
    chosen = (method, settings or None, hidden, prior, likelihood, checkpoint, mesh)
    if method is None:
        method = recommended_method(len(fitted))
    method = with_settings(method, settings or {})
    preprocessor = preprocessor_for(preprocessor, likelihood)
    model = table_model(preprocessor, hidden)
    model = replace(model, prior=prior or model.prior, likelihood=likelihood or model.likelihood)
    report(preprocessor)
    # Everything is encoded before the fit, which may take hours, so that bad values are refused at once.
    data = (preprocessor.encode(fitted), preprocessor.encode_target(fitted))
    judged = judged_rows(preprocessor, test if len(test) else fitted)
    posterior: Any
    if all(each is None for each in chosen):
        recommendation = recommend(*data, budget=budget, task=preprocessor.task)
        posterior = fit_recommended(recommendation, data, key=key, progress=progress)
    else:
        posterior = fit(
            *(model, data, method), key=key, progress=progress, checkpoint=checkpoint, mesh=mesh
        )
    about = {
        "table": name,
        "rows": len(fitted) + len(test) + (0 if kept is None else len(kept)),
        "rows_fitted": len(fitted),
        "rows_held_out": len(test),
        **({} if kept is None else {"rows_calibrated": len(kept)}),
        "held_out_rows": held_out_rows(
            table, target, task=task, held_out=held_out, key=key, kinds=kinds
        ),
        "columns": len(table.columns) - 1,
        "weights": count_weights(posterior),
        "seconds": float(posterior.info["seconds"]),
    }
    # The targets of fitted rows are no test of the predictions, so that the doctor sees held-out ones only.
    found = diagnose(posterior, *(judged if len(test) else judged[:1]))
    return scored_run(posterior, preprocessor, test, found, about, kept)


def judged_rows(preprocessor: Preprocessor, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and the targets of the rows that the doctor sees."""
    rows = table.iloc[:TESTED]
    return preprocessor.encode(rows), preprocessor.encode_target(rows)


def scored_run(
    posterior: Posterior | StackedPosterior,
    preprocessor: Preprocessor,
    test: pd.DataFrame,
    diagnosis: Diagnosis,
    about: dict[str, Any],
    calibration: pd.DataFrame | None = None,
) -> Run:
    """A run with its scores on the held-out rows, if there are any."""
    import pandas as pd

    findings = tuple(
        {"what": f.what, "value": f.value, "advice": f.advice, "grave": f.grave} for f in diagnosis
    )
    run = Run(posterior, preprocessor, test, None, findings, about, calibration)
    if not len(test):
        return run
    task = getattr(posterior.model, "likelihood").task  # noqa: B009  (a LogDensity has none)
    scores = score(run.predictive(test), task, preprocessor.targets(test))
    shown = pd.concat([test, run.predict(test).add_prefix("predicted_")], axis=1)
    return replace(run, held_out=shown, scores=scores)


def preprocessor_for(preprocessor: Preprocessor, likelihood: Likelihood | None) -> Preprocessor:
    """The preprocessing for a likelihood that the user chose: counts and positive numbers are not scaled."""
    if likelihood is None:
        return preprocessor
    if preprocessor.task == "classification":
        raise TableError(
            f"--likelihood must be left out for classes; got {type(likelihood).__name__}."
        )
    unscaled = likelihood.task == "count" or not likelihood.standardises
    return replace(preprocessor, centre=0.0, scale=1.0) if unscaled else preprocessor


class Prepared(NamedTuple):
    """What :func:`prepare_table` returns."""

    preprocessor: Preprocessor
    fitted: pd.DataFrame
    held_out: pd.DataFrame
    calibration: pd.DataFrame | None = None


def prepare_table(
    table: pd.DataFrame,
    target: str,
    *,
    task: str | None,
    drop: Sequence[str],
    held_out: float,
    key: Any,
    kinds: Mapping[str, str] | None = None,
    calibrate: float = 0.0,
) -> Prepared:
    """Split the rows at random into fitted and held-out ones, then learn the preprocessing.

    A share ``calibrate`` of all rows is neither: the predictions are corrected by them.

    Every scale, fill value and category comes from the fitted rows alone, so that the scores on the held-out
    rows hold for new rows too. All rows decide which classes there are: see :meth:`Preprocessor.learn`.
    """
    aim = with_target(table, target, task, (kinds or {}).get(target))
    fitted, test = split_table(aim.table, held_out, key)
    kept = None
    if calibrate:
        fitted, kept = _keep_back(fitted, calibrate, len(aim.table), key)
    preprocessor = Preprocessor.learn(
        *(fitted, target),
        task=aim.task,
        drop=drop,
        whole=aim.table,
        kinds=kinds,
        notes=aim.notes,
    )
    return Prepared(preprocessor, fitted, test, kept)


def _keep_back(
    table: pd.DataFrame, share: float, rows: int, key: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split off the rows by which the predictions are corrected: this share of ``rows``."""
    if not 0 < share < 1:
        raise TableError(f"--calibrate must be above 0 and below 1; got {share}.")
    count = round(share * rows)
    if count < FEWEST_CALIBRATED or len(table) - count < 2:
        raise TableError(
            f"--calibrate must keep back at least {FEWEST_CALIBRATED} rows, and leave some to fit to; got "
            f"{count} of {len(table)}."
        )
    return split_table(table, count / len(table), jax.random.fold_in(random.key(key), 2))


def table_model(preprocessor: Preprocessor, hidden: Sequence[int] | None = None) -> Model:
    """The model for a table: the recommended network and prior, and the likelihood of the task."""
    if preprocessor.task == "classification":
        likelihood = Categorical(len(preprocessor.classes))
    elif preprocessor.outliers:
        likelihood = StudentT(scale=None)
    else:
        likelihood = Gaussian(scale=None)
    return Model(recommended_network(hidden), recommended_prior(), likelihood)


def split_table(
    table: pd.DataFrame, held_out: float, key: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the rows at random into those to fit to and those held out, a share ``held_out`` of them."""
    if not 0 <= held_out < 1:
        raise TableError(f"--held-out must be at least 0 and below 1; got {held_out}.")
    count = round(held_out * len(table))
    if len(table) - count < 2:
        raise TableError(
            f"There are {len(table)} rows with a target; at least 2 must be left to fit to."
        )
    order = _shuffled(len(table), key)
    rows = lambda chosen: table.iloc[np.sort(chosen)].reset_index(drop=True)  # noqa: E731
    return rows(order[count:]), rows(order[:count])


def _shuffled(rows: int, key: Any) -> np.ndarray:
    """All row numbers in the order in which they are held out."""
    return np.asarray(jax.random.permutation(jax.random.fold_in(random.key(key), 1), rows))


def held_out_rows(
    table: pd.DataFrame,
    target: str,
    *,
    task: str | None,
    held_out: float,
    key: Any,
    kinds: Mapping[str, str] | None = None,
) -> list[int]:
    """The numbers of the rows that :func:`prepare_table` holds out; the first row of the table is 1."""
    numbered = table[[target]].set_axis(range(1, len(table) + 1))
    kept = with_target(numbered, target, task, (kinds or {}).get(target)).table.index.to_numpy()
    chosen = _shuffled(len(kept), key)[: round(held_out * len(kept))]
    return kept[np.sort(chosen)].tolist()


def count_weights(posterior: Posterior | StackedPosterior) -> int:
    """The number of weights of one draw."""
    shapes = jax.eval_shape(posterior.model.init, jax.random.key(0))
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def scores_as_json(scores: Scores) -> dict[str, Any]:
    """The scores, with their standard errors, as plain JSON."""
    curves = {
        name: getattr(scores, name).tolist()
        for name in ("levels", "coverage_at", "width_at", "pit")
        if getattr(scores, name) is not None
    }
    values = {name: [float(value), value.standard_error] for name, value in scores}
    return {"rows": scores.rows, "values": values, "curves": curves}


def scores_from_json(found: dict[str, Any]) -> Scores:
    """The scores that :func:`scores_as_json` wrote."""
    from credax.diagnostics.calibration import Score

    values: dict[str, Any] = {name: Score(*value) for name, value in found["values"].items()}
    curves: dict[str, Any] = {name: np.array(value) for name, value in found["curves"].items()}
    return Scores(found["rows"], **values, **curves)
