"""The verdict: whether to use the predictions, in one sentence, with the three facts that decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from credax.report.baseline import gain
from credax.report.parts import HeldOut, Section, sentences
from credax.report.words import SURE, count, judged_confidence, judged_coverage, percent

if TYPE_CHECKING:
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
        right = (held.probs.argmax(1) == held.y).astype(float)
        judged = judged_confidence(held.probs.max(1), right)
        sure = (
            f"The most probable class has a probability of {percent(np.mean(held.probs.max(1)))} on average, "
            f"and is right for {percent(np.mean(right))}. {judged}"
        )
    else:
        assert run.scores.coverage is not None
        judged = judged_coverage(float(run.scores.coverage), run.scores.rows)
        sure = (
            f"{percent(run.scores.coverage)} of 90\u00a0% intervals hold the true value. {judged}"
        )
    calibrated = "as often as that" in judged or "agrees with" in judged
    if grave or not better:
        kind = "bad"
    else:
        kind = "good" if calibrated and not run.findings else "care"
    return kind, [said, sure, checks]


def _of_checks(findings: int, grave: int) -> str:
    if not findings:
        return "The checks of the run found no problem."
    if grave:
        return f"The checks of the run have {count(grave, 'grave finding')}."
    return f"The checks of the run have {count(findings, 'finding')}, none of them grave."
