"""The likelihood of classes that have an order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import integer, must
from credax.core.settings import optional, setting
from credax.core.special import softplus
from credax.core.typing import Array
from credax.model.likelihoods.likelihood import Learned, Likelihood
from credax.model.likelihoods.regression import _continuous, _learned
from credax.model.likelihoods.targets import check_labels, classes_of, points
from credax.model.priors import Normal, Prior


def _three(owner: str, name: str, value: Any) -> int:
    count = integer(owner, name, value)
    if count < 3:
        raise ValueError(must(owner, name, "at least 3; two classes need Bernoulli()", value))
    return count


@dataclass(frozen=True)
class Ordinal(Likelihood):
    r"""One of several classes that have an order, such as grades, stars or severities.

    .. math:: P(y \le k) = \operatorname{sigmoid}(c_k - f_w(x)), \qquad c_0 < c_1 < \dots < c_{K-2}

    The network has one output, which moves a row along the order. The thresholds c are learned: the first one
    as the parameter ``first``, the gaps between them as the softplus of ``gaps``.

    Args:
      num_classes: the number of classes K, at least three. If ``None``, it is taken from the targets, which
        must then contain each of 0, 1, ..., K - 1 at least once.
      threshold_prior: the prior of ``first`` and ``gaps``.
    """

    task = "classification"

    num_classes: int | None = setting(None, optional(_three))
    threshold_prior: Prior = setting(Normal(3.0), _continuous)

    @property
    def learned(self):
        return True

    def check_targets(self, y):
        order, advice = " in their order", "Relabel them"
        return check_labels("Ordinal", y, self.num_classes, 3, order, advice)

    def bind(self, y):
        return self if self.num_classes is not None else replace(self, num_classes=int(y.max()) + 1)

    def bind_as(self, earlier: Any):
        super().bind_as(earlier)
        return replace(self, num_classes=classes_of(self, self.num_classes, earlier.num_classes))

    def with_parameter_prior(self, prior):
        return replace(self, threshold_prior=prior)

    def num_outputs(self, y):
        return 1

    @property
    def _classes(self) -> int:
        if self.num_classes is None:
            raise ValueError("Ordinal() needs num_classes= before it has seen data.")
        return self.num_classes

    def init(self, outputs):
        """Thresholds at which all classes are equally probable if the network returns zero."""
        share = np.arange(1, self._classes) / self._classes
        thresholds = np.log(share / (1 - share))
        gaps = np.log(np.expm1(np.diff(thresholds)))
        dtype = jnp.result_type(float)
        return {"first": jnp.asarray(thresholds[:1], dtype), "gaps": jnp.asarray(gaps, dtype)}

    @property
    def parameter_prior(self):
        return self.threshold_prior

    def thresholds(self, params: Learned | None, dtype: Any = None) -> Array:
        """c, ``(K - 1,)``."""
        params = _learned(self, "threshold_prior", params)
        steps = jnp.concatenate([params["first"], softplus(params["gaps"])])
        return jnp.cumsum(steps if dtype is None else steps.astype(dtype))

    def _log_probs(self, outputs: Array, params: Learned | None) -> Array:
        """The logarithm of the probability of each class, ``(rows, classes)``.

        With a < b, sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b)), in which no digits
        cancel.
        """
        if outputs.shape[-1] != 1:
            raise ValueError(f"Ordinal needs one output per row; got {outputs.shape[-1]}.")
        above = self.thresholds(params, outputs.dtype) - outputs
        none = jnp.zeros_like(outputs)
        reached = jnp.concatenate([jax.nn.log_sigmoid(above), none], axis=-1)
        passed = jnp.concatenate([none, jax.nn.log_sigmoid(-above)], axis=-1)
        between = jnp.log(-jnp.expm1(above[..., :-1] - above[..., 1:]))
        inner = jnp.concatenate([none, between, none], axis=-1)
        return reached + passed + inner

    def log_prob(self, outputs, y, params=None):
        labels = jnp.asarray(y).reshape(*outputs.shape[:-1], 1).astype(jnp.int32)
        of_label = labels == jnp.arange(self._classes, dtype=jnp.int32)
        return jnp.sum(self._log_probs(outputs, params), axis=-1, where=of_label)

    def mean(self, outputs, params=None):
        return self.probs(outputs, params)

    def variance(self, outputs, params=None):
        """p (1 - p), the variance of the indicator of each class."""
        probs = self.probs(outputs, params)
        return probs * (1 - probs)

    def sample(self, key, outputs, params=None):
        return jax.random.categorical(key, self._log_probs(outputs, params)).astype(jnp.int32)

    def cdf(self, outputs, t, params=None):
        """P(y <= t | outputs), ``(rows, 1)``."""
        t = points(t, outputs.dtype)
        classes = jnp.arange(self._classes, dtype=outputs.dtype)
        return jnp.sum(self.probs(outputs, params), axis=-1, keepdims=True, where=classes <= t)

    def probs(self, outputs, params=None):
        return jnp.exp(self._log_probs(outputs, params))

    def entropy(self, outputs, params=None):
        log_probs = self._log_probs(outputs, params)
        probs = jnp.exp(log_probs)
        return -jnp.sum(probs * jnp.where(probs > 0, log_probs, 0), axis=-1)
