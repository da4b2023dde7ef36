"""Early stopping on the held-out log likelihood, for all methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import fraction, integer, must
from credax.core.settings import Settings, setting
from credax.core.typing import Key, PyTree
from credax.inference.method import Method, Trace
from credax.model.data import check_array, check_lengths, check_weights, pair, to_numpy
from credax.model.inputs import leaves_of, take
from credax.model.sources import Source
from credax.posterior.predictive import mean_log_prob

if TYPE_CHECKING:
    from credax.model import Model


@dataclass(frozen=True, eq=False)
class EarlyStopping(Settings):
    """When to end a run before its last step.

    Args:
      validation: the held-out rows ``(x, y)``. If ``None``, a ``fraction`` of the training rows is held out.
      fraction: the fraction of rows to hold out if there is no ``validation``.
      every: the number of steps between two evaluations of the held-out log likelihood.
      patience: the number of evaluations without a new best value after which the run ends.
      weights: the weights of the rows of ``validation``, in the mean of their log likelihoods. If ``None``,
        every row counts once; rows that are held out of weighted data keep their weights.
    """

    validation: tuple[Any, Any] | None = field(default=None, repr=False)
    fraction: float = setting(0.1, fraction)
    every: int = setting(100, integer)
    patience: int = setting(5, integer)
    weights: Any = field(default=None, repr=False)

    @staticmethod
    def of(value: EarlyStopping | bool | None) -> EarlyStopping | None:
        """The settings for the argument ``early_stopping`` of ``fit``."""
        if value is None or isinstance(value, EarlyStopping):
            return value
        if isinstance(value, bool):
            return EarlyStopping() if value else None
        raise TypeError(must("fit", "early_stopping", "an EarlyStopping, True or False", value))

    def held_out(self, key: Key, data: Any) -> tuple[Any, EarlyStopping]:
        """The rows to train on, and the settings with their validation rows."""
        if self.validation is not None:
            return data, self
        if self.weights is not None:
            allowed = "None without validation, whose rows they are for"
            raise ValueError(must("EarlyStopping", "weights", allowed, self.weights))
        if isinstance(data, Source):
            raise TypeError(
                "early_stopping needs rows to hold out, which are not taken from a source. Pass "
                "EarlyStopping(validation=(x, y))."
            )
        x, y = pair(data)
        train, out = self._parts(key, data)
        training, held_out = ((take("x", x, part), take("y", y, part)) for part in (train, out))
        return training, replace(self, validation=held_out)

    def held_out_weights(self, key: Key, data: Any, weights: Any) -> tuple[Any, Any]:
        """The weights of the rows to train on, and of the validation rows, of :meth:`held_out`."""
        if self.validation is not None or weights is None:
            return weights, self.weights
        train, out = self._parts(key, data)
        each = [check_array("weights", leaf) for leaf in leaves_of(weights)]
        for leaf in each:
            if len(leaf) != len(train) + len(out):
                check_weights(leaf, len(train) + len(out))
        if not all(leaf[part].any() for leaf in each for part in (train, out)):
            raise ValueError(
                "early_stopping needs rows of positive weight to train on and to hold out; all weights of one "
                "of the two parts are zero. Pass EarlyStopping(validation=(x, y))."
            )
        return take("weights", weights, train), take("weights", weights, out)

    def _parts(self, key: Key, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the rows to train on and of those to hold out."""
        x, y = pair(data)
        checked = [check_array("x", leaf) for leaf in leaves_of(x)]
        for leaf in leaves_of(y):
            # Targets at hidden positions may be anything, and are checked with their weights later.
            check_lengths(
                checked[0],
                to_numpy("y", leaf)
                if np.ndim(leaf) > 1 or isinstance(y, Mapping)
                else check_array("y", leaf),
            )
        rows = len(checked[0])
        count = round(rows * self.fraction)
        if not 0 < count < rows:
            raise ValueError(
                f"early_stopping needs rows to hold out: {self.fraction} of {rows} rows is {count}. "
                "Pass EarlyStopping(validation=(x, y))."
            )
        order = np.asarray(jax.random.permutation(key, rows))
        return np.sort(order[count:]), np.sort(order[:count])

    def check(self, model: Model) -> None:
        """Refuse held-out rows whose shapes or values do not suit the model, before the run starts."""
        try:
            x, y = pair(self.validation)
            rows = len(model.check_inputs(x))
            if model.divided:
                model.likelihood_targets(y, rows, self.weights)
            else:
                model.check_targets(y, rows)
                check_weights(self.weights, rows)
        except (TypeError, ValueError) as error:
            raise type(error)(f"EarlyStopping(validation=...): {error}") from None


class Stopper:
    """The evaluations of one run: their steps and scores, and the best state so far."""

    def __init__(self, stopping: EarlyStopping, model: Any, method: Method):
        self.stopping, self.model, self.method = stopping, model, method
        self.steps: list[int] = []
        self.scores: list[float] = []
        self.best: PyTree | None = None
        self.share: Callable[[float], float] = lambda score: score  # all hosts go by that of host 0

    def next_look(self, begin: int, end: int) -> int:
        """The end of a chunk, moved forward to the next evaluation if that is earlier."""
        every = self.stopping.every
        return min(end, (begin // every + 1) * every)

    def look(self, step: int, trace: Trace) -> bool:
        """Evaluate the run if it is due; return whether to stop."""
        due = step % self.stopping.every == 0 or step == self.method.num_steps
        if not due or (trace.draws is not None and not _any_draws(trace.draws)):
            return False
        assert self.stopping.validation is not None, "held_out fills it in"
        x, y = self.stopping.validation
        posterior = self.method.posterior(self.model, trace)
        score = self.share(mean_log_prob(posterior.predict(x), y, self.stopping.weights))
        if not self.scores or score > max(self.scores):
            self.best = jax.tree.map(jnp.copy, trace.state)
        self.steps.append(step)
        self.scores.append(score)
        return self.finished

    @property
    def finished(self) -> bool:
        """Whether the last ``patience`` evaluations brought no new best score."""
        if not self.scores:
            return False
        return len(self.scores) - 1 - int(np.argmax(self.scores)) >= self.stopping.patience

    def best_trace(self, trace: Trace) -> Trace:
        """The trace with the best state; the trace unchanged if there was no evaluation."""
        if self.best is None:
            return trace
        return replace(trace, state=self.best, steps=self.steps[int(np.argmax(self.scores))])

    def history(self) -> np.ndarray:
        """The step and the score of each evaluation, of shape ``(evaluations, 2)``."""
        return np.column_stack([self.steps, self.scores]) if self.steps else np.zeros((0, 2))


def _any_draws(draws: PyTree) -> bool:
    return jax.tree.leaves(draws)[0].shape[1] > 0
