"""What a diagnosis is made of: findings, and the case that a check looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from credax.posterior.approximations import Draws

if TYPE_CHECKING:
    from credax.posterior import Posterior

Kind = Literal["predictions", "run", "posterior"]
Errs = Literal["", "too sure", "too unsure"]


@dataclass(frozen=True)
class Finding:
    """One problem of a posterior.

    Attributes:
      what: a sentence that states the problem.
      value: the number behind it.
      advice: what to try.
      grave: whether the posterior should not be used without a remedy. ``fit`` warns of grave findings.
      kind: what the finding is about: the ``"predictions"``, the ``"run"``, or the ``"posterior"`` as a
        distribution over the weights.
      errs: the direction in which predictions err, where the finding says so: ``"too sure"`` or
        ``"too unsure"``; otherwise empty.
    """

    what: str
    value: float
    advice: str
    grave: bool = False
    kind: Kind = "run"
    errs: Errs = ""

    def __str__(self) -> str:
        return f"{self.what} {self.advice}"


class Diagnosis(tuple[Finding, ...]):
    """A tuple of findings, empty if no problem was found. It prints as a list of sentences.

    Findings about the predictions come first, then those about the run, then those about the posterior.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(f"- {finding}" for finding in self) if self else "No problem found."

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{self}</p>"
        items = (f"<li><b>{escape(each.what)}</b> {escape(each.advice)}</li>" for each in self)
        return f"<ul>{''.join(items)}</ul>"


@dataclass(frozen=True, eq=False)
class Case:
    """What a check looks at: a posterior, and the rows and targets that were given with it, if any.

    ``part`` says whether it is one of several posteriors whose predictions are averaged.
    """

    posterior: Posterior
    x: Any = None
    y: Any = None
    part: bool = False

    @property
    def info(self) -> Mapping[str, Any]:
        """What the run recorded."""
        return self.posterior.info

    @property
    def examination(self) -> Mapping[str, Any]:
        """What the training rows say about the posterior; empty if they are not known."""
        return self.posterior.examination

    @cached_property
    def scores(self) -> Any:
        """The scores of the predictions for the given rows."""
        return self.posterior.evaluate(self.x, self.y)

    @property
    def members(self) -> int:
        """The number of ensemble members (equally weighted points of separate runs); 0 for other posteriors."""
        draws: Any = self.posterior.approximation
        if not isinstance(draws, Draws) or draws.log_weights is not None:
            return 0
        return draws.shape[0] if draws.shape[0] > 1 and draws.shape[1] == 1 else 0


def finite(value: float) -> float:
    """The value of a finding, which is never infinite or NaN."""
    return float(np.nan_to_num(value))


def percent(share: float) -> str:
    """A share in percent: two digits, but not in scientific notation."""
    return f"{100 * share:.0f} %" if share > 0.095 else f"{100 * share:.2g} %"
