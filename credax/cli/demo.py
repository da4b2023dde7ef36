"""``credax demo``: every method side by side on a curve, and some of them on a real table."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

import credax as cx
from credax.cli.shown import leaderboard
from credax.core.errors import PosteriorWarning
from credax.inference import METHODS, Method
from credax.report import write_report
from credax.tables.comparison import compare_table, shorter
from credax.tables.runs import fit_table

NOISE = 0.1
GRID = np.linspace(-4.0, 4.0, 161)[:, None]
CHOSEN = (
    cx.ImportanceSampling(num_draws=20_000),
    cx.Metropolis(chains=4, num_warmup=5_000, num_draws=250, thin=20),
    cx.HMC(chains=2, num_warmup=300, num_draws=500),
    cx.NUTS(chains=2, num_warmup=200, num_draws=200),
    cx.DeepEnsemble(members=10, num_steps=1_000),
    cx.MCDropout(rate=0.05, num_steps=3_000),
    cx.Laplace(structure="full", num_steps=1_000),
)
"""Settings for the curve that are better than those that :func:`curve_method` derives from the defaults."""
STEPS = 16_000
"""The largest number of steps on the curve: a few seconds for most methods, besides compilation."""
REPLICAS = {"chains": 2, "members": 4, "particles": 128}
"""The largest numbers of replicas on the curve."""
REFERENCE = cx.HMC
"""The method whose uncertainty is drawn in every picture for comparison: exact in the limit of many draws."""
TABLE = (
    cx.MAP,
    cx.DeepEnsemble,
    cx.MCDropout,
    cx.BayesByBackprop,
    cx.Laplace,
    cx.HMC,
    cx.MicrocanonicalEnsemble,
)
"""The methods that are compared on the real table."""
COLUMNS = 5
"""Pictures per row."""


def run(folder: Path, console: Console) -> Path:
    """Fit every method to a curve, compare some on a real table, and write a picture and a report.

    Returns:
      The folder with the picture and the report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "methods.png"
    _draw(picture, _curves(console))
    console.print(f"Picture: {picture}", markup=False)
    table = _diabetes()
    console.print(
        f"\nA real table: the disease progression of {len(table)} diabetes patients, predicted from "
        f"{table.shape[1] - 1} measurements of each. A fifth of the patients are held out."
    )
    methods = {name: method for name, method in METHODS.items() if method in TABLE}
    found = compare_table(table, "progression", methods, budget=35.0)
    console.print(leaderboard(found, console))
    console.print(found.recommendation(), markup=False, soft_wrap=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)  # the report says the same
        fitted = fit_table(table, "progression", progress=False, name="diabetes")
    report = folder / "report.html"
    write_report(fitted, report)
    console.print(f"Report: {report}", markup=False)
    return folder


# -- the curve ----------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """The predictions of a method along the grid."""

    name: str
    mean: np.ndarray
    epistemic: np.ndarray  # as a standard deviation
    seconds: float


def curve_method(kind: type[Method]) -> Any:
    """The method with settings for the curve: those in ``CHOSEN``, else its defaults for a smaller problem.

    A default run of more than ``STEPS`` steps is shortened, and ``REPLICAS`` bounds the replicas.
    """
    for method in CHOSEN:
        if type(method) is kind:
            return method
    method: Any = kind()
    given = {
        item.name: getattr(method, item.name)
        for item in dataclasses.fields(method)
        if item.name in REPLICAS and item.init
    }
    fewer = {name: min(value, REPLICAS[name]) for name, value in given.items()}
    return shorter(dataclasses.replace(method, **fewer), STEPS / method.num_steps)


def curve_model(method: Method) -> cx.Model:
    """The model for the curve; its weights are normal, or few and discrete if the method needs that."""
    normal = cx.Model(
        cx.networks.mlp([20], activation="tanh"),
        cx.priors.Normal(1.0),
        cx.likelihoods.Gaussian(NOISE),
    )
    discrete = cx.Model(
        cx.networks.mlp([3], activation="tanh"),
        cx.priors.Discrete([-2.0, -1.0, 0.0, 2.0]),
        cx.likelihoods.Gaussian(5 * NOISE),
    )
    try:
        method.check(*normal.prepare(_data()))
    except ValueError:
        return discrete
    return normal


def _data() -> tuple[np.ndarray, np.ndarray]:
    """Noisy observations of a sine, with a gap in the middle."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -1, 30), rng.uniform(0.8, 3, 30)])[:, None]
    return x, np.sin(1.5 * x[:, 0]) + NOISE * rng.normal(size=len(x))


def _curve(name: str) -> Curve:
    began = time.perf_counter()
    method = curve_method(METHODS[name])
    posterior = cx.fit(curve_model(method), _data(), method, progress=False)
    predictive = posterior.predict(GRID)
    mean, spread = predictive.mean, np.sqrt(predictive.epistemic)
    return Curve(name, mean, spread, time.perf_counter() - began)


def _curves(console: Console) -> list[Curve]:
    """The predictions of every method. Two fits run at a time, since compilation takes most of the time."""
    curves = []
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore", PosteriorWarning)
        for curve in pool.map(_curve, METHODS):
            console.print(f"{curve.name:<24} {curve.seconds:5.1f} s", markup=False)
            curves.append(curve)
    return curves


def _draw(path: Path, curves: list[Curve]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, y = _data()
    grid = GRID[:, 0]
    reference = next(curve for curve in curves if METHODS[curve.name] is REFERENCE)
    rows = math.ceil(len(curves) / COLUMNS)
    figure, axes = plt.subplots(
        rows,
        COLUMNS,
        figsize=(13, 2.1 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for place, curve in zip(axes.flat, curves, strict=False):
        for width, colour in ((2, "#dbe5f4"), (1, "#a9c1e6")):
            reach = width * curve.epistemic
            place.fill_between(grid, curve.mean - reach, curve.mean + reach, color=colour, lw=0)
        for side in (-2, 2):
            bound = reference.mean + side * reference.epistemic
            place.plot(grid, bound, color="#555555", lw=0.8, ls=(0, (4, 3)))
        place.plot(grid, curve.mean, color="#1f3b73", lw=1.6)
        place.scatter(x, y, s=7, color="#222222", zorder=3)
        place.set_title(curve.name, fontsize=10)
        place.set(xlim=(-4, 4), ylim=(-3.2, 3.2))
        place.spines[["top", "right"]].set_visible(False)
    for place in axes.flat[len(curves) :]:
        place.set_visible(False)
    figure.suptitle(
        "A sine with a gap: mean and epistemic uncertainty (one and two standard deviations); "
        f"dashed: two standard deviations of {REFERENCE.__name__}",
        fontsize=12,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _diabetes() -> Any:
    from sklearn.datasets import load_diabetes

    found: Any = load_diabetes(as_frame=True)
    return found.frame.rename(columns={"target": "progression"})
