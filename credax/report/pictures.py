"""The sections with charts of predictions: calibration, true and predicted, kinds of uncertainty, effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credax.report.charts import COLOURS, PATH, Axis, Chart, extent, some_of
from credax.report.effects import Effect
from credax.report.parts import HeldOut, Part, Section, absent, figures, legend, table, text
from credax.report.words import count, percent, scatter_of_share

if TYPE_CHECKING:
    from credax.tables.runs import Run

DOTS = 2_000
INTERVALS = 300
NINETY = 1.645
"""Standard deviations on either side that hold 90 % of a normal distribution."""


# -- calibration ------------------------------------------------------------------------------------------


def calibration(run: Run, held: HeldOut | None) -> Section:
    """Whether probabilities come true."""
    how = (
        "A forecast is calibrated when what it calls 70 % likely happens 70 % of the time: the line then runs "
        "along the diagonal, within the grey band where chance alone puts it nine times in ten."
    )
    section = Section("calibration", "Can its probabilities be believed?", how)
    if held is None:
        section.parts.append(absent())
    elif held.classes:
        section.parts.append(figures(_reliability(held), _confidence(held)))
    else:
        section.parts.append(figures(_coverage(run), _pit(run)))
    return section


def _coverage(run: Run) -> tuple[Chart, str]:
    scores = run.scores
    assert scores is not None
    assert scores.levels is not None
    assert scores.coverage_at is not None
    levels, coverage = (np.r_[0.0, each, 1.0] for each in (scores.levels, scores.coverage_at))
    chart = Chart(
        "Calibration curve",
        "The share of targets inside their interval, at levels from 0 to 100 %; at 90 % it is "
        f"{percent(scores.coverage_at[-2])}.",
        Axis("level of the interval", percent=True),
        Axis("share of rows inside it", percent=True),
    )
    fine = np.linspace(0, 1, 41)
    chance = NINETY * scatter_of_share(fine, scores.rows)
    chart.band(fine, np.maximum(fine - chance, 0), np.minimum(fine + chance, 1), "ideal")
    chart.line([0, 1], [0, 1], "ideal").line(levels, coverage).dots(levels[1:-1], coverage[1:-1])
    chart.text(0.03, 0.9, "above: too cautious").text(0.97, 0.06, "below: too sure", "end")
    return chart, f"How many of {count(scores.rows, 'row')} lie inside the interval of each level."


def _pit(run: Run) -> tuple[Chart, str]:
    scores = run.scores
    assert scores is not None
    assert scores.pit is not None
    bins = 10 if scores.rows >= 50 else 5
    heights, edges = np.histogram(scores.pit, bins, (0, 1))
    expected, chance = (
        scores.rows / bins,
        NINETY * scores.rows * scatter_of_share(1 / bins, scores.rows),
    )
    top = 1.15 * max(heights.max(), expected + chance)
    chart = Chart(
        "Histogram of ranks",
        f"How many targets fall into each of {bins} equally likely parts of their prediction.",
        Axis("where the truth lies in its prediction", percent=True),
        Axis("rows", 0, top),
    )
    chart.histogram(edges, heights)
    chart.line([0, 1], [expected] * 2, "ideal")
    for limit in (expected - chance, expected + chance):
        chart.line([0, 1], [limit] * 2, "ideal fine")
    words = (
        "Where the truth lies between the lowest (0 %) and the highest value (100 %) that was thought "
        "possible. Level is right; a valley means too sure, a hill too cautious, a slope a bias. "
        "Chance alone keeps a bar between the thin lines nine times in ten."
    )
    return chart, words


def _reliability(held: HeldOut) -> tuple[Chart, str]:
    confidence, right = held.probs.max(1), (held.probs.argmax(1) == held.y).astype(float)
    groups = np.array_split(np.argsort(confidence, kind="stable"), min(10, max(1, held.rows // 10)))
    claimed = np.array([confidence[group].mean() for group in groups])
    true = np.array([right[group].mean() for group in groups])
    low = min(0.98 / len(held.classes), claimed.min())
    fine = np.linspace(low, 1, 41)
    chance = NINETY * scatter_of_share(fine, held.rows / len(groups))
    chart = Chart(
        "Reliability diagram",
        "How often the likeliest class is right, against the probability that it was given.",
        Axis("probability of the likeliest class", low, 1, percent=True),
        Axis("how often it is right", 0, 1.03, percent=True),
    )
    chart.band(fine, np.maximum(fine - chance, 0), np.minimum(fine + chance, 1), "ideal")
    chart.line([low, 1], [low, 1], "ideal").line(claimed, true).dots(claimed, true)
    chart.text(0.97 + 0.03 * low, 0.06, "below: too sure", "end")
    return (
        chart,
        f"Each dot is a group of about {count(held.rows // len(groups), 'row')} of like confidence.",
    )


def _confidence(held: HeldOut) -> tuple[Chart, str]:
    confidence, right = held.probs.max(1), held.probs.argmax(1) == held.y
    edges = np.linspace(0.98 / len(held.classes), 1, 13)
    all_, good = (np.histogram(each, edges)[0] for each in (confidence, confidence[right]))
    chart = Chart(
        "How sure the model is",
        "The number of rows by the probability of their likeliest class, those that are wrong on top.",
        Axis("probability of the likeliest class", edges[0], 1, percent=True),
        Axis("rows", 0, 1.1 * max(all_.max(), 1)),
    )
    chart.histogram(edges, all_, "b").histogram(edges, good, "a solid")
    return (
        chart,
        "How sure it is of its likeliest class: rows where that is right (blue) and wrong (orange).",
    )


# -- predictions --------------------------------------------------------------------------------------------


def predictions(held: HeldOut | None, target: str) -> Section:
    """Predicted against true."""
    if held is not None and held.classes:
        how = "Each row of the table is a true class; a count off the diagonal is a mistake."
        section = Section("predictions", "Predicted and true", how)
        section.parts.append(_confusion(held, target))
        return section
    how = (
        "Each dot is a held-out row, and the line through it the 90 % interval of its prediction; on the "
        "dashed line the prediction is exact."
    )
    section = Section("predictions", "Predicted and true", how)
    if held is None:
        section.parts.append(absent())
        return section
    mean, lower, upper, y = held["mean"], held["lower"], held["upper"], held.y
    some = some_of(held.rows, DOTS)
    few = some_of(held.rows, INTERVALS)
    limits = extent(y[some], mean[some], lower[few], upper[few])
    outside = (y < lower) | (y > upper)
    chart = Chart(
        "Predicted against true",
        f"The true {target} of each held-out row against its prediction; {count(int(outside.sum()), 'row')} "
        "lie outside their 90 % interval.",
        Axis(f"predicted {target}", *limits),
        Axis(f"true {target}", *limits),
        height=450,
    )
    chart.whiskers(mean[few], lower[few], upper[few], "ideal fine").line(limits, limits, "ideal")
    inside, beyond = some[~outside[some]], some[outside[some]]
    chart.dots(mean[inside], y[inside], "a").dots(mean[beyond], y[beyond], "b")
    key = legend([("a", "inside the 90 % interval"), ("b", "outside it")])
    shown = "" if len(few) == held.rows else f" {len(few)} of the intervals are shown."
    caption = f"{count(held.rows, 'held-out row')}, {int(outside.sum())} outside.{shown}"
    section.parts.extend([key, figures((chart, caption))])
    return section


def _confusion(held: HeldOut, target: str) -> Part:
    classes, guess = held.classes, held.probs.argmax(1)
    counts = np.zeros((len(classes), len(classes)), int)
    np.add.at(counts, (held.y, guess), 1)
    if len(classes) > 12:
        wrong = counts * (1 - np.eye(len(classes), dtype=int))
        often = [
            divmod(int(i), len(classes)) for i in np.argsort(-wrong, axis=None, kind="stable")[:10]
        ]
        rows = [[classes[i], classes[j], str(wrong[i, j])] for i, j in often if wrong[i, j]]
        return table(
            "The ten commonest mistakes", [f"true {target}", "taken for", "rows"], rows, [2]
        )
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    on = np.eye(len(classes), dtype=bool)
    shades = np.where(counts == 0, 0, np.where(on, 3, 1) + (share > 0.5))
    rows = [[name, *map(str, counts[i])] for i, name in enumerate(classes)]
    caption = f"True {target} (down) against predicted {target} (across), {count(held.rows, 'held-out row')}"
    head = ["", *classes]
    return table(caption, head, rows, css="matrix", shades=shades.tolist())


# -- kinds of uncertainty -----------------------------------------------------------------------------------


def kinds(held: HeldOut | None, target: str) -> Section:
    """Epistemic and aleatoric."""
    how = (
        "Rows stand from the surest to the least sure; the lower area is noise that no data removes "
        "(aleatoric), the upper what the model does not know and more rows would teach it (epistemic)."
    )
    section = Section("uncertainty", "Noise, and what the model does not know", how)
    if held is None:
        section.parts.append(absent())
        return section
    if held.classes:
        total = held["entropy"]
        noise = np.maximum(total - held.unknown, 0)
        label, unit = "entropy (0.69 is a fair coin)", "entropy"
    else:
        noise = np.sqrt(held["aleatoric"])
        total = np.sqrt(held["aleatoric"] + held["epistemic"])
        label, unit = f"standard deviation of {target}", "standard deviation"
    order = np.argsort(total, kind="stable")[some_of(held.rows, PATH)]
    place = np.linspace(0, 1, len(order))
    chart = Chart(
        "Noise and lack of knowledge",
        f"The {unit} of the prediction for each held-out row, in order, split into two parts.",
        Axis("rows, from the surest to the least sure", percent=True),
        Axis(label, *extent(total, zero=True)),
    )
    if len(order) == 1:
        place, order = np.array([0.0, 1.0]), np.repeat(order, 2)
    chart.band(place, np.zeros(len(order)), noise[order], "a strong")
    chart.band(place, noise[order], total[order], "b strong").line(place, total[order], "b")
    key = legend([("a", "noise (aleatoric)"), ("b", "not known (epistemic)")])
    caption = f"The {unit} of each prediction, and what would be left of it were the weights known."
    section.parts.extend([key, figures((chart, caption))])
    return section


# -- effects ------------------------------------------------------------------------------------------------


def effect_section(run: Run, found: list[Effect], shown: int = 6) -> Section:
    """What each column does."""
    how = (
        "Each picture sets one column to each of its values in turn and leaves the others as they are in "
        "held-out rows; the line is the mean prediction, the band holds it with 90 % probability."
    )
    section = Section("effects", "What each column does", how)
    if not found:
        section.parts.append(
            absent("No rows were kept from the fit, in which to vary the columns.")
        )
        return section
    target, classes = run.preprocessor.target, run.preprocessor.classes
    chosen = _classes_shown(found, len(classes))
    what = f"probability of {classes[1]}" if len(classes) == 2 else "probability"
    label, percents = (what, True) if classes else (f"mean of {target}", False)
    if len(chosen) > 1:
        section.parts.append(legend([(COLOURS[i], classes[k]) for i, k in enumerate(chosen)]))
    top = found[:shown]
    limits = extent(*(each[:, chosen] for e in top for each in (e.lower, e.upper)))
    if classes:
        limits = max(limits[0], 0.0), min(limits[1], 1.0)
    axis = Axis(label, *limits, percent=percents)
    section.parts.append(figures(*(_effect_chart(effect, chosen, axis) for effect in top)))
    most = found[: 2 * shown]
    across = Axis(
        "how far the mean prediction moves",
        *extent([e.importance for e in most], zero=True),
        percent=percents,
    )
    bars = Chart(
        "Importance of the columns",
        f"How far the mean prediction moves over the values of a column; most for {most[0].column.name}.",
        across,
        Axis.of_names([effect.column.name for effect in most]),
        height=90 + 24 * len(most),
    ).bars([effect.importance for effect in most])
    section.parts.append(figures((bars, "How far each column alone moves the mean prediction.")))
    section.parts.append(
        text(
            "An effect is what the model makes of a column, not what a change of it would cause.",
            "how",
        )
    )
    return section


def _classes_shown(found: list[Effect], classes: int) -> list[int]:
    """One number, the second of two classes, or those of many that move most."""
    if classes <= 2:
        return [classes // 2]
    moves = np.max([np.ptp(effect.mean, axis=0) for effect in found], axis=0)
    return sorted(np.argsort(-moves, kind="stable")[: len(COLOURS)].tolist())


def _effect_chart(effect: Effect, chosen: list[int], axis: Axis) -> tuple[Chart, str]:
    name = effect.column.name
    parts = [(effect.mean[:, k], effect.lower[:, k], effect.upper[:, k]) for k in chosen]
    if effect.names:
        across = Axis(axis.label, axis.lower, axis.upper, axis.percent)
        down = Axis.of_names(effect.names, name)
        chart = Chart(f"Effect of {name}", f"{axis.label} for each {name}", across, down)
        shifts = np.linspace(-0.2, 0.2, len(parts)) if len(parts) > 1 else [0.0]
        for css, shift, (mean, lower, upper) in zip(COLOURS, shifts, parts, strict=False):
            chart.spans(effect.places + shift, lower, upper, css).dots(
                mean, effect.places + shift, css
            )
        return chart, ""
    ends = extent(effect.places, margin=0.02)
    across = Axis(name, *ends, dates=effect.column.kind == "date")
    chart = Chart(f"Effect of {name}", f"{axis.label} over the values of {name}", across, axis)
    for css, (mean, lower, upper) in zip(COLOURS, parts, strict=False):
        chart.band(effect.places, lower, upper, css)
        (chart.line if len(mean) > 1 else chart.dots)(effect.places, mean, css)
    return chart.rug(effect.seen[some_of(len(effect.seen), PATH)]), ""
