"""Parquet, CSV and Arrow files as a source.

Rows cannot be read singly from such files: they are compressed in groups, or have no fixed length. So the files
are read once, in order, checked, counted, and written as plain numbers to a folder, from which any row can be
read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from credax.core.checks import must
from credax.core.errors import SourceError
from credax.model.sources.mapped import Arrays
from credax.model.sources.source import check_rows, digest

KINDS = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".tsv", ".gz"), "csv"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
}
"""The kind of a file, by the end of its name."""
META = "meta.json"
"""The file that describes the numbers in a folder."""
ROWS = 65_536
"""The largest number of rows that are converted at once."""


def files(
    paths: Any,
    target: str | Sequence[str] | None,
    *,
    features: Sequence[str] | None = None,
    cache: str | os.PathLike | None = None,
) -> Arrays:
    """Parquet, CSV or Arrow files with numeric columns as a source.

    The files are read once when the source is made: their rows are counted and checked, and written as plain
    numbers to the folder ``cache``, which needs about 4 or 8 bytes of disk space for every number.

    Args:
      paths: a file, a folder of files of one kind (in the order of their names), or a list of files.
      target: the column of the targets, or a list of columns; ``None`` for rows that are only predicted.
      features: the columns of the inputs. If ``None``, all columns of the first file except for the target.
      cache: a folder for the numbers, which is used again by a source of the same, unchanged files. If
        ``None``, a temporary folder, which is removed with the source.
    """
    found = listed_files(paths)
    targets = () if target is None else (target,) if isinstance(target, str) else tuple(target)
    if features is not None and (isinstance(features, str) or not tuple(features)):
        raise TypeError(must("files", "features", "a list of names of columns", features))
    names = tuple(features) if features is not None else _columns(found[0], targets)
    both = [name for name in targets if name in names]
    if both:
        raise ValueError(must("files", "features", "other columns than the target", both))
    if not names:
        raise ValueError(f"{found[0]} must have columns besides the target; got none.")
    mark = digest([(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in found], names, target)
    folder = None if cache is None else Path(cache) / mark[:16]
    if folder is None or not folder.exists():
        folder = _converted(found, names, targets, mark, folder)
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    source = Files(found, meta, folder, names, targets if not isinstance(target, str) else None)
    if cache is None:
        weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)
    return source


class Files(Arrays):
    """Rows of tables in files; see :func:`files`."""

    def __init__(self, paths: list[Path], meta: dict[str, Any], folder: Path, names, targets):
        self._paths, self._ends, self._mark = paths, np.cumsum(meta["rows"]), meta["mark"]
        rows = check_rows(int(self._ends[-1]))
        x = np.memmap(folder / "x.bin", meta["x"], "r", shape=(rows, len(names)))
        y = None
        if meta["targets"]:
            shape = (rows,) if targets is None else (rows, len(targets))
            y = np.memmap(folder / "y.bin", meta["y"], "r", shape=shape)
        super().__init__(x, y)
        self.x_names, self.y_names = names, targets or None

    def place(self, row: int) -> str:
        """The file, and the row within it."""
        file = int(np.searchsorted(self._ends, row, side="right"))
        before = int(self._ends[file - 1]) if file else 0
        return f"row {row - before} of {self._paths[file]}"

    def fingerprint(self) -> str:
        """Of the names, sizes and times of the files, and of the columns."""
        return self._mark

    def __repr__(self) -> str:
        count = len(self._paths)
        return f"Files({count:,} file{'s' * (count > 1)}, {self.rows:,} rows, counted once)"


def listed_files(paths: Any) -> list[Path]:
    """The files, which must be of one kind."""
    if isinstance(paths, str | os.PathLike):
        found = [Path(paths)]
    elif isinstance(paths, Sequence) and len(paths):
        found = [Path(path) for path in paths]
    else:
        raise TypeError(must("files", "paths", "a file, a folder or a list of files", paths))
    if len(found) == 1 and found[0].is_dir():
        inside = sorted(path for path in found[0].iterdir() if path.suffix.lower() in KINDS)
        if not inside:
            raise SourceError(
                f"{found[0]} must hold Parquet, CSV or Arrow files; it holds none ({', '.join(KINDS)})."
            )
        found = inside
    for path in found:
        if not path.is_file():
            raise SourceError(f"There is no file {path}.")
        if path.suffix.lower() not in KINDS:
            raise SourceError(
                f"{path} must be a Parquet, CSV or Arrow file; its name must end with one of "
                f"{', '.join(KINDS)}."
            )
    kinds = {KINDS[path.suffix.lower()] for path in found}
    if len(kinds) > 1:
        raise SourceError(f"Files must be of one kind; got {' and '.join(sorted(kinds))}.")
    return found


def _columns(path: Path, targets: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of a file that are not targets."""
    names = next(record_batches(path)).schema.names
    missing = [name for name in targets if name not in names]
    if missing:
        listed = ", ".join(map(repr, names[:8])) + ", ..." * (len(names) > 8)
        raise ValueError(must("files", "target", f"a column of {path} ({listed})", missing[0]))
    return tuple(name for name in names if name not in targets)


def _converted(paths, names, targets, mark: str, folder: Path | None) -> Path:
    """Write the numbers of all files to a folder; return it.

    The folder gets its name when it is complete, so that a process that is killed leaves none of that name.
    """
    parent = None if folder is None else folder.parent
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="credax-", dir=parent))
    try:
        _write(paths, names, targets, mark, made)
        if folder is not None and not folder.exists():
            made = made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return made


def _write(paths, names, targets, mark: str, folder: Path) -> None:
    meta: dict[str, Any] = {"mark": mark, "targets": len(targets), "rows": []}
    with open(folder / "x.bin", "wb") as x_file, open(folder / "y.bin", "wb") as y_file:
        for path in paths:
            rows = 0
            for table in record_batches(path):
                for part, columns, file in (("x", names, x_file), ("y", targets, y_file)):
                    if columns:
                        numbers = _numbers(path, table, columns, rows)
                        dtype = meta.setdefault(part, numbers.dtype.str)
                        _check_type(path, part, np.dtype(dtype), numbers.dtype)
                        file.write(np.ascontiguousarray(numbers, dtype).data)
                rows += table.num_rows
            meta["rows"].append(rows)
    (folder / META).write_text(json.dumps(meta), encoding="utf-8")


def _check_type(path: Path, part: str, first: np.dtype, here: np.dtype) -> None:
    if not np.can_cast(here, first, "same_kind"):
        what = "inputs" if part == "x" else "targets"
        raise SourceError(
            f"The {what} must have the same type in all files, {first} as in the first; {path} has {here}."
        )


def _numbers(path: Path, table: Any, columns: tuple[str, ...], before: int) -> np.ndarray:
    """Some columns of a table as an array, whose numbers are all present and finite."""
    from pyarrow import types

    given = table.schema.names
    missing = [name for name in columns if name not in given]
    if missing:
        raise SourceError(f"{path} has no column {missing[0]!r}.")
    found = []
    for name in columns:
        column = table.column(name)
        kind = column.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise SourceError(
                f"{path} must have numeric columns; column {name!r} has the type {kind}. Encode it as numbers "
                "first."
            )
        if column.null_count:
            at = int(np.argmax(np.asarray(column.is_null())))
            raise SourceError(f"{path} has no value in column {name!r} at row {before + at}.")
        values = np.asarray(column)
        bad = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(1, bool)
        if bad.any():
            at = int(np.argmax(bad))
            raise SourceError(
                f"{path} must hold finite numbers; got {values[at]} in column {name!r} at row {before + at}."
            )
        found.append(values)
    return np.stack(found, axis=1)


def record_batches(path: Path) -> Iterator[Any]:
    """The rows of a file as Arrow tables, a limited number at a time; at least one, which may be empty."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(
            "cx.sources.files needs pyarrow: pip install 'credax[tables]'."
        ) from error
    done = 0
    try:
        for batch in _READERS[KINDS[path.suffix.lower()]](path):
            for begin in range(0, max(batch.num_rows, 1), ROWS):
                yield pa.Table.from_batches([batch.slice(begin, ROWS)])
            done += batch.num_rows
    except (pa.ArrowException, OSError, EOFError) as error:
        raise SourceError(f"{path} cannot be read after row {done}: {error}.") from error


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        empty = True
        for batch in file.iter_batches(ROWS):
            empty = False
            yield batch
        if empty:
            yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)


def _arrow(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped:
        file = pa.ipc.open_file(mapped)
        if not file.num_record_batches:
            yield pa.RecordBatch.from_pylist([], schema=file.schema)
        for i in range(file.num_record_batches):
            yield file.get_batch(i)


def _csv(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    tabs = ".tsv" in (suffix.lower() for suffix in path.suffixes)
    parse = csv.ParseOptions(delimiter="\t" if tabs else ",")
    with csv.open_csv(path, parse_options=parse) as reader:
        schema = reader.schema
    # Whole numbers in the first rows may be followed by others.
    floats = {f.name: pa.float64() for f in schema if pa.types.is_integer(f.type)}
    floats |= {f.name: pa.float64() for f in schema if pa.types.is_null(f.type)}
    convert = csv.ConvertOptions(column_types=floats)
    with csv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
        yield from reader


_READERS = {"parquet": _parquet, "arrow": _arrow, "csv": _csv}
