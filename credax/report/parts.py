"""What a page is made of: sections, and the kinds of parts that the template knows how to set."""

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
      id: the anchor.
      title: its heading.
      how: how to read it, in one sentence.
      parts: what it shows.
    """

    id: str
    title: str
    how: str
    parts: list[Part] = field(default_factory=list)


def text(words: str, css: str = "") -> Part:
    """A paragraph."""
    return {"kind": "text", "text": words, "css": css}


def absent(
    words: str = "No rows were kept from the fit, so there is nothing to judge it by.",
) -> Part:
    """Why there is nothing to show."""
    return text(words, "absent")


def sentences(found: Sequence[str]) -> Part:
    """The sentences to remember."""
    return {"kind": "sentences", "sentences": found}


def facts(found: Sequence[tuple[str, str]]) -> Part:
    """Names with what they are."""
    return {"kind": "facts", "facts": found}


def legend(entries: Sequence[tuple[str, str]]) -> Part:
    """Colours with their names."""
    return {"kind": "legend", "entries": entries}


def figures(*found: tuple[Chart, str]) -> Part:
    """Charts with their captions, side by side where there is room."""
    set_ = [{"svg": Markup(str(chart)), "caption": caption} for chart, caption in found]
    return {"kind": "figures", "figures": set_}


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int] = (),
    **more: Any,
) -> Part:
    """A table, with the numbers of the columns that hold numbers."""
    part = {"kind": "table", "caption": caption, "head": head, "rows": rows, "numbers": numbers}
    return {**part, "css": "", "shades": None, "closed": False, **more}


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows kept from a fit and what was predicted for them, as arrays.

    Predictions are the last columns of ``run.held_out``, whatever the table's own columns are named.
    """

    run: Run

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.run.held_out)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels; none for numbers."""
        return self.run.preprocessor.classes

    @property
    def _names(self) -> tuple[str, ...]:
        if self.classes:
            return ("label", *[""] * len(self.classes), "entropy", "mutual_information")
        return ("mean", "std", "epistemic", "aleatoric", "lower", "upper")

    @property
    def table(self) -> pd.DataFrame:
        """The rows as they came."""
        return self.run.held_out.iloc[:, : -len(self._names)]

    def __getitem__(self, name: str) -> np.ndarray:
        place = self._names.index(name) - len(self._names)
        return self.run.held_out.iloc[:, place].to_numpy(float)

    @property
    def one_point(self) -> bool:
        """Whether a single set of weights made the predictions, which then know of no doubt about it."""
        draws = self.run.posterior.approximation
        return isinstance(draws, Draws) and draws.shape == (1, 1)

    @cached_property
    def y(self) -> np.ndarray:
        """The targets: numbers, or the numbers of classes."""
        y = self.run.preprocessor.encode_target(self.table)
        return y if self.classes else self.run.preprocessor.centre + self.run.preprocessor.scale * y

    @cached_property
    def probs(self) -> np.ndarray:
        """Of the classes, ``(rows, classes)``."""
        return self.run.held_out.iloc[:, -len(self.classes) - 2 : -2].to_numpy(float)

    @property
    def unknown(self) -> np.ndarray:
        """The epistemic part: a standard deviation, or the mutual information of class and weights."""
        if self.classes:
            return np.maximum(self["mutual_information"], 0)
        return np.sqrt(self["epistemic"])
