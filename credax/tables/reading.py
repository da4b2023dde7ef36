"""Reads a table from a file: CSV, TSV or Parquet."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from credax.core.errors import CredaxError

if TYPE_CHECKING:
    import pandas as pd


class TableError(CredaxError, ValueError):
    """A table cannot be used; the message says why and what to do, in one line."""


def read_table(path: str | Path) -> pd.DataFrame:
    """The table in a CSV, TSV or Parquet file; the end of the name says which of them it is.

    Raises:
      TableError: the file does not exist, is empty, or cannot be read as the kind that its name says.
    """
    path = Path(path)
    try:
        import pandas as pd
    except ImportError:
        raise TableError("Reading tables needs pandas: pip install 'credax[tables]'.") from None
    if not path.exists():
        near = difflib.get_close_matches(path.name, [p.name for p in _siblings(path)], 1)
        hint = f" Did you mean {path.with_name(near[0])}?" if near else ""
        raise TableError(f"There is no file {path}.{hint}")
    if path.is_dir():
        raise TableError(f"{path} is a folder; a table is a .csv or .parquet file.")
    if path.stat().st_size == 0:
        raise TableError(f"{path} is empty.")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            table = pd.read_parquet(path)
        else:
            separator = "\t" if path.suffix.lower() in (".tsv", ".tab") else None
            table = pd.read_csv(path, sep=separator, engine="python" if separator is None else "c")
    except (ValueError, OSError, UnicodeError, ArithmeticError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TableError(f"{path} cannot be read as a table: {reason}") from None
    if table.shape[1] == 0 or len(table) == 0:
        raise TableError(f"{path} has no rows.")
    names = [str(name).strip() for name in table.columns]
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    if repeated:
        raise TableError(f"{path} has two columns named {repeated[0]!r}.")
    table.columns = names
    return table


def _siblings(path: Path) -> list[Path]:
    return list(path.parent.iterdir()) if path.parent.is_dir() else []


def require_column(table: pd.DataFrame, name: str) -> None:
    """Raise a ``TableError`` that suggests the most similar name, if the table has no column of that name."""
    if name in table.columns:
        return
    near = difflib.get_close_matches(name, list(table.columns), 1, cutoff=0.5)
    names = ", ".join(map(repr, table.columns[:8])) + (", ..." if len(table.columns) > 8 else "")
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {names}."
    raise TableError(f"There is no column {name!r}. {hint}")
