"""The building blocks of a page: sections, and the kinds of parts that the template can render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from credax.posterior.approximations import Draws
from credax.report.charts import Chart

if TYPE_CHECKING:
    import pandas as pd

    from credax.tables.runs import Run

Part = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
      id: the anchor of the section.
      title: the heading.
      how: one sentence on how to read the section.
      parts: the contents, in their order.
    """

    id: str
    title: str
    how: str
    parts: list[Part] = field(default_factory=list)


def text(words: str, css: str = "") -> Part:
    """A paragraph."""
    return {"kind": "text", "text": words, "css": css}


def absent(
    words: str = "No rows were held out from the fit, so this cannot be assessed.",
) -> Part:
    """A paragraph that says why a section is empty."""
    return text(words, "absent")


def sentences(found: Sequence[str]) -> Part:
    """A list of sentences."""
    return {"kind": "sentences", "sentences": found}


def facts(found: Sequence[tuple[str, str]]) -> Part:
    """A list of terms, each with its description."""
    return {"kind": "facts", "facts": found}


def legend(entries: Sequence[tuple[str, str]]) -> Part:
    """The key of a chart: CSS classes of colours, each with what it stands for."""
    return {"kind": "legend", "entries": entries}


def figures(*found: tuple[Chart, str]) -> Part:
    """Charts with their captions, side by side if there is room."""
    set_ = [{"svg": Markup(str(chart)), "caption": caption} for chart, caption in found]
    return {"kind": "figures", "figures": set_}


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int] = (),
    **more: Any,
) -> Part:
    """A table; ``numbers`` are the indices of the columns that hold numbers."""
    part = {"kind": "table", "caption": caption, "head": head, "rows": rows, "numbers": numbers}
    return {**part, "css": "", "shades": None, "closed": False, **more}


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out rows of a run and their predictions, as arrays.

    The predictions are the last columns of ``run.held_out``. They are found by position, since the table may
    have columns of the same names.
    """

    run: Run

    @property
    def rows(self) -> int:
        """The number of held-out rows."""
        return len(self.run.held_out)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class labels; empty for a regression."""
        return self.run.preprocessor.classes

    @property
    def _names(self) -> tuple[str, ...]:
        if self.classes:
            return ("label", *[""] * len(self.classes), "entropy", "mutual_information")
        return ("mean", "std", "epistemic", "aleatoric", "lower", "upper")

    @property
    def table(self) -> pd.DataFrame:
        """The held-out rows without their predictions."""
        return self.run.held_out.iloc[:, : -len(self._names)]

    def __getitem__(self, name: str) -> np.ndarray:
        place = self._names.index(name) - len(self._names)
        return self.run.held_out.iloc[:, place].to_numpy(float)

    @property
    def one_point(self) -> bool:
        """Whether the posterior is a single set of weights, so that the epistemic uncertainty is zero."""
        draws = self.run.posterior.approximation
        return isinstance(draws, Draws) and draws.shape == (1, 1)

    @cached_property
    def y(self) -> np.ndarray:
        """The targets: numbers, or class numbers."""
        return self.run.preprocessor.targets(self.table)

    @cached_property
    def probs(self) -> np.ndarray:
        """The predicted probabilities, of shape ``(rows, classes)``."""
        return self.run.held_out.iloc[:, -len(self.classes) - 2 : -2].to_numpy(float)

    @property
    def unknown(self) -> np.ndarray:
        """The epistemic uncertainty: a standard deviation, or the mutual information of class and weights."""
        if self.classes:
            return np.maximum(self["mutual_information"], 0)
        return np.sqrt(self["epistemic"])
