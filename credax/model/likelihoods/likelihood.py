"""The base class of likelihoods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Self

import jax.numpy as jnp
import numpy as np

from credax.core.settings import Settings
from credax.core.typing import Array, Key
from credax.model.likelihoods.targets import as_floats, check_shape, width
from credax.model.priors import Prior

Learned = dict[str, Array]
"""The learned parameters of a likelihood, by name."""


class Likelihood(Settings, ABC):
    """The density of the targets given the outputs of the network, and quantities derived from it."""

    task: ClassVar[Literal["regression", "classification", "count"]]
    standardises: ClassVar[bool] = True
    """Whether real-valued targets may be standardised: their origin and unit have no meaning of their own."""

    @property
    def learned(self) -> bool:
        """Whether the likelihood has parameters that are learned in addition to the network's."""
        return False

    def check_targets(self, y: np.ndarray) -> np.ndarray:
        """Check the targets and convert them to the shape and dtype that this likelihood uses."""
        return as_floats(check_shape(self, y))

    def bind(self, y: np.ndarray) -> Self:
        """This likelihood, completed with what depends on the targets, such as the number of classes."""
        return self

    def bind_as(self, earlier: Likelihood) -> Likelihood:
        """This likelihood, completed like that of an earlier fit instead of from the targets.

        Args:
          earlier: the likelihood of the earlier fit, which must be of the same kind.
        """
        if type(earlier) is not type(self) or earlier.learned != self.learned:
            raise ValueError(
                f"Model(likelihood=...) must be of the kind of the fit that the prior comes from, {earlier}; "
                f"got {self}."
            )
        return self

    def with_parameter_prior(self, prior: Prior) -> Self:
        """This likelihood with another prior of its learned parameters."""
        raise TypeError(f"{self._owner} has no learned parameters.")

    def information(self) -> float:
        """What a row tells about a learned parameter, at least about: the Fisher information of one of them."""
        return 1.0

    def num_outputs(self, y: np.ndarray) -> int:
        """The number of outputs that the network needs for these targets."""
        return width(y)

    def init(self, outputs: int) -> Learned | None:
        """The initial values of the learned parameters, or ``None`` if there are none."""
        return None

    @property
    def parameter_prior(self) -> Prior | None:
        """The prior of the learned parameters, or ``None`` if there are none."""
        return None

    def log_prior(self, params: Learned | None) -> Array:
        """The log density of the learned parameters under their prior."""
        prior = self.parameter_prior
        return jnp.zeros((), jnp.result_type(float)) if prior is None else prior.log_prob(params)

    @abstractmethod
    def log_prob(self, outputs: Array, y: Array, params: Learned | None = None) -> Array:
        """log p(y | outputs) of each row, summed over the targets of the row.

        Most likelihoods also take outputs with further axes after the rows, and then return one value for each
        position, ``(rows, positions...)``.
        """

    @abstractmethod
    def mean(self, outputs: Array, params: Learned | None = None) -> Array:
        """E[y | outputs], ``(rows, targets)``; for ``Categorical``, the probability of each class."""

    @abstractmethod
    def variance(self, outputs: Array, params: Learned | None = None) -> Array:
        """Var[y | outputs], in the shape of the mean."""

    @abstractmethod
    def sample(self, key: Key, outputs: Array, params: Learned | None = None) -> Array:
        """A draw of y, ``(rows, targets)``; if each row has one class, an array of integers ``(rows,)``."""

    def cdf(self, outputs: Array, t: Array, params: Learned | None = None) -> Array:
        """P(y <= t | outputs) of each target, if the targets are ordered."""
        raise TypeError(f"{type(self).__name__} has no cdf: classes have no order.")

    def probs(self, outputs: Array, params: Learned | None = None) -> Array:
        """The probability of each class, ``(rows, classes)``."""
        raise TypeError(f"{type(self).__name__} has no probs: its targets are not classes.")

    def entropy(self, outputs: Array, params: Learned | None = None) -> Array:
        """The entropy of the class given the outputs, in nats, ``(rows,)``."""
        raise TypeError(f"{type(self).__name__} has no entropy: its targets are not classes.")
