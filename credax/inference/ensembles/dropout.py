"""Monte Carlo dropout (Gal & Ghahramani, 2016) and concrete dropout (Gal, Hron & Kendall, 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import fraction, integer, must
from credax.core.precision import widened
from credax.core.rows import some_rows
from credax.core.settings import flag, optional, setting
from credax.core.trees import tree_paths
from credax.core.typing import Array, Draw, Params
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.point import State, ascend
from credax.model.networks import CNN, MLP
from credax.model.networks.seeded import Seeded
from credax.posterior import Posterior
from credax.posterior.approximations.masks import (
    Masked,
    Seeds,
    Sites,
    entropy,
    expected_log_prior,
    maskable,
    masked,
    masks,
    relaxed_masks,
)
from credax.tracing.random_weights import each_row
from credax.tracing.randomness import uses_key
from credax.tracing.usage import sites as find_sites

RATE, RATE_FOR_NUMBERS = 0.1, 0.01
"""The default rates for a network without dropout, the second for real targets: what the masks add to the
variance of the outputs is learned as noise too, and so counts twice. Over yacht, energy, concrete, Boston and
wine, the mean log likelihood of a held-out tenth of the training rows was -1.92 with a rate of 0.01, -2.01
with 0.02, -2.18 with 0.05."""


class Point(NamedTuple):
    """The variables that the optimiser changes."""

    params: Params  # M, the weights without masks
    logits: Array | None  # of learned rates, one for each leaf of the parameters


class Info(NamedTuple):
    """The info of a step."""

    log_joint: Array  # minibatch estimate of E_q log p(w, D), before the step


class LearnedInfo(NamedTuple):
    """The info of a step if the rates are learned."""

    log_joint: Array  # as in `Info`, plus the entropy of the masks
    rate: Array  # the mean over the masked leaves of the parameters


@dataclass(frozen=True)
class MCDropout(Method):
    r"""Dropout in training and in prediction, where each dropout mask is a draw of the weights.

    .. math::
        w = \operatorname{diag}(z)\, M / (1 - p), \quad z_i \sim \operatorname{Bernoulli}(1 - p), \qquad
        \max_M\; E_q \log p(D \mid w) + E_q \log p(w)

    A network that already has dropout keeps it at the same places. In a network without dropout, the inputs of
    every weight that is used once, in a product, are masked; biases are never masked. In training, each row has
    its own masks. In prediction, all rows share the masks of a draw, so that each draw is one function.

    Args:
      rate: p, the probability that an input is dropped. If ``None``, the rate of the network; for a network
        without dropout 0.01 if the targets are real numbers, and 0.1 otherwise.
      num_steps: the number of optimiser steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax``, or an optax transformation.
      learned: whether to learn a separate rate for each masked weight, starting at ``rate`` (concrete dropout).

    References: Gal & Ghahramani, Dropout as a Bayesian approximation, 2016; Gal, Hron & Kendall,
    Concrete dropout, 2017.
    """

    rate: float | None = setting(None, optional(fraction))
    num_steps: int = setting(5_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    learned: bool = setting(False, flag)

    kind = "approximate"
    needs = frozenset({"gradient", "likelihood"})
    when = "a network that is trained with dropout anyway"
    errs = (
        "its rate fixes the spread: on few rows several times too unsure in the data, with too much noise; "
        "far from the data too sure"
    )

    def check(self, model: Any, data: Any) -> None:
        """Also refuse networks without inputs to mask, and a rate for networks that have their own."""
        super().check(model, data)
        if self.sites(model, data.x) is not None:
            return
        of_its_own = "for a network with dropout of its own, which keeps its rates"
        if self.rate is not None:
            raise ValueError(must("MCDropout", "rate", f"None {of_its_own}", self.rate))
        if self.learned:
            raise ValueError(must("MCDropout", "learned", f"False {of_its_own}", self.learned))

    def sites(self, model: Any, x: Any) -> Sites | None:
        """Where the inputs of each leaf are masked; ``None`` if the network itself applies the dropout."""
        network = model.network
        masked_here = _hidden_kernels(network)
        if not masked_here and uses_key(network, x):
            return None

        state = network.init_state()
        train = not jax.tree.leaves(state)  # a single row has no batch statistics

        def call(params, row):
            return network.call(model.split(params)[0], row, state=state, key=None, train=train)[0]

        params = jax.eval_shape(model.init, jax.random.key(0))
        found = find_sites(call, params, some_rows(x, 1))
        if masked_here:
            names = [path.removeprefix("network/") for path in tree_paths(params)]
            found = [s if n in masked_here else None for s, n in zip(found, names, strict=True)]
        if not any(found):
            raise ValueError(
                "MCDropout needs a network with dropout, or with weights whose inputs can be masked (weights "
                f"used once, in a product); this {type(network).__name__} has neither."
            )
        return tuple(found)

    def init(self, key, model, data):
        """The weights with which the network is initialised, and the initial rates if they are learned."""
        params, logits = model.init(key), None
        if self.learned:
            rate, count = self._rate(model), len(jax.tree.leaves(params))
            logits = jnp.full(count, math.log(rate / (1 - rate)), jnp.result_type(float))
        point = Point(params, logits)
        return State(point, model.init_state(), make_optimiser(self).init(point))

    def _rate(self, model) -> float:
        """The fixed rate p, or the initial one if rates are learned."""
        own = model.network.dropout if isinstance(model.network, MLP | CNN) else 0.0
        usual = RATE_FOR_NUMBERS if model.likelihood.task == "regression" else RATE
        return self.rate or own or usual

    def rates(self, model, sites: Sites, logits: Array | None) -> Array:
        """The rate p of each leaf of the parameters; zero for leaves that are not masked."""
        here = jnp.asarray([site is not None for site in sites], jnp.result_type(float))
        return here * (self._rate(model) if logits is None else jax.nn.sigmoid(logits))

    def step(self, key, state, model, batch: Any, step):
        """Take one optimiser step that increases the bound."""
        sites = self.sites(model, batch.x)
        if sites is None:

            def own(point, *rest):
                return model.train_log_joint(point.params, *rest)

            state, value = ascend(self, key, state, own, batch)
            return state, Info(value)
        state, value = ascend(self, key, state, partial(self.bound, model, sites), batch)
        if not self.learned:
            return state, Info(value)
        rates = self.rates(model, sites, state.params.logits)
        return state, LearnedInfo(value, jnp.sum(rates) / sum(site is not None for site in sites))

    def bound(self, model, sites: Sites, point: Point, batch, network, key):
        """A minibatch estimate of the bound that is maximised, and the network's next state."""
        rates = self.rates(model, sites, point.logits)
        value, network = self._log_likelihood(model, sites, point, rates, batch, network, key)
        value += expected_log_prior(model, point.params, sites, rates)
        return (value + entropy(sites, rates) if self.learned else value), network

    def _log_likelihood(self, model, sites, point, rates, batch, network, key):
        """The log likelihood, with separate masks for each row unless batch statistics couple the rows."""
        if _hidden_kernels(model.network) and not self.learned:
            own = replace(model.network, dropout=self._rate(model))
            dropping = replace(model, network=own)
            return dropping.train_log_likelihood(point.params, batch, network, key)
        draw = relaxed_masks if self.learned else masks
        if jax.tree.leaves(network):
            # Batch statistics couple the rows, so all rows share a mask: still unbiased, but noisier.
            params = masked(point.params, sites, draw(key, sites, rates))
            return model.train_log_likelihood(params, batch, network, None)

        def weights(key):
            return model.split(maskable(point.params, sites, draw(key, sites, rates)))[0]

        likelihood = model.split(point.params)[1]

        def of_batch(batch, network, key):
            outputs = widened(each_row(model.forward, weights, batch.x, key))
            log_prob = model.likelihood.log_prob(outputs, batch.y, likelihood)
            return batch.sum(log_prob), network

        return model.sum_of_parts(of_batch, batch, network, key)

    def draw(self, key, state, model, rows):
        """The weights with a random mask; ``None`` if the network itself applies the dropout."""
        sites = self.sites(model, model.a_row())
        if sites is None:
            return None
        params, logits = state.params
        scales = masks(key, sites, self.rates(model, sites, logits))
        return Draw(masked(params, sites, scales), state.network)

    def posterior(self, model, trace: Any):
        """A posterior whose draws are masks.

        ``info["rates"]`` has the names of the weights whose inputs are masked, and their rates.
        """
        point, network, _ = jax.tree.map(lambda leaf: leaf[0], jax.device_get(trace.state))
        sites = self.sites(model, trace.data.x)
        if sites is None:
            model = replace(model, network=Seeded(model.network))
            return Posterior(model, Seeds(point.params, (network, model.init_state()[1])))
        rates = np.asarray(self.rates(model, sites, point.logits))
        named = zip(tree_paths(point.params), rates, sites, strict=True)
        shown = {path: round(float(rate), 6) for path, rate, site in named if site is not None}
        approximation = Masked(point.params, rates, sites, network)
        return Posterior(model, approximation, info={"rates": shown})


def _hidden_kernels(network) -> set[str]:
    """The names of the weights whose inputs are masked if an ``MLP`` or ``CNN`` has dropout."""
    if not isinstance(network, MLP | CNN) or network.dropout == 0:
        return set()
    layer = "layer" if isinstance(network, MLP) else "dense"
    return {f"{layer}_{i + 1}/kernel" for i in range(len(network.hidden))}
