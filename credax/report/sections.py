"""The sections of a report in their order, and the contents of those without charts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.diagnostics.calibration import Scores
from credax.posterior.stacked import StackedPosterior, methods_of
from credax.report import pictures
from credax.report.baseline import baseline_scores
from credax.report.charts import shortened
from credax.report.effects import Effect, effects
from credax.report.explanations import explained
from credax.report.parts import HeldOut, Section, absent, facts, sentences, table, text
from credax.report.segments import segment_section
from credax.report.traces import convergence_section
from credax.report.verdict import verdict_section
from credax.report.words import (
    cell,
    count,
    described,
    documented,
    duration,
    judged_confidence,
    judged_coverage,
    number,
    percent,
)
from credax.tables.columns import PERIODS

if TYPE_CHECKING:
    from credax.tables.runs import Run

LEAST_SURE = 10
"""The number of rows in the table of the least certain predictions."""
COLUMNS = 5
"""The largest number of columns in that table."""
CELL = 24
"""The most characters of a value in that table."""
ONE_POINT = "This method finds a single set of weights"
TOO_LITTLE = 0.001
"""A share of epistemic uncertainty below this is suspicious."""
ARROW = " \u2192 "
SHARES = ("coverage", "accuracy", "calibration_error", "ece", "ece_equal_mass")
"""The scores that are shown as percentages."""


def sections(run: Run) -> list[Section]:
    """All sections of the report of a run."""
    held = None if run.scores is None else HeldOut(run)
    found = [] if held is None else effects(run, held.table)
    target = run.preprocessor.target
    return [
        verdict_section(run, held),
        _fitted(run),
        _sure(run, held),
        pictures.calibration(run, held),
        segment_section(held, found, target),
        pictures.predictions(held, target),
        pictures.kinds(held, target),
        _least_sure(run, held, found),
        pictures.effect_section(run, found),
        convergence_section(run, held),
        _doctor(run),
        _preprocessing(run),
        _glossary(),
    ]


def _fitted(run: Run) -> Section:
    about, prepared, model = run.about, run.preprocessor, run.posterior.model
    method = described(run.posterior.method)
    prior, likelihood = (described(part) for part in (model.prior, model.likelihood))  # pyright: ignore[reportAttributeAccessIssue]
    kept = f"{number(about['rows_fitted'])} fitted, {number(about['rows_held_out'])} held out"
    if prepared.classes:
        kind = f"{prepared.target}, one of {len(prepared.classes)} classes"
    else:
        spread = f"mean {number(prepared.centre)}, standard deviation {number(prepared.scale)}"
        kind = f"{prepared.target}, a number ({spread} in the fitted rows)"
    used = f"{count(len(prepared.columns), 'column')} of {number(about['columns'])}"
    found = [
        ("Table", about.get("table") or "unnamed"),
        ("Rows", f"{number(about['rows'])}: {kept}"),
        ("Predicted", kind),
        ("Predicted from", f"{used}, encoded as {count(len(prepared.features), 'number')}"),
        *(
            [
                (
                    "Models averaged",
                    f"{methods_of(run.posterior)}; what follows is the first by weight",
                )
            ]
            if isinstance(run.posterior, StackedPosterior)
            else []
        ),
        ("Network", f"{_network(model)}, {count(about['weights'], 'weight')}"),
        ("Method", f"{method['name']}: {method['what']}"),
        (
            "Prior (the distribution of the weights before any data)",
            f"{prior['name']}: {prior['what']}",
        ),
        (
            "Likelihood (the distribution of the target given the weights)",
            f"{likelihood['name']}: {likelihood['what']}",
        ),
        ("Duration of the fit", duration(about["seconds"])),
    ]
    how = "The table, the model and the method. The other sections say how far the result can be trusted."
    rows = [
        [f"{part['name']}: {name}", value, meaning]
        for part in (method, prior, likelihood)
        for name, value, meaning in part["settings"]
    ]
    settings = table(
        "All settings", ["setting", "value", "meaning"], rows, css="stack-1", closed=True
    )
    return Section("fitted", "What was fitted", how, [facts(found), *([settings] if rows else [])])


def _network(model: Any) -> str:
    network = model.network
    hidden = getattr(network, "hidden", None)
    if type(network).__name__ != "MLP" or hidden is None:
        return type(network).__name__
    widths = [str(width) for width in (network.inputs, *hidden, network.outputs)]
    return f"layers of {ARROW.join(widths)} units ({network.activation})"


# -- how sure -------------------------------------------------------------------------------------------


def _sure(run: Run, held: HeldOut | None) -> Section:
    how = (
        "These sentences are about held-out rows, which the model has not seen. The table gives the scores "
        "behind them, each with its standard error and beside the score of the best prediction that is the "
        "same for every row."
    )
    section = Section("sure", "How good are the predictions?", how)
    if held is None or run.scores is None:
        section.parts.append(
            absent(
                "No rows were held out from the fit, so the quality of its predictions is not known."
            )
        )
        return section
    said = _of_classes(held, run.scores) if held.classes else _of_numbers(run, held, run.scores)
    meanings, constant = documented(Scores, "Attributes"), dict(baseline_scores(held) or ())
    rows = [
        [
            name.replace("_", " "),
            _value(name, value),
            _error(name, value.standard_error),
            # A constant is calibrated on the rows that it was chosen for, up to rounding.
            _value(name, round(constant[name], 12)) if name in constant else "\u2013",
            meanings.get(name, ""),
        ]
        for name, value in run.scores
    ]
    heads = ["score", "value", "\u00b1", "constant", "meaning"]
    caption = f"Scores on {count(run.scores.rows, 'held-out row')}"
    section.parts.extend(
        [
            sentences([*said, _said_by_doctor(run)]),
            table(caption, heads, rows, [1, 2, 3], css="stack-1"),
        ]
    )
    return section


def _value(name: str, value: float) -> str:
    return percent(value) if name in SHARES else number(value, 4)


def _error(name: str, error: float) -> str:
    if math.isnan(error):
        return "\u2013"
    return percent(error) if name in SHARES else number(error, 2)


def _of_numbers(run: Run, held: HeldOut, scores: Scores) -> list[str]:
    target, rows = run.preprocessor.target, count(scores.rows, "held-out row")
    assert scores.coverage is not None
    assert scores.mae is not None
    assert scores.rmse is not None
    inside, off, square = percent(scores.coverage), number(scores.mae), number(scores.rmse)
    judged = judged_coverage(float(scores.coverage), scores.rows)
    base = float(np.sqrt(np.mean((held.y - run.preprocessor.centre) ** 2)))
    gain = 1 - float(scores.rmse) ** 2 / base**2 if base > 0 else 0.0
    guess = (
        f"which explains {percent(gain)} of the variance of {target}."
        if gain > 0
        else f"no better than always predicting the mean of {target}, which is off by {number(base)}."
    )
    return [
        f"Of {rows}, {inside} lie inside their 90\u00a0% interval. {judged}",
        f"A prediction is off by {off} on average, and by {square} as a root mean square, {guess}",
        _said_of_unknown(
            held, held["epistemic"] + held["aleatoric"], held["epistemic"], "variance"
        ),
    ]


def _of_classes(held: HeldOut, scores: Scores) -> list[str]:
    assert scores.accuracy is not None
    assert scores.sharpness is not None
    counts = np.bincount(held.y, minlength=len(held.classes))
    commonest, often = held.classes[counts.argmax()], percent(counts.max() / held.rows)
    common = f"Always predicting \u201c{commonest}\u201d would be right for {often}."
    rows = count(scores.rows, "held-out row")
    right = (held.probs.argmax(1) == held.y).astype(float)
    judged = judged_confidence(held.probs.max(1), right)
    return [
        f"Of {rows}, {percent(scores.accuracy)} are classified correctly. {common}",
        f"On average, the most probable class has a probability of {percent(scores.sharpness)}. {judged}",
        _said_of_unknown(held, held["entropy"], held.unknown, "entropy"),
    ]


def _said_of_unknown(held: HeldOut, total: np.ndarray, unknown: np.ndarray, what: str) -> str:
    if held.one_point:
        return f"{ONE_POINT}, so that all its uncertainty is noise: what the model does not know is left out."
    share = float(np.median(unknown / np.maximum(total, 1e-300)))
    said = (
        f"In a typical row, {percent(share)} of the uncertainty ({what}) is lack of knowledge, which more rows "
        "would reduce"
    )
    if share < TOO_LITTLE:
        return f"{said}. So small a share may mean that the method explored too few of the weights that fit."
    return f"{said}; the rest is noise."


def _said_by_doctor(run: Run) -> str:
    grave = sum(bool(finding.get("grave")) for finding in run.findings)
    if not run.findings:
        return "The checks of the run found no problem."
    if grave:
        return f"The checks of the run have {count(grave, 'grave finding')}: do not rely on these predictions."
    return f"The checks of the run have {count(len(run.findings), 'finding')}, none of them grave."


# -- tables ---------------------------------------------------------------------------------------------


def _least_sure(run: Run, held: HeldOut | None, found: list[Effect]) -> Section:
    how = (
        f"The {LEAST_SURE} held-out rows with the largest epistemic uncertainty. They are unlike the fitted "
        "rows, and more rows like them would help most."
    )
    section = Section("least-sure", "Where is the model least certain?", how)
    if held is None:
        section.parts.append(absent())
        return section
    if held.one_point:
        section.parts.append(
            absent(f"{ONE_POINT}, so it has no epistemic uncertainty to rank the rows by.")
        )
        return section
    order = np.argsort(-held.unknown, kind="stable")[:LEAST_SURE]
    # The most important columns show best what is unusual about a row.
    ranked = [effect.column.name for effect in found][:COLUMNS]
    columns = [column.name for column in run.preprocessor.columns if column.name in ranked]
    raw = held.table
    target = run.preprocessor.target
    numbered, row, of = _numbered(run, held)
    if held.classes:
        heads = [row, f"true {target}", "predicted", "probability", "epistemic"]
        numbers = [0, 3, 4]
    else:
        heads = [row, f"true {target}", "predicted", "90\u00a0% interval", "epistemic"]
        numbers = [0, 1, 2, 3, 4]
    rows = [
        [
            numbered[i],
            *_judged(held, i),
            *(shortened(cell(raw[name].iloc[i]), CELL) for name in columns),
        ]
        for i in order.tolist()
    ]
    aligned = ("number", "date")
    number_columns = [c.name for c in run.preprocessor.columns if c.kind in aligned]
    numbers += [len(heads) + i for i, name in enumerate(columns) if name in number_columns]
    part = (
        "as mutual information, in nats"
        if held.classes
        else f"as a standard deviation, in units of {target}"
    )
    more = (
        ""
        if len(columns) == len(run.preprocessor.columns)
        else f" The {len(columns)} most important columns are shown."
    )
    caption = f"Rows of {of} with the largest epistemic uncertainty ({part}).{more}"
    section.parts.append(table(caption, [*heads, *map(shortened, columns)], rows, numbers))
    why = [
        [numbered[i], *_judged(held, i)[1:2], words]
        for i, words in zip(order.tolist(), explained(run, held, order), strict=True)
    ]
    caption = (
        "Why these predictions: how much the value of a column moves the prediction"
        + (", a probability," if held.classes else "")
        + " away from where a typical value would put it"
    )
    section.parts.append(table(caption, [row, "predicted", "moved most by"], why, [0]))
    return section


def _numbered(run: Run, held: HeldOut) -> tuple[list[str], str, str]:
    """The number of each held-out row, and of what table; runs of older versions did not store the user's."""
    rows = run.about.get("held_out_rows", ())
    if len(rows) == held.rows:
        return (
            [number(int(i)) for i in rows],
            "row",
            "your table, counted from 1 without the heading,",
        )
    return [str(i + 1) for i in range(held.rows)], "row", "held_out.csv"


def _judged(held: HeldOut, i: int) -> list[str]:
    unknown = number(held.unknown[i])
    if held.classes:
        guess = int(held.probs[i].argmax())
        chosen = [held.classes[held.y[i]], held.classes[guess]]
        return [*chosen, percent(held.probs[i, guess]), unknown]
    interval = f"{number(held['lower'][i])} to {number(held['upper'][i])}"
    return [number(held.y[i]), number(held["mean"][i]), interval, unknown]


def _doctor(run: Run) -> Section:
    how = (
        "Automatic checks of the run and of its predictions for held-out rows, the gravest first. After a "
        "grave finding, do not rely on the predictions."
    )
    section = Section("doctor", "What the checks of the run found", how)
    if run.findings:
        ordered = sorted(run.findings, key=lambda finding: not finding.get("grave"))
        section.parts.append({"kind": "findings", "findings": ordered})
    else:
        section.parts.append(text("No problem found."))
    return section


def _preprocessing(run: Run) -> Section:
    how = "A network takes only numbers: this is how each column was turned into them."
    section = Section("preprocessing", "How the table became numbers", how)
    if run.preprocessor.notes:
        notes = [note[:1] + note[1:].rstrip(".") + "." for note in run.preprocessor.notes]
        section.parts.append(sentences(notes))
    rows = []
    for column in run.preprocessor.columns:
        if column.kind == "category":
            shown = ", ".join(column.levels[:6]) + (", \u2026" if len(column.levels) > 6 else "")
            categories = count(len(column.levels), "category", "categories")
            what = f"an indicator (0 or 1) for each of {categories}: {shown}"
        elif column.kind == "boolean":
            what = "yes is 1, no is 0, scaled to mean 0 and standard deviation 1"
        elif column.kind == "date":
            what = "days since 1970 and the season, each scaled to mean 0 and standard deviation 1"
        elif column.kind in PERIODS:
            what = (
                "a point on a circle, its two coordinates scaled to mean 0 and standard deviation 1"
            )
        elif column.kind == "duration":
            centre, scale = number(column.centre[0]), number(column.scale[0])
            what = f"seconds: the difference from {centre}, divided by {scale}"
        else:
            what = f"its difference from {number(column.centre[0])}, divided by {number(column.scale[0])}"
        missing = "marked by a further indicator" if column.missing else "none"
        rows.append([column.name, column.kind, what, missing])
    section.parts.append(
        table("The columns", ["column", "kind", "becomes", "missing values"], rows, css="stack-2")
    )
    return section


def _glossary() -> Section:
    words = [
        (
            "Held-out rows",
            "Rows that were not used in the fit, so that the model can be assessed on data it has not seen.",
        ),
        (
            "90 % interval",
            "Two numbers between which the target lies with 90 % probability, according to the model.",
        ),
        (
            "Epistemic uncertainty",
            "Lack of knowledge about the weights of the network. More rows reduce it.",
        ),
        (
            "Aleatoric uncertainty",
            "Noise: how much targets vary between rows that agree in all columns. More rows do not reduce it.",
        ),
        (
            "Entropy",
            "The uncertainty about a class, in nats: 0 if one class is certain, 0.69 for a fair coin.",
        ),
        (
            "Posterior",
            "The probability distribution of the weights, given the fitted rows and the prior.",
        ),
        (
            "Log joint density",
            "How well a set of weights fits both the rows and the prior; higher is better.",
        ),
        (
            "ELBO",
            "A lower bound on the log probability of the rows, which variational methods maximise.",
        ),
        (
            "R-hat",
            "The variation between chains relative to that within each chain; 1 if the chains agree.",
        ),
        (
            "Effective draws",
            "The number of independent draws that are worth as much as the correlated draws of the chains.",
        ),
    ]
    how = "The terms on this page."
    return Section("words", "Glossary", how, [facts(words)])
