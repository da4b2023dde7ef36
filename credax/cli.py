"""The command line: ``credax demo`` and ``credax methods``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="credax", description="Bayesian deep learning on JAX.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo", help="fit an ensemble to a real table and draw its predictions"
    )
    demo.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for the picture (default: demo)"
    )
    demo.set_defaults(run=_demo)
    methods = commands.add_parser("methods", help="list the methods and what each one is")
    methods.set_defaults(run=_methods)
    options = parser.parse_args(arguments)
    _remember_compiled_programs()
    return options.run(options, Console())


def _demo(options: argparse.Namespace, console: Console) -> int:
    try:
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        print(
            f"credax demo needs {error.name}: pip install 'credax[plot,sklearn]'.", file=sys.stderr
        )
        return 2
    from credax.demo import run

    run(options.out, console)
    return 0


def _methods(options: argparse.Namespace, console: Console) -> int:
    from credax.inference import METHODS

    table = Table("name", "class", "what it is")
    for name, method in METHODS.items():
        first = (method.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, f"cx.{method.__name__}", first)
    console.print(table)
    return 0


def _remember_compiled_programs() -> None:
    """Keeps compiled programs between calls, unless the user said where or whether to."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "credax" / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


if __name__ == "__main__":
    sys.exit(main())
