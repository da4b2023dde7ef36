"""Several likelihoods, one for each of the named outputs of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from credax.core.checks import must
from credax.core.settings import REQUIRED, optional, setting
from credax.core.typing import Array
from credax.model.likelihoods.likelihood import Likelihood
from credax.model.priors import Prior, prior_from


def _named(owner: str, name: str, value: Any) -> tuple[tuple[str, Likelihood], ...]:
    """Check a mapping of names to likelihoods; return its pairs, which are hashable."""
    allowed = "a mapping of names to likelihoods, e.g. {'price': cx.likelihoods.Gaussian()}"
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, tuple | list) or not pairs:
        raise TypeError(must(owner, name, allowed, value))
    for pair in pairs:
        named = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
        if not named or not isinstance(pair[1], Likelihood) or isinstance(pair[1], Heads):
            raise TypeError(must(owner, name, allowed, value))
        if not pair[0] or set("/*?[]") & set(pair[0]):
            raise ValueError(
                f"{owner}({name}=...) must have names without any of / * ? [ ]; got {pair[0]!r}."
            )
    return tuple((str(head), likelihood) for head, likelihood in pairs)


def _sizes(owner: str, name: str, value: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in value)


@dataclass(frozen=True)
class Heads(Likelihood):
    r"""Several targets of different kinds: a likelihood for each of the named outputs of a network.

    .. math:: \log p(y_i \mid f_w(x_i)) = \sum_h \log p_h(y_{ih} \mid f_w(x_i)_h)

    The network returns a dictionary of outputs and ``y`` is a dictionary of targets, both with the names of the
    heads. ``cx.Model(likelihood={"price": ..., "sold": ...})`` makes it of a plain mapping, and
    ``posterior.predict(x)["price"]`` is the prediction of one head.

    Args:
      likelihoods: the likelihood of each head by name. Its learned parameters are those of each head, by name.
      sizes: the number of outputs of each head, all positions counted. It is set by the data of a fit.
      learned_prior: the prior of the learned parameters of all heads; if ``None``, each head's own.
    """

    task = "heads"  # pyright: ignore[reportAssignmentType]
    standardises = False

    likelihoods: Mapping[str, Likelihood] = setting(REQUIRED, _named)
    sizes: tuple[int, ...] | None = setting(None, optional(_sizes), repr=False)
    learned_prior: Prior | None = setting(None, optional(prior_from), repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the heads."""
        return tuple(name for name, _ in self._pairs)

    @property
    def _pairs(self) -> tuple[tuple[str, Likelihood], ...]:
        return self.likelihoods  # pyright: ignore[reportReturnType]  (the check makes it pairs)

    def __getitem__(self, name: str) -> Likelihood:
        return dict(self._pairs)[name]

    def slices(self) -> dict[str, slice]:
        """Where the outputs of each head are among all outputs of a row."""
        if self.sizes is None:
            raise ValueError("Heads(...) does not know the outputs of its heads before a fit.")
        ends = np.cumsum(self.sizes).tolist()
        begins = [0, *ends[:-1]]
        return {
            name: slice(*ends_of)
            for name, ends_of in zip(self.names, zip(begins, ends, strict=True), strict=True)
        }

    def _each(self, outputs: Array, params: Any) -> Iterator[tuple[str, Likelihood, Array, Any]]:
        """The name, likelihood, outputs and learned parameters of each head."""
        for name, where in self.slices().items():
            own = None if params is None else params.get(name)
            yield name, self[name], outputs[:, where], own

    @property
    def learned(self):
        return any(likelihood.learned for _, likelihood in self._pairs)

    @property
    def parameter_prior(self):
        if not self.learned:
            return None
        if self.learned_prior is not None:
            return self.learned_prior
        own = {name: each.parameter_prior for name, each in self._pairs if each.learned}
        return prior_from("Heads", "likelihoods", {f"{k}/*": v for k, v in own.items()})

    def with_parameter_prior(self, prior):
        return replace(self, learned_prior=prior)

    def init(self, outputs):
        pairs = zip(self._pairs, self.sizes or (), strict=True)
        own = {name: each.init(size) for (name, each), size in pairs if each.learned}
        return own or None  # pyright: ignore[reportReturnType]

    def log_prob(self, outputs, y, params=None):
        """log p(y | outputs) of each row, summed over the heads."""
        targets = y.tree
        each = self._each(outputs, params)
        return sum(one.log_prob(part, targets[name], own) for name, one, part, own in each)

    def mean(self, outputs, params=None):
        """The means of all heads, ``(rows, all targets)``."""
        each = self._each(outputs, params)
        return jnp.concatenate([one.mean(part, own) for _, one, part, own in each], axis=1)

    def variance(self, outputs, params=None):
        each = self._each(outputs, params)
        return jnp.concatenate([one.variance(part, own) for _, one, part, own in each], axis=1)

    def sample(self, key, outputs, params=None):
        raise TypeError(
            "Heads has no sample: draw from one head, predictive['name'].sample(key, n)."
        )
