"""Figures on disk, cell by cell: what is stored is not measured again, and a killed run loses one cell.

Several processes may measure cells of the same benchmark at the same time: each cell is added to what is in the
file by then. ``CREDAX_RESULTS`` names another folder for the figures, e.g. on another machine; then no page is
written, and ``python -m benchmarks.quality.store FOLDER`` adds the cells in that folder to those here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent / "results"
RESULTS = Path(os.environ.get("CREDAX_RESULTS", HERE))


def figures(name: str) -> dict[str, Any]:
    """The stored figures of a benchmark; none if it was never run."""
    return _whole(name).get("figures", {})


def cell(name: str, keys: tuple[str, ...], measure: Callable[[], Any]) -> Any:
    """The stored cell at a path of keys; if there is none, it is measured, stored at once and shown."""
    found = figures(name)
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        found = measure()
        put(name, keys, found)
        print(" / ".join(keys), shown(found), flush=True)
    return found


def put(name: str, keys: tuple[str, ...], value: Any) -> None:
    """Store a cell beside all others that are in the file by now."""
    with _changed(name) as whole:
        place = whole.setdefault("figures", {})
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value


def forget(name: str, keep: Callable[[tuple[str, ...]], bool], depth: int) -> None:
    """Remove all cells, which lie ``depth`` keys deep, whose keys are not to be kept."""

    def sifted(part: Any, keys: tuple[str, ...]) -> Any:
        if len(keys) == depth:
            return part if keep(keys) else None
        kept = {key: sifted(value, (*keys, key)) for key, value in part.items()}
        return {key: value for key, value in kept.items() if value} or None

    with _changed(name) as whole:
        whole["figures"] = sifted(whole.get("figures", {}), ()) or {}


def describe(name: str, facts: dict[str, Any]) -> None:
    """Store facts about the last run, such as its machine, beside the figures."""
    with _changed(name) as whole:
        whole.setdefault("figures", {})
        whole.update(facts)


def merge(folder: Path) -> None:
    """Add the cells of the files in another folder; where both have a cell, that of the other folder counts."""
    for path in sorted(folder.glob("*.json")):
        with _changed(path.stem) as whole:
            merged = _joined(whole, json.loads(path.read_text()))
            whole.clear()
            whole.update(merged)


def shown(found: Any) -> Any:
    """A cell, short enough for one line: numbers are rounded and lists of numbers left out."""
    if isinstance(found, dict):
        return {k: shown(v) for k, v in found.items() if not isinstance(v, list) or len(v) < 5}
    return float(f"{found:.4g}") if isinstance(found, float) else found


def _joined(one: Any, other: Any) -> Any:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    return one | {
        key: _joined(one[key], value) if key in one else value for key, value in other.items()
    }


@contextlib.contextmanager
def _changed(name: str) -> Iterator[dict[str, Any]]:
    """The content of a file, to be changed while other processes wait.

    The file is replaced as a whole, so that it is never half written.
    """
    RESULTS.mkdir(exist_ok=True, parents=True)
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        whole = _whole(name)
        yield whole
        beside = RESULTS / f"{name}.{os.getpid()}.new"
        beside.write_text(json.dumps(whole, indent=2) + "\n")
        beside.replace(RESULTS / f"{name}.json")
    finally:
        os.close(folder)


def _whole(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        merge(Path(argument))
