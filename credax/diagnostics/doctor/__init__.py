"""The doctor: problems of a posterior, each as a sentence with the number behind it and advice.

A check is a function that takes a :class:`Case` and yields findings. Adding one means writing it and adding a
line to the table below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from credax.diagnostics.convergence import checked_inputs
from credax.diagnostics.doctor import chains, distributions, predictions, runs, spread
from credax.diagnostics.doctor.examination import examine
from credax.diagnostics.doctor.findings import Case, Diagnosis, Finding, Kind
from credax.posterior import StackedPosterior, services

if TYPE_CHECKING:
    from credax.posterior import Posterior

__all__ = ["Case", "Diagnosis", "Finding", "alarms", "diagnose"]


class Check(NamedTuple):
    """A check: what its findings are about, the function, and whether it is quick enough for ``fit``."""

    kind: Kind
    function: Callable[[Case], Iterator[Finding]]
    quick: bool = False


CHECKS = (
    Check("predictions", predictions.worse_than_a_baseline),
    Check("predictions", predictions.not_calibrated),
    Check("run", runs.unfinished),
    Check("run", runs.unscaled),
    Check("run", runs.not_settled),
    Check("run", chains.never_moved, quick=True),
    Check("run", chains.stood_still, quick=True),
    Check("run", chains.hardly_accepted, quick=True),
    Check("run", chains.diverged, quick=True),
    Check("run", chains.escaped, quick=True),
    Check("run", chains.long_steps),
    Check("run", chains.short_cycles),
    Check("run", chains.slow_energy),
    Check("run", chains.not_mixed),
    Check("run", runs.heavy_weights, quick=True),
    Check("run", runs.few_weights),
    Check("run", runs.few_ancestors, quick=True),
    Check("run", runs.cold, quick=True),
    Check("run", runs.not_counted, quick=True),
    Check("run", runs.not_at_the_mode, quick=True),
    Check("run", runs.noise_understated, quick=True),
    Check("run", runs.still_climbing, quick=True),
    Check("posterior", distributions.fell_back),
    Check("posterior", distributions.too_wide),
    Check("posterior", distributions.collapsed),
    Check("posterior", distributions.members_agree),
    Check("posterior", distributions.members_predict_alike),
    Check("posterior", distributions.too_narrow),
    Check("posterior", spread.not_left_as_it_is),
    Check("posterior", distributions.prior_too_wide),
)
"""All checks, in the order of their findings."""


def diagnose(posterior: Posterior | StackedPosterior, x: Any = None, y: Any = None) -> Diagnosis:
    """All findings about a posterior of any method. See :meth:`credax.Posterior.diagnose`."""
    if y is not None and x is None:
        raise ValueError("diagnose(x=...) must be given if y is given; got None.")
    if x is not None:
        x = checked_inputs(posterior, x)
    if isinstance(posterior, StackedPosterior):
        return _diagnose_stack(posterior, x, y)
    return _findings(Case(posterior, x, y), CHECKS)


def _diagnose_stack(stack: StackedPosterior, x: Any, y: Any) -> Diagnosis:
    """The findings about the predictions of all components together, and about each of them.

    The components are weighted by how well they predict rows that they have not seen, so that a run which is
    merely not the best has been taken into account: of the runs, only grave findings are listed.
    """
    of_predictions = tuple(check for check in CHECKS if check.kind == "predictions")
    of_components = tuple(check for check in CHECKS if check.kind != "predictions")
    found = list(_findings(Case(stack, x, y), of_predictions))  # pyright: ignore[reportArgumentType]
    for part, weight in zip(stack.components, stack.weights, strict=True):
        name = f"{type(part.method).__name__} ({weight:.0%} of the prediction): "
        each = _findings(Case(part, x, part=True), of_components)
        each = [one for one in each if one.grave or one.kind == "posterior"]
        found += [replace(finding, what=name + finding.what) for finding in each]
    return Diagnosis(found)


def alarms(posterior: Posterior) -> Diagnosis:
    """The grave findings, of which ``fit`` warns; only checks that take little time are run."""
    found = _findings(Case(posterior), tuple(check for check in CHECKS if check.quick))
    return Diagnosis(finding for finding in found if finding.grave)


def _findings(case: Case, checks: tuple[Check, ...]) -> Diagnosis:
    return Diagnosis(
        replace(finding, kind=check.kind) for check in checks for finding in check.function(case)
    )


services.diagnose = diagnose
services.alarms = alarms
services.examine = examine
