"""Predictions for the rows of a source, which are read and predicted one block after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from credax.core.errors import SourceError
from credax.model.sources import Source
from credax.model.sources.source import Rows
from credax.model.sources.streamed import BLOCK, check_rows_of
from credax.posterior.predictive import Predictive

if TYPE_CHECKING:
    from credax.posterior.posterior import Posterior

SCORED, SCORED_BYTES = 100_000, 256 << 20
"""The most rows, and the most bytes of inputs, on which a posterior is evaluated."""
NUMBERS = ("mean", "epistemic", "aleatoric")
CLASSES = ("probs", "entropy", "expected_entropy", "mutual_information")


def _field(name: str) -> Any:
    """A field of all rows, like that of ``Predictive``."""

    def found(self: SourcePredictive) -> np.ndarray:
        if name not in self._fields:
            getattr(
                next(iter(self)), name
            )  # raises the error that says for which likelihoods it is
        return self._fields[name]

    found.__doc__ = getattr(Predictive, name).__doc__
    return property(found)


class SourcePredictive:
    """The predictive distribution of each row of a source.

    The fields are those of :class:`Predictive`, as arrays over all rows, computed in one pass when the first of
    them is used. A loop over this object gives the ``Predictive`` of one block of rows after the other, for
    results that are too large to be kept, or that are written as they come.

    Args:
      posterior: the posterior.
      source: the rows.
      num_samples: the number of draws to average over, as in ``predict``.
      key: an int or a JAX key, with which the draws are chosen; the same ones for all rows.
    """

    def __init__(self, posterior: Posterior, source: Source, num_samples: int | None, key: Any):
        if not source.countable:
            raise SourceError(
                f"The rows of {source!r}, a function, cannot be predicted one by one."
            )
        self._posterior, self._source = posterior, source
        self._num_samples, self._key = num_samples, key

    def __repr__(self) -> str:
        return f"SourcePredictive({self._source!r})"

    def __len__(self) -> int:
        return self._source.rows

    def __iter__(self) -> Iterator[Predictive]:
        """The predictions of one block of rows after the other."""
        for rows in self._source.blocks(BLOCK):
            yield self._of(rows)

    def _of(self, rows: Rows) -> Predictive:
        check_rows_of(rows)
        return self._posterior.predict(rows.x, num_samples=self._num_samples, key=self._key)

    mean = _field("mean")
    epistemic = _field("epistemic")
    aleatoric = _field("aleatoric")
    variance = _field("variance")
    std = _field("std")
    probs = _field("probs")
    label = _field("label")
    entropy = _field("entropy")
    expected_entropy = _field("expected_entropy")
    mutual_information = _field("mutual_information")

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that contains y with probability ``level``: its lower and upper ends."""
        lower, upper = self.collect(lambda block: np.stack(block.interval(level), 1)).swapaxes(0, 1)
        return lower, upper

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles of y under the mixture; the result has the shape of ``q``, then that of ``mean``."""
        count = np.ndim(q)
        found = self.collect(lambda block: np.moveaxis(block.quantile(q), count, 0))
        return np.moveaxis(found, 0, count)

    def log_prob(self) -> np.ndarray:
        """The log density of the targets of the source, ``(rows,)``."""
        found = []
        for rows in self._source.blocks(BLOCK):
            if rows.y is None:
                raise SourceError("This source has no targets, whose density could be computed.")
            found.append(self._of(rows).log_prob(rows.y))
        return np.concatenate(found)

    def collect(self, function: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        """The results of a function of each block, with rows along the first axis, joined."""
        return np.concatenate([np.asarray(function(block)) for block in self])

    @cached_property
    def _fields(self) -> dict[str, np.ndarray]:
        classification = self._posterior.model.likelihood.task == "classification"  # pyright: ignore[reportAttributeAccessIssue]
        names, parts = [*NUMBERS], []
        for block in self:
            if classification and not parts:
                # Several labels per row have no probabilities of classes.
                names += [name for name in CLASSES if hasattr(block, name)]
            parts.append([getattr(block, name) for name in names])
        fields = dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True))
        fields["variance"] = fields["epistemic"] + fields["aleatoric"]
        fields["std"] = np.sqrt(fields["variance"])
        if "probs" in fields:
            fields["label"] = np.argmax(fields["probs"], axis=-1)
        return fields


def scored_rows(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and targets of the rows on which a posterior is evaluated: random ones, if there are many."""
    if not source.countable:
        raise SourceError(f"The rows of {source!r}, a function, cannot be evaluated one by one.")
    one = max(1, source.read([0]).x.nbytes)
    rows = source.read(source.some(min(SCORED, max(1000, SCORED_BYTES // one))))
    if rows.y is None:
        raise SourceError("This source has no targets, which an evaluation needs.")
    check_rows_of(rows)
    return rows.x, rows.y
