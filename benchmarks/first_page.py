"""The model of the README's first example on other data: a sine, a step, eight columns and two moons.

For each problem and number of rows, ``explained`` is 1 - (mean squared error) / variance of the function that
the targets follow, at new rows; ``coverage`` the share of new targets inside their 90 % intervals; ``noise``
the predicted standard deviation of the noise, where 0.1 is right; ``errs`` the directions in which
``diagnose`` says that the posterior errs. For the two moons, ``accuracy`` and ``log_loss`` are of new rows.
Each is a list with a figure for each key, with which the data are drawn and the model is fitted.

Run as ``python -m benchmarks first_page``. The table of ``docs/methods/bayes-by-backprop.md`` is made from it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import credax as cx

OWN_PAGE = Path(__file__).parent.parent / "docs" / "methods" / "bayes-by-backprop.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")
NOISE, NEW_ROWS, KEYS = 0.1, 2_000, 5
SIZES = (50, 80, 200, 500, 5_000)

Rows = tuple[np.ndarray, np.ndarray]


def sine(rng: np.random.Generator, rows: int) -> Rows:
    x = rng.uniform(-2, 2, size=(rows, 1))
    return x, np.sin(2 * x[:, 0])


def step(rng: np.random.Generator, rows: int) -> Rows:
    x = rng.uniform(-2, 2, size=(rows, 1))
    return x, np.sign(x[:, 0])


def eight_columns(rng: np.random.Generator, rows: int) -> Rows:
    x = rng.normal(size=(rows, 8))
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]


def two_moons(rng: np.random.Generator, rows: int) -> Rows:
    label, angle = rng.integers(0, 2, rows), rng.uniform(0, np.pi, rows)
    first = np.where(label == 0, np.cos(angle), 1 - np.cos(angle))
    second = np.where(label == 0, np.sin(angle), 0.5 - np.sin(angle))
    return np.stack([first, second], 1) + 0.2 * rng.normal(size=(rows, 2)), label


PROBLEMS: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    "sine": sine,
    "step": step,
    "eight columns": eight_columns,
    "two moons": two_moons,
}


def one(problem: str, rows: int, key: int) -> dict[str, Any]:
    """The figures of one fit."""
    rng, draw = np.random.default_rng(key), PROBLEMS[problem]
    (x, f), (x_new, f_new) = draw(rng, rows), draw(rng, NEW_ROWS)
    classes = np.issubdtype(f.dtype, np.integer)
    noisy = lambda f: f if classes else f + NOISE * rng.normal(size=len(f))  # noqa: E731
    y, y_new = noisy(f), noisy(f_new)
    model = cx.Model(
        cx.networks.mlp([50, 50]),
        prior=cx.priors.LearnedNormal(),
        likelihood=cx.likelihoods.Bernoulli() if classes else cx.likelihoods.Gaussian(scale=None),
    )
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        posterior = cx.fit(
            model, (x, y), cx.BayesByBackprop(num_steps=5_000), key=key, progress=False
        )
    found = {"errs": sorted({finding.errs for finding in posterior.diagnose() if finding.errs})}
    predictive: Any = posterior.predict(x_new)
    if classes:
        found["accuracy"] = float(np.mean(predictive.label == y_new))
        found["log_loss"] = float(-np.mean(predictive.log_prob(y_new)))
        return found
    lower, upper = predictive.interval(0.9)
    found["explained"] = float(1 - np.mean((predictive.mean - f_new) ** 2) / np.var(f_new))
    found["coverage"] = float(np.mean((lower <= y_new) & (y_new <= upper)))
    found["noise"] = float(np.sqrt(np.mean(predictive.aleatoric)))
    return found


def measure() -> dict:
    """The figures of every problem and number of rows, a list over the keys each."""
    figures = {}
    for problem in PROBLEMS:
        for rows in SIZES:
            each = [one(problem, rows, key) for key in range(KEYS)]
            found = {name: [figure[name] for figure in each] for name in each[0]}
            figures.setdefault(problem, {})[str(rows)] = found
            print(problem, rows, found, flush=True)
    return figures


def write_page(figures: dict) -> None:
    """Put the table where the page has its marks."""
    pattern = re.compile(f"{MARKS[0]}.*?{MARKS[1]}", re.DOTALL)
    table = f"{MARKS[0]}\n{table_of(figures)}\n{MARKS[1]}"
    OWN_PAGE.write_text(pattern.sub(lambda _: table, OWN_PAGE.read_text()))


def table_of(figures: dict) -> str:
    """The ranges over the keys."""
    lines = [
        "| data | rows | R² or accuracy | new targets inside 90 % intervals | noise | `diagnose` says |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for problem, sizes in figures.items():
        for rows, found in sizes.items():
            told = [errs for each in found["errs"] for errs in each]
            said = [f"{errs} ({told.count(errs)} of {KEYS})" for errs in sorted(set(told))]
            if "accuracy" in found:
                cells = [span(found["accuracy"], "{:.1%}"), "", ""]
            else:
                cells = [
                    span(found["explained"], "{:.3f}"),
                    span(found["coverage"], "{:.0%}"),
                    span(found["noise"], "{:.2f}"),
                ]
            row = [problem, f"{int(rows):,}", *cells, ", ".join(said)]
            lines.append(f"| {' | '.join(row)} |".replace("%", " %"))
    return "\n".join(lines)


def span(values: list[float], form: str) -> str:
    """The smallest and the largest value, or one of them if they look alike."""
    ends = [form.format(end) for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
