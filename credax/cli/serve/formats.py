"""Rows and predictions as JSON and as Arrow streams."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.cli.serve.limits import Refused
from credax.tables.preprocessing import Preprocessor

if TYPE_CHECKING:
    import pandas as pd

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"


def read_rows(content: bytes, kind: str, preprocessor: Preprocessor, most: int) -> pd.DataFrame:
    """The rows in the body of a request, as ``credax predict`` reads them from a file.

    Args:
      content: the body.
      kind: its media type.
      preprocessor: that of the run, which says what columns there must be and which ones hold text.
      most: the largest number of rows.

    Raises:
      Refused: the body is not of this type, a column is missing, or there are too many rows.
    """
    names = [column.name for column in preprocessor.columns]
    table = (_from_arrow if kind == ARROW else _from_json)(content, names, most)
    for name in set(preprocessor.as_written) & set(names):
        table[name] = _texts(table[name])
    # The same type whether a request happens to hold whole numbers only or not.
    whole = {name: np.float64 for name in names if table[name].dtype.kind in "iu"}
    return table.astype(whole) if whole else table


def _from_json(content: bytes, names: list[str], most: int) -> pd.DataFrame:
    import pandas as pd

    try:
        found = json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body must be JSON: {error}.") from None
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise Refused(
            400, 'The body must be {"rows": [...]}, with an object for each of one or more rows.'
        )
    _check_count(len(rows), most)
    for i, row in enumerate(rows):
        for name in names:
            if name not in row:
                raise Refused(
                    422, f"Row {i} has no {name!r}; it must be null if its value is missing."
                )
            if isinstance(row[name], dict | list):
                raise Refused(
                    422, f"{name!r} must be a number, a text, true, false or null in row {i}."
                )
    return pd.DataFrame({name: [row[name] for row in rows] for name in names})


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON; use null for a missing value")


def _from_arrow(content: bytes, names: list[str], most: int) -> pd.DataFrame:
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(content) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Refused(400, f"The body must be an Arrow IPC stream: {str(error)[:200]}.") from None
    if table.num_rows == 0:
        raise Refused(400, "The body must have one or more rows.")
    _check_count(table.num_rows, most)
    for name in names:
        if table.schema.get_all_field_indices(name).__len__() != 1:
            raise Refused(422, f"There must be one column {name!r}; got {table.column_names[:8]}.")
    try:
        return table.select(names).to_pandas()
    except (pa.ArrowException, ValueError) as error:
        raise Refused(422, f"A column cannot be read: {str(error)[:200]}.") from None


def _check_count(rows: int, most: int) -> None:
    if rows > most:
        raise Refused(
            413, f"A request may have at most {most} rows; got {rows}. Send several requests."
        )


def _texts(values: pd.Series) -> pd.Series:
    """The values as they would be written in a table."""
    import pandas as pd

    texts = [None if pd.isna(v) else v if isinstance(v, str) else str(v) for v in values]
    return pd.Series(texts, index=values.index, dtype=object)


# -- answers -----------------------------------------------------------------------------------------


def write(columns: dict[str, np.ndarray], notes: list[str], kind: str) -> bytes:
    """The predictions in the format of the request."""
    return (_to_arrow if kind == ARROW else _to_json)(columns, notes)


def _to_json(columns: dict[str, np.ndarray], notes: list[str]) -> bytes:
    # Python writes every float with the digits that give the same float again; JSON has no NaN.
    plain = {name: [_plain(v) for v in values.tolist()] for name, values in columns.items()}
    rows = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return json.dumps({"predictions": rows, "notes": notes}, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _to_arrow(columns: dict[str, np.ndarray], notes: list[str]) -> bytes:
    import pyarrow as pa

    arrays = {
        name: pa.array(values.tolist() if values.dtype.kind in "OU" else values)
        for name, values in columns.items()
    }
    table = pa.table(arrays).replace_schema_metadata({"notes": json.dumps(notes)})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    return buffer.getvalue()
