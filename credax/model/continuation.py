"""What a posterior hands on to the next fit: its distribution as a prior, and the units of its weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from credax.model.data import ArrayData
from credax.model.model import Model
from credax.model.priors import Prior


@dataclass(frozen=True)
class FromPosterior:
    """A posterior as the prior of another fit. Made by ``posterior.as_prior()`` for ``cx.fit(..., prior=...)``.

    Attributes:
      prior: the prior of the network's weights.
      likelihood: the prior of the learned parameters of the likelihood, such as the noise scale; ``None`` if
        there are none.
      model: the model of the earlier fit. The next fit keeps its shapes and classes, and the scales of its
        columns if it standardises its data, since the weights would otherwise mean something else.
    """

    prior: Prior
    likelihood: Prior | None
    model: Model = field(repr=False)

    def prepare(self, model: Model, data: Any, weights: Any = None) -> tuple[Model, ArrayData]:
        """The model with this prior, bound as in the earlier fit, and the checked data on the device."""
        likelihood = model.likelihood
        if self.likelihood is not None and likelihood.learned:
            likelihood = likelihood.with_parameter_prior(self.likelihood)
        model = replace(model, prior=self.prior, likelihood=likelihood)
        return model.prepare_as(data, self.model, weights)
