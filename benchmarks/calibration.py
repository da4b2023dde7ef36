"""Who is calibrated: simulation-based calibration of every method on seven small models.

Data sets are simulated from each model and fitted by each method that takes the model, all of them in one
program, and the truths are ranked among the posterior draws. If a method draws from the posterior, the ranks
are uniform. Otherwise they say how the draws differ: their spread and bias, in posterior standard deviations.

Run as ``python -m benchmarks calibration``, in parts by ``--methods NAME ...`` and ``--models NAME ...``. Pairs
of a method and a model that are in ``benchmarks/results/calibration.json`` are not measured again unless
``--again`` is given, so that a run can be interrupted and split up. The results are shown on the page
``docs/guide/who-is-calibrated.md``.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.diagnostics import Ranks, simulation_based_calibration

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "calibration.json"
OWN_PAGE = ROOT / "docs" / "guide" / "who-is-calibrated.md"
PICTURE = ROOT / "docs" / "pictures" / "who_is_calibrated.png"
SIMULATIONS = 200
LEVEL = 0.01
"""A method fails on a model if the p-value for all quantities, of either test, is below this."""

# -- the models --------------------------------------------------------------------------------------

X = np.linspace(0.0, 1.5, 10)[:, None]
"""All inputs lie on one side of zero, so that intercept and slope are correlated in the posterior."""
EFFECT_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
"""The standard errors of the eight schools (Rubin, 1981)."""


def _eight_schools() -> tuple[cx.Model, tuple]:
    """A hierarchical model: the effect of school j is mu + tau z_j.

    The network returns each school's effect in units of its standard error, so that the noise has scale one.
    """

    def init(key):
        return {"mu": jnp.zeros(()), "log_tau": jnp.zeros(()), "z": jnp.zeros(8)}

    def apply(params, x):
        school, error = x[:, 0].astype(jnp.int32), x[:, 1]
        effects = params["mu"] + jnp.exp(params["log_tau"]) * params["z"]
        return (effects[school] / error)[:, None]

    prior = {
        "mu": cx.priors.Normal(10.0),
        "log_tau": cx.priors.Normal(1.0, 2.0),
        "z": cx.priors.Normal(1.0),
    }
    network = cx.networks.from_function(init, apply)
    model = cx.Model(network, prior, cx.likelihoods.Gaussian(1.0))
    return model, (np.column_stack([np.arange(8.0), EFFECT_ERRORS]), np.zeros(8))


def _line(likelihood: Any, prior: Any = None) -> tuple[cx.Model, tuple]:
    prior = cx.priors.Normal(1.0) if prior is None else prior
    return cx.Model(cx.networks.linear(), prior, likelihood), (X, np.arange(10) % 2)


def _network() -> tuple[cx.Model, tuple]:
    network = cx.networks.mlp([4], activation="tanh")
    x = 2 * X - 1.5
    return cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3)), (x, x[:, 0])


MODELS: dict[str, Callable[[], tuple[cx.Model, tuple]]] = {
    "linear": lambda: _line(cx.likelihoods.Gaussian(0.5)),
    "learned noise": lambda: _line(cx.likelihoods.Gaussian(scale=None)),
    "logistic": lambda: _line(cx.likelihoods.Bernoulli()),
    "poisson": lambda: _line(cx.likelihoods.Poisson()),
    "network": _network,
    "eight schools": _eight_schools,
    "discrete": lambda: _line(cx.likelihoods.Gaussian(1.0), cx.priors.Discrete([-1, 0, 1])),
}
"""What each name stands for; the linear model is conjugate, and the weights of the last one are discrete."""

# -- the methods -------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "importance-sampling": {"num_draws": 4_000, "num_warmup": 1_000},
    "metropolis": {"chains": 1, "num_warmup": 3_000, "num_draws": 99, "thin": 100},
    "elliptical-slice": {"chains": 1, "num_warmup": 500, "num_draws": 99, "thin": 40},
    "hmc": {"chains": 1, "num_warmup": 500, "num_draws": 99, "thin": 5, "num_leapfrog": 16},
    "nuts": {"chains": 1, "num_warmup": 500, "num_draws": 99, "thin": 3},
    "mclmc": {"chains": 1, "num_warmup": 2_000, "num_draws": 99, "thin": 50},
    "sgld": {"chains": 1, "num_warmup": 2_000, "num_draws": 99, "thin": 50},
    "sghmc": {"chains": 1, "num_warmup": 2_000, "num_draws": 99, "thin": 50},
    "smc": {"particles": 200, "num_moves": 3, "num_leapfrog": 8},
    "deep-ensemble": {"members": 10},
    "cross-fit-ensemble": {"members": 5},
    "microcanonical-ensemble": {"members": 4, "num_warmup": 2_000, "num_draws": 25, "thin": 20},
    "laplace": {"structure": "full"},
}
"""Settings other than the defaults: one long, thinned chain per data set, and small populations."""
FOR_MODEL: dict[tuple[str, str], dict[str, Any]] = {
    ("importance-sampling", "discrete"): {"proposal": "prior"},
}


def method_for(name: str, model: str) -> cx.inference.Method:
    """The method under test, with its settings for a model."""
    return cx.inference.METHODS[name](**SETTINGS.get(name, {}), **FOR_MODEL.get((name, model), {}))


# -- measuring ---------------------------------------------------------------------------------------


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calibration")
    known = list(cx.inference.METHODS)
    parser.add_argument("--methods", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="NAME"
    )
    parser.add_argument("--simulations", type=int, default=SIMULATIONS, metavar="N")
    parser.add_argument("--again", action="store_true", help="measure what has been measured too")
    return vars(parser.parse_args(arguments))


def measure(
    methods=tuple(cx.inference.METHODS),
    models=tuple(MODELS),
    simulations: int = SIMULATIONS,
    again: bool = False,
    results: Path = RESULTS,
) -> dict:
    """The figures of each method on each model, with those that were measured before."""
    figures = json.loads(results.read_text())["figures"] if results.exists() else {}
    for model in models:
        for method in methods:
            if method in figures.get(model, {}) and not again:
                continue
            figures.setdefault(model, {})[method] = found = one(method, model, simulations)
            shown = {name: value for name, value in found.items() if name != "histograms"}
            print(model, method, json.dumps(shown), flush=True)
            # In the form in which the figures are stored at the end, so that an interrupted run loses nothing.
            old = json.loads(results.read_text()) if results.exists() else {}
            results.write_text(json.dumps({**old, "figures": figures}, indent=1) + "\n")
    ordered = {
        model: {
            name: figures[model][name] for name in cx.inference.METHODS if name in figures[model]
        }
        for model in MODELS
        if model in figures
    }
    return ordered


def one(method: str, model: str, simulations: int = SIMULATIONS) -> dict:
    """The figures of one method on one model."""
    target, data = MODELS[model]()
    began = time.perf_counter()
    try:
        with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
            ranks = simulation_based_calibration(
                target,
                data,
                method_for(method, model),
                key=11,
                num_simulations=simulations,
                progress=False,
            )
    except cx.DivergedError as error:
        return {"diverged": str(error)}
    except (ValueError, TypeError, cx.CredaxError) as error:
        return {"not applicable": str(error)}
    return {**summary(ranks), "seconds": round(time.perf_counter() - began, 1)}


def summary(ranks: Ranks) -> dict:
    """What is kept of the ranks: the tests, and for each quantity its histogram, bias and spread."""
    rounded = lambda value: round(float(value), 4) if np.isfinite(value) else None  # noqa: E731
    return {
        "simulations": len(ranks.ranks),
        "draws": ranks.num_draws,
        "correlation": rounded(ranks.correlation.max()),
        "chi_square_p": float(f"{ranks.p_value:.3g}"),
        "ecdf_p": float(f"{ranks.ecdf_p_value:.3g}"),
        "deviations": {
            name: dict(zip(deviation._fields, map(rounded, deviation), strict=True))
            for name, deviation in ranks.deviations.items()
        },
        "histograms": {
            name: counts.tolist()
            for name, counts in zip(ranks.names, ranks.histogram.T, strict=True)
        },
    }


# -- the page ----------------------------------------------------------------------------------------

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def write_page(figures: dict, page: Path = OWN_PAGE, picture: Path = PICTURE) -> None:
    """Put the table into the page, between its two comments, and draw the picture."""
    text = page.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    page.write_text(f"{before}\n{table(figures)}\n{after}")
    draw(figures, picture)


def table(figures: dict) -> str:
    """A row for each method, a column for each model."""
    names = list(figures)
    rows = [
        "| method | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for name, method in cx.inference.METHODS.items():
        cells = [cell(method, figures[model].get(name)) for model in names]
        rows.append(f"| [`{method.__name__}`](../methods/{name}.md) | {' | '.join(cells)} |")
    return "\n".join(rows)


def cell(method: type[cx.inference.Method], found: dict | None) -> str:
    """``ok`` if the ranks are uniform, otherwise the largest spread and bias among the quantities."""
    if found is None:
        return ""
    if "not applicable" in found:
        return "–"
    if "diverged" in found:
        return "diverged"
    if passed(found):
        return "ok"
    if method.kind == "point":
        return "a point"
    deviations = [d for d in found["deviations"].values() if d["spread"] is not None]
    spreads = [d["spread"] for d in deviations]
    worst = min(spreads) if 1 / min(spreads) > max(spreads) else max(spreads)
    bias = max((d["bias"] for d in deviations), key=abs)
    return f"sd × {worst:.2g}, bias {bias:+.1f}"


def passed(found: dict) -> bool:
    """Whether neither test finds the ranks uneven."""
    return min(found["chi_square_p"], found["ecdf_p"]) >= LEVEL


def draw(figures: dict, path: Path) -> None:
    """A picture of the ranks: a histogram for each method and model, averaged over the quantities."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    models = list(figures)
    methods = [name for name in cx.inference.METHODS if any(name in figures[m] for m in models)]
    shape = (len(methods), len(models))
    size = (1.25 * len(models) + 1.4, 0.42 * len(methods) + 0.6)
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False)
    for row, name in zip(axes, methods, strict=True):
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        for axis, model in zip(row, models, strict=True):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            found = figures[model].get(name)
            if found is None or "histograms" not in found:
                continue
            counts = np.mean(list(found["histograms"].values()), axis=0)
            shares = counts / counts.mean()
            colour = "tab:blue" if passed(found) else "tab:red"
            axis.bar(np.arange(len(counts)), np.minimum(shares, 3), 0.9, color=colour)
            axis.axhline(1, color="black", lw=0.5)
            axis.set(ylim=(0, 3))
    for axis, model in zip(axes[0], models, strict=True):
        axis.set_title(model, fontsize=8)
    figure.subplots_adjust(left=0.2, right=0.99, top=0.95, bottom=0.01, hspace=0.15, wspace=0.08)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
