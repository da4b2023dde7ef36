"""What each method gets wrong: its predictions with default settings, against those of long HMC runs.

Five problems are made from seeds: a sine with a gap, a table of 500 rows and 8 columns, two moons, counts, and
images of digits. For each, ``inside`` are rows like those of the data and ``outside`` rows far from them. The
figures of a method are, for regression and counts, the median over the rows of its epistemic standard deviation
divided by that of HMC (1 is right, above 1 too unsure, below 1 too sure), the median distance of its mean from
HMC's in HMC's epistemic standard deviations, and the ratio of the noise scales; for classes, the mean total
variation between the predicted probabilities (0 is right), and by how much more probable the most probable
class is than under HMC. ``said`` are the findings of ``posterior.diagnose()``, and ``errs`` the directions that
they name. ``r_hat`` of a reference is the 99th percentile over its predictions.

Where a figure is off by more than a factor of two, or a total variation above 0.1, a finding should say in
which direction: the page counts the cells in which none does, and marks them.

Run as ``python -m benchmarks fidelity``, with ``--problems`` and ``--methods`` for a part of it. Everything is
stored as it is measured, and what is stored is not measured again; ``--again`` measures it anew. The table and
the picture of ``docs/guide/what-each-method-gets-wrong.md`` are made from what is stored.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import credax as cx

HERE = Path(__file__).parent
STORED = HERE / "results" / "fidelity.json"
REFERENCES = HERE / "results" / "fidelity_references.json"
OWN_PAGE = HERE.parent / "docs" / "guide" / "what-each-method-gets-wrong.md"
PICTURE = HERE.parent / "docs" / "pictures" / "what_each_method_gets_wrong.png"
MARKS = ("<!-- table -->", "<!-- end of table -->")
CHAINS, WARMUP, DRAWS = 8, 2_000, 2_000
MIXED = 1.05
"""References whose R-hat exceeds this are not used: the chains disagree about more than a percent of the
predictions."""

FACTOR, DISTANCE, SURER = 2.0, 0.1, 0.02
"""The ratio of standard deviations (or its inverse) and the total variation beyond which a figure is off, and
the difference in confidence that shows the direction."""
UNSAID = "(!)"
"""Marks a cell that is off although no finding says in which direction."""

CASES: dict[str, cx.inference.Method] = {
    "HMC": cx.HMC(),
    "NUTS": cx.NUTS(),
    "MicrocanonicalEnsemble": cx.MicrocanonicalEnsemble(),
    "MCLMC": cx.MCLMC(),
    "SGHMC": cx.SGHMC(),
    "SGLD": cx.SGLD(),
    "SMC": cx.SMC(),
    "EllipticalSlice": cx.EllipticalSlice(),
    "Metropolis": cx.Metropolis(),
    "ImportanceSampling": cx.ImportanceSampling(),
    "Laplace": cx.Laplace(),
    "Laplace (sampled)": cx.Laplace(predictive="sampled"),
    "BayesByBackprop": cx.BayesByBackprop(),
    "IVON": cx.IVON(),
    "BlackBoxVI": cx.BlackBoxVI(),
    "VariationalLastLayer": cx.VariationalLastLayer(),
    "DeepEnsemble": cx.DeepEnsemble(),
    "BatchEnsemble": cx.BatchEnsemble(),
    "CrossFitEnsemble": cx.CrossFitEnsemble(),
    "SVGD": cx.SVGD(),
    "SWAG": cx.SWAG(),
    "MCDropout": cx.MCDropout(),
}


# -- the problems -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A model, its data, and the rows at which predictions are compared.

    The reference integrates out the last layer if ``collapse``: the chains of the table do not mix otherwise.
    """

    model: cx.Model
    data: tuple[np.ndarray, np.ndarray]
    inside: np.ndarray
    outside: np.ndarray
    collapse: bool = False


def sine() -> Problem:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -0.7, 40), rng.uniform(0.7, 2, 40)])[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=80)

    def grid(*ends):
        return np.concatenate([np.linspace(low, high, 40) for low, high in ends])[:, None]

    network = cx.networks.mlp([50], activation="tanh")
    inside, outside = grid((-2, -0.7), (0.7, 2)), grid((-3.5, -2.3), (-0.5, 0.5), (2.3, 3.5))
    return Problem(cx.Model(network), (x, y), inside, outside)


def table() -> Problem:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 8))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=500)
    return Problem(
        cx.Model(cx.networks.mlp([20], activation="tanh")),
        (x, y),
        rng.normal(size=(100, 8)),
        3 * rng.normal(size=(100, 8)),
        collapse=True,
    )


def moons() -> Problem:
    rng = np.random.default_rng(2)

    def rows(count):
        label, angle = rng.integers(0, 2, count), rng.uniform(0, np.pi, count)
        first = np.where(label == 0, np.cos(angle), 1 - np.cos(angle))
        second = np.where(label == 0, np.sin(angle), 0.5 - np.sin(angle))
        return np.stack([first, second], 1) + 0.2 * rng.normal(size=(count, 2)), label

    model = cx.Model(
        cx.networks.mlp([20], activation="tanh"), likelihood=cx.likelihoods.Bernoulli()
    )
    return Problem(model, rows(200), rows(100)[0], rng.uniform(-4, 5, size=(100, 2)))


def counts() -> Problem:
    rng = np.random.default_rng(3)
    x = rng.uniform(-2, 2, size=(300, 2))
    y = rng.poisson(np.exp(0.5 + np.sin(x[:, 0]) + 0.3 * x[:, 1]))
    model = cx.Model(cx.networks.mlp([20], activation="tanh"), likelihood=cx.likelihoods.Poisson())
    outside = rng.uniform(2.5, 4, size=(100, 2)) * rng.choice([-1, 1], size=(100, 2))
    return Problem(model, (x, y), rng.uniform(-2, 2, size=(100, 2)), outside)


def digits() -> Problem:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(4).permutation(len(x))
    x, y = x[order] / 16, y[order]
    model = cx.Model(
        cx.networks.mlp([20], activation="tanh"), likelihood=cx.likelihoods.Categorical()
    )
    turned = x[400:500].reshape(-1, 8, 8)[:, ::-1].transpose(0, 2, 1).reshape(-1, 64)
    return Problem(model, (x[:300], y[:300]), x[400:500], turned)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "sine": sine,
    "table": table,
    "moons": moons,
    "counts": counts,
    "digits": digits,
}


# -- what is compared -------------------------------------------------------------------------------


def outlook(posterior: cx.Posterior, problem: Problem) -> dict[str, Any]:
    """The predictions of a posterior inside and outside the data, as lists of numbers."""
    found = {}
    for place in ("inside", "outside"):
        predictive: Any = posterior.predict(getattr(problem, place))
        if posterior.model.likelihood.task == "classification":  # pyright: ignore[reportAttributeAccessIssue]
            parts = {"probs": predictive.probs}
        else:
            parts = {"mean": predictive.mean, "sd": np.sqrt(predictive.epistemic)}
            parts["noise"] = np.sqrt(predictive.aleatoric)
        found[place] = {
            name: np.round(np.asarray(values, np.float64), 6).tolist()
            for name, values in parts.items()
        }
    return found


def compared(found: dict, reference: dict) -> dict[str, float]:
    """The figures of a method at one place."""
    a, b = (
        {name: np.asarray(values) for name, values in each.items()} for each in (found, reference)
    )
    if "probs" in a:
        surer = a["probs"].max(-1).mean() - b["probs"].max(-1).mean()
        distance = 0.5 * np.abs(a["probs"] - b["probs"]).sum(-1).mean()
        return {"total_variation": float(distance), "confidence": float(surer)}
    return {
        "spread": float(np.median(a["sd"] / b["sd"])),
        "mean_off": float(np.median(np.abs(a["mean"] - b["mean"]) / b["sd"])),
        "noise": float(np.median(a["noise"] / b["noise"])),
    }


def reference(problem: Problem) -> dict:
    """The predictions of a long HMC run, with the R-hat of the predictions."""
    method = cx.HMC(chains=CHAINS, num_warmup=WARMUP, num_draws=DRAWS, collapse=problem.collapse)
    posterior = cx.fit(problem.model, problem.data, method, key=0, progress=False)
    rows = np.concatenate([problem.inside, problem.outside])
    figures: Any = posterior.convergence(rows).predictions
    r_hat = float(np.nanquantile(figures.r_hat, 0.99))
    return {"r_hat": r_hat, "seconds": posterior.info["seconds"], **outlook(posterior, problem)}


def one(method: cx.inference.Method, problem: Problem, truth: dict) -> dict:
    """The figures of a method on a problem."""
    began = time.perf_counter()
    posterior = cx.fit(problem.model, problem.data, method, key=1, progress=False)
    seconds = time.perf_counter() - began
    found = outlook(posterior, problem)
    figures: dict = {place: compared(found[place], truth[place]) for place in found}
    findings = posterior.diagnose()
    figures |= {
        "said": [str(finding) for finding in findings],
        "errs": sorted({finding.errs for finding in findings if finding.errs}),
        "seconds": seconds,
    }
    return {**figures, "unsaid": unsaid(figures)}


def errors(figures: dict) -> dict[str, str]:
    """The figures of a cell that are off, by their place, with the direction; empty where it is not clear."""
    found = {}
    for place in ("inside", "outside"):
        here = figures[place]
        if "total_variation" in here:
            if here["total_variation"] > DISTANCE:
                gap = here["confidence"]
                direction = "too sure" if gap > 0 else "too unsure"
                found[place] = direction if abs(gap) > SURER else ""
            continue
        for name in ("spread", "noise"):
            if not 1 / FACTOR <= here[name] <= FACTOR:
                what = place if name == "spread" else f"noise {place}"
                found[what] = "too sure" if here[name] < 1 else "too unsure"
    return found


def unsaid(figures: dict) -> list[str]:
    """Where a cell is off although no finding says in which direction.

    If the direction is not clear, any finding will do.
    """
    return [
        place
        for place, direction in errors(figures).items()
        if (direction not in figures["errs"] if direction else not figures["said"])
    ]


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fidelity")
    parser.add_argument("--methods", nargs="+", choices=list(CASES), metavar="NAME")
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--again", action="store_true", help="measure what has been measured too")
    return vars(parser.parse_args(arguments))


def measure(methods: Any = None, problems: Any = None, again: bool = False) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    made = cache(lambda name: PROBLEMS[name]())
    figures, references = (_load(path) for path in (STORED, REFERENCES))
    figures = figures.get("figures", {})
    for name in problems or PROBLEMS:
        if name not in references:
            with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
                references[name] = reference(made(name))
            REFERENCES.write_text(json.dumps(references) + "\n")
        truth = references[name]
        print(f"{name}: HMC, R-hat {truth['r_hat']:.3f}", flush=True)
        if truth["r_hat"] > MIXED:
            continue
        for label in methods or CASES:
            stored = figures.setdefault(label, {})
            if name in stored and not again:
                continue
            try:
                with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
                    stored[name] = one(CASES[label], made(name), truth)
            except (ValueError, TypeError, cx.CredaxError) as error:
                stored[name] = {"not applicable": str(error)}
            print(label, name, {k: v for k, v in stored[name].items() if k != "said"}, flush=True)
            STORED.write_text(json.dumps({**_load(STORED), "figures": figures}, indent=2) + "\n")
    return {label: figures[label] for label in CASES if label in figures}


def _load(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


# -- the page ---------------------------------------------------------------------------------------


def cell(figures: dict | None) -> str:
    """The figures of a method on a problem, inside / outside the data; in bold if off by more than two."""
    if not figures or "not applicable" in figures:
        return ""
    inside, outside = figures["inside"], figures["outside"]
    if "total_variation" in inside:
        values = [each["total_variation"] for each in (inside, outside)]
        wrong = [value > DISTANCE for value in values]
    else:
        values = [each["spread"] for each in (inside, outside)]
        wrong = [not 1 / FACTOR <= value <= FACTOR for value in values]
    text = [
        f"**{value:.2g}**" if bad else f"{value:.2g}"
        for value, bad in zip(values, wrong, strict=True)
    ]
    noise = inside.get("noise", 1.0)
    extra = "" if 0.8 <= noise <= 1.25 else f" (noise {noise:.2g} ×)"
    return " / ".join(text) + extra + (f" {UNSAID}" if figures["unsaid"] else "")


def table_of(figures: dict) -> str:
    lines = [
        "| method | sine with a gap | 500 rows, 8 columns | counts | two moons | digits |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for label, found in figures.items():
        name = cx.inference.command_name(type(CASES[label]))
        cells = [cell(found.get(p)) for p in ("sine", "table", "counts", "moons", "digits")]
        lines.append(f"| [{label}](../methods/{name}.md) | {' | '.join(cells)} |")
    return "\n".join([*lines, "", count_of(figures)])


def count_of(figures: dict) -> str:
    """How many cells are off, and how many of these are not said."""
    cells = [
        (label, problem, cell)
        for label, found in figures.items()
        for problem, cell in found.items()
        if "not applicable" not in cell
    ]
    off = [cell for cell in cells if errors(cell[2])]
    silent = [f"{label} on {problem}" for label, problem, cell in off if cell["unsaid"]]
    named = f"{len(silent)}: {', '.join(silent)}" if silent else "none"
    return (
        f"Of {len(cells)} cells, {len(off)} are off by more than a factor of two or a total variation of "
        f"{DISTANCE}. Cells among them of which no finding says in which direction: {named}."
    )


def write_page(figures: dict) -> None:
    if not OWN_PAGE.exists() or not figures:
        return
    pattern = re.compile(f"{MARKS[0]}.*?{MARKS[1]}", re.DOTALL)
    table = f"{MARKS[0]}\n{table_of(figures)}\n{MARKS[1]}"
    OWN_PAGE.write_text(pattern.sub(lambda _: table, OWN_PAGE.read_text()))
    _draw(figures)


def _draw(figures: dict) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    numeric = [p for p in ("sine", "table", "counts") if any(p in f for f in figures.values())]
    figure, axes = plt.subplots(
        1,
        len(numeric),
        figsize=(4 * len(numeric), 4.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    labels = list(figures)[::-1]
    for place, problem in zip(axes[0], numeric, strict=True):
        place.axvspan(0.5, 2, color="#e8eef7", lw=0)
        place.axvline(1, color="#555555", lw=0.8)
        for side, colour in (("inside", "#1f3b73"), ("outside", "#c8502d")):
            points = [
                (figures[label][problem][side]["spread"], height)
                for height, label in enumerate(labels)
                if side in figures[label].get(problem, {})
            ]
            clipped = [(min(max(value, 0.02), 50), height) for value, height in points]
            place.scatter(*zip(*clipped, strict=True), s=26, color=colour, label=f"{side} the data")
        place.set(xscale="log", xlim=(0.018, 55), title=problem, xlabel="epistemic sd over HMC's")
        place.set_yticks(range(len(labels)), labels)
        place.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
