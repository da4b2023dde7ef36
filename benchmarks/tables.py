"""The recommended method on the UCI tables: how well it predicts, and whether its intervals are calibrated.

``cx.BayesianRegressor()`` with its default settings, on fixed splits of the tables (Hernandez-Lobato & Adams,
2015): RMSE and log likelihood of the test rows in the units of the target, the coverage of the 90 %
intervals, and the seconds of a fit, including compilation. ``CREDAX_DATA`` is the folder that contains
``uci/``.
"""

import json
import os
import time
from pathlib import Path

import numpy as np

import credax as cx

TABLES = (
    "yacht",
    "bostonHousing",
    "energy",
    "concrete",
    "wine-quality-red",
    "kin8nm",
    "power-plant",
    "naval-propulsion-plant",
    "protein-tertiary-structure",
)
SPLITS = (0, 1, 2)


def measure(tables=TABLES, splits=SPLITS) -> dict:
    figures = {}
    for table in tables:
        runs = [one(table, split) for split in splits]
        figures[table] = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        print(table, {name: round(value, 3) for name, value in figures[table].items()}, flush=True)
    coverage = float(np.mean([found["coverage"] for found in figures.values()]))
    return {**figures, "mean coverage of 90 % intervals": coverage}


def one(table: str, split: int, **settings) -> dict:
    folder = Path(os.environ.get("CREDAX_DATA", "../shared/data")) / "uci"
    if not folder.is_dir():
        raise SystemExit(f"There is no folder {folder}: set CREDAX_DATA to the folder with uci/.")
    data = np.load(folder / f"{table}.npz")
    test = data["test_mask"][split]
    x, y = data["x"], data["y"]
    began = time.perf_counter()
    regressor = cx.BayesianRegressor(**settings).fit(x[~test], y[~test])
    seconds = time.perf_counter() - began
    predictive = regressor.predict_distribution(x[test])
    lower, upper = predictive.interval(0.9)
    return {
        "RMSE": float(np.sqrt(np.mean((predictive.mean - y[test]) ** 2))),
        "log likelihood": float(np.mean(predictive.log_prob(y[test]))),
        "coverage": float(np.mean((lower <= y[test]) & (y[test] <= upper))),
        "seconds": seconds,
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
