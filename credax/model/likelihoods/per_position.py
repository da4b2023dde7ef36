"""A likelihood that applies at each position of a row: the words of a sentence, the pixels of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from credax.core.rows import Observed
from credax.core.settings import REQUIRED, instance_of, setting
from credax.core.typing import Array
from credax.model.likelihoods.likelihood import Likelihood


def _lengths(owner: str, name: str, value: Any) -> tuple[int, ...]:
    return tuple(int(length) for length in value)


@dataclass(frozen=True)
class PerPosition(Likelihood):
    r"""The same likelihood at each position of a row, independently given the outputs.

    .. math:: \log p(y_i \mid f_w(x_i)) = \sum_p c_{ip} \log p(y_{ip} \mid f_w(x_i)_p)

    with the weight c of a position, which is one unless weights are given. A model makes this likelihood itself
    if its network returns an array with more than two axes: you pass the likelihood of one position.

    Within a fit, a row of outputs has all positions along one axis, ``(rows, positions * outputs)``, and the
    targets are ``Observed``.

    Args:
      likelihood: the likelihood of one position.
      positions: the lengths of the axes between the rows and the outputs, such as ``(height, width)``; ``()``
        for one target per row that has a weight of its own.
    """

    likelihood: Likelihood = setting(REQUIRED, instance_of(Likelihood, "a likelihood"))
    positions: tuple[int, ...] = setting((), _lengths)

    @property
    def task(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """The task at each position."""
        return self.likelihood.task

    @property
    def standardises(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the targets of a position may be standardised."""
        return self.likelihood.standardises

    @property
    def learned(self):
        return self.likelihood.learned

    @property
    def size(self) -> int:
        """The number of positions of a row."""
        return math.prod(self.positions)

    def information(self):
        return self.likelihood.information()

    def init(self, outputs):
        return self.likelihood.init(outputs // self.size)

    @property
    def parameter_prior(self):
        return self.likelihood.parameter_prior

    def with_parameter_prior(self, prior):
        return replace(self, likelihood=self.likelihood.with_parameter_prior(prior))

    def _flat(self, outputs: Array) -> Array:
        """The outputs of all positions, ``(rows * positions, outputs)``."""
        return outputs.reshape(outputs.shape[0] * self.size, -1)

    def each_log_prob(self, outputs: Array, y: Observed, params: Any = None) -> Array:
        """log p(y | outputs) at each position, without its weight, ``(rows, positions)``."""
        found = self.likelihood.log_prob(self._flat(outputs), y.flat, params)
        return found.reshape(outputs.shape[0], self.size)

    def log_prob(self, outputs, y, params=None):
        """log p(y | outputs) of each row, summed over its positions by weight."""
        found = self.each_log_prob(outputs, y, params)  # pyright: ignore[reportArgumentType]
        return jnp.sum(found if y.weights is None else y.weights.astype(found.dtype) * found, -1)

    def mean(self, outputs, params=None):
        return self.likelihood.mean(self._flat(outputs), params).reshape(outputs.shape[0], -1)

    def variance(self, outputs, params=None):
        return self.likelihood.variance(self._flat(outputs), params).reshape(outputs.shape[0], -1)

    def sample(self, key, outputs, params=None):
        drawn = self.likelihood.sample(key, self._flat(outputs), params)
        return drawn.reshape(outputs.shape[0], -1)

    def entropy(self, outputs, params=None):
        """The joint entropy of the positions of a row, which is the sum of their entropies."""
        found = self.likelihood.entropy(self._flat(outputs), params)
        return jnp.sum(found.reshape(outputs.shape[0], self.size), axis=1)
