"""The command line: ``credax fit | predict | compare | report | methods | demo | completion``."""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import sys
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from credax.core.errors import CredaxError

WIDTH = 120
"""The width of the output, in characters, if it goes to a file or to another program."""


class UsageError(CredaxError, ValueError):
    """A command or option cannot be carried out; the message says why, in one line."""


def _console() -> Console:
    """The console for standard output, wide enough for every table if that is not a terminal."""
    given = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if given else WIDTH)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
      The exit code: 0, or 2 for an error that the user can correct, or 130 after an interrupt.
    """
    options = make_parser().parse_args(arguments)
    _remember_compiled_programs()
    errors = Console(stderr=True, highlight=False)
    try:
        with warnings.catch_warnings():
            if not options.debug:
                warnings.showwarning = lambda message, *_: errors.print(
                    f"[yellow]Note:[/] {message}", soft_wrap=True
                )
            return options.run(options, _console())
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        return 130
    except (CredaxError, ValueError, TypeError, OSError) as error:
        if options.debug:
            raise
        text = str(error).replace("\n", " ")
        errors.print(f"[red]credax {options.command}:[/] {text}", markup=True, soft_wrap=True)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands and their options."""
    parser = argparse.ArgumentParser(
        prog="credax",
        description="Predictions that say how sure they are: Bayesian deep learning on JAX.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        found.add_argument(
            "--debug", action="store_true", help="show the whole traceback of an error"
        )
        found.set_defaults(run=run)
        return found

    fit = command("fit", _fit, "fit a network to a table, and score it on held-out rows")
    _add_table(fit)
    fit.add_argument(
        "--method",
        default=None,
        metavar="NAME",
        help="how to find the posterior; see: credax methods",
    )
    fit.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="RUN",
        help="folder to write the run to (default: the name of DATA)",
    )
    fit.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the method; may be repeated",
    )
    fit.add_argument(
        "--config", type=Path, metavar="TOML", help="a file with settings of the method"
    )
    fit.add_argument(
        "--hidden", default=None, metavar="50,50", help="the widths of the hidden layers"
    )

    predict = command("predict", _predict, "predict the target of each row of a table")
    predict.add_argument("folder", type=Path, metavar="RUN", help="a folder that credax fit wrote")
    predict.add_argument("data", type=Path, metavar="DATA", help="a .csv or .parquet file")
    predict.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="FILE",
        help="a .csv or .parquet file to write (default: print as CSV)",
    )
    predict.add_argument(
        "--level", type=float, default=0.9, help="the probability of the intervals (default: 0.9)"
    )

    compare = command(
        "compare",
        _compare,
        "fit several methods to the same rows, each within the same time, and rank them",
    )
    _add_table(compare)
    compare.add_argument(
        "--methods", default=None, metavar="A,B", help="the methods to compare (default: all)"
    )
    compare.add_argument(
        "--budget",
        default="2m",
        metavar="TIME",
        help="for all methods together, e.g. 90s, 5m, 1h (default: 2m)",
    )

    report = command("report", _report, "write an HTML report of a run")
    report.add_argument("folder", type=Path, metavar="RUN", help="a folder that credax fit wrote")
    report.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="FILE",
        help="the file to write (default: RUN/report.html)",
    )

    methods = command("methods", _methods, "list the methods, with what each is and when to use it")
    methods.add_argument("--json", action="store_true", help="print the list as JSON")

    demo = command(
        "demo", _demo, "show the methods side by side on a curve, and compare some on a real table"
    )
    demo.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder to write to (default: demo)"
    )

    completion = command(
        "completion",
        _completion,
        "print a script with which a shell completes commands and options",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="a .csv or .parquet file")
    parser.add_argument("--target", required=True, metavar="COL", help="the column to predict")
    parser.add_argument(
        "--task",
        choices=("regression", "classification"),
        help="(default: the kind of the target decides)",
    )
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="COL",
        help="a column to leave out; may be repeated",
    )
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="the share of rows to score on (default: 0.2)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of all random numbers (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


# -- the commands -------------------------------------------------------------------------------------


def _fit(options: argparse.Namespace, console: Console) -> int:
    from credax.tables.reading import read_table
    from credax.tables.runs import fit_table, scores_as_json

    table = read_table(options.data)
    method, settings = _method(options)
    out = options.out or Path(options.data.stem)
    run = fit_table(
        table,
        options.target,
        method=method,
        settings=settings,
        task=options.task,
        drop=options.drop,
        hidden=_widths(options.hidden),
        held_out=options.held_out,
        key=options.seed,
        progress=not (options.quiet or options.json),
        name=options.data.name,
    )
    run.save(out)
    if options.json:
        scores = None if run.scores is None else scores_as_json(run.scores)["values"]
        found = {
            "run": str(out),
            "about": run.about,
            "scores": scores,
            "findings": list(run.findings),
        }
        console.print_json(json.dumps(found))
        return 0
    _print_run(run, out, console)
    return 0


def _print_run(run: Any, out: Path, console: Console) -> None:
    about, preprocessor = run.about, run.preprocessor
    kind = f"{len(preprocessor.classes)} classes" if preprocessor.classes else "a number"
    console.print(
        f"{type(run.posterior.method).__name__} on {about['rows_fitted']} rows: {preprocessor.target}, "
        f"{kind}, from {len(preprocessor.columns)} columns ({about['seconds']:.1f} s).",
        markup=False,
    )
    if run.scores is not None:
        table = Table(f"{run.scores.rows} held-out rows", "", "± standard error")
        for name, value in run.scores:
            table.add_row(name.replace("_", " "), f"{value:.4g}", f"{value.standard_error:.2g}")
        console.print(table)
    for note in preprocessor.notes:
        console.print(f"- {note}", markup=False)
    for finding in run.findings:
        console.print(f"! {finding['what']} {finding['advice']}", markup=False)
    console.print(f"Run: {out}  (credax report {out}; credax predict {out} DATA)", markup=False)


def _predict(options: argparse.Namespace, console: Console) -> int:
    from credax.core.checks import fraction
    from credax.tables.reading import read_table, require_column
    from credax.tables.runs import Run

    fraction("predict", "level", options.level)
    run = Run.load(options.folder)
    table = read_table(options.data)
    for column in run.preprocessor.columns:
        require_column(table, column.name)
    for name, levels in run.preprocessor.unseen(table).items():
        shown = ", ".join(map(repr, levels[:5]))
        Console(stderr=True).print(
            f"Note: the fit has not seen {shown} in column {name!r}.", markup=False
        )
    predictions = run.predict(table, options.level)
    out = options.out
    if out is None:
        sys.stdout.write(predictions.to_csv(index=False))
    elif out.suffix.lower() in (".parquet", ".pq"):
        _replace(out, predictions.to_parquet)
    elif out.suffix.lower() == ".csv":
        _replace(out, lambda path: predictions.to_csv(path, index=False))
    else:
        raise UsageError(f"--out must end in .csv or .parquet; got {out}.")
    return 0


def _replace(path: Path, write: Any) -> None:
    """Write to a temporary path and rename the file at the end, so that it is never half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.partial")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _compare(options: argparse.Namespace, console: Console) -> int:
    from credax.inference import METHODS
    from credax.tables.comparison import compare_table
    from credax.tables.reading import read_table

    names = (
        list(METHODS)
        if options.methods is None
        else [n.strip() for n in options.methods.split(",")]
    )
    for name in names:
        _known(name, METHODS)
    budget = _seconds(options.budget)
    status = Console(stderr=True, highlight=False)
    quiet = options.quiet or options.json
    found = compare_table(
        read_table(options.data),
        options.target,
        {name: METHODS[name] for name in names},
        budget=budget,
        task=options.task,
        drop=tuple(options.drop),
        held_out=options.held_out,
        key=options.seed,
        report=lambda name: None if quiet else status.print(f"{name} ...", markup=False),
    )
    if options.json:
        console.print_json(json.dumps(_comparison_as_json(found)))
        return 0
    console.print(leaderboard(found, console))
    for name, reason in found.refused.items():
        console.print(f"{name} cannot be used here. {reason}", markup=False, soft_wrap=True)
    console.print(found.recommendation(), markup=False, soft_wrap=True)
    return 0


def leaderboard(found: Any, console: Console) -> Table:
    """A table of the compared methods, best first; the last columns are left out if the console is narrow."""
    numbers = found.preprocessor.task == "regression"
    figures = ("rmse", "crps", "coverage") if numbers else ("accuracy", "brier", "ece")

    def findings(entry):
        grave = sum(finding.grave for finding in entry.findings)
        return f"{len(entry.findings)}" + (f", {grave} grave" if grave else "")

    columns = {
        "method": lambda entry: entry.name,
        "log\nlikelihood": lambda entry: str(entry.scores.log_likelihood),
        **{
            name: lambda entry, name=name: f"{float(getattr(entry.scores, name)):.4g}"
            for name in figures
        },
        "seconds": lambda entry: f"{entry.seconds:.1f}",
        "findings": findings,
        "run": lambda entry: "whole" if entry.shortened == 1 else f"{100 * entry.shortened:.2g} %",
        "MB": lambda entry: f"{entry.megabytes:.2g}",
    }

    def with_columns(count):
        title = f"{found.rows[0]} fitted rows, {found.rows[1]} held-out rows"
        table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=0)
        for name in list(columns)[:count]:
            side = "left" if name in ("method", "findings") else "right"
            table.add_column(name, justify=side, no_wrap=True)
        for entry in found.entries:
            table.add_row(*[cell(entry) for cell in list(columns.values())[:count]])
        return table

    unlimited = console.options.update(width=1_000)
    tables = (with_columns(count) for count in range(len(columns), 0, -1))
    fitting = (t for t in tables if Measurement.get(console, unlimited, t).maximum <= console.width)
    return next(fitting, with_columns(1))


def _comparison_as_json(found: Any) -> dict[str, Any]:
    from credax.tables.runs import scores_as_json

    entries = [
        {
            "method": entry.name,
            "scores": scores_as_json(entry.scores)["values"],
            "seconds": entry.seconds,
            "megabytes": entry.megabytes,
            "share_of_default_run": entry.shortened,
            "findings": [str(finding) for finding in entry.findings],
        }
        for entry in found.entries
    ]
    return {
        "entries": entries,
        "refused": dict(found.refused),
        "recommendation": found.recommendation(),
    }


def _report(options: argparse.Namespace, console: Console) -> int:
    from credax.report import write_report
    from credax.tables.runs import Run

    out = options.out or options.folder / "report.html"
    run = Run.load(options.folder)
    _replace(out, lambda path: write_report(run, path))
    console.print(f"Report: {out}", markup=False)
    return 0


def _methods(options: argparse.Namespace, console: Console) -> int:
    from credax.inference import METHODS

    rows = [
        {
            "name": name,
            "class": f"cx.{kind.__name__}",
            "what": (kind.__doc__ or "").strip().splitlines()[0],
            "when": kind.when,
            "errs": kind.errs,
        }
        for name, kind in METHODS.items()
    ]
    if options.json:
        console.print_json(json.dumps(rows))
        return 0
    table = Table("name", "what it is", "when to use it", "what its uncertainty gets wrong")
    for row in rows:
        table.add_row(row["name"], row["what"], row["when"], row["errs"])
    console.print(table)
    return 0


def _demo(options: argparse.Namespace, console: Console) -> int:
    try:
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"The demo needs {error.name}: pip install 'credax[demo]'.") from None
    from credax.cli.demo import run

    run(options.out, console)
    return 0


def _completion(options: argparse.Namespace, console: Console) -> int:
    from credax.cli.completion import script

    sys.stdout.write(script(make_parser(), options.shell))
    return 0


# -- options --------------------------------------------------------------------------------------------


def _method(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The method that the user named, ``None`` if none, and the settings to change."""
    from credax.inference import METHODS

    settings: dict[str, Any] = {}
    if options.config is not None:
        try:
            settings |= tomllib.loads(options.config.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"--config {options.config} cannot be read: {error}.") from None
    configured = settings.pop("method", None)
    named = options.method or configured
    for text in options.set:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"--set must be NAME=VALUE, e.g. num_steps=2000; got {text!r}.")
        settings[name.strip()] = _value(value.strip())
    if named is None:
        return None, settings
    _known(named, METHODS)
    return METHODS[named](), settings


def _known(name: str, methods: Any) -> None:
    if name not in methods:
        near = difflib.get_close_matches(name, list(methods), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"There is no method {name!r}.{hint} See: credax methods.")


def _value(text: str) -> Any:
    """The number, truth value or list that the text denotes in Python's notation; otherwise the text itself."""
    try:
        return ast.literal_eval(text.replace("true", "True").replace("false", "False"))
    except (ValueError, SyntaxError):
        return text


def _widths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text.replace(" ", "")):
        raise UsageError(f"--hidden must be whole numbers with commas, e.g. 50,50; got {text!r}.")
    return [int(part) for part in text.split(",")]


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", text.strip())
    if not found or float(found[1]) <= 0:
        raise UsageError(f"--budget must be a time such as 90s, 5m or 1h; got {text!r}.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[found[2]]


def _remember_compiled_programs() -> None:
    """Let JAX keep compiled programs on disk between calls, unless its environment variable says otherwise."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "credax" / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
