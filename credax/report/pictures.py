"""The sections with charts: calibration, predicted and true values, kinds of uncertainty, effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credax.report.charts import COLOURS, PATH, Axis, Chart, extent, some_of
from credax.report.effects import Effect
from credax.report.parts import HeldOut, Part, Section, absent, figures, legend, table, text
from credax.report.thresholds import threshold_parts
from credax.report.words import count, percent, scatter_of_share

if TYPE_CHECKING:
    from credax.tables.runs import Run

DOTS = 2_000
"""The largest number of rows in a scatter plot."""
INTERVALS = 300
"""The largest number of intervals in a scatter plot."""
CHARTS, BARS, SMALL = 12, 30, 0.05
"""The largest numbers of charts and of bars of effects, and the share of the largest effect that is small."""
NINETY = 1.645
"""The central 90 % of a normal distribution lie within this many standard deviations of its mean."""


# -- calibration ------------------------------------------------------------------------------------------


def calibration(run: Run, held: HeldOut | None) -> Section:
    """The section on whether events happen as often as their probabilities say."""
    how = (
        "A prediction is calibrated if what it calls 70 % likely happens 70 % of the time. The line then "
        "follows the diagonal: it lies within the grey band nine times in ten."
    )
    section = Section("calibration", "Can the probabilities be trusted?", how)
    if held is None:
        section.parts.append(absent())
    elif held.classes:
        section.parts.append(figures(_reliability(held), _confidence(held)))
        section.parts.extend(threshold_parts(held))
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
    chart.text(0.03, 0.9, "above: intervals too wide").text(
        0.97, 0.06, "below: intervals too narrow", "end"
    )
    return (
        chart,
        f"The share of {count(scores.rows, 'held-out row')} that lie inside the interval of each level.",
    )


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
        "Histogram of quantile levels",
        f"The number of targets in each of {bins} equally probable parts of their predictive distribution.",
        Axis("quantile level of the true value", percent=True),
        Axis("rows", 0, top),
    )
    chart.histogram(edges, heights)
    chart.line([0, 1], [expected] * 2, "ideal")
    for limit in (expected - chance, expected + chance):
        chart.line([0, 1], [limit] * 2, "ideal fine")
    words = (
        "The probability that the model gave to values below the true one. A flat histogram is right; a valley "
        "means that the predictions are overconfident, a hill that they are underconfident, a slope that they "
        "are biased. If they are calibrated, a bar ends between the thin lines nine times in ten."
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
        "How often the most probable class is right, against its predicted probability.",
        Axis("probability of the most probable class", low, 1, percent=True),
        Axis("how often it is right", 0, 1.03, percent=True),
    )
    chart.band(fine, np.maximum(fine - chance, 0), np.minimum(fine + chance, 1), "ideal")
    chart.line([low, 1], [low, 1], "ideal").line(claimed, true).dots(claimed, true)
    chart.text(0.97 + 0.03 * low, 0.06, "below: overconfident", "end")
    return (
        chart,
        f"Each dot is a group of about {count(held.rows // len(groups), 'row')} of similar probability.",
    )


def _confidence(held: HeldOut) -> tuple[Chart, str]:
    confidence, right = held.probs.max(1), held.probs.argmax(1) == held.y
    edges = np.linspace(0.98 / len(held.classes), 1, 13)
    all_, good = (np.histogram(each, edges)[0] for each in (confidence, confidence[right]))
    chart = Chart(
        "Histogram of probabilities",
        "The number of rows by the probability of their most probable class, misclassified rows on top.",
        Axis("probability of the most probable class", edges[0], 1, percent=True),
        Axis("rows", 0, 1.1 * max(all_.max(), 1)),
    )
    chart.histogram(edges, all_, "b").histogram(edges, good, "a solid")
    return (
        chart,
        "Rows whose most probable class is right (blue) and wrong (orange), by its probability.",
    )


# -- predictions --------------------------------------------------------------------------------------------


def predictions(held: HeldOut | None, target: str) -> Section:
    """The section that compares predicted with true values."""
    if held is not None and held.classes:
        how = "Each row of the table is a true class; counts off the diagonal are mistakes."
        section = Section("predictions", "Predicted and true values", how)
        section.parts.append(_confusion(held, target))
        return section
    how = (
        "Each dot is a held-out row, and the vertical line at it is the 90 % interval of its prediction. On "
        "the diagonal, the prediction is exact."
    )
    section = Section("predictions", "Predicted and true values", how)
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
    caption = (
        f"{count(held.rows, 'held-out row')}, {int(outside.sum())} outside their interval.{shown}"
    )
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
            "The ten most frequent mistakes",
            [f"true {target}", f"predicted {target}", "rows"],
            rows,
            [2],
        )
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    on = np.eye(len(classes), dtype=bool)
    shades = np.where(counts == 0, 0, np.where(on, 3, 1) + (share > 0.5))
    rows = [[name, *map(str, counts[i])] for i, name in enumerate(classes)]
    caption = f"True {target} (rows) and predicted {target} (columns) of {count(held.rows, 'held-out row')}"
    head = ["", *classes]
    return table(caption, head, rows, css="matrix", shades=shades.tolist())


# -- kinds of uncertainty -----------------------------------------------------------------------------------


def kinds(held: HeldOut | None, target: str) -> Section:
    """The section on epistemic and aleatoric uncertainty."""
    how = (
        "Rows are ordered from the most to the least certain prediction. The lower area is noise, which no "
        "amount of data removes (aleatoric). The upper area is what the model does not know and more rows "
        "would teach it (epistemic)."
    )
    section = Section("uncertainty", "Noise, and what the model does not know", how)
    if held is None:
        section.parts.append(absent())
        return section
    if held.classes:
        total = held["entropy"]
        noise = np.maximum(total - held.unknown, 0)
        label, unit = "entropy in nats (a fair coin: 0.69)", "entropy"
    else:
        noise = np.sqrt(held["aleatoric"])
        total = np.sqrt(held["aleatoric"] + held["epistemic"])
        label, unit = f"standard deviation of {target}", "standard deviation"
    order = np.argsort(total, kind="stable")[some_of(held.rows, PATH)]
    place = np.linspace(0, 1, len(order))
    chart = Chart(
        "Noise and lack of knowledge",
        f"The {unit} of the prediction for each held-out row, in increasing order, split into two parts.",
        Axis("rows, from the most to the least certain", percent=True),
        Axis(label, *extent(total, zero=True)),
    )
    if len(order) == 1:
        place, order = np.array([0.0, 1.0]), np.repeat(order, 2)
    chart.band(place, np.zeros(len(order)), noise[order], "a strong")
    chart.band(place, noise[order], total[order], "b strong").line(place, total[order], "b")
    key = legend([("a", "noise (aleatoric)"), ("b", "not known (epistemic)")])
    caption = (
        f"The {unit} of each prediction, and the part that would remain if the weights were known."
    )
    section.parts.extend([key, figures((chart, caption))])
    return section


# -- effects ------------------------------------------------------------------------------------------------


def effect_section(run: Run, found: list[Effect]) -> Section:
    """The section on the effect of each column."""
    how = (
        "Each chart shows how the mean prediction changes along one column (accumulated local effects). Rows "
        "are moved only to neighbouring values, so that columns which go together stay together. The band "
        "holds the line with 90 % probability."
    )
    section = Section("effects", "What each column does", how)
    if not found:
        section.parts.append(
            absent("No rows were held out from the fit, in which the columns could be varied.")
        )
        return section
    target, classes = run.preprocessor.target, run.preprocessor.classes
    chosen = _classes_shown(found, len(classes))
    what = f"probability of {classes[1]}" if len(classes) == 2 else "probability"
    label, percents = (what, True) if classes else (f"mean of {target}", False)
    if len(chosen) > 1:
        section.parts.append(legend([(COLOURS[i], classes[k]) for i, k in enumerate(chosen)]))
    top = _that_matter(found)
    limits = extent(*(each[:, chosen] for e in top for each in (e.lower, e.upper)))
    if classes:
        limits = max(limits[0], 0.0), min(limits[1], 1.0)
    axis = Axis(label, *limits, percent=percents)
    section.parts.append(figures(*(_effect_chart(effect, chosen, axis) for effect in top)))
    most = found[:BARS]
    across = Axis(
        "range of the mean prediction",
        *extent([e.importance for e in most], zero=True),
        percent=percents,
    )
    bars = Chart(
        "Importance of the columns",
        f"The range of the mean prediction over the values of each column, largest for {most[0].column.name}.",
        across,
        Axis.of_names([effect.column.name for effect in most]),
        height=90 + 24 * len(most),
    ).bars([effect.importance for effect in most])
    caption = (
        "The difference between the highest and the lowest point of the line of each column. Columns that "
        "reach a twentieth of the largest have a chart."
    )
    section.parts.append(figures((bars, caption)))
    section.parts.append(
        text(
            "An effect describes the model's predictions; it is not what changing the column would cause.",
            "how",
        )
    )
    return section


def _that_matter(found: list[Effect]) -> list[Effect]:
    """The columns whose effect is not small compared with the largest one, at least two if there are any."""
    least = SMALL * found[0].importance
    return [e for i, e in enumerate(found[:CHARTS]) if i < 2 or e.importance >= least]


def _classes_shown(found: list[Effect], classes: int) -> list[int]:
    """The outputs to show: the only one of a regression, the second of two classes, or the most varied."""
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
