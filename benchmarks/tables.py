"""The default estimators of credax and those of other libraries, on 33 tables of real data.

``cx.BayesianRegressor()`` and ``cx.BayesianClassifier()`` are compared with CatBoost, LightGBM, NGBoost, and
the random forest and the Gaussian process of scikit-learn, on the same splits: the 9 tables of Hernandez-Lobato
& Adams (2015) and 24 of the Penn Machine Learning Benchmarks. ``benchmarks/peers.py`` says how each library is
run. The measures of a split are the negative log likelihood of the test rows, per row, for the standardised
target or for the class; its worst value for a single row; the continuous ranked probability score and the RMSE,
both over the standard deviation of the training targets, and the coverage of the central 90 % intervals; for
classes the error rate; and the seconds of the fit, including compilation.

Run as ``python -m benchmarks tables``, with ``--tables``, ``--libraries``, ``--splits`` and ``--rows`` for a
part of it, and with ``--libraries bde`` for bde, which takes minutes for a small table and is run by the
interpreter named by ``BDE_PYTHON``. Everything is stored as it is measured, and what is stored is not measured
again; ``--again LIBRARY`` measures one library anew. With ``--results FILE`` a run has a file of its own, in
which it also goes on after it was stopped, so that several runs can measure different tables at the same time;
``--merge FILE ...`` then puts their figures in place of those that are stored. The peers need
``pip install 'credax[peers]'``.
``CREDAX_DATA`` is the folder that contains ``tables/`` and ``uci/``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables_page
from benchmarks.peers import ASKED_FOR, LIBRARIES

HERE = Path(__file__).parent
STORED = HERE / "results" / "tables.json"
OWN_PAGE = tables_page.PAGE
SPLITS = 5
LEVEL = 0.9


# -- the tables -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table, its task, and for each split which rows are for the test."""

    name: str
    task: str
    x: np.ndarray
    y: np.ndarray
    test: np.ndarray


def folder() -> Path:
    return Path(os.environ.get("CREDAX_DATA", "../shared/data"))


def paths() -> dict[str, Path]:
    """The file of each table."""
    found = {
        path.stem: path for part in ("uci", "tables") for path in folder().glob(f"{part}/*.npz")
    }
    if not found:
        raise SystemExit(
            f"There are no tables in {folder()}: set CREDAX_DATA to the folder with tables/ and uci/."
        )
    return found


def load(path: Path) -> Table:
    data = np.load(path)
    x, y, test = np.asarray(data["x"], np.float64), data["y"], data["test_mask"]
    task = str(data["task"]) if "task" in data else "regression"
    if test.dtype != bool:
        test = np.unpackbits(test, axis=1)[:, : len(y)].astype(bool)
    if task == "classification":
        y = np.unique(y, return_inverse=True)[1]
    return Table(path.stem, task, x, y, test)


# -- one cell ---------------------------------------------------------------------------------------


def one(table: Table, split: int, library: str) -> dict[str, float]:
    """The measures of a library on a split of a table."""
    test = table.test[split]
    x, y = table.x[~test], table.y[~test]
    centre, unit = (y.mean(), y.std()) if table.task == "regression" else (0, 1)
    given = y, table.y[test]
    if library != "credax" and table.task == "regression":  # credax standardises by itself
        given, unit = [(each - centre) / unit for each in given], 1.0
    began = time.perf_counter()
    predict = LIBRARIES[library].fit(table.task, x, given[0])
    seconds = time.perf_counter() - began
    return {**scores(table.task, predict(table.x[test]), given[1], unit), "seconds": seconds}


def scores(task: str, predicted: Any, y: np.ndarray, unit: float = 1.0) -> dict[str, float]:
    """The measures of predictions, where ``unit`` is the standard deviation of the training targets."""
    loss = -np.asarray(predicted.log_prob(y), np.float64) - np.log(unit)
    found = {"nll": loss.mean(), "worst": loss.max()}
    if task == "classification":
        found["error"] = np.mean(np.asarray(predicted.label) != y)
    else:
        lower, upper = predicted.interval(LEVEL)
        found["rmse"] = np.sqrt(np.mean((np.asarray(predicted.mean) - y) ** 2)) / unit
        found["crps"] = np.mean(predicted.crps(y)) / unit
        found["coverage"] = np.mean((lower <= y) & (y <= upper))
    return {name: float(value) for name, value in found.items()}


# -- all cells --------------------------------------------------------------------------------------


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables")
    parser.add_argument("--tables", nargs="+", metavar="TABLE", help="by default all")
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), metavar="LIBRARY")
    parser.add_argument("--splits", type=int, default=SPLITS, help="how many; by default 5")
    parser.add_argument("--rows", type=int, help="leave out tables with more rows than this")
    parser.add_argument("--again", choices=list(LIBRARIES), metavar="LIBRARY", help="measure anew")
    parser.add_argument("--results", type=Path, metavar="FILE", help="for a part of the tables")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="add such parts")
    return vars(parser.parse_args(arguments))


def measure(
    tables: Any = None,
    libraries: Any = None,
    splits: int = SPLITS,
    rows: int | None = None,
    again: str | None = None,
    results: Path | None = None,
    merge: Any = None,
) -> dict | None:
    """The stored figures, after those that are missing have been measured and stored, small tables first.

    ``None`` if they are stored in a file that is only a part.
    """
    if merge:
        return merged([_load(path) for path in merge])
    place = STORED if results is None else results
    files = paths()
    unknown = [name for name in tables or () if name not in files]
    if unknown:
        raise SystemExit(f"There is no table {', '.join(unknown)}; there are {', '.join(files)}.")
    asked = libraries or ([again] if again else [n for n in LIBRARIES if n not in ASKED_FOR])
    chosen = installed(asked if again in (None, *asked) else [*asked, again])
    known = sorted((load(files[name]) for name in tables or files), key=lambda table: len(table.y))
    for table in known:
        if rows is not None and len(table.y) > rows:
            continue
        for split in range(min(splits, len(table.test))):
            for library in chosen:
                if len(table.y) > LIBRARIES[library].most_rows:
                    continue
                if library == again or str(split) not in cells(table.name, library, place):
                    store(table, library, split, attempt(table, split, library), place)
    return _load(place) if results is None else None


def installed(libraries: Any) -> list[str]:
    """Those libraries that can be run; for each of the others a line says what is missing."""
    found = []
    for name in libraries:
        missing = LIBRARIES[name].missing
        if missing:
            print(f"{name} is left out: {missing} to run it.")
        else:
            found.append(name)
    return found


def attempt(table: Table, split: int, library: str) -> dict[str, Any]:
    """The measures of a library on a split of a table, or why there are none."""
    try:
        found: dict[str, Any] = one(table, split, library)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        found = {"failed": f"{type(error).__name__}: {error}"}
    shown = {key: round(value, 3) if key != "failed" else value for key, value in found.items()}
    print(f"{table.name} ({len(table.y):,} rows), split {split}, {library}: {shown}", flush=True)
    return found


def cells(table: str, library: str, place: Path) -> dict[str, Any]:
    """The stored measures of a library on a table, for each split."""
    return _load(place).get(table, {}).get("libraries", {}).get(library, {})


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The stored figures, with those of the parts in their place."""
    figures = _load(STORED)
    for table, entry in (item for part in parts for item in part.items()):
        known = figures.setdefault(table, {**entry, "libraries": {}})["libraries"]
        for library, measured in entry["libraries"].items():
            known[library] = {**known.get(library, {}), **measured}
    return figures


def store(table: Table, library: str, split: int, found: dict[str, Any], place: Path) -> None:
    """Add a cell to the file, which is replaced as a whole so that it is never half written."""
    figures = _load(place)
    rows, columns = table.x.shape
    entry = figures.setdefault(table.name, {"task": table.task, "rows": rows, "columns": columns})
    entry.setdefault("libraries", {}).setdefault(library, {})[str(split)] = found
    place.parent.mkdir(exist_ok=True)
    whole = json.loads(place.read_text()) if place.exists() else {}
    beside = place.with_suffix(f".{os.getpid()}.new")
    beside.write_text(json.dumps({**whole, "figures": figures}, indent=2) + "\n")
    beside.replace(place)


def _load(place: Path) -> dict[str, Any]:
    return json.loads(place.read_text()).get("figures", {}) if place.exists() else {}


def write_page(figures: dict[str, Any]) -> None:
    """Put the figures into the page."""
    if figures:
        tables_page.write(figures)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
