"""Tables that need not fit in memory: a folder or several files, read a block of rows after the other."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from credax.model.sources.tabular import KINDS, listed_files, record_batches
from credax.tables.reading import (
    SAMPLE,
    SEPARATORS,
    TableError,
    decode_text,
    read_table,
    read_text,
    reason,
    separator_of,
)

if TYPE_CHECKING:
    import pandas as pd

ROWS = 16_384
"""The number of rows of a block of a CSV file."""
SHARE = 8
"""A table is read block by block if its files take more than this part of the memory; it would take more."""


def table_files(paths: Sequence[Path]) -> list[Path]:
    """The files of a table that is given as a file, a folder or several files."""
    if len(paths) == 1 and not paths[0].is_dir():
        return list(paths)
    folders = [path for path in paths if path.is_dir()]
    if folders and len(paths) > 1:
        raise TableError(f"DATA must be one folder or several files; got the folder {folders[0]}.")
    return listed_files(paths[0] if folders else list(paths))


def is_large(files: Sequence[Path]) -> bool:
    """Whether the files are too large to be read into memory."""
    if not all(path.is_file() for path in files):
        return False  # standard input, or a mistake that reading will name
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sum(path.stat().st_size for path in files) > memory // SHARE


def read_tables(
    files: Sequence[Path], *, encoding: str | None = None, text: Collection[str] = ()
) -> pd.DataFrame:
    """All rows of some files as one table in memory."""
    if len(files) == 1:
        return read_table(files[0], encoding=encoding, text=text)
    import pandas as pd

    tables = [read_table(path, encoding=encoding, text=text) for path in files]
    for path, table in zip(files, tables, strict=True):
        refuse_other_columns(path, list(table.columns), list(tables[0].columns))
    notes = list(dict.fromkeys(note for table in tables for note in table.attrs["notes"]))
    for table in tables:
        table.attrs = {}
    whole = pd.concat(tables, ignore_index=True)
    whole.attrs["notes"] = notes
    return whole


def refuse_other_columns(path: Path, names: list[str], first: list[str]) -> None:
    """Refuse a file whose columns are not those of the first."""
    different = [name for name in first if name not in names]
    different += [name for name in names if name not in first]
    if different:
        raise TableError(
            f"All files must have the same columns; {path} and the first differ in {different[0]!r}."
        )


class Blocks:
    """The rows of some files, block by block; it can be read several times.

    Args:
      files: Parquet, Arrow or CSV files of one kind.
      encoding: the encoding of CSV files. If ``None``, UTF-8 or what the first bytes say.
    """

    def __init__(self, files: Sequence[Path], encoding: str | None = None):
        for path in files:
            if KINDS.get(path.suffix.lower()) is None:
                raise TableError(
                    f"{path} cannot be read block by block; it must be a Parquet, Arrow or CSV file."
                )
        self.files, self._encoding = list(files), encoding
        self._is_text = KINDS[files[0].suffix.lower()] == "csv"

    def as_written(self) -> Iterator[pd.DataFrame]:
        """The rows; those of CSV files as texts, about which :meth:`learned` decides."""
        return self._each(lambda names: dict.fromkeys(names, str))

    def rows(self, text: Collection[str] = ()) -> Iterator[pd.DataFrame]:
        """The rows, with the columns in ``text`` as they are written."""
        kept = set(text)
        return self._each(lambda names: {name: str for name in names if name.strip() in kept})

    def learned(self, sample: pd.DataFrame, text: Collection[str] = ()) -> pd.DataFrame:
        """A sample of the rows :meth:`as_written`, read as a whole file with these rows would be."""
        if not self._is_text:
            return sample.reset_index(drop=True)
        content = sample.to_csv(index=False).encode()
        if self._separator == ";":  # by which decimal commas are told
            content = sample.to_csv(index=False, sep=";").encode()
        table = read_text(content, str(self.files[0]), text)
        table.columns = [str(column).strip() for column in table.columns]
        return table

    @property
    def _separator(self) -> str:
        return _head(self.files[0], self._encoding)[1]

    def _each(self, types: Callable[[list[str]], dict[str, Any]]) -> Iterator[pd.DataFrame]:
        first: list[str] | None = None
        for path in self.files:
            for block in self._of(path, types):
                block.columns = [str(column).strip() for column in block.columns]
                names = list(block.columns)
                if first is None:
                    first = names
                elif names != first:
                    refuse_other_columns(path, names, first)
                    block = block[first]
                yield block

    def _of(
        self, path: Path, types: Callable[[list[str]], dict[str, Any]]
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd

        if not self._is_text:
            for table in record_batches(path):
                if table.num_rows:
                    yield table.to_pandas()
            return
        encoding, separator, names = _head(path, self._encoding)
        options: dict[str, Any] = {"sep": separator, "skipinitialspace": True, "encoding": encoding}
        with _named_errors(path):
            opened = pd.read_csv(path, dtype=types(names) or None, chunksize=ROWS, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
            with opened as reader:
                for block in reader:
                    yield block.reset_index(drop=True)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeError:
        raise TableError(f"{path} is no UTF-8; --encoding says which text it is.") from None
    except (TableError, GeneratorExit):
        raise
    except Exception as error:  # noqa: BLE001  (the readers of damaged files raise errors of many classes)
        raise TableError(f"{path} cannot be read as a table: {reason(error)}") from None


def _head(path: Path, encoding: str | None) -> tuple[str, str, list[str]]:
    """The encoding, the separator and the names of the columns of a CSV file."""
    import pandas as pd

    with _named_errors(path):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            start = file.read(SAMPLE)
    if not start.strip():
        raise TableError(f"{path} is empty.")
    if encoding is None:
        cut = start[: start.rfind(b"\n") + 1] or start
        encoding = decode_text(cut)[1]
    sample = start.decode(encoding, "ignore").lstrip("\ufeff")
    sample = sample[: sample.rfind("\n") + 1] or sample
    separator = separator_of(sample, Path(path.stem if packed else path.name).suffix.lower())
    if separator not in SEPARATORS:
        raise TableError(f"{path} cannot be read block by block; its columns need a separator.")
    head = pd.read_csv(io.StringIO(sample), sep=separator, skipinitialspace=True, nrows=0)
    return ("utf-8-sig" if encoding == "utf-8" else encoding), separator, list(head.columns)
