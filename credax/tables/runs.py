"""A run: the folder that ``credax fit`` writes, with everything that ``predict`` and ``report`` need.

The folder is written under a temporary name and renamed at the end, so that it is never half-written. Other
files in the folder belong to the user and stay where they are. What its files hold says
:mod:`credax.tables.folders`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

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
from credax.tables.folders import (
    CALIBRATION,
    FILES,
    FORMAT,
    HELD_OUT,
    POSTERIOR,
    RUN,
    check_folder,
    digest_of,
    digest_of_json,
    keep_others,
    read_json,
    read_rows,
    scores_as_json,
    scores_from_json,
)
from credax.tables.preprocessing import Preprocessor
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
from credax.tables.splitting import held_out_rows, prepare_table

if TYPE_CHECKING:
    import pandas as pd

JUDGED = 100
"""The number of rows at whose predictions the agreement between chains is checked."""
TESTED = 1_000
"""The largest number of held-out rows whose targets the doctor compares with their predictions."""
BLOCK = 256
"""The number of rows that are predicted at a time, by the same programs for every table."""


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
            content["files"] = {name: digest_of(beside / name) for name in written}
            content["sha256"] = digest_of_json(content)
            (beside / RUN).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
            for name in ("", *FILES):
                if (folder / name).exists() and (beside / name).exists():
                    (beside / name).chmod(stat.S_IMODE((folder / name).stat().st_mode))
            # The old run is renamed first and removed last: a crash always leaves one of the two intact.
            old = beside.with_name(f"{beside.name}-old")
            if folder.exists():
                folder.replace(old)
            beside.replace(folder)
            keep_others(old, folder)
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
        found = read_json(folder, (POSTERIOR, HELD_OUT) if with_rows else (POSTERIOR,))
        calibrated = CALIBRATION in found.get("files", {})
        preprocessor = Preprocessor.from_json(found["preprocessor"])
        posterior = load(folder / POSTERIOR)
        schema = getattr(posterior.model, "schema", None)
        if schema is None or schema.input_shape != (len(preprocessor.features),):
            raise ValueError("its preprocessing does not give the rows that its network takes")
        scores = None if found["scores"] is None else scores_from_json(found["scores"])
        held_out = read_rows(folder / HELD_OUT, preprocessor) if with_rows else _no_rows()
        calibration = read_rows(folder / CALIBRATION, preprocessor) if calibrated else None
        findings = tuple(dict(finding) for finding in found["findings"])
        about = dict(found["about"])
        return cls(posterior, preprocessor, held_out, scores, findings, about, calibration)


def _no_rows() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame()


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


def table_model(preprocessor: Preprocessor, hidden: Sequence[int] | None = None) -> Model:
    """The model for a table: the recommended network and prior, and the likelihood of the task."""
    if preprocessor.task == "classification":
        likelihood = Categorical(len(preprocessor.classes))
    elif preprocessor.outliers:
        likelihood = StudentT(scale=None)
    else:
        likelihood = Gaussian(scale=None)
    return Model(recommended_network(hidden), recommended_prior(), likelihood)


def count_weights(posterior: Posterior | StackedPosterior) -> int:
    """The number of weights of one draw."""
    shapes = jax.eval_shape(posterior.model.init, jax.random.key(0))
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
