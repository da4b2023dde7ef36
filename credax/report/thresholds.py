"""Two classes: what each threshold on the probability would catch, and at the cost of how many false alarms."""

from __future__ import annotations

import numpy as np

from credax.diagnostics.calibration import detection
from credax.report.charts import PATH, Axis, Chart, some_of
from credax.report.parts import HeldOut, Part, figures, table
from credax.report.words import number, percent

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def roc(probability: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shares of negatives and of positives above each threshold, from the highest threshold down.

    Rows of equal probability are one step of the curve.
    """
    order = np.argsort(-probability, kind="stable")
    probability, positive = probability[order], positive[order]
    last = np.append(probability[1:] != probability[:-1], True)
    caught, alarms = np.cumsum(positive)[last], np.cumsum(~positive)[last]
    return np.r_[0, alarms] / max(alarms[-1], 1), np.r_[0, caught] / max(caught[-1], 1)


def threshold_parts(held: HeldOut) -> list[Part]:
    """The ROC curve and the table of thresholds; nothing unless there are two classes, both among the rows."""
    if len(held.classes) != 2 or len(np.unique(held.y)) != 2:
        return []
    name, probability, positive = held.classes[1], held.probs[:, 1], held.y == 1
    area, _ = detection(probability[~positive], probability[positive])
    alarms, caught = roc(probability, positive)
    some = some_of(len(alarms), PATH)
    chart = Chart(
        "ROC curve",
        f"The share of {name} that is caught against the share of false alarms; the area below is {area:.3f}.",
        Axis("false alarms, as a share of the other class", percent=True),
        Axis(f"share of {name} that is caught", 0, 1.03, percent=True),
    )
    chart.line([0, 1], [0, 1], "ideal").line(alarms[some], caught[some])
    caption = (
        f"Area below the curve: {area:.3f}, the probability that a row of \u201c{name}\u201d has a higher "
        "probability than one of the other class. A guess follows the diagonal, with an area of 0.5."
    )
    rows = []
    for threshold in THRESHOLDS:
        above = probability >= threshold
        hits = int(np.sum(above & positive))
        right = percent(hits / above.sum()) if above.any() else "\u2013"
        rows.append(
            [
                percent(threshold),
                number(int(above.sum())),
                percent(hits / positive.sum()),
                right,
                percent(np.sum(above & ~positive) / np.sum(~positive)),
            ]
        )
    heads = ["threshold", "rows above", "caught", "of these right", "false alarms"]
    told = f"What is called \u201c{name}\u201d if its probability reaches a threshold"
    return [figures((chart, caption)), table(told, heads, rows, [0, 1, 2, 3, 4])]
