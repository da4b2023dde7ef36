"""Which rows of a table are fitted to, which are held out, and by which the predictions are corrected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from credax.core import random
from credax.tables.preprocessing import Preprocessor, with_target
from credax.tables.reading import TableError

if TYPE_CHECKING:
    import pandas as pd

FEWEST_CALIBRATED = 19
"""The fewest rows by which predictions are corrected: those that an interval of 95 % needs."""


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
