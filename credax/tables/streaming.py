"""Fits and predictions of tables that do not fit in memory.

The files are read twice before the fit. The first time, rows are counted and a random sample of them is kept,
from which the preprocessing is learned and in which the rows to score on are held out. The second time, all
other rows are preprocessed and written as numbers to a folder, from which the fit takes batches.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credax.core import random
from credax.diagnostics.doctor import diagnose
from credax.fit import fit
from credax.inference import DeepEnsemble
from credax.inference.method import Method
from credax.model.sources.mapped import Arrays
from credax.model.sources.source import digest
from credax.tables.blocks import Blocks
from credax.tables.preprocessing import CLASSES, Preprocessor, with_target
from credax.tables.reading import TableError, require_column
from credax.tables.recommended import with_settings
from credax.tables.runs import (
    FEWEST_CALIBRATED,
    Run,
    count_weights,
    judged_rows,
    preprocessor_for,
    scored_run,
    table_model,
)

if TYPE_CHECKING:
    import pandas as pd

SAMPLE = 50_000
"""The most rows from which the preprocessing is learned, with those that are held out."""
HELD_OUT = 10_000
"""The most rows that are held out to score on, and the most by which predictions are corrected."""
BATCH = 256
"""The batch size of a method that would take all rows at once."""


def fit_blocks(
    blocks: Blocks,
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
    prior: Any = None,
    likelihood: Any = None,
    checkpoint: Any = None,
    calibrate: float = 0.0,
    mesh: Any = None,
    folder: Path | None = None,
    report: Callable[[Preprocessor], None] = lambda preprocessor: None,
    note: Callable[[str], None] = lambda text: None,
) -> Run:
    """Fit a network to a table that is read block by block.

    Args:
      blocks: the rows.
      target: the column to predict.
      method: a method that takes batches. If ``None``, a ``DeepEnsemble``.
      settings: settings of the method by name.
      task: ``"regression"`` or ``"classification"``. If ``None``, the kind of the target decides.
      drop: columns to leave out.
      kinds: what columns hold, by name, where the values do not tell.
      hidden: the widths of the hidden layers. If ``None``, the recommended network.
      held_out: the share of rows held out from the fit, of which there are at most ``HELD_OUT``.
      key: an int or a JAX key.
      progress: whether to show a progress bar.
      name: the name of the table, for the report.
      prior: the prior of the weights. If ``None``, the recommended one.
      likelihood: the likelihood. If ``None``, the one that suits the target.
      checkpoint: a folder from which a fit that was killed goes on.
      calibrate: the share of rows that are kept back to correct the predictions by, also at most ``HELD_OUT``.
      mesh: the devices of the run, as for ``cx.fit``.
      folder: where the numbers are put for as long as the fit lasts. If ``None``, a temporary folder.
      report: called with the preprocessing before the fit.
      note: called with sentences about what was decided.
    """
    method = with_settings(DeepEnsemble(members=4) if method is None else method, settings or {})
    text = [column for column, kind in (kinds or {}).items() if kind != "number"]
    seen = _survey(blocks, target, key)
    split = _split(seen, held_out, calibrate)
    table = blocks.learned(seen.sample, text)
    aim = with_target(table, target, task, (kinds or {}).get(target))
    # Rows without a target are in no part. The others keep their numbers in the sample as their index.
    chosen = lambda which: aim.table[np.isin(aim.table.index, np.flatnonzero(which))]  # noqa: E731
    fitted = chosen(split == 0).reset_index(drop=True)
    test, kept = (chosen(split == part).reset_index(drop=True) for part in (1, 2))
    if len(fitted) < 2:
        raise TableError(f"At least 2 rows must be left to fit to; got {len(fitted)}.")
    method = _batched(method, len(fitted), note)
    preprocessor = Preprocessor.learn(
        *(fitted, target), task=aim.task, drop=drop, whole=aim.table, kinds=kinds, notes=aim.notes
    )
    preprocessor = preprocessor_for(preprocessor, likelihood)
    note(
        f"{seen.rows:,} rows are read block by block; the preprocessing is learned from {len(fitted):,} of "
        f"them, and {len(test):,} are held out."
    )
    report(preprocessor)
    model = table_model(preprocessor, hidden)
    model = replace(model, prior=prior or model.prior, likelihood=likelihood or model.likelihood)
    out = np.sort(seen.numbers[split > 0])
    with _numbers(blocks, preprocessor, aim, out, folder) as source:
        found = fit(
            *(model, source, method), key=key, progress=progress, checkpoint=checkpoint, mesh=mesh
        )
    about = {
        "table": name,
        "rows": source.rows + len(test) + len(kept),
        "rows_fitted": source.rows,
        "rows_held_out": len(test),
        **({"rows_calibrated": len(kept)} if calibrate else {}),
        "held_out_rows": (np.sort(seen.numbers[split == 1]) + 1).tolist(),
        "columns": len(table.columns) - 1,
        "weights": count_weights(found),
        "seconds": float(found.info["seconds"]),
    }
    judged = judged_rows(preprocessor, test if len(test) else fitted)
    diagnosis = diagnose(found, *(judged if len(test) else judged[:1]))
    return scored_run(found, preprocessor, test, diagnosis, about, kept if calibrate else None)


def _batched(method: Method, rows: int, note: Callable[[str], None]) -> Method:
    """The method, with a batch size if it has none and can have one."""
    known = [item.name for item in fields(method) if item.init]  # pyright: ignore[reportArgumentType]
    if "batch_size" not in known or method.batch_size is not None:
        return method
    size = min(BATCH, max(1, rows // 2))
    note(f"{type(method).__name__} takes batches of {size} rows (--set batch_size=... for others).")
    return with_settings(method, {"batch_size": size})


@dataclass(frozen=True)
class Seen:
    """What the first reading found.

    Attributes:
      rows: the number of rows.
      sample: a random sample of them, in a random order, as they are written.
      numbers: the numbers of the rows of the sample.
    """

    rows: int
    sample: pd.DataFrame
    numbers: np.ndarray


def _survey(blocks: Blocks, target: str, key: Any) -> Seen:
    """Count the rows and draw a sample: those with the smallest of as many random numbers.

    The first row of each value of the target is in the sample too, if there are few values, so that every class
    is known.
    """
    import pandas as pd

    words = np.asarray(jax.random.key_data(jax.random.fold_in(random.key(key), 1)))
    generator = np.random.default_rng(words.tolist())
    rows, kept, ranks = 0, None, np.zeros(0)
    numbers = np.zeros(0, int)
    values: set[Any] = set()
    few = True
    for block in blocks.as_written():
        require_column(block, target)
        rank = generator.random(len(block))
        if few:
            first = block[target].drop_duplicates().dropna()
            new = [
                i
                for i, value in enumerate(block[target])
                if i in first.index and value not in values
            ]
            few = len(values) + len(new) <= CLASSES
            if few:
                values |= set(block[target].iloc[new])
                rank[new] -= 2.0  # before all others
            else:
                ranks = np.where(ranks < 0, ranks + 2.0, ranks)
        kept = block if kept is None else pd.concat([kept, block], ignore_index=True)
        ranks = np.concatenate([ranks, rank])
        numbers = np.concatenate([numbers, np.arange(rows, rows + len(block))])
        rows += len(block)
        order = np.argsort(ranks, kind="stable")[:SAMPLE]
        kept, ranks, numbers = kept.iloc[order].reset_index(drop=True), ranks[order], numbers[order]
    if kept is None or rows == 0:
        raise TableError(f"{blocks.files[0]} has no rows.")
    # Those at the front are no random rows; they are put at the end, where rows are never held out.
    order = np.concatenate([np.flatnonzero(ranks >= 0), np.flatnonzero(ranks < 0)])
    return Seen(rows, kept.iloc[order].reset_index(drop=True), numbers[order])


def _split(seen: Seen, held_out: float, calibrate: float) -> np.ndarray:
    """For each row of the sample: 0 to fit to it, 1 to hold it out, 2 to correct predictions by it."""
    if not 0 <= held_out < 1:
        raise TableError(f"--held-out must be at least 0 and below 1; got {held_out}.")
    if calibrate and not 0 < calibrate < 1:
        raise TableError(f"--calibrate must be above 0 and below 1; got {calibrate}.")
    tested, corrected = (min(round(share * seen.rows), HELD_OUT) for share in (held_out, calibrate))
    if calibrate and corrected < FEWEST_CALIBRATED:
        raise TableError(
            f"--calibrate must keep back at least {FEWEST_CALIBRATED} rows; got {corrected} of {seen.rows}."
        )
    if tested + corrected > len(seen.sample) - 2:
        raise TableError(
            f"There are {seen.rows} rows, {len(seen.sample)} of them in the sample, of which at least 2 must "
            "be left to fit to."
        )
    parts = np.zeros(len(seen.sample), int)
    parts[:tested], parts[tested : tested + corrected] = 1, 2
    return parts


class Numbers(Arrays):
    """Preprocessed rows in a folder."""

    def __init__(self, x: np.ndarray, y: np.ndarray, mark: str):
        super().__init__(x, y)
        self._mark = mark

    def fingerprint(self) -> str:
        """Of the files and the preprocessing, so that a later process goes on with its own copy."""
        return self._mark


@contextlib.contextmanager
def _numbers(
    blocks: Blocks, preprocessor: Preprocessor, aim: Any, out: np.ndarray, folder: Path | None
) -> Iterator[Numbers]:
    """All rows but those with the numbers ``out``, preprocessed, for as long as the context lasts."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".numbers-", dir=folder))
    kind = np.dtype(np.int32) if preprocessor.task == "classification" else np.dtype(np.float64)
    wide = len(preprocessor.features)
    try:
        rows = begin = 0
        with open(made / "x", "wb") as x_file, open(made / "y", "wb") as y_file:
            for block in blocks.rows(preprocessor.as_written):
                block.index = np.arange(begin, begin + len(block))
                begin += len(block)
                block = aim.of(block[~np.isin(block.index, out)])
                if len(block):
                    x_file.write(preprocessor.encode(block).astype(np.float32).tobytes())
                    y_file.write(preprocessor.encode_target(block).astype(kind).tobytes())
                    rows += len(block)
        if rows < 2:
            raise TableError(f"At least 2 rows must be left to fit to; got {rows}.")
        seen = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in blocks.files]
        mark = digest(seen, json.dumps(preprocessor.to_json(), sort_keys=True), out)
        x = np.memmap(made / "x", np.float32, "r", shape=(rows, wide))
        y = np.memmap(made / "y", kind, "r", shape=(rows,))
        yield Numbers(x, y, mark)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def predict_blocks(
    run: Run,
    blocks: Blocks,
    level: float = 0.9,
    quantiles: Sequence[float] = (),
    keep: Callable[[list[str]], Sequence[str]] = lambda columns: (),
    text: Sequence[str] = (),
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[pd.DataFrame]:
    """The predictions of all rows, block by block and in their order.

    Args:
      run: the run.
      blocks: the rows.
      level: the probability of the intervals.
      quantiles: levels of quantiles of a number.
      keep: the columns to put before the predictions, of those of the table.
      text: columns whose values stay as they are written.
      note: called with sentences about values that the fit has not seen the like of; once for each.
    """
    wanted = None
    said: set[str] = set()
    for block in blocks.rows((*run.preprocessor.as_written, *text)):
        if wanted is None:
            wanted = list(keep(list(block.columns)))
            for name in (*(column.name for column in run.preprocessor.columns), *wanted):
                require_column(block, name)
        for remark in run.preprocessor.remarks(block):
            column = remark.partition(":")[0]
            if column not in said:
                said.add(column)
                note(remark)
        found = run.predict(block, level, quantiles)
        both = [name for name in wanted if name in found.columns]
        if both:
            raise TableError(
                f"--keep {both[0]} cannot be told from the prediction of that name; rename the column."
            )
        for name in reversed(wanted):
            found.insert(0, name, block[name])
        yield found
