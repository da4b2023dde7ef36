"""Likelihoods for classes: one of several, or yes and no."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core.settings import at_least, optional, setting
from credax.model.likelihoods.likelihood import Likelihood
from credax.model.likelihoods.targets import (
    check_labels,
    check_shape,
    classes_of,
    like_outputs,
    plain,
)


@dataclass(frozen=True)
class Categorical(Likelihood):
    r"""One of several classes.

    .. math:: P(y = k) = \operatorname{softmax}(f_w(x))_k

    Args:
      num_classes: the number of classes K. If ``None``, it is taken from the targets, which must then contain
        each of 0, 1, ..., K - 1 at least once.
    """

    task = "classification"

    num_classes: int | None = setting(None, optional(at_least(2)))

    def check_targets(self, y):
        advice = "Relabel them, e.g. by np.unique(y, return_inverse=True)[1]"
        return check_labels("Categorical", y, self.num_classes, 2, "", advice)

    def bind(self, y):
        return self if self.num_classes is not None else replace(self, num_classes=int(y.max()) + 1)

    def bind_as(self, earlier: Any):
        super().bind_as(earlier)
        return replace(self, num_classes=classes_of(self, self.num_classes, earlier.num_classes))

    def num_outputs(self, y):
        return int(y.max()) + 1 if self.num_classes is None else self.num_classes

    def log_prob(self, outputs, y, params=None):
        labels = jnp.asarray(y).reshape(*outputs.shape[:-1], 1).astype(jnp.int32)
        # A comparison rather than a gather, whose gradient is a scatter, which is slow on accelerators.
        of_label = labels == lax.broadcasted_iota(jnp.int32, outputs.shape, outputs.ndim - 1)
        return jnp.sum(jax.nn.log_softmax(outputs), axis=-1, where=of_label)

    def mean(self, outputs, params=None):
        return self.probs(outputs)

    def variance(self, outputs, params=None):
        """p (1 - p), the variance of the indicator of each class."""
        probs = self.probs(outputs)
        return probs * (1 - probs)

    def sample(self, key, outputs, params=None):
        return jax.random.categorical(key, outputs).astype(jnp.int32)

    def probs(self, outputs, params=None):
        return jax.nn.softmax(outputs)

    def entropy(self, outputs, params=None):
        log_probs = jax.nn.log_softmax(outputs)
        probs = jnp.exp(log_probs)
        # 0 log 0 = 0, even if the logarithm is minus infinity.
        return -jnp.sum(probs * jnp.where(probs > 0, log_probs, 0), axis=-1)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    r"""A label that is 0 or 1, with one logit per target; several targets are independent labels.

    .. math:: P(y = 1) = \operatorname{sigmoid}(f_w(x))
    """

    task = "classification"

    def check_targets(self, y):
        y = check_shape(self, y)
        if not np.all((y == 0) | (y == 1)):
            got = plain(y[(y != 0) & (y != 1)][0])
            raise ValueError(f"y must hold only 0 and 1 for Bernoulli(); got {got}.")
        return y.astype(np.int32)

    def log_prob(self, outputs, y, params=None):
        # log P(y) = log sigmoid(+-logit) is accurate for both labels.
        sign = 2 * like_outputs(self, y, outputs) - 1
        return jnp.sum(jax.nn.log_sigmoid(sign * outputs), axis=-1)

    def mean(self, outputs, params=None):
        return jax.nn.sigmoid(outputs)

    def variance(self, outputs, params=None):
        # Not p (1 - p), which would be zero as soon as p is rounded to one.
        return jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs)

    def sample(self, key, outputs, params=None):
        draws = jax.random.bernoulli(key, jax.nn.sigmoid(outputs)).astype(jnp.int32)
        return draws[..., 0] if outputs.shape[-1] == 1 else draws

    def probs(self, outputs, params=None):
        """The probabilities of 0 and 1, ``(rows, 2)``, if there is a single target."""
        if outputs.shape[-1] != 1:
            raise ValueError(
                f"Bernoulli.probs needs one target; got {outputs.shape[-1]}. Use mean: the "
                "probability that each label is 1."
            )
        return jnp.concatenate([jax.nn.sigmoid(-outputs), jax.nn.sigmoid(outputs)], axis=-1)

    def entropy(self, outputs, params=None):
        """The joint entropy of the labels of a row, which is the sum of their entropies."""
        one, zero = jax.nn.sigmoid(outputs), jax.nn.sigmoid(-outputs)
        terms = one * jax.nn.softplus(-outputs) + zero * jax.nn.softplus(outputs)
        return jnp.sum(terms, axis=-1)
