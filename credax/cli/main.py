"""The command line: ``credax fit | predict | compare | report | serve | methods | demo | completion``.

This module defines the commands and their options. It imports nothing that takes time, so that ``credax
--help`` answers at once; what the commands do is in :mod:`credax.cli.commands`.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from credax.core.errors import CredaxError
from credax.core.version import __version__

QUICK = ("methods", "completion")
"""The commands that compile nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
      The exit code: 0, or 2 for an error that the user can correct, or 130 after an interrupt.
    """
    options = make_parser().parse_args(arguments)

    from rich.console import Console
    from rich.markup import escape

    from credax.cli import commands
    from credax.cli.shown import console

    if options.command not in QUICK:
        _remember_compiled_programs()
    errors = Console(stderr=True, highlight=False)

    def note(message: Warning | str, *_: Any) -> None:
        errors.print(f"[yellow]Note:[/] {escape(str(message))}", soft_wrap=True)

    try:
        with warnings.catch_warnings():
            if not options.debug:
                warnings.showwarning = note
            return getattr(commands, options.command)(options, console())
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        return 130
    except BrokenPipeError:  # such as credax predict ... | head
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (the interpreter flushes it at its end)
        return 0
    except (CredaxError, ValueError, TypeError, OSError) as error:
        if options.debug:
            raise
        text = escape(str(error).replace("\n", " "))
        errors.print(f"[red]credax {options.command}:[/] {text}", soft_wrap=True)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands and their options."""
    parser = argparse.ArgumentParser(
        prog="credax",
        description="Predictions that say how sure they are: Bayesian deep learning on JAX.",
    )
    parser.add_argument("--version", action="version", version=f"credax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        found.add_argument(
            "--debug", action="store_true", help="show the whole traceback of an error"
        )
        return found

    _add_fit(command("fit", "fit a network to a table, and score it on held-out rows"))
    _add_predict(command("predict", "predict the target of each row of a table"))
    _add_compare(
        command(
            "compare",
            "fit several methods to the same rows, each within the same time, and rank them",
        )
    )
    report = command("report", "write an HTML report of a run")
    report.add_argument("folder", type=Path, metavar="RUN", help="a folder that credax fit wrote")
    _add_out(report, "FILE", "the file to write (default: RUN/report.html)")

    _add_serve(command("serve", "answer requests for predictions of a run over HTTP"))

    methods = command("methods", "list the methods, with what each is and when to use it")
    methods.add_argument("--json", action="store_true", help="print the list as JSON")

    demo = command(
        "demo", "show the methods side by side on a curve, and compare some on a real table"
    )
    demo.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder to write to (default: demo)"
    )
    completion = command(
        "completion", "print a script with which a shell completes commands, options and values"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _add_fit(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    _add_more(parser)
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="how to find the posterior (see: credax methods), or best, as credax compare found",
    )
    parser.add_argument(
        "--compared",
        type=Path,
        metavar="FOLDER",
        help="the comparison for --method best (default: the name of DATA with -compared)",
    )
    _add_out(
        parser,
        "RUN",
        "folder to write the run to (default: the name of DATA; of a folder, with -run)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the method; may be repeated",
    )
    parser.add_argument(
        "--config", type=Path, metavar="TOML", help="a file with settings of the method"
    )
    parser.add_argument("--hidden", metavar="50,50", help="the widths of the hidden layers")
    parser.add_argument(
        "--budget",
        default="30s",
        metavar="TIME",
        help="time for fitting if nothing else is chosen, e.g. 30s or 5m (default: 30s)",
    )
    parser.add_argument(
        "--prior",
        metavar="NAME",
        help="the prior of the weights, e.g. laplace or 'normal(scale=0.5)'",
    )
    parser.add_argument(
        "--likelihood",
        metavar="NAME",
        help="the noise of a number, e.g. student-t, heteroscedastic or poisson",
    )
    parser.add_argument(
        "--calibrate",
        type=float,
        nargs="?",
        const=0.2,
        default=0.0,
        metavar="SHARE",
        help="correct intervals or probabilities by a share of rows kept back from the fit (0.2 if not given)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="folder from which a fit that was killed goes on",
    )
    parser.add_argument(
        "--mesh", metavar="AXIS=N,...", help="the devices of the fit, e.g. replica=2,data=4"
    )
    parser.add_argument(
        "--hosts",
        type=int,
        nargs="?",
        const=0,
        metavar="N",
        help="run on N hosts, each of which runs this command; without N, as many as Slurm, Open MPI or "
        "Kubernetes has started",
    )
    parser.add_argument(
        "--host-index", type=int, metavar="I", help="the number of this host, from 0"
    )
    parser.add_argument(
        "--coordinator", metavar="ADDRESS:PORT", help="the address of host 0, and a free port there"
    )


def _add_predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="a folder that credax fit wrote")
    _add_data(parser)
    _add_more(parser)
    _add_out(parser, "FILE", "a .csv or .parquet file to write (default: print as CSV)")
    parser.add_argument(
        "--level", type=float, default=0.9, help="the probability of the intervals (default: 0.9)"
    )
    parser.add_argument(
        "--quantiles", metavar="Q,Q", help="quantiles to add, e.g. 0.05,0.5,0.95 (numbers only)"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COL,COL",
        help="columns of DATA to put before the predictions; may be repeated",
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="a folder that credax fit wrote")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=8000, help="the port (default: 8000)")
    for name, kind, default, text in (
        ("rows", int, 1024, "the most rows in a request"),
        ("bytes", int, 2_000_000, "the most bytes in a request"),
        ("queue", int, 256, "the most requests at the same time; others are answered with 429"),
    ):
        parser.add_argument(
            f"--max-{name}", type=kind, default=default, help=f"{text} (default: {default})"
        )
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds for a request (default: 30)"
    )


def _add_compare(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    parser.add_argument("--methods", metavar="A,B", help="the methods to compare (default: all)")
    parser.add_argument(
        "--no-baselines",
        action="store_true",
        help="compare with no linear model and no boosted trees",
    )
    parser.add_argument(
        "--budget",
        default="2m",
        metavar="TIME",
        help="for all methods together, e.g. 90s, 5m, 1h (default: 2m)",
    )
    _add_out(
        parser,
        "FOLDER",
        "folder for the run of each method, from which the comparison goes on after a kill (default: the name "
        "of DATA with -compared)",
    )


def _add_out(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    parser.add_argument("--out", type=Path, default=None, metavar=metavar, help=text)


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", type=Path, metavar="DATA", help="a .csv or .parquet file, or - for standard input"
    )
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help="of the text in DATA, e.g. cp1252 (default: UTF-8, else Latin-1)",
    )


def _add_more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "more",
        type=Path,
        nargs="*",
        metavar="DATA",
        help="more files of the same table; DATA may also be a folder of files",
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        help="read DATA block by block, as is done for files that are large compared with the memory",
    )


def _add_table(parser: argparse.ArgumentParser) -> None:
    _add_data(parser)
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
        "--column",
        action="append",
        default=[],
        metavar="COL=KIND",
        help="what a column holds: number, boolean, category, date, date:day-first, date:month-first, "
        "date:month-year, time, weekday, month, duration or ignore; may be repeated",
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


def _remember_compiled_programs() -> None:
    """Let JAX keep compiled programs on disk between calls, unless its environment variable says otherwise."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "credax" / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
