"""The time that ``credax`` takes to read a CSV file, relative to pandas' own reader.

The table has 20,000 rows and 20 columns of numbers. credax also finds the encoding, the separator and what
stands above the table, and looks for codes with leading zeros.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from credax.tables.reading import read_table


def measure(rows: int = 20_000, columns: int = 20, repeats: int = 15) -> dict[str, Any]:
    """Median milliseconds of both readers, which alternate, and their ratio."""
    values = np.random.default_rng(0).normal(size=(rows, columns))
    readers = {"credax": read_table, "pandas": pd.read_csv}
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.csv"
        pd.DataFrame(values, columns=[f"c{i}" for i in range(columns)]).to_csv(path, index=False)
        for _ in range(repeats):
            for name, read in readers.items():
                began = time.perf_counter()
                read(path)
                seconds[name].append(time.perf_counter() - began)
    medians = {name: 1e3 * statistics.median(found) for name, found in seconds.items()}
    return {
        "rows": rows,
        "columns": columns,
        "credax ms": medians["credax"],
        "pandas ms": medians["pandas"],
        "credax over pandas": medians["credax"] / medians["pandas"],
    }
