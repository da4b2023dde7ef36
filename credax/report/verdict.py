"""The verdict: whether to use the predictions, in one sentence, with the three facts that decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credax.report.baseline import gain
from credax.report.parts import HeldOut, Section, sentences
from credax.report.words import (
    SURE,
    confidence_off,
    count,
    coverage_off,
    judged_confidence,
    judged_coverage,
    percent,
)

if TYPE_CHECKING:
    from credax.diagnostics.calibration import Scores
    from credax.tables.runs import Run

VERDICTS = {
    "good": "Use these predictions: they are better than a constant, and as sure as they should be.",
    "care": "Use these predictions with care.",
    "bad": "Do not rely on these predictions.",
    "open": "Whether these predictions can be relied on is not known.",
}


def verdict_section(run: Run, held: HeldOut | None) -> Section:
    """The section with the verdict."""
    how = "What the rest of this page amounts to. It holds for rows like those of the table, not for others."
    section = Section("verdict", "The verdict", how)
    kind, reasons = verdict(run, held)
    section.parts.append({"kind": "text", "text": VERDICTS[kind], "css": f"verdict {kind}"})
    section.parts.append(sentences(reasons))
    return section


def verdict(run: Run, held: HeldOut | None) -> tuple[str, list[str]]:
    """One of the keys of ``VERDICTS``, and the reasons for it."""
    grave = sum(bool(finding.get("grave")) for finding in run.findings)
    checks = _of_checks(len(run.findings), grave)
    if held is None or run.scores is None:
        why = "No rows were held out from the fit, so nothing shows how good the predictions are."
        return ("bad" if grave else "open"), [why, checks]
    share, errors, _ = gain(held)
    better = errors > SURE
    loss = "log loss" if held.classes else "squared error"
    best = "the best prediction that is the same for every row"
    if better:
        said = f"Better than {best}: it saves {percent(share)} of the {loss}."
    else:
        said = f"Not clearly better than {best}: the difference in {loss} may be due to chance."
    if held.classes:
        calibrated, sure = _of_confidence(held)
    else:
        calibrated, sure = _of_intervals(run.scores)
    if grave or not better:
        kind = "bad"
    else:
        kind = "good" if calibrated and not run.findings else "care"
    return kind, [said, sure, checks]


def _of_confidence(held: HeldOut) -> tuple[bool, str]:
    """Whether the most probable class is right as often as its probability says, and a sentence on it."""
    confidence = held.probs.max(1)
    right = (held.probs.argmax(1) == held.y).astype(float)
    said = (
        f"The most probable class has a probability of {percent(np.mean(confidence))} on average, and is right "
        f"for {percent(np.mean(right))}. {judged_confidence(confidence, right)}"
    )
    return abs(confidence_off(confidence, right)) <= SURE, said


def _of_intervals(scores: Scores) -> tuple[bool, str]:
    """Whether 90 % and 50 % intervals hold as many rows as they should, and sentences on it.

    Intervals may hold nine rows in ten although the shape of the distribution is wrong; then those of the
    inner half show it.
    """
    assert scores.coverage is not None
    outer = coverage_off(float(scores.coverage), scores.rows)
    said = (
        f"{percent(scores.coverage)} of 90\u00a0% intervals hold the true value. "
        f"{judged_coverage(float(scores.coverage), scores.rows)}"
    )
    if abs(outer) > SURE or scores.levels is None or scores.coverage_at is None:
        return abs(outer) <= SURE, said
    middle = int(np.argmin(np.abs(np.asarray(scores.levels) - 0.5)))
    level, share = float(scores.levels[middle]), float(scores.coverage_at[middle])
    inner = coverage_off(share, scores.rows, level)
    if abs(inner) <= SURE:
        return True, said
    wide = "wide" if inner > 0 else "narrow"
    return (
        False,
        f"{said} But {percent(share)} of {percent(level)} intervals do: these are too {wide}.",
    )


def _of_checks(findings: int, grave: int) -> str:
    if not findings:
        return "The checks of the run found no problem."
    if grave:
        return f"The checks of the run have {count(grave, 'grave finding')}."
    return f"The checks of the run have {count(findings, 'finding')}, none of them grave."
