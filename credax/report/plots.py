"""Plots of predictions and of runs, with matplotlib: ``pip install 'credax[plot]'``.

Every function draws one picture on the axes ``ax``, or on those of a new figure, and returns them. Nothing is
shown or saved: ``ax.figure.savefig("sine.png")`` saves a figure. ``predictive.plot(...)`` and
``posterior.plot(...)`` choose among these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from credax.core.checks import fraction, integer, must, one_of
from credax.core.trees import named_leaves
from credax.diagnostics.calibration import LEVELS
from credax.posterior.approximations import Draws
from credax.posterior.stacked import StackedPosterior
from credax.report import drawing
from credax.report.charts import PATH, extent, some_of
from credax.report.drawing import IDEAL, INK, LINE, NOISE, SERIES, SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["calibration", "intervals", "predicted", "probabilities", "trace", "uncertainty"]

GROUPS, IN_GROUP = 10, 10
"""The largest number of groups of a reliability diagram, and the least number of rows in one."""
CHANCE = 0.9
"""The probability with which a calibrated model stays within what is drawn as chance."""
FIGURES = ("elbo", "log_joint", "log_likelihood", "loss")
"""The figures of a run that show best whether it has converged, the best first."""
REPLICAS = 8
"""The largest number of replicas in a trace."""


# -- regression and counts ------------------------------------------------------------------------------


def intervals(
    predictive: Any,
    x: Any = None,
    y: Any = None,
    *,
    levels: Sequence[float] = (0.5, 0.9),
    target: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The mean and the central intervals of each row, over one input.

    Args:
      predictive: predictions of numbers.
      x: the input to draw over, one number for each row. If the network has several inputs, the intervals of
        rows are drawn one by one, since neighbours in one input may differ in the others. If ``None``, rows are
        ordered by their mean.
      y: the true values, if they are known.
      levels: the probabilities with which the intervals contain the true value.
      target: the number of the target, if there are several.
      ax: the axes to draw on. If ``None``, those of a new figure.
    """
    drawing.only("intervals", predictive, classes=False)
    if np.ndim(levels) != 1 or not len(levels):
        raise TypeError(must("intervals", "levels", "a list such as [0.5, 0.9]", levels))
    wanted = sorted((fraction("intervals", "levels", level) for level in levels), reverse=True)
    target = drawing.which_target("intervals", predictive.mean, target)
    mean = drawing.one_target(predictive.mean, target)
    rows = len(mean)
    place = None if x is None else drawing.one_column("intervals", "x", x, rows)
    true = None if y is None else drawing.targets("intervals", y, rows, target)
    order = np.argsort(mean if place is None else place, kind="stable")
    place = np.arange(1, rows + 1) if place is None else place[order]
    ends = [
        [drawing.one_target(end, target)[order] for end in predictive.interval(level)]
        for level in wanted
    ]
    axes = drawing.axes(ax, "x" if x is not None else "rows, ordered by their mean", "y")
    if x is None or _one_input(predictive):
        for (lower, upper), level in zip(ends, wanted, strict=True):
            strength, label = 0.32 if level == wanted[-1] else 0.16, _percent(level, " interval")
            axes.fill_between(
                place, lower, upper, color=SERIES[0], alpha=strength, lw=0, label=label
            )
        axes.plot(place, mean[order], color=SERIES[0], lw=1.8, label="mean")
    else:
        some = some_of(rows, drawing.DOTS)
        for i, ((lower, upper), level) in enumerate(zip(ends, wanted, strict=True)):
            label, width = _percent(level, " interval"), 1 + 1.2 * i
            axes.vlines(
                place[some], lower[some], upper[some], SERIES[0], lw=width, alpha=0.3, label=label
            )
        drawing.dots(axes, place, mean[order], SERIES[0], "mean")
    if true is not None:
        drawing.dots(axes, place, true[order], INK, "true")
    drawing.key(axes)
    return axes


def predicted(
    predictive: Any,
    y: Any,
    *,
    level: float = 0.9,
    target: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The true value of each row against its predicted mean, with the interval of the prediction.

    Args:
      predictive: predictions of numbers.
      y: the true values.
      level: the probability with which the intervals contain the true value.
      target: the number of the target, if there are several.
      ax: the axes to draw on. If ``None``, those of a new figure.
    """
    drawing.only("predicted", predictive, classes=False)
    level = fraction("predicted", "level", level)
    target = drawing.which_target("predicted", predictive.mean, target)
    mean = drawing.one_target(predictive.mean, target)
    true = drawing.targets("predicted", y, len(mean), target)
    lower, upper = (drawing.one_target(end, target) for end in predictive.interval(level))
    axes = drawing.axes(ax, "predicted", "true")
    some = some_of(len(mean), drawing.DOTS)
    axes.vlines(mean[some], lower[some], upper[some], IDEAL, lw=0.8, alpha=0.4, zorder=1)
    outside = (true < lower) | (true > upper)
    limits = extent(mean, true)
    axes.plot(limits, limits, color=IDEAL, lw=1, ls=(0, (5, 4)), zorder=1)
    where = f"its {_percent(level)} interval"
    drawing.dots(axes, mean[~outside], true[~outside], SERIES[0], f"inside {where}")
    drawing.dots(axes, mean[outside], true[outside], SERIES[1], f"outside ({np.mean(outside):.0%})")
    drawing.key(axes)
    return axes


# -- calibration ----------------------------------------------------------------------------------------


def calibration(
    predictive: Any,
    y: Any,
    *,
    label: int | None = None,
    target: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Whether what is predicted with some probability happens as often.

    For numbers: the share of true values inside their central interval, against its level. For classes (a
    reliability diagram): how often a class is the true one, against its probability, for groups of rows with
    similar probabilities. The diagonal is ideal. A calibrated model stays within the grey range with 90 %
    probability, at each level or in each group.

    Args:
      predictive: the predictions.
      y: the true values or classes, of rows that were not used in the fit.
      label: for classes, the number of the class to assess. If ``None``, the most probable class of each row.
      target: for numbers, the number of the target, if there are several.
      ax: the axes to draw on. If ``None``, those of a new figure.
    """
    if drawing.is_classes("calibration", predictive):
        return _reliability(predictive, y, label, ax)
    target = drawing.which_target("calibration", predictive.mean, target)
    true = drawing.targets("calibration", y, len(predictive.mean), target)
    levels = np.array(LEVELS)
    tails = np.stack([(1 - levels) / 2, (1 + levels) / 2])
    lower, upper = drawing.one_target(predictive.quantile(tails), target)
    inside = np.mean((true >= lower) & (true <= upper), axis=1)
    axes = drawing.axes(ax, "level of the interval", "share of rows inside it")
    fine = np.linspace(0, 1, 101)
    axes.fill_between(fine, *_chance(fine, len(true)), color=IDEAL, alpha=0.2, lw=0)
    _diagonal(axes, 0.0)
    axes.plot(levels, inside, "o-", color=SERIES[0], ms=4, lw=1.8)
    axes.annotate("above: intervals too wide", (0.03, 0.93), color=SOFT, fontsize=9)
    axes.annotate("below: intervals too narrow", (0.97, 0.04), color=SOFT, fontsize=9, ha="right")
    return axes


def _reliability(predictive: Any, y: Any, label: int | None, ax: Axes | None) -> Axes:
    probs = drawing.probabilities_of("calibration", predictive)
    rows, classes = probs.shape
    true = drawing.labels("calibration", y, rows, classes)
    if label is None:
        claimed, right = probs.max(1), probs.argmax(1) == true
        axes = drawing.axes(
            ax, "probability of the most probable class", "how often it is the true one"
        )
    else:
        if integer("calibration", "label", label, 0) >= classes:
            allowed = f"the number of a class, from 0 to {classes - 1}"
            raise ValueError(must("calibration", "label", allowed, label))
        claimed, right = probs[:, label], true == label
        axes = drawing.axes(ax, f"probability of class {label}", "how often it is the true one")
    groups = reliability_groups(claimed)
    said = np.array([claimed[group].mean() for group in groups])
    found = np.array([right[group].mean() for group in groups])
    low, high = np.array([_chance(p, len(g)) for p, g in zip(said, groups, strict=True)]).T
    axes.vlines(said, low, high, IDEAL, lw=7, alpha=0.3)
    start = 0.0 if label is not None else min(1 / classes, float(said.min()))
    _diagonal(axes, start)
    axes.plot(said, found, "o-", color=SERIES[0], ms=4, lw=1.8)
    if label is None:
        axes.annotate("below: overconfident", (0.97, 0.04), color=SOFT, fontsize=9, ha="right")
    return axes


def reliability_groups(claimed: np.ndarray) -> list[np.ndarray]:
    """Indices of rows with similar probabilities, in groups of nearly equal size."""
    count = min(GROUPS, max(1, len(claimed) // IN_GROUP))
    return np.array_split(np.argsort(claimed, kind="stable"), count)


def _chance(share: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the central range of the share of rows in which an event of probability ``share`` happens."""
    tail = (1 - CHANCE) / 2
    return binom.ppf(tail, rows, share) / rows, binom.ppf(1 - tail, rows, share) / rows


def _diagonal(ax: Axes, start: float) -> None:
    ax.plot([start, 1], [start, 1], color=IDEAL, lw=1, ls=(0, (5, 4)))
    ax.set_xlim(start - 0.02 * (1 - start), 1 + 0.02 * (1 - start))
    ax.set_ylim(-0.02, 1.02)
    ax.xaxis.set_major_formatter(lambda value, _: _percent(value))
    ax.yaxis.set_major_formatter(lambda value, _: _percent(value))


# -- kinds of uncertainty -------------------------------------------------------------------------------


def uncertainty(
    predictive: Any, x: Any = None, *, target: int | None = None, ax: Axes | None = None
) -> Axes:
    """Epistemic uncertainty, which more data would reduce, and aleatoric uncertainty, which is noise.

    For numbers these are the two parts of the variance, for classes those of the entropy in nats (the mutual
    information and the expected entropy).

    Args:
      predictive: the predictions.
      x: one number for each row. If given, the two parts are drawn over it: stacked, since they add up to the
        whole, or as dots if the network has several inputs. If ``None``, one is drawn against the other, with
        a dot for each row; for numbers, as standard deviations.
      target: for numbers, the number of the target, if there are several.
      ax: the axes to draw on. If ``None``, those of a new figure.
    """
    if drawing.is_classes("uncertainty", predictive):
        known, unknown = predictive.expected_entropy, predictive.mutual_information
        names = ("expected entropy (aleatoric)", "mutual information (epistemic)")
        known, unknown = np.asarray(known, float), np.asarray(unknown, float)
        whole = "entropy in nats"
    else:
        target = drawing.which_target("uncertainty", predictive.mean, target)
        known, unknown = (
            drawing.one_target(part, target)
            for part in (predictive.aleatoric, predictive.epistemic)
        )
        names, whole = ("aleatoric", "epistemic"), "variance"
    if x is not None:
        place = drawing.one_column("uncertainty", "x", x, len(known))
        axes = drawing.axes(ax, "x", whole)
        if _one_input(predictive):
            order = np.argsort(place, kind="stable")
            parts, colours = (known[order], unknown[order]), (NOISE, SERIES[0])
            axes.stackplot(place[order], *parts, labels=names, colors=colours, lw=0)
        else:
            drawing.dots(axes, place, known, NOISE, names[0])
            drawing.dots(axes, place, unknown, SERIES[0], names[1])
        drawing.key(axes, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return axes
    if whole == "variance":
        known, unknown = np.sqrt(known), np.sqrt(unknown)
        names = ("aleatoric standard deviation", "epistemic standard deviation")
    axes = drawing.axes(ax, *names)
    drawing.dots(axes, known, unknown, SERIES[0])
    axes.set_xlim(*extent(known, margin=0.06, zero=True))
    axes.set_ylim(*extent(unknown, margin=0.06, zero=True))
    return axes


# -- classification -------------------------------------------------------------------------------------


def probabilities(
    predictive: Any,
    x: Any = None,
    y: Any = None,
    *,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The probability of each class, over one input or for one row after the other.

    Args:
      predictive: predictions of classes.
      x: one number for each row. The probabilities are stacked over it, or drawn as dots if the network has
        several inputs. If ``None``, rows are ordered by their most probable class, and by its probability
        within a class.
      y: the true classes, if they are known; drawn as dots above the probabilities.
      names: the names of the classes. If ``None``, their numbers.
      ax: the axes to draw on. If ``None``, those of a new figure.
    """
    probs = drawing.probabilities_of("probabilities", predictive)
    rows, classes = probs.shape
    place = None if x is None else drawing.one_column("probabilities", "x", x, rows)
    true = None if y is None else drawing.labels("probabilities", y, rows, classes)
    if names is not None and len(names) != classes:
        raise ValueError(must("probabilities", "names", f"{classes} names", names))
    names = [f"class {k}" for k in range(classes)] if names is None else list(map(str, names))
    # The most probable classes have colours of their own; the others are shown together.
    most = classes if classes <= len(SERIES) else len(SERIES) - 1
    shown = np.sort(np.argsort(-probs.mean(0), kind="stable")[:most])
    axes = drawing.axes(
        ax, "x" if x is not None else "rows, by their most probable class", "probability"
    )
    stacked = place is None or _one_input(predictive)
    if place is None:
        order = np.lexsort((-probs.max(1), probs.argmax(1)))
        place = np.arange(1, rows + 1)
    else:
        order = np.argsort(place, kind="stable")
        place = place[order]
    parts = [probs[order, k] for k in shown]
    labels, colours = [names[k] for k in shown], list(SERIES[:most])
    if most < classes:
        parts.append(1 - np.sum(parts, axis=0))
        labels, colours = [*labels, f"{classes - most} other classes"], [*colours, IDEAL]
    if stacked:
        axes.stackplot(place, *parts, labels=labels, colors=colours, alpha=0.75, lw=0)
    else:
        for part, label, colour in zip(parts, labels, colours, strict=True):
            drawing.dots(axes, place, part, colour, label)
    if true is not None:
        colour = dict(zip(shown.tolist(), SERIES, strict=False))
        some = some_of(rows, drawing.DOTS)
        shades = [colour.get(k, IDEAL) for k in true[order][some].tolist()]
        axes.scatter(place[some], np.full(len(some), 1.04), c=shades, s=8, lw=0, clip_on=False)
    axes.set_ylim(0, 1 if true is None else 1.07)
    axes.yaxis.set_major_formatter(lambda value, _: _percent(value) if value <= 1.001 else "")
    axes.margins(x=0)
    drawing.key(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return axes


# -- runs -----------------------------------------------------------------------------------------------


def trace(posterior: Any, of: str | None = None, *, index: Any = 0, ax: Axes | None = None) -> Axes:
    """What a run recorded at each step, or the kept draws of one weight, with a line for each replica.

    Args:
      posterior: any posterior; of a :class:`credax.StackedPosterior`, the leading component.
      of: a figure in ``posterior.info``, such as ``"log_joint"``, or the path of an array of the parameters,
        such as ``"layer_0/kernel"``. If ``None``, the figure that shows best whether the run has converged.
      index: for parameters, the index of the weight in its array; of a flattened array if it is one number.
      ax: the axes to draw on. If ``None``, those of a new figure.
    """
    posterior = posterior.leading if isinstance(posterior, StackedPosterior) else posterior
    found = {name: np.asarray(value) for name, value in posterior.info.items()}
    figures = {name: value for name, value in found.items() if value.ndim == 2}
    draws = posterior.approximation
    leaves = dict(named_leaves(draws.params)) if isinstance(draws, Draws) else {}
    if of is None:
        usual = [name for name in FIGURES if name in figures]
        of = next(iter([*usual, *figures, *leaves]), None)
        if of is None:
            raise ValueError("trace: this posterior has no record of its run, and no draws.")
    one_of("trace", "of", of, [*figures, *leaves])
    if of in figures:
        return _trace_of_figure(figures[of], of, found.get("kept", np.zeros(0)), ax)
    leaf = np.asarray(leaves[of], float)
    shape = leaf.shape[2:]
    try:
        index = np.unravel_index(index, shape) if np.ndim(index) == 0 else tuple(index)
        lines = leaf[(slice(None), slice(None), *index)]
    except (IndexError, TypeError, ValueError):
        lines = leaf
    if lines.ndim != 2:
        raise ValueError(must("trace", "index", f"an index of an array of shape {shape}", index))
    place = ", ".join(str(int(i)) for i in index)
    axes = drawing.axes(
        ax, "draw", f"{of or 'parameters'}[{place}]" if shape else of or "parameters"
    )
    some = some_of(lines.shape[1], 4 * PATH)
    _lines(axes, some + 1, lines[:, some])
    return axes


def _trace_of_figure(lines: np.ndarray, name: str, kept: np.ndarray, ax: Axes | None) -> Axes:
    steps = lines.shape[1]
    axes = drawing.axes(ax, "step", name.replace("_", " "))
    begin = int(kept.min()) if kept.size else steps // 10
    # The first steps are often so far off that nothing else could be seen.
    limits = extent(lines[:, begin:], margin=0.08)
    if kept.size and begin:
        axes.axvspan(0, begin, color=LINE, alpha=0.5, lw=0)
        words = {"color": SOFT, "fontsize": 9, "ha": "center", "va": "top"}
        axes.annotate("warm-up", (begin / 2, 0.98), xycoords=("data", "axes fraction"), **words)
    some = some_of(steps, 4 * PATH)
    _lines(axes, some + 1, lines[:, some])
    axes.set_xlim(0, steps + 1)
    axes.set_ylim(*limits)
    return axes


def _lines(ax: Axes, place: np.ndarray, lines: np.ndarray) -> None:
    shown = lines[:REPLICAS]
    for i, line in enumerate(shown):
        finite = np.where(np.isfinite(line), line, np.nan)
        mark = "o" if len(place) == 1 else None
        ax.plot(place, finite, color=SERIES[i % len(SERIES)], lw=0.9, alpha=0.8, marker=mark)
    if len(lines) > len(shown):
        words = f"{len(shown)} of {len(lines)} replicas"
        ax.annotate(
            words, (0.99, 0.02), xycoords="axes fraction", color=SOFT, fontsize=9, ha="right"
        )


def _one_input(predictive: Any) -> bool:
    """Whether the predictions are a function of one number, as far as can be told."""
    rows = getattr(getattr(predictive, "_parts", (predictive,))[0], "_x", None)
    return rows is None or np.size(rows) == len(rows)


def _percent(share: float, after: str = "") -> str:
    return f"{100 * share:.3g} %{after}"
