"""Early stopping on the held-out log likelihood, for every method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import fraction, integer, must
from credax.core.typing import Key, PyTree
from credax.inference.method import Method, Trace
from credax.model.data import check_array, check_lengths, pair, to_numpy

if TYPE_CHECKING:
    from credax.model import Model


@dataclass(frozen=True, eq=False)
class EarlyStopping:
    """When to end a run before its last step.

    Args:
      validation: held-out ``(x, y)``; ``None`` holds out a ``fraction`` of the rows.
      fraction: the share of rows held out where no ``validation`` is given.
      every: steps between two looks.
      patience: looks without a new best before the run ends.
    """

    validation: tuple[Any, Any] | None = None
    fraction: float = 0.1
    every: int = 100
    patience: int = 5

    def __post_init__(self):
        fraction("EarlyStopping", "fraction", self.fraction)
        integer("EarlyStopping", "every", self.every)
        integer("EarlyStopping", "patience", self.patience)

    @staticmethod
    def of(value: EarlyStopping | bool | None) -> EarlyStopping | None:
        """What the argument of ``fit`` means."""
        if value is None or isinstance(value, EarlyStopping):
            return value
        if isinstance(value, bool):
            return EarlyStopping() if value else None
        raise TypeError(must("fit", "early_stopping", "an EarlyStopping, True or False", value))

    def held_out(self, key: Key, data: Any) -> tuple[Any, EarlyStopping]:
        """The rows to train on, and the stopping with its validation rows."""
        if self.validation is not None:
            return data, self
        x, y = pair(data)
        check_lengths(check_array("x", x), check_array("y", y))
        x, y = to_numpy("x", x), to_numpy("y", y)
        rows = len(x)
        count = round(rows * self.fraction)
        if not 0 < count < rows:
            raise ValueError(
                f"early_stopping needs rows to hold out: {self.fraction} of {rows} rows is {count}. "
                "Pass EarlyStopping(validation=(x, y))."
            )
        order = np.asarray(jax.random.permutation(key, rows))
        train, out = np.sort(order[count:]), np.sort(order[:count])
        return (x[train], y[train]), replace(self, validation=(x[out], y[out]))

    def check(self, model: Model) -> None:
        """Refuses held-out rows that are unlike those of the fit, before the first look would."""
        try:
            x, y = pair(self.validation)
            model.check_targets(y, len(model.check_inputs(x)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"EarlyStopping(validation=...): {error}") from None


class Stopper:
    """The looks of one run: its scores, and the best state so far."""

    def __init__(self, stopping: EarlyStopping, model: Any, method: Method):
        self.stopping, self.model, self.method = stopping, model, method
        self.steps: list[int] = []
        self.scores: list[float] = []
        self.best: PyTree | None = None

    def next_look(self, begin: int, end: int) -> int:
        """The end of a chunk that must not run past the next look."""
        every = self.stopping.every
        return min(end, (begin // every + 1) * every)

    def look(self, step: int, trace: Trace) -> bool:
        """Scores the run where a look is due; whether it is time to stop."""
        due = step % self.stopping.every == 0 or step == self.method.num_steps
        if not due or (trace.draws is not None and not _any_draws(trace.draws)):
            return False
        assert self.stopping.validation is not None, "held_out fills it in"
        x, y = self.stopping.validation
        posterior = self.method.posterior(self.model, trace)
        score = float(np.mean(posterior.predict(x).log_prob(y)))
        if not self.scores or score > max(self.scores):
            self.best = jax.tree.map(jnp.copy, trace.state)
        self.steps.append(step)
        self.scores.append(score)
        return self.finished

    @property
    def finished(self) -> bool:
        """Whether the last ``patience`` looks brought no new best."""
        if not self.scores:
            return False
        return len(self.scores) - 1 - int(np.argmax(self.scores)) >= self.stopping.patience

    def best_trace(self, trace: Trace) -> Trace:
        """The run with the state of its best look; with its last state where there was no look."""
        if self.best is None:
            return trace
        return replace(trace, state=self.best, steps=self.steps[int(np.argmax(self.scores))])

    def history(self) -> np.ndarray:
        """The looks, ``(look, [step, score])``."""
        return np.column_stack([self.steps, self.scores]) if self.steps else np.zeros((0, 2))


def _any_draws(draws: PyTree) -> bool:
    return jax.tree.leaves(draws)[0].shape[1] > 0
