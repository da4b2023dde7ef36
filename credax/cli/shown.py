"""What the commands show: tables of columns, scores, findings, methods and comparisons."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from credax.cli.options import quoted

WIDTH = 120
"""The width of the output, in characters, if it goes to a file or to another program."""
COLUMNS = 40
"""The largest number of columns of a table that are listed one by one."""


def console() -> Console:
    """The console for standard output, wide enough for every table if that is not a terminal."""
    given = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if given else WIDTH)


def show_columns(preprocessor: Any, console: Console) -> None:
    """Show how each column is read."""
    rows = preprocessor.read_as()
    # Columns with a note come first if there are too many to list.
    shown = rows if len(rows) <= COLUMNS else sorted(rows, key=lambda row: not row[2])[:COLUMNS]
    table = Table(
        "column", "read as", "note", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for name, kind, note in shown:
        role = " (target)" if name == preprocessor.target else ""
        table.add_row(Text(name), Text(kind + role), Text(note))
    console.print(table)
    if len(rows) > len(shown):
        console.print(f"... and {len(rows) - len(shown)} more columns without a note.")
    console.print("Another reading: --column COL=KIND", markup=False)


def show_run(run: Any, out: Path, console: Console) -> None:
    """Show what was fitted and how good it is."""
    from credax.posterior.stacked import methods_of

    about, preprocessor = run.about, run.preprocessor
    kind = f"{len(preprocessor.classes)} classes" if preprocessor.classes else "a number"
    console.print(
        f"{methods_of(run.posterior)} on {about['rows_fitted']} rows: {preprocessor.target}, "
        f"{kind}, from {len(preprocessor.columns)} columns ({about['seconds']:.1f} s).",
        markup=False,
    )
    if run.calibration is not None:
        console.print(f"Its predictions are corrected by {len(run.calibration)} further rows.")
    if run.scores is not None:
        table = Table(f"{run.scores.rows} held-out rows", "", "± standard error")
        for name, value in run.scores:
            table.add_row(name.replace("_", " "), f"{value:.4g}", f"{value.standard_error:.2g}")
        console.print(table)
    for finding in sorted(run.findings, key=lambda found: not found.get("grave")):
        grave = "Grave: " if finding.get("grave") else ""
        console.print(f"! {grave}{finding['what']} {finding['advice']}", markup=False)
    report, predict = quoted("credax", "report", out), quoted("credax", "predict", out)
    console.print(f"Run: {out}  ({report}; {predict} DATA)", markup=False, soft_wrap=True)


def leaderboard(found: Any, console: Console) -> Table:
    """A table of the compared methods, best first; the last columns are left out if the console is narrow."""
    numbers = found.preprocessor.task == "regression"
    figures = ("rmse", "crps", "coverage") if numbers else ("accuracy", "brier", "ece")
    entries = found.ranked
    best = entries[0] if entries else None

    def findings(entry):
        if entry.method is None:
            return "baseline"
        grave = sum(finding.grave for finding in entry.findings)
        return f"{len(entry.findings)}" + (f", {grave} grave" if grave else "")

    columns = {
        "method": lambda entry: entry.name,
        "log\nlikelihood": lambda entry: f"{float(entry.scores.log_likelihood):.4g}",
        "behind\nthe best": lambda entry: "" if entry is best else str(entry.behind(best)),
        **{
            name: lambda entry, name=name: f"{float(getattr(entry.scores, name)):.4g}"
            for name in figures
        },
        "seconds": lambda entry: f"{entry.seconds:.1f}",
        "findings": findings,
        "run": lambda entry: "whole" if entry.shortened == 1 else f"{100 * entry.shortened:.2g} %",
        "MB": lambda entry: "" if entry.method is None else f"{entry.megabytes:.2g}",
    }

    def with_columns(count):
        title = f"{found.rows[0]} fitted rows, {found.rows[1]} held-out rows"
        table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=0)
        for name in list(columns)[:count]:
            side = "left" if name in ("method", "findings") else "right"
            table.add_column(name, justify=side, no_wrap=True)
        for entry in entries:
            table.add_row(*[cell(entry) for cell in list(columns.values())[:count]])
        return table

    unlimited = console.options.update(width=1_000)
    tables = (with_columns(count) for count in range(len(columns), 0, -1))
    fitting = (t for t in tables if Measurement.get(console, unlimited, t).maximum <= console.width)
    return next(fitting, with_columns(1))


def comparison_as_json(found: Any) -> dict[str, Any]:
    """A comparison as plain JSON."""
    from credax.tables.folders import scores_as_json

    best = found.ranked[0] if found.ranked else None

    def judged(entry):
        return {
            "scores": scores_as_json(entry.scores)["values"],
            "behind_the_best": _pair(entry.behind(best)),
            "seconds": entry.seconds,
        }

    entries = [
        {
            "method": entry.name,
            **judged(entry),
            "megabytes": entry.megabytes,
            "share_of_default_run": entry.shortened,
            "findings": [str(finding) for finding in entry.findings],
        }
        for entry in found.entries
    ]
    return {
        "entries": entries,
        "baselines": [{"baseline": entry.name, **judged(entry)} for entry in found.baselines],
        "refused": dict(found.refused),
        "recommendation": found.recommendation(),
        "against_baselines": found.against_baselines(),
    }


def _pair(score: Any) -> list[float]:
    return [float(score), score.standard_error]


def methods_table(rows: list[dict[str, str]]) -> Table:
    """A table of the methods."""
    table = Table("name", "what it is", "when to use it", "what its uncertainty gets wrong")
    for row in rows:
        table.add_row(*(Text(row[name]) for name in ("name", "what", "when", "errs")))
    return table
