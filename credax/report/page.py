"""The page: the sections of a report, rendered into one self-contained HTML file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from credax.core.version import __version__
from credax.report.sections import sections

if TYPE_CHECKING:
    from credax.tables.runs import Run


def write_report(run: Run, path: str | Path) -> Path:
    """Write the report of a run to one self-contained HTML file.

    Args:
      run: a fit of a table.
      path: the file to write; for an existing folder, ``report.html`` in it.

    Returns:
      The path of the file.
    """
    path = Path(path)
    path = path / "report.html" if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(run), encoding="utf-8")
    return path


def page(run: Run) -> str:
    """The HTML of the report."""
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        target=run.preprocessor.target,
        source=run.about.get("table") or "a table",
        sections=sections(run),
        style=Markup(_text("report.css")),
        version=__version__,
    )


def _text(name: str) -> str:
    return files("credax.report").joinpath(name).read_text(encoding="utf-8")
