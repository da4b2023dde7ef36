"""The section on the run itself: whether it converged, and whether its chains agree."""

from __future__ import annotations

from typing import Any

import numpy as np

from credax.diagnostics.convergence import MIN_DRAWS, Convergence, is_chains
from credax.diagnostics.doctor.chains import r_hat_limit
from credax.report.charts import COLOURS, PATH, Axis, Chart, extent, some_of
from credax.report.parts import HeldOut, Part, Section, absent, figures, table, text
from credax.report.words import count, number
from credax.tables.runs import JUDGED, Run

TRACES = {
    "elbo": "evidence lower bound (ELBO)",
    "log_joint": "log joint density",
    "log_likelihood": "log likelihood",
}


def convergence_section(run: Run, held: HeldOut | None) -> Section:
    """The section on whether the run converged."""
    how = (
        "Each line is one run of the method from its own starting point. It should have stopped rising, and "
        "the lines of several chains should look alike after the warm-up."
    )
    section = Section("convergence", "Did the run converge?", how)
    info = run.posterior.info
    shapes = {name: np.shape(info[name]) for name in TRACES if name in info}
    traces = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] > 1]
    if traces:
        section.parts.append(figures(*(_trace(run, name) for name in traces[:2])))
    else:
        section.parts.append(
            absent("This method records no quantity during the run that could be shown here.")
        )
    draws: Any = run.posterior.approximation
    if is_chains(run.posterior) and draws.shape[1] >= MIN_DRAWS:
        x = None if held is None else run.preprocessor.encode(held.table[:JUDGED])
        found = run.posterior.convergence(x)
        section.parts.extend(_figures_of_chains(found, each=bool(info.get("modes"))))
    else:
        section.parts.append(
            text(
                "There is no R-hat, which compares chains, since this method runs no chains of draws.",
                "how",
            )
        )
    return section


def _trace(run: Run, name: str) -> tuple[Chart, str]:
    history, kept = np.asarray(run.posterior.info[name], float), run.posterior.info.get("kept", ())
    replicas, steps = history.shape
    some, shown = some_of(steps, PATH), history[: 2 * len(COLOURS)]
    begin = int(kept[0]) if len(kept) else steps // 10
    limits = extent(shown[:, begin:], margin=0.08)
    noun = "chain" if len(kept) else "run"
    chart = Chart(
        f"Trace of the {TRACES[name]}",
        f"The {TRACES[name]} of {count(replicas, noun)} over {count(steps, 'step')}.",
        Axis("step", 0, steps),
        Axis(TRACES[name], *limits),
    )
    if len(kept) and begin:
        chart.band([0, begin], [limits[0]] * 2, [limits[1]] * 2, "ideal")
        chart.text(begin / 2, limits[1] - 0.07 * (limits[1] - limits[0]), "warm-up", "middle")
    for i, line in enumerate(shown):
        chart.line(some + 1, line[some], f"{COLOURS[i % len(COLOURS)]} fine")
    cut = " The first steps lie below the chart." if np.min(shown) < limits[0] else ""
    few = f" {len(shown)} of {replicas} are shown." if len(shown) < replicas else ""
    return (
        chart,
        f"{TRACES[name][0].upper()}{TRACES[name][1:]} of {count(replicas, noun)}.{cut}{few}",
    )


def _figures_of_chains(found: Convergence, each: bool) -> list[Part]:
    """The table of the chains; ``each``: every chain is judged separately, as those of different modes are."""
    judged = {
        "predictions for held-out rows": found.predictions,
        "log joint density": found.log_joint,
    }
    present = {name: figure for name, figure in judged.items() if figure is not None}
    rows = [
        [
            name,
            number(each.r_hat.size),
            f"{each.worst_r_hat:.3f}",
            number(round(each.least_ess)),
            f"{each.worst_error:.3f}",
        ]
        for name, each in present.items()
    ]
    heads = ["quantity", "count", "R-hat", "effective draws", "error / spread"]
    size = f"{count(found.chains, 'chain')} of {count(found.draws, 'draw')}: the worst value of each kind"
    parts: list[Part] = [table(size, heads, rows, [1, 2, 3, 4])] if rows else []
    limits = {
        name: r_hat_limit(found.chains, found.draws, figure.r_hat.size, each=each)
        for name, figure in present.items()
    }
    agree = all(figure.worst_r_hat <= limits[name] for name, figure in present.items())
    limit = max(limits.values(), default=1.01)
    words = (
        f"The chains {'agree' if agree else 'do not yet agree'}: R-hat is 1 if they agree, and should be below "
        f"{limit:.3g} for this many draws."
    )
    if found.divergences is not None:
        steps = count(found.divergences, "step") if found.divergences else "no step"
        words += f" After the warm-up, {steps} diverged."
    return [*parts, text(words)]
