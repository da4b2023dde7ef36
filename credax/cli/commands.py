"""What each command does; the names of the functions are those of the commands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from credax.cli import options as given
from credax.cli import shown
from credax.cli.options import UsageError, quoted

__all__ = ["compare", "completion", "demo", "fit", "methods", "predict", "report", "serve"]


def _note(text: str) -> None:
    Console(stderr=True, highlight=False).print(f"[yellow]Note:[/] {escape(text)}", soft_wrap=True)


def _read(options: argparse.Namespace, text: Any = ()) -> Any:
    """The table of a command, with notes about how it was read."""
    from credax.tables.blocks import read_tables

    files = getattr(options, "files", [options.data])
    table = read_tables(files, encoding=options.encoding, text=text)
    for note in table.attrs.get("notes", ()):
        _note(note)
    return table


def _blocks(options: argparse.Namespace) -> Any:
    """The table of a command block by block; ``None`` if it is to be read as a whole."""
    from credax.tables.blocks import Blocks, is_large, table_files

    options.files = table_files([options.data, *options.more])
    if not options.stream and not is_large(options.files):
        return None
    return Blocks(options.files, options.encoding)


def _read_to_fit(options: argparse.Namespace) -> tuple[Any, dict[str, str]]:
    """The table to fit to, and what the user says that its columns hold."""
    kinds = given.kinds(options.column)
    # A number that is to be a category, a date or a time is needed as it is written.
    return _read(options, [name for name, kind in kinds.items() if kind != "number"]), kinds


def fit(options: argparse.Namespace, console: Console) -> int:
    """``credax fit``."""
    from credax.core import hosts
    from credax.tables.runs import check_folder, scores_as_json

    out = options.out or Path(given.stem(options.data))
    _name_the_best(options)
    method, settings = given.method(options)
    mesh = given.mesh(options.mesh)
    console = _join_hosts(options, method, console)
    choices = {
        "prior": given.chosen("prior", options.prior, given.priors()) if options.prior else None,
        "likelihood": given.chosen("likelihood", options.likelihood, given.likelihoods())
        if options.likelihood
        else None,
        "hidden": given.widths(options.hidden),
    }
    check_folder(out)
    quiet = options.quiet or options.json
    run = _fitted(
        options,
        out,
        method=method,
        settings=settings,
        task=options.task,
        drop=options.drop,
        **choices,
        held_out=options.held_out,
        key=options.seed,
        progress=not quiet,
        name=options.data.name,
        checkpoint=options.checkpoint,
        mesh=mesh,
        calibrate=options.calibrate,
        report=lambda found: None if options.json else shown.show_columns(found, console),
    )
    if not hosts.is_first():
        return 0
    run.save(out)
    if options.json:
        scores = None if run.scores is None else scores_as_json(run.scores)["values"]
        columns = [
            {"column": name, "read_as": kind, "note": note}
            for name, kind, note in run.preprocessor.read_as()
        ]
        found = {
            "run": str(out),
            "about": run.about,
            "columns": columns,
            "scores": scores,
            "findings": list(run.findings),
        }
        console.print_json(json.dumps(found))
        return 0
    shown.show_run(run, out, console)
    return 0


def _fitted(options: argparse.Namespace, out: Path, **arguments: Any) -> Any:
    """The run of ``credax fit``, on a table in memory or block by block."""
    from credax.tables.runs import fit_table

    blocks = _blocks(options)
    if blocks is None:
        table, kinds = _read_to_fit(options)
        budget = given.seconds(options.budget)
        return fit_table(table, options.target, kinds=kinds, budget=budget, **arguments)
    from credax.core import hosts
    from credax.tables.streaming import fit_blocks

    kinds = given.kinds(options.column)
    note = _note if hosts.is_first() else lambda text: None
    # Several hosts write their numbers to disks of their own.
    folder = out.absolute().parent if hosts.count() == 1 else None
    return fit_blocks(blocks, options.target, kinds=kinds, folder=folder, note=note, **arguments)


def _join_hosts(options: argparse.Namespace, method: Any, console: Console) -> Console:
    """Make this process one of several, if the user says so; return the console, silent on all but host 0."""
    if options.hosts is None:
        if options.host_index is not None or options.coordinator is not None:
            raise UsageError("--host-index and --coordinator are of use with --hosts only.")
        return console
    if method is None:
        raise UsageError(
            "--hosts needs --method: what is chosen by its speed may differ between hosts."
        )
    from credax.core import hosts

    hosts.use_hosts(options.coordinator, options.hosts or None, options.host_index)
    # On CPUs, the library by which hosts talk writes to standard output, and would spoil what is printed.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return Console(file=sys.stdout, highlight=False, quiet=not hosts.is_first())


def _name_the_best(options: argparse.Namespace) -> None:
    """Replace the method ``best`` by the one that a comparison found."""
    from credax.tables.comparison import best_method

    if options.method is None or given.spelled(options.method) != "best":
        if options.compared is not None:
            raise UsageError("--compared is of use with --method best only.")
        return
    folder = options.compared or Path(f"{given.stem(options.data)}-compared")
    options.method = best_method(folder, options.target)
    _note(f"{options.method} was the best method in {folder}.")


def predict(options: argparse.Namespace, console: Console) -> int:
    """``credax predict``."""
    from credax.core.checks import fraction
    from credax.tables.reading import require_column
    from credax.tables.runs import Run

    fraction("predict", "level", options.level)
    quantiles = given.quantiles(options.quantiles)
    out = options.out
    if out is not None and out.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise UsageError(f"--out must end in .csv or .parquet; got {out}.")
    run = Run.load(options.folder, held_out=False)
    if quantiles and run.preprocessor.classes:
        raise UsageError(
            f"--quantiles are those of numbers; {run.preprocessor.target} is one of "
            f"{len(run.preprocessor.classes)} classes."
        )
    named = [name for text in options.keep for name in (text, *given.list_of(text))]
    blocks = _blocks(options)
    if blocks is not None:
        from credax.tables.streaming import predict_blocks

        keep = lambda columns: given.kept(options.keep, columns)  # noqa: E731
        _write(predict_blocks(run, blocks, options.level, quantiles, keep, named, _note), out)
        return 0
    table = _read(options, (*run.preprocessor.as_written, *named))
    keep = given.kept(options.keep, list(table.columns))
    for name in (*(column.name for column in run.preprocessor.columns), *keep):
        require_column(table, name)
    for remark in run.preprocessor.remarks(table):
        _note(remark)
    predictions = run.predict(table, options.level, quantiles=quantiles)
    both = [name for name in keep if name in predictions.columns]
    if both:
        raise UsageError(
            f"--keep {both[0]} cannot be told from the prediction of that name; rename the column."
        )
    for name in reversed(keep):
        predictions.insert(0, name, table[name])
    _write([predictions], out)
    return 0


def _write(found: Any, out: Path | None) -> None:
    """Write the predictions of one block of rows after the other, in their order."""
    if out is None:
        _write_csv(found, sys.stdout)
        sys.stdout.flush()  # so that a reader that has gone away is noticed here
    elif out.suffix.lower() == ".csv":

        def write(path: Path) -> None:
            with path.open("w", encoding="utf-8", newline="") as file:
                _write_csv(found, file)

        _replace(out, write)
    else:
        _replace(out, lambda path: _write_parquet(found, path))


def _write_csv(parts: Any, file: Any) -> None:
    for i, part in enumerate(parts):
        part.to_csv(file, index=False, header=i == 0, lineterminator="\n")


def _write_parquet(parts: Any, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for part in parts:
            table = pa.Table.from_pandas(part, preserve_index=False)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()


def _replace(path: Path, write: Any) -> None:
    """Write to a temporary path and rename the file at the end, so that it is never half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.partial")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def compare(options: argparse.Namespace, console: Console) -> int:
    """``credax compare``."""
    from credax.tables.comparison import compare_table

    methods, budget = given.methods(options.methods), given.seconds(options.budget)
    out = options.out or Path(f"{given.stem(options.data)}-compared")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out must be a folder; {out} is a file.")
    table, kinds = _read_to_fit(options)
    status = Console(stderr=True, highlight=False)
    quiet = options.quiet or options.json
    found = compare_table(
        table,
        options.target,
        methods,
        budget=budget,
        task=options.task,
        drop=tuple(options.drop),
        kinds=kinds,
        held_out=options.held_out,
        key=options.seed,
        folder=out,
        report=lambda text: None if quiet else status.print(text, markup=False),
        with_baselines=not options.no_baselines,
    )
    if options.json:
        console.print_json(json.dumps(shown.comparison_as_json(found)))
        return 0
    console.print(shown.leaderboard(found, console))
    for name, reason in found.refused.items():
        console.print(f"{name} cannot be used here. {reason}", markup=False, soft_wrap=True)
    for sentence in filter(None, (found.recommendation(), found.against_baselines())):
        console.print(sentence, markup=False, soft_wrap=True)
    if found.entries:
        command = ["credax", "fit", options.data, *given.table_options(options)]
        command += ["--method", "best", *(["--compared", out] if options.out else [])]
        console.print(f"Runs: {out}", markup=False, soft_wrap=True)
        console.print(f"To fit the best one: {quoted(*command)}", markup=False, soft_wrap=True)
    return 0


def report(options: argparse.Namespace, console: Console) -> int:
    """``credax report``."""
    from credax.report import write_report
    from credax.tables.runs import Run

    out = options.out or options.folder / "report.html"
    run = Run.load(options.folder)
    _replace(out, lambda path: write_report(run, path))
    console.print(f"Report: {out}", markup=False)
    return 0


def serve(options: argparse.Namespace, console: Console) -> int:
    """``credax serve``."""
    from credax.tables.runs import Run

    try:
        from credax.cli.serve import Limits
        from credax.cli.serve import serve as answer
    except ImportError as error:
        raise UsageError(f"serve needs {error.name}: pip install 'credax[serve]'.") from None
    if not 0 <= options.port < 65_536:
        raise UsageError(f"--port must be between 0 and 65535; got {options.port}.")
    names = ("max_rows", "max_bytes", "max_queue", "timeout")
    limits = Limits(**{name: getattr(options, name) for name in names})
    run = Run.load(options.folder, held_out=False)

    def ready(address: str) -> None:
        text = f"Serving {options.folder} at http://{address} (Ctrl+C ends)"
        console.print(text, markup=False, soft_wrap=True)
        sys.stdout.flush()

    answer(run, options.host, options.port, limits, ready)
    return 0


def methods(options: argparse.Namespace, console: Console) -> int:
    """``credax methods``."""
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
    console.print(shown.methods_table(rows))
    return 0


def demo(options: argparse.Namespace, console: Console) -> int:
    """``credax demo``."""
    try:
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"The demo needs {error.name}: pip install 'credax[demo]'.") from None
    from credax.cli.demo import run

    run(options.out, console)
    return 0


def completion(options: argparse.Namespace, console: Console) -> int:
    """``credax completion``."""
    from credax.cli.completion import script
    from credax.cli.main import make_parser

    sys.stdout.write(script(make_parser(), options.shell))
    return 0
