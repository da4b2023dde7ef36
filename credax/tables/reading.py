"""Reads a table from a file or from standard input: CSV and its relatives, or Parquet."""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import re
import sys
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credax.core.errors import CredaxError
from credax.tables.preamble import has_padded_numbers, is_spaced, table_of

if TYPE_CHECKING:
    import pandas as pd


class TableError(CredaxError, ValueError):
    """A table cannot be used; the message says why and what to do, in one line."""


SEPARATORS = (",", ";", "\t", "|")
"""What can stand between the fields of a line, the most usual first."""
SAMPLE = 65_536
"""The number of characters from which the separator is found."""
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The bytes with which some programs begin a text, and the encodings that they stand for."""
ZEROS = 0.2
"""The least share of zeros among the bytes of a text in UTF-16."""
STANDARD_INPUT = "-"


def read_table(
    path: str | Path, *, encoding: str | None = None, text: Collection[str] = ()
) -> pd.DataFrame:
    """The table in a file, which may be CSV (with any usual separator), TSV or Parquet, also gzipped.

    Columns in which every value is a number, as a computer writes it, are numbers. All others are texts, about
    which :mod:`credax.tables.columns` decides.

    Args:
      path: the file; ``"-"`` is standard input.
      encoding: the encoding of the text. If ``None``, UTF-8 or UTF-16, and Latin-1 if it is neither.
      text: columns whose values stay as they are written.

    Returns:
      The table. ``table.attrs["notes"]`` are sentences about how it was read.

    Raises:
      TableError: there is no such file, it is empty, or it is no table.
    """
    try:
        import pandas as pd
    except ImportError:
        raise TableError("Reading tables needs pandas: pip install 'credax[tables]'.") from None
    content, name = _content(path), _name(path)
    notes: list[str] = []
    try:
        if content[:4] == b"PAR1":
            table = pd.read_parquet(io.BytesIO(content))
        elif Path(name).suffix.lower() in (".parquet", ".pq"):
            raise TableError(f"{name} cannot be read as a table: it is no Parquet file.")
        else:
            content, found = _as_utf8(content, encoding, name)
            if found == "latin-1" and encoding is None:
                notes.append(
                    f"{name} is no UTF-8 and was read as Latin-1 (--encoding says another)."
                )
            content, separator, more = table_of(content)
            notes += more
            table = read_text(content, name, text, separator)
    except TableError:
        raise
    except MemoryError:
        raise TableError(f"{name} does not fit into memory.") from None
    except Exception as error:  # noqa: BLE001  (the readers of damaged files raise errors of many classes)
        raise TableError(f"{name} cannot be read as a table: {reason(error)}") from None
    if table.shape[1] == 0 or len(table) == 0:
        raise TableError(f"{name} has no rows.")
    names = [str(column).strip() for column in table.columns]
    _refuse_repeated(names, name)
    table.columns = names
    table.attrs["notes"] = notes
    return table


def reason(error: Exception) -> str:
    """What is wrong with a file, in one line."""
    text = str(error).strip()
    fields = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", text)
    if fields and fields[1] == "1":
        return (
            f"its first line has one field and line {fields[2]} has {fields[3]}. Delete what stands above the "
            "names of the columns."
        )
    if fields:
        return (
            f"line {fields[2]} has {fields[3]} fields instead of {fields[1]}. A field with a separator in it "
            "needs quotation marks."
        )
    quote = re.search(r"EOF inside string starting at row (\d+)", text)
    if quote:
        return f"a quotation mark that begins in line {int(quote[1]) + 1} has no end."
    return text.splitlines()[0] if text else type(error).__name__


_NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?")


def require_column(table: pd.DataFrame, name: str) -> None:
    """Raise a ``TableError`` that suggests the most similar name, if the table has no column of that name."""
    if name in table.columns:
        return
    near = difflib.get_close_matches(name, list(table.columns), 1, cutoff=0.5)
    names = ", ".join(map(repr, table.columns[:8])) + (", ..." if len(table.columns) > 8 else "")
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {names}."
    if all(_NUMBER.fullmatch(str(column)) for column in table.columns):
        hint += " The first line of a table must hold the names of its columns."
    raise TableError(f"There is no column {name!r}. {hint}")


# -- bytes -----------------------------------------------------------------------------------------------


def _name(path: str | Path) -> str:
    return "Standard input" if str(path) == STANDARD_INPUT else str(path)


def _content(path: str | Path) -> bytes:
    """The bytes of a file, unpacked if they are gzipped."""
    name = _name(path)
    if str(path) == STANDARD_INPUT:
        content = sys.stdin.buffer.read()
    else:
        content = _file(Path(path))
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(f"{name} cannot be unpacked: {error}.") from None
    if not content.strip(b" \t\r\n\x00\xef\xbb\xbf\xff\xfe"):
        raise TableError(f"{name} is empty." if not content else f"{name} holds blank lines only.")
    if content[:4] in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):
        raise TableError(f"{name} is a spreadsheet or an archive; save the table as CSV first.")
    return content


def _file(path: Path) -> bytes:
    try:
        if not path.exists():
            near = difflib.get_close_matches(path.name, [p.name for p in _siblings(path)], 1)
            hint = f" Did you mean {path.with_name(near[0])}?" if near else ""
            raise TableError(f"There is no file {path}.{hint}")
        if path.is_dir():
            raise TableError(f"{path} is a folder; a table is a .csv or .parquet file.")
        return path.read_bytes()
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from None


def _siblings(path: Path) -> list[Path]:
    return list(path.parent.iterdir()) if path.parent.is_dir() else []


def _as_utf8(content: bytes, encoding: str | None, name: str) -> tuple[bytes, str]:
    """The text in UTF-8, without marks and zeros, and the encoding that it was in."""
    if encoding is not None:
        try:
            decoded, found = content.decode(encoding), encoding
        except LookupError:
            raise TableError(
                f"--encoding must be the name of an encoding, such as utf-8 or cp1252; got {encoding!r}."
            ) from None
        except UnicodeError:
            raise TableError(f"{name} is no text in the encoding {encoding}.") from None
    else:
        decoded, found = decode_text(content)
    if found != "utf-8" or decoded.startswith("\ufeff"):
        content = decoded.lstrip("\ufeff").encode("utf-8", "replace")
    if b"\x00" in content:
        content = content.replace(b"\x00", b"")
    return content.lstrip(b"\r\n"), found


def decode_text(content: bytes) -> tuple[str, str]:
    """The text of the bytes, and its encoding."""
    guesses = [found for mark, found in MARKS.items() if content.startswith(mark)][:1]
    start = content[:2_000]
    if not guesses:
        # In UTF-16, most of every second byte of a text in a Latin alphabet are zero.
        first, second = start[::2].count(0), start[1::2].count(0)
        if max(first, second) > ZEROS * len(start):
            guesses.append("utf-16-le" if second >= first else "utf-16-be")
    for found in (*guesses, "utf-8"):
        try:
            return content.decode(found), found
        except UnicodeError:
            continue
    return content.decode("latin-1"), "latin-1"


# -- lines -----------------------------------------------------------------------------------------------


def separator_of(sample: str, suffix: str = "") -> str:
    r"""What stands between the fields of the lines: the separator that gives all lines equally many fields.

    Args:
      sample: some lines, without the rest of a broken one at the end.
      suffix: the end of the name of the file, such as ``".tsv"``.

    >>> separator_of("a;b\n1,5;2\n3,5;4"), separator_of("name\nAnn\nBob")
    (';', ',')
    """
    if suffix in (".tsv", ".tab"):
        return "\t"
    best, most = ",", (0.0, 1)
    for separator in SEPARATORS:
        try:
            counts = [
                len(row) for row in csv.reader(io.StringIO(sample), delimiter=separator) if row
            ]
        except csv.Error:
            continue
        wide = max(set(counts), key=counts.count, default=1)
        if wide > 1 and counts[0] > 1:
            agreement = (round(counts.count(wide) / len(counts), 2), wide)
            best, most = (separator, agreement) if agreement > most else (best, most)
    if most[1] == 1 and (suffix in (".txt", ".dat", ".data") or is_spaced(sample)):
        return r"\s+"
    return best


def read_text(
    content: bytes, name: str, text: Collection[str], separator: str = ""
) -> pd.DataFrame:
    """The table in the bytes of a CSV file in UTF-8.

    Args:
      content: the bytes.
      name: the name of the file, for messages.
      text: the columns that are read as they are written.
      separator: the character between columns. If it is empty, it is found from the content.
    """
    import pandas as pd

    sample = content[:SAMPLE].decode("utf-8", "ignore")
    if len(content) > SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample
    separator = separator or separator_of(sample, Path(name).suffix.lower())
    head = next(
        (row for row in csv.reader(io.StringIO(sample), delimiter=separator[-1]) if row), []
    )
    if separator in SEPARATORS:
        _refuse_repeated([field.strip() for field in head], name)
    options: dict[str, Any] = {"sep": separator, "skipinitialspace": True, "low_memory": False}
    kept = {field: str for field in head if field.strip() in set(text)}
    table = pd.read_csv(io.BytesIO(content), dtype=kept or None, **options)
    if isinstance(table.index, pd.MultiIndex):
        raise TableError(
            f"{name} cannot be read as a table: its lines have more fields than its first line has names. Add "
            "the names that are missing, or delete what stands above them."
        )
    if not isinstance(table.index, pd.RangeIndex) and table.iloc[:, -1].isna().all():
        # Every line but the first ends with a separator: the first field is no name of a row.
        options |= {"index_col": False, "usecols": range(table.shape[1])}
        table = pd.read_csv(io.BytesIO(content), dtype=kept or None, **options)
    table = table.reset_index(
        drop=True
    )  # names of rows, which the first line leaves without a name
    if separator == ";" and any(_has_decimal_commas(table[column]) for column in table.columns):
        # Then 12.345 may be twelve thousand, so that numbers with points are read as texts too.
        pointed = {c: str for c in table.columns if table[c].dtype.kind == "f"}
        if pointed:
            table = pd.read_csv(io.BytesIO(content), dtype={**kept, **pointed}, **options)
    return _with_leading_zeros(table, content, options)


def _with_leading_zeros(
    table: pd.DataFrame, content: bytes, options: dict[str, Any]
) -> pd.DataFrame:
    """The table, in which codes such as 01234 keep their zeros: their columns are texts."""
    import pandas as pd

    numbers = [name for name in table.columns if _are_whole(table[name])]
    if not numbers or not has_padded_numbers(content):
        return table
    written = pd.read_csv(io.BytesIO(content), dtype=dict.fromkeys(numbers, str), **options)
    for name in numbers:
        texts = written[name].dropna().str.strip()
        if texts.str.fullmatch(r"\d+").all() and texts.str.fullmatch(r"0\d{2,}").any():
            table[name] = written[name].reset_index(drop=True)
    return table


def _are_whole(values: pd.Series) -> bool:
    """Whether a column holds whole numbers, as far as its beginning shows."""
    if values.dtype.kind != "f":
        return values.dtype.kind in "iu"
    first = values.head(1_000).dropna()
    return bool((first % 1 == 0).all())


def _has_decimal_commas(values: pd.Series) -> bool:
    from pandas.api import types

    if types.is_numeric_dtype(values):
        return False
    found = values.dropna().astype(str).str.strip()
    return bool(len(found) and found.str.fullmatch(r"-?\d+,\d{1,2}|-?[\d.]+,\d+").mean() > 0.5)


def _refuse_repeated(names: list[str], file: str) -> None:
    repeated = [name for i, name in enumerate(names) if name and name in names[:i]]
    if repeated:
        raise TableError(
            f"{file} has two columns named {repeated[0]!r}. Give each column a name of its own."
        )
