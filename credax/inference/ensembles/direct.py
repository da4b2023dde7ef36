"""Direct ensembles (Lakshminarayanan et al., 2017; Hansen & Salamon, 1990)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from credax.checks import integer
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, check_learning_rate
from credax.inference.point import MAP, points


@dataclass(frozen=True)
class DeepEnsemble(Method):
    r"""Several networks, trained on the same data from different initial values.

    .. math::
        \bar f = \tfrac{1}{S} \sum_s f_s, \qquad \operatorname{Var} f = \tfrac{1}{S} \sum_s (f_s - \bar f)^2

    Each member is a ``MAP`` run with its own initial weights and minibatches; all of them are one batched
    program.

    Args:
      members: S.
      num_steps: steps of the optimiser, of each member.
      batch_size: rows a step; ``None``: all of them.
      learning_rate: of the optimiser; a number decays to zero along a cosine, an optax schedule is used as is.
      optimiser: a name in ``optax`` or an optax transformation.
    """

    members: int = 5
    num_steps: int = 2_000
    batch_size: int | None = None
    learning_rate: LearningRate = 1e-2
    optimiser: Any = "adam"

    def __post_init__(self):
        object.__setattr__(self, "members", integer("DeepEnsemble", "members", self.members))
        self.check_settings()
        check_learning_rate(self)

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A member each."""
        return self.members

    @property
    def member(self) -> MAP:
        """How one member is trained."""
        return MAP(self.num_steps, self.batch_size, self.learning_rate, self.optimiser)

    def init(self, key, model, data):
        """A member's own initial values."""
        return self.member.init(key, model, data)

    def step(self, key, state, model, batch):
        """One step of a member's training."""
        return self.member.step(key, state, model, batch)

    def posterior(self, model, trace):
        """The members, all of the same weight."""
        return points(model, trace)
