"""The predictions of a model with several heads: those of each head, by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from credax.model import Model
from credax.model.data import check_weights
from credax.model.shapes import head
from credax.posterior.approximations import Samples
from credax.posterior.predictive import Predictive


class HeadsPredictive(Mapping[str, Predictive]):
    """The predictive distributions of all heads, ``predictive["price"].mean``.

    All heads use the same samples of the parameters. They are independent given the parameters, and dependent
    without them: :meth:`log_prob` is the density of all targets of a row together.

    Args:
      model: the model.
      x: the rows, as the network takes them.
      samples: the samples of the parameters to average over.
    """

    def __init__(self, model: Model, x: Any, samples: Samples):
        self._model, self._x, self._samples = model, x, samples
        self._heads: dict[str, Predictive] = {}

    @property
    def x(self) -> Any:
        """The rows."""
        return self._x

    @property
    def _names(self) -> tuple[str, ...]:
        return self._model.likelihood.names  # pyright: ignore[reportAttributeAccessIssue]

    def __getitem__(self, name: str) -> Predictive:
        if name not in self._heads:
            self._heads[name] = Predictive(head(self._model, name), self._x, self._samples)
        return self._heads[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {self[name]!r}" for name in self)

    def __getattr__(self, name: str) -> NoReturn:
        first = self._names[0] if not name.startswith("_") else ""
        hint = (
            f" Choose a head first: predictive[{first!r}].{name}."
            if hasattr(Predictive, name)
            else ""
        )
        raise AttributeError(f"The predictions of several heads have no {name!r}.{hint}")

    @cached_property
    def _whole(self) -> Predictive:
        return Predictive(self._model, self._x, self._samples)

    def log_prob(self, y: Mapping[str, Any], *, weights: Any = None) -> np.ndarray:
        """The log density of all targets of each row together, ``(rows,)``.

        Args:
          y: the targets of each head.
          weights: the weights of heads, as a dictionary of arrays for some of them; where one is zero, the
            target may be anything and does not count. Or those of the rows: where one is zero, the result is.
        """
        heads = weights if isinstance(weights, Mapping) else None
        found = self._whole.log_prob(y, weights=heads, joint=True)
        of_rows = None if isinstance(weights, Mapping) else check_weights(weights, len(found))
        return found if of_rows is None else np.where(of_rows > 0, found, np.zeros_like(found))
