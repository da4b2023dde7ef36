"""The files of a run: their names, their digests, and where a run may be written.

``posterior.credax`` holds the posterior. ``run.json`` holds the preprocessing and the scores on the held-out
rows, and ``held_out.csv`` these rows with their predictions. ``calibration.csv`` holds the rows by which the
predictions are corrected, if they are. ``run.json`` also holds digests of itself and of the other files, so
that damage is noticed.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.errors import StorageError
from credax.core.version import __version__
from credax.diagnostics.calibration import Scores
from credax.tables.preprocessing import Preprocessor
from credax.tables.reading import TableError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 4
"""The newest version of the folder's format that can be read.

It rises when older versions of credax can no longer read a folder. Version 1 has no digests, and version 2 no
decimal marks, units and orders of dates. Version 4 is that of runs whose predictions are corrected; all others
are written as version 3.
"""
FILES = POSTERIOR, RUN, HELD_OUT, CALIBRATION = (
    *("posterior.credax", "run.json", "held_out.csv", "calibration.csv"),
)


def read_json(folder: Path, needed: Sequence[str]) -> dict[str, Any]:
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
    if digest != digest_of_json(found):
        raise StorageError(f"{path} is damaged: its content does not match its digest.")
    corrected = (CALIBRATION,) if CALIBRATION in found["files"] else ()
    for name in (*needed, *corrected):
        if digest_of(folder / name) != found["files"][name]:
            raise StorageError(f"{folder / name} is damaged, or belongs to another run.")
    return found


def read_rows(path: Path, preprocessor: Preprocessor) -> pd.DataFrame:
    """The rows in a file of the run."""
    import pandas as pd

    # Text must stay text, even if it looks like a number ("01") or like a missing value ("NA").
    text = [*preprocessor.as_written, *(["predicted_label"] if preprocessor.classes else [])]
    return pd.read_csv(path, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""])


def digest_of(path: Path) -> str:
    """A digest of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_json(content: Mapping[str, Any]) -> str:
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


def keep_others(old: Path, folder: Path) -> None:
    """Move the user's files from the folder of the older run to that of the new one, and remove the rest."""
    if not old.exists():
        return
    for path in old.iterdir():
        if path.name in FILES:
            path.unlink()
        else:
            path.replace(folder / path.name)
    old.rmdir()  # which refuses to remove a folder that is not empty


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
