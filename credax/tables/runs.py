"""A run: what ``credax fit`` leaves in a folder, and everything that ``predict`` and ``report`` need.

``posterior.credax`` holds the posterior, ``run.json`` how the table became numbers and how good the predictions
for held-out rows were, ``held_out.csv`` these rows with their predictions. A folder is written beside its place
and moved there at the end, so that none is ever half-written.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credax.core import random
from credax.core.errors import StorageError
from credax.core.version import __version__
from credax.diagnostics.calibration import Scores, score
from credax.diagnostics.doctor import diagnose
from credax.fit import fit
from credax.inference.method import Method
from credax.model import Model
from credax.model.likelihoods import Categorical, Gaussian
from credax.posterior import Posterior
from credax.storage import load
from credax.storage.describe import describe_or_name
from credax.tables.preprocessing import Preprocessor
from credax.tables.reading import TableError
from credax.tables.recommended import recommended_method, recommended_network, recommended_prior
from credax.tables.rescaled import Rescaled

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
"""Rises when a folder can no longer be read by older versions."""
JUDGED = 100
"""Rows at which chains should agree about the prediction."""
FILES = POSTERIOR, RUN, HELD_OUT = "posterior.credax", "run.json", "held_out.csv"


@dataclass(frozen=True, eq=False)
class Run:
    """A posterior with the table that it came from.

    Attributes:
      posterior: of the weights, given the scaled numbers of the table.
      preprocessor: how rows become these numbers.
      held_out: rows kept from the fit, as they stand in the table, with their predictions.
      scores: of the predictions for them; ``None`` where none were kept.
      findings: what the doctor says.
      about: the name of the table and the numbers of rows.
    """

    posterior: Posterior
    preprocessor: Preprocessor
    held_out: pd.DataFrame
    scores: Scores | None
    findings: tuple[dict[str, Any], ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    def predict(self, table: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
        """A row of predictions for each row of a table.

        Args:
          table: rows with the columns of the fit.
          level: of the interval from ``lower`` to ``upper``.
        """
        import pandas as pd

        predictive = self.predictive(table)
        if self.preprocessor.task == "classification":
            labels = np.array(self.preprocessor.classes)
            probs = np.asarray(predictive.probs, float)
            named = {f"p({label})": probs[:, i] for i, label in enumerate(labels)}
            columns = {
                "label": labels[probs.argmax(1)],
                **named,
                "entropy": predictive.entropy,
                "mutual_information": predictive.mutual_information,
            }
        else:
            lower, upper = predictive.interval(level)
            columns = {
                "mean": predictive.mean,
                "std": predictive.std,
                "epistemic": predictive.epistemic,
                "aleatoric": predictive.aleatoric,
                "lower": lower,
                "upper": upper,
            }
        return pd.DataFrame(columns, index=table.index)

    def predictive(self, table: pd.DataFrame) -> Any:
        """The whole prediction for rows of a table, on its own scale."""
        predictive = self.posterior.predict(self.preprocessor.encode(table))
        if self.preprocessor.task == "classification":
            return predictive
        return Rescaled(predictive, self.preprocessor.centre, self.preprocessor.scale)

    # -- on disk ------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Writes the folder; an older run there is replaced at the end."""
        folder = Path(folder)
        if folder.exists() and not (folder / RUN).exists() and any(folder.iterdir()):
            raise TableError(f"{folder} exists and is not a run; choose another folder with --out.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            self.posterior.save(beside / POSTERIOR)
            self.held_out.to_csv(beside / HELD_OUT, index=False)
            (beside / RUN).write_text(json.dumps(self._as_json(), indent=2) + "\n")
            beside.chmod(0o755)
            # The old run is moved aside and only then removed: a crash leaves one of the two whole.
            old = beside.with_name(f"{beside.name}-old")
            if folder.exists():
                folder.replace(old)
            beside.replace(folder)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": __version__,
            "about": self.about,
            "method": describe_or_name(self.posterior.method),
            "preprocessor": self.preprocessor.to_json(),
            "scores": None if self.scores is None else scores_as_json(self.scores),
            "findings": list(self.findings),
        }

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Reads a folder that :meth:`save` wrote."""
        import pandas as pd

        folder = Path(folder)
        if not (folder / RUN).is_file():
            raise TableError(f"{folder} is not a run: credax fit writes one (--out).")
        try:
            found = json.loads((folder / RUN).read_text())
            number = found["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{folder / RUN} cannot be read: {error}.") from None
        if number > FORMAT:
            raise StorageError(
                f"{folder} was written by credax {found.get('version', '?')}, which is newer than this one, "
                f"{__version__}. Install that version or a later one."
            )
        preprocessor = Preprocessor.from_json(found["preprocessor"])
        # Text stays text, also where it looks like a number ("01") or like nothing ("NA").
        text = [column.name for column in preprocessor.columns if column.kind == "category"]
        if preprocessor.task == "classification":
            text += [preprocessor.target, "predicted_label"]
        held_out = pd.read_csv(
            folder / HELD_OUT, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""]
        )
        scores = None if found["scores"] is None else scores_from_json(found["scores"])
        posterior = load(folder / POSTERIOR)
        return cls(
            posterior, preprocessor, held_out, scores, tuple(found["findings"]), found["about"]
        )


def fit_table(
    table: pd.DataFrame,
    target: str,
    *,
    method: Method | None = None,
    task: str | None = None,
    drop: Sequence[str] = (),
    hidden: Sequence[int] | None = None,
    held_out: float = 0.2,
    key: Any = 0,
    progress: bool = True,
    name: str = "",
) -> Run:
    """Fits a network to a table, and judges it on rows kept from the fit.

    Args:
      table: the rows.
      target: the column to predict.
      method: how; ``None``: a good one.
      task: ``"regression"`` or ``"classification"``; ``None``: by the kind of the target.
      drop: columns to leave out.
      hidden: the widths of the hidden layers; ``None``: chosen.
      held_out: the share of rows kept from the fit; 0: none.
      key: an int or a JAX key.
      progress: shows a progress bar.
      name: of the table, for the report.
    """
    import pandas as pd

    preprocessor = Preprocessor.learn(table, target, task=task, drop=drop)
    table = table[table[target].notna()].reset_index(drop=True)
    rest, test = split_table(table, held_out, key)
    model = table_model(preprocessor, hidden)
    data = (preprocessor.encode(rest), preprocessor.encode_target(rest))
    method = recommended_method(len(rest)) if method is None else method
    posterior = fit(model, data, method, key=key, progress=progress)
    about = {
        "table": name,
        "rows": len(table),
        "rows_fitted": len(rest),
        "rows_held_out": len(test),
        "columns": len(table.columns) - 1,
        "weights": _weights(posterior),
        "seconds": float(posterior.info["seconds"]),
    }
    findings = tuple(
        {"what": f.what, "value": f.value, "advice": f.advice, "grave": f.grave}
        for f in diagnose(posterior, preprocessor.encode(test if len(test) else rest)[:JUDGED])
    )
    run = Run(posterior, preprocessor, test, None, findings, about)
    if not len(test):
        return run
    predictive = run.predictive(test)
    y = preprocessor.encode_target(test)
    if preprocessor.task == "regression":
        y = preprocessor.centre + preprocessor.scale * y
    scores = score(predictive, preprocessor.task, y)
    shown = pd.concat([test, run.predict(test).add_prefix("predicted_")], axis=1)
    return Run(posterior, preprocessor, shown, scores, findings, about)


def table_model(preprocessor: Preprocessor, hidden: Sequence[int] | None = None) -> Model:
    """The network, prior and likelihood for a table."""
    if preprocessor.task == "classification":
        likelihood = Categorical(len(preprocessor.classes))
    else:
        likelihood = Gaussian(scale=None)
    return Model(recommended_network(hidden), recommended_prior(), likelihood)


def split_table(
    table: pd.DataFrame, held_out: float, key: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows to fit to and those kept from it, at random."""
    if not 0 <= held_out < 1:
        raise TableError(f"--held-out must be at least 0 and below 1; got {held_out}.")
    count = round(held_out * len(table))
    if len(table) - count < 2:
        raise TableError(
            f"There are {len(table)} rows with a target; at least 2 must be left to fit to."
        )
    order = np.asarray(jax.random.permutation(jax.random.fold_in(random.key(key), 1), len(table)))
    rows = lambda chosen: table.iloc[np.sort(chosen)].reset_index(drop=True)  # noqa: E731
    return rows(order[count:]), rows(order[:count])


def _weights(posterior: Posterior) -> int:
    shapes = jax.eval_shape(posterior.model.init, jax.random.key(0))
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def scores_as_json(scores: Scores) -> dict[str, Any]:
    """Scores as plain JSON, with their standard errors."""
    curves = {
        name: getattr(scores, name).tolist()
        for name in ("levels", "coverage_at", "width_at", "pit")
        if getattr(scores, name) is not None
    }
    values = {name: [float(value), value.standard_error] for name, value in scores}
    return {"rows": scores.rows, "values": values, "curves": curves}


def scores_from_json(found: dict[str, Any]) -> Scores:
    """From what :func:`scores_as_json` wrote."""
    from credax.diagnostics.calibration import Score

    values: dict[str, Any] = {name: Score(*value) for name, value in found["values"].items()}
    curves: dict[str, Any] = {name: np.array(value) for name, value in found["curves"].items()}
    return Scores(found["rows"], **values, **curves)
