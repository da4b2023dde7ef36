"""What was to be reached, what was, and what is behind each figure that was missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.quality import published, store

MIXTURE, UNITS = "BayesByBackprop, mixture prior", "1200 units"


@dataclass(frozen=True)
class Goal:
    """A figure to be reached.

    Attributes:
      name: what is measured.
      target: the figure.
      found: the measured figure, or ``None``.
      most: whether the figure must be at most the target, and not at least.
      digits: those shown.
      why: what is known about a figure that was missed.
    """

    name: str
    target: float
    found: float | None
    most: bool = True
    digits: int = 2
    why: str = ""

    @property
    def short(self) -> float:
        """By how much the goal is missed; zero or less if it is reached."""
        assert self.found is not None
        return self.found - self.target if self.most else self.target - self.found

    def row(self) -> list[str]:
        """The cells of a table."""
        sign = "≤" if self.most else "≥"
        row = [self.name, f"{sign} {self.target:,.{self.digits}f}"]
        if self.found is None:
            return [*row, "not measured", ""]
        missed = f"by {self.short:,.{self.digits}f}" if self.short > 0 else "reached"
        return [*row, f"{self.found:,.{self.digits}f}", missed]


def all_goals() -> list[Goal]:
    """The goals, with what was measured."""
    return [*_uci(), *_mnist(), *_cifar(), *_lora(), *_bandit()]


def _uci() -> list[Goal]:
    splits = store.figures("uci").get("splits", {})
    goals = []
    for column, label, most in (
        ("BBB", "BayesByBackprop", 9),
        ("dropout 2018", "MCDropout", 7),
        ("Deep Ens. 2017", "DeepEnsemble", 8),
        ("HMC", None, 9),
    ):
        above, of, below = above_column(splits, column, label)
        name = f"`{label}`" if label else "the best method"
        goals.append(
            Goal(
                f"UCI: tables of 9 where {name} has a higher log likelihood than the paper's {column}",
                most,
                above if of else None,
                most=False,
                digits=0,
                why=f"Of {of} tables, below on {', '.join(below)}.",
            )
        )
    return goals


def above_column(
    splits: dict[str, Any], column: str, label: str | None
) -> tuple[int, int, list[str]]:
    """On how many tables a method (or the best) is above the column of a paper, on how many it was run, and
    where it is below, by how much."""
    place, above, of, below = published.UCI_COLUMNS.index(column), 0, 0, []
    for name, labels in splits.items():
        means = [
            float(np.mean([c["log_likelihood"] for c in cells.values() if "failed" not in c]))
            for method, cells in labels.items()
            if label in (None, method) and any("failed" not in c for c in cells.values())
        ]
        if not means:
            continue
        short = published.LOG_LIKELIHOOD[name][place] - max(means)
        of, above = of + 1, above + (short < 0)
        if short >= 0:
            below.append(f"{name} by {short:.2f}")
    return above, of, below


def _mnist() -> list[Goal]:
    stored = store.figures("mnist")
    runs = [run for run in stored if run.startswith(UNITS) and run.endswith("50000 rows")]
    runs.sort(key=lambda run: int(run.split()[2]))

    def longest(label: str, value: Callable[[dict], float]) -> float | None:
        """The figure of the run with most epochs."""
        found = [value(stored[run][label]) for run in runs if label in stored[run]]
        return found[-1] if found else None

    def error(figures: dict) -> float:
        return figures["error"]

    name = "MNIST, 1,200 units: error in %, "
    return [
        Goal(f"{name}mixture prior", 1.32, longest(MIXTURE, error), why=trials(MIXTURE)),
        Goal(f"{name}`IVON`", 1.40, longest("IVON", error), why=trials("IVON")),
        Goal(f"{name}`MCDropout`", 1.36, longest("MCDropout", error), why=trials("MCDropout")),
        Goal(
            f"{name}95 % of the weights removed",
            1.39,
            longest(MIXTURE, lambda figures: figures["pruning"]["0.95"]),
        ),
    ]


def trials(label: str) -> str:
    """The settings that were tried on the images for validation."""
    found = [
        f"{name} {cell['error']:.2f} %" if "failed" not in cell else f"{name} diverged"
        for run, labels in store.figures("mnist_trials").items()
        if run.startswith(UNITS) and run.endswith("50000 rows")
        for name, cell in labels.get(label, {}).items()
    ]
    return (
        f"Tried, with the error on the images for validation: {', '.join(found)}." if found else ""
    )


def _cifar() -> list[Goal]:
    cells = [
        cell
        for run, labels in store.figures("cifar").items()
        if run.endswith("50000 rows, 10000 tests")
        for cell in labels.values()
    ]
    best = max(cells, key=lambda cell: cell["agreement"], default={})
    agreement, variation = best.get("agreement"), best.get("total_variation")
    why = (
        "Tried: one chain of SGHMC for 400 epochs with the step size and friction of Wenzel et al. (2020), "
        "whose draws err on 16 % of the test images (HMC: 9 %), and IVON with less curvature at the start and "
        "a faster average of it. Of four such settings, the best after 40 epochs on held-out images was worse "
        "after 200: by then the curvature has converged, and the mean-field optimum of the bound predicts "
        "poorly on this network. Not tried: cycles, preconditioners and several chains at this length."
    )
    return [
        Goal("CIFAR-10: agreement with HMC in %, best method", 93, agreement, False, 1, why),
        Goal("CIFAR-10: total variation to HMC, the same method", 0.09, variation, True, 3),
    ]


def _lora() -> list[Goal]:
    """Both figures of one method: the best of those below the point estimate in both, if there is one."""
    measures = {"log_loss": "log loss", "calibration_error": "calibration error"}
    means = {
        label: {name: float(np.mean([c[name] for c in cells.values()])) for name in measures}
        for label, cells in store.figures("lora").items()
    }
    point = means.pop("MAP", None)
    means = {label: each for label, each in means.items() if not label.startswith("MAP")}
    if point is None or not means:
        return []
    both = {k: v for k, v in means.items() if all(v[name] < point[name] for name in measures)}
    label = min(both or means, key=lambda label: means[label]["log_loss"])
    why = (
        "The point estimate is nearly calibrated here: by chance, a perfect model would have a calibration "
        "error of 0.011, with 10,000 images and 15 bins. Tried, on two other sets of 500 labelled images that "
        "were scored on 10,000 other training images: `DeepEnsemble` with the prior scale 2, with log losses "
        "of 0.768 and 0.736 and calibration errors of 0.015 and 0.017, and with the scales 1 and 4 (0.015 to "
        "0.038); `IVON` with 1, 2 and 4 (0.011 to 0.062); and a temperature, even the best one in hindsight "
        "(0.011 to 0.027). The scale 2 was then added to the grid: the log losses of `IVON` and "
        "`DeepEnsemble` fell, and their calibration errors hardly. The choice by 100 images limits it: "
        "`DeepEnsemble` takes the scale 2 for one key of three, where it has 0.751 and 0.016, and the point "
        "estimate 0.864 and 0.020; for the others it takes 1, with which it was not sure enough in the trials, "
        "and 3, while it was too sure with 4."
    )
    return [
        Goal(
            f"LoRA with 500 labels: {text} of `{label}`, against that of the point estimate",
            point[name],
            means[label][name],
            digits=3,
            why=why,
        )
        for name, text in measures.items()
    ]


def _bandit() -> list[Goal]:
    cells = store.figures("bandit").get("50000 steps, 64 updates", {})
    means = {
        agent: float(np.mean([c["final"] for c in runs.values()])) for agent, runs in cells.items()
    }
    bayes, greedy = means.get("Bayes by Backprop"), means.get("greedy")
    name = "Mushroom bandit, 50,000 steps: regret of Bayes by Backprop"
    goals = [Goal(name, 5_700, bayes, digits=0)]
    if greedy is not None:
        goals.append(Goal(f"{name}, against that of the greedy agent", greedy, bayes, digits=0))
    return goals


def missed(goals: Sequence[Goal]) -> list[str]:
    """A sentence for each goal that was missed and whose reasons are known in part."""
    return [
        f"- {goal.name}: {goal.why}"
        for goal in goals
        if goal.found is not None and goal.short > 0 and goal.why
    ]
