"""The doctor: what is wrong with a posterior, in sentences with their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credax.approximations import Draws

if TYPE_CHECKING:
    from credax.posterior import Posterior


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
      what: the sentence.
      value: the number behind it.
      advice: what to try.
    """

    what: str
    value: float
    advice: str

    def __str__(self) -> str:
        return f"{self.what} {self.advice}"


class Diagnosis(tuple[Finding, ...]):
    """The findings; empty where nothing was found. Printed, it reads as text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"- {finding}" for finding in self) if self else "No problem found."

    __repr__ = __str__


def diagnose(posterior: Posterior) -> Diagnosis:
    """Every finding about a posterior, whatever method made it."""
    checks = (_unfinished, _not_settled, _members_agree)
    return Diagnosis(finding for check in checks if (finding := check(posterior)) is not None)


def alarms(posterior: Posterior) -> Diagnosis:
    """The findings so grave that ``fit`` warns of them; cheap to look for."""
    checks = ()
    return Diagnosis(finding for check in checks if (finding := check(posterior)) is not None)


def _unfinished(posterior: Posterior) -> Finding | None:
    if posterior.info.get("ended") != "interrupt":
        return None
    steps = int(posterior.info["steps"])
    return Finding(
        f"The run was interrupted after {steps} steps.",
        steps,
        "Run it to its end, with checkpoint= to go on from where it was.",
    )


def _not_settled(posterior: Posterior) -> Finding | None:
    """Compares the last two tenths of a run, in standard errors of their difference."""
    if len(posterior.info.get("kept", ())):
        return None  # a chain is meant to keep moving
    for name in ("log_joint", "log_likelihood", "elbo"):
        history = posterior.info.get(name)
        if history is not None and np.ndim(history) == 2 and history.shape[1] >= 100:
            break
    else:
        return None
    tenth = history.shape[1] // 10
    before, last = history[:, -2 * tenth : -tenth], history[:, -tenth:]
    gain = last.mean(1) - before.mean(1)
    error = np.sqrt((last.var(1) + before.var(1)) / tenth)
    scale = np.abs(last.mean(1)) + 1.0
    moving = (gain > 4 * error) & (gain > 0.01 * scale)
    if not moving.any():
        return None
    worst = float(np.max(gain / scale))
    label = name.replace("_", " ")
    return Finding(
        f"The {label} still rose by {100 * worst:.1f} % over the last tenth of the steps"
        f" in {int(moving.sum())} of {len(moving)} replicas.",
        worst,
        "Raise num_steps.",
    )


def _members_agree(posterior: Posterior) -> Finding | None:
    """Replicas that ended at the same weights count as one."""
    draws: Any = posterior.approximation
    if not isinstance(draws, Draws) or draws.shape[0] < 2 or draws.shape[1] != 1:
        return None
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(draws.params)]
    between = sum(float(leaf.var(0).sum()) for leaf in leaves)
    size = sum(float((leaf**2).mean(0).sum()) for leaf in leaves)
    share = between / max(size, 1e-300)
    if share > 1e-6:
        return None
    return Finding(
        f"The {draws.shape[0]} members ended at the same weights (their variance is {share:.1e} of their "
        "mean square), so their spread says nothing about uncertainty.",
        share,
        "A convex problem has one optimum; use a method that samples around it.",
    )
