"""Whether the predictions explain the targets, and are as certain as they should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from credax.diagnostics.doctor.baselines import compare
from credax.diagnostics.doctor.examination import COVERAGE
from credax.diagnostics.doctor.findings import Case, Finding, percent
from credax.model.inputs import is_tree

OFF_COVERAGE, STANDARD_ERRORS = 0.05, 4.0
"""By how much the coverage of intervals may differ from their level: by less than the first value, or by fewer
standard errors than the second."""
USELESS = -1.0
"""Predictions that explain less than this share of the variance err more than targets would that are drawn at
random from other rows."""
WORSE = 0.05
"""By how much less of the variance than a simple prediction the predictions may explain."""


def worse_than_a_baseline(case: Case) -> Iterator[Finding]:
    """The predictions explain less than a straight line, or than the mean of the nearest rows."""
    found, where = _compared(case)
    if _worse(found):
        explained = max(found["explained"], 0.0)
        yield Finding(
            f"The predictions explain {percent(explained)} of the variance of the targets {where}; "
            f"{found['baseline_name']} explains {percent(found['baseline'])}.",
            found["explained"],
            "Scale x and y to unit variance, train longer (num_steps, num_warmup), or use a wider prior; a "
            "variational posterior of a large network may need a smaller network or kl_annealing.",
            grave=found["explained"] < USELESS,
        )


def _compared(case: Case) -> tuple[Mapping[str, Any], str]:
    if case.y is None:
        return case.examination, "in the rows of the fit"
    model: Any = case.posterior.model
    if model.divided or is_tree(case.x):
        return {}, ""  # the simple predictions are of tables
    mean = case.posterior.predict(case.x).mean
    found = compare(model.likelihood.task, case.x, case.y, mean)
    return ({} if found is None else found._asdict()), f"in {len(case.x)} new rows"


def _worse(found: Mapping[str, Any]) -> bool:
    if found.get("explained") is None:
        return False
    gap = found["baseline"] - found["explained"]
    return gap > WORSE and found["worse_by"] > STANDARD_ERRORS


def explains_little(case: Case) -> float | None:
    """The share of the variance that the predictions explain, if it is less than half of what is simple."""
    found, _ = _compared(case)
    if _worse(found) and found["explained"] < 0.5 * found["baseline"]:
        return max(found["explained"], 0.0)
    return None


def not_calibrated(case: Case) -> Iterator[Finding]:
    """Judge the coverage or the confidence, in standard errors that hold if the posterior is calibrated.

    The rows of the fit itself reveal only predictions that are too certain: their residuals are smaller than
    those of new rows.
    """
    if case.y is None:
        found, new = case.examination, False
    elif isinstance(case.scores, dict):
        return  # of several heads
    else:
        names = ("rows", "coverage", "accuracy", "sharpness")
        found, new = {name: getattr(case.scores, name) for name in names}, True
    if found.get("coverage") is not None:
        yield from _coverage(case, float(found["coverage"]), found["rows"], new)
    if found.get("accuracy") is not None and found.get("sharpness") is not None:
        yield from _confidence(
            float(found["accuracy"]), float(found["sharpness"]), found["rows"], new
        )


def _coverage(case: Case, coverage: float, rows: int, new: bool) -> Iterator[Finding]:
    likelihood: Any = case.posterior.model.likelihood  # pyright: ignore[reportAttributeAccessIssue]
    off = coverage - COVERAGE
    error = (COVERAGE * (1 - COVERAGE) / rows) ** 0.5
    # An interval of counts cannot cover exactly 90 %, so only coverage that is too low is reported.
    judged_wide = new and likelihood.task != "count"
    if abs(off) < max(OFF_COVERAGE, STANDARD_ERRORS * error) or (off > 0 and not judged_wide):
        return
    of = "targets" if new else "targets of the fit"
    only, too = ("Only ", "too narrow") if off < 0 else ("", "too wide")
    given = getattr(likelihood, "scale", None) is not None and not likelihood.learned
    learn = "Learn the noise scale (scale=None), or recalibrate" if given else "Recalibrate"
    yield Finding(
        f"{only}{100 * coverage:.3g} % of the {rows} {of} lie inside their 90 % intervals: the intervals are "
        f"{too}.",
        coverage,
        f"{learn} the intervals on held-out rows: posterior.calibrate(x, y).",
        errs="too sure" if off < 0 else "too unsure",
    )


def _confidence(accuracy: float, confidence: float, rows: int, new: bool) -> Iterator[Finding]:
    off = confidence - accuracy
    error = (confidence * (1 - confidence) / rows) ** 0.5
    if abs(off) < max(OFF_COVERAGE, STANDARD_ERRORS * error) or (off < 0 and not new):
        return
    word = "overconfident" if off > 0 else "underconfident"
    of = "rows" if new else "rows of the fit"
    yield Finding(
        f"The class probabilities are {word}: the most probable class has probability {confidence:.3g} on "
        f"average, but is correct with frequency {accuracy:.3g} over {rows} {of}.",
        off,
        "Recalibrate them on held-out rows: posterior.calibrate(x, y).",
        errs="too sure" if off > 0 else "too unsure",
    )
