"""``credax demo``: every method of the lecture side by side, on a curve and on a real table."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

import credax as cx
from credax.cli.main import leaderboard
from credax.core.errors import PosteriorWarning
from credax.inference import METHODS
from credax.report import write_report
from credax.tables.comparison import compare_table
from credax.tables.runs import fit_table

NOISE = 0.1
GRID = np.linspace(-4.0, 4.0, 161)[:, None]
CURVE = {
    "maximum-likelihood": cx.MaximumLikelihood(num_steps=1_000),
    "map": cx.MAP(num_steps=1_000),
    "enumeration": cx.Enumeration(),
    "importance-sampling": cx.ImportanceSampling(num_draws=20_000),
    "metropolis": cx.Metropolis(chains=4, num_warmup=5_000, num_draws=250, thin=20),
    "hmc": cx.HMC(chains=2, num_warmup=300, num_draws=500),
    "nuts": cx.NUTS(chains=2, num_warmup=200, num_draws=200),
    "simulated-annealing": cx.SimulatedAnnealing(),
    "mclmc": cx.MCLMC(chains=2, num_warmup=3_000, num_draws=500),
    "sgld": cx.SGLD(chains=2),
    "sghmc": cx.SGHMC(chains=2),
    "smc": cx.SMC(particles=128),
    "black-box-vi": cx.BlackBoxVI(num_steps=4_000),
    "bayes-by-backprop": cx.BayesByBackprop(num_steps=4_000),
    "ivon": cx.IVON(num_steps=4_000),
    "deep-ensemble": cx.DeepEnsemble(members=10, num_steps=1_000),
    "mc-dropout": cx.MCDropout(rate=0.05, num_steps=3_000),
    "swag": cx.SWAG(),
    "microcanonical-ensemble": cx.MicrocanonicalEnsemble(members=4),
    "laplace": cx.Laplace(structure="full", num_steps=1_000),
}
"""Settings for so small a problem: each method in a few seconds, most of them of compiling."""
TABLE = (
    "map",
    "deep-ensemble",
    "mc-dropout",
    "bayes-by-backprop",
    "laplace",
    "hmc",
    "microcanonical-ensemble",
)


def run(folder: Path, console: Console) -> Path:
    """Fits, draws, compares and reports.

    Returns:
      The folder with the picture and the report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "methods.png"
    _draw(picture, _curves(console))
    console.print(f"Picture: {picture}", markup=False)
    table = _diabetes()
    console.print(
        f"\nA real table: the disease progression of {len(table)} diabetes patients from {table.shape[1] - 1} "
        "measurements each; a fifth of them held out."
    )
    methods = {name: METHODS[name] for name in TABLE}
    found = compare_table(table, "progression", methods, budget=35.0)
    console.print(leaderboard(found, console))
    console.print(found.recommendation(), markup=False, soft_wrap=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)  # they stand in the report
        fitted = fit_table(table, "progression", progress=False, name="diabetes")
    report = folder / "report.html"
    write_report(fitted, report)
    console.print(f"Report: {report}", markup=False)
    return folder


# -- the curve ----------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """What a method says along the grid."""

    name: str
    mean: np.ndarray
    epistemic: np.ndarray  # as a standard deviation
    seconds: float


def _data() -> tuple[np.ndarray, np.ndarray]:
    """A sine with a gap in the middle."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -1, 30), rng.uniform(0.8, 3, 30)])[:, None]
    return x, np.sin(1.5 * x[:, 0]) + NOISE * rng.normal(size=len(x))


def _model(name: str) -> cx.Model:
    """A network; for sums over all weights a coarse one, whose few weights are discrete."""
    if name == "enumeration":
        network, prior = (
            cx.networks.mlp([3], activation="tanh"),
            cx.priors.Discrete([-2.0, -1.0, 0.0, 2.0]),
        )
        return cx.Model(network, prior, cx.likelihoods.Gaussian(5 * NOISE))
    network, likelihood = cx.networks.mlp([20], activation="tanh"), cx.likelihoods.Gaussian(NOISE)
    return cx.Model(network, cx.priors.Normal(1.0), likelihood)


def _curve(name: str) -> Curve:
    began = time.perf_counter()
    posterior = cx.fit(_model(name), _data(), CURVE[name], progress=False)
    predictive = posterior.predict(GRID)
    mean, spread = predictive.mean, np.sqrt(predictive.epistemic)
    return Curve(name, mean, spread, time.perf_counter() - began)


def _curves(console: Console) -> list[Curve]:
    """One for each method; compiling takes most of the time, and two compilers run side by side."""
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
    reference = next(curve for curve in curves if curve.name == "hmc")
    figure, axes = plt.subplots(
        4, 5, figsize=(13, 8.4), sharex=True, sharey=True, layout="constrained"
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
        "A sine with a gap: mean, and the epistemic band at one and two standard deviations; dashed, HMC's",
        fontsize=12,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _diabetes() -> Any:
    from sklearn.datasets import load_diabetes

    found: Any = load_diabetes(as_frame=True)
    return found.frame.rename(columns={"target": "progression"})
