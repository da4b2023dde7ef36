"""Exact sums over discrete weights: Bayes' rule with nothing left out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import random
from credax.core.checks import integer, must, shown
from credax.core.settings import setting
from credax.core.typing import Array, Key, Params
from credax.inference.method import Method
from credax.inference.weighting import LOW_BY_HALF_ITS_VARIANCE, at_once, effective_sample_size
from credax.posterior import Estimate, Posterior
from credax.posterior.approximations import Draws

BYTES = 2 << 30
"""The states of an enumeration are all kept, as long as they take no more than this."""
ALTERNATIVES = "Metropolis, SimulatedAnnealing or BlackBoxVI, which take discrete weights too"


@dataclass(frozen=True)
class Lattice:
    """All sets of weights that a discrete prior allows, numbered from 0.

    The digits of a number, in the mixed radix of how many values each weight has, say which of its values
    each weight takes.

    Attributes:
      structure: the treedef of the parameters.
      leaves: shape, dtype and values of the weights of each leaf.
    """

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], str, tuple[float, ...]], ...]

    @classmethod
    def of(cls, model: Any) -> Lattice:
        """The lattice of a model with a discrete prior."""
        params = jax.eval_shape(model.init, jax.random.key(0))
        leaves, structure = jax.tree.flatten(params)
        priors = jax.tree.leaves(model.leaf_priors(params))
        parts = zip(leaves, priors, strict=True)
        return cls(structure, tuple((w.shape, str(w.dtype), tuple(p.values)) for w, p in parts))

    @cached_property
    def powers(self) -> dict[int, int]:
        """How many values a weight has, to how many weights have so many."""
        powers = Counter()
        for shape, _, values in self.leaves:
            powers[len(values)] += math.prod(shape)
        return dict(sorted(powers.items()))

    @cached_property
    def count(self) -> int:
        """How many there are."""
        return math.prod(values**weights for values, weights in self.powers.items())

    @property
    def log10(self) -> float:
        """The decimal logarithm of the count, which may be too long to write down."""
        return sum(weights * math.log10(values) for values, weights in self.powers.items())

    @property
    def bytes(self) -> int:
        """What all of them take, with a log weight each."""
        sizes = (math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype, _ in self.leaves)
        return self.count * (sum(sizes) + 8)

    def __str__(self) -> str:
        factors = [f"{values}^{weights}" for values, weights in self.powers.items() if values > 1]
        power = " x ".join(factors) or "1"
        if self.log10 < 9:
            return f"{power} = {self.count:,} states"
        exponent = int(self.log10)
        mantissa, carried = f"{10 ** (self.log10 - exponent):.2e}".split("e")
        return f"{power} = {mantissa}e+{exponent + int(carried)} states"

    def at(self, number: Any) -> Params:
        """The weights of a number, or of an array of numbers: leaves with its shape in front of theirs."""
        numpy = jnp if isinstance(number, jax.Array) else np
        number, stride, trees = number.astype(np.uint32), 1, []
        for shape, dtype, values in self.leaves:
            radix, size = len(values), math.prod(shape)
            strides = np.array([stride * radix**i for i in range(size)], np.uint32)
            digits = number[..., None] // strides % np.uint32(radix)
            leaf = numpy.asarray(values, dtype)[digits]
            trees.append(leaf.reshape(*number.shape, *shape))
            stride *= radix**size
        return jax.tree.unflatten(self.structure, trees)


class State(NamedTuple):
    """How far the sum is."""

    log_joints: Array  # of the states in the order in which they are counted; -inf: not yet
    log_total: Array  # the log of their sum
    key: Key  # of the order


class Info(NamedTuple):
    """What a step shows."""

    log_evidence: Array  # estimated from the states counted so far


@dataclass(frozen=True)
class Enumeration(Method):
    r"""Every state of the weights, with its exact posterior probability.

    .. math::
        P(w \mid D) = \frac{p(D \mid w)\, P(w)}{\sum_{w'} p(D \mid w')\, P(w')}

    The posterior's draws are all states, its log weights their log joints, and its log evidence is the log of
    the denominator, with standard error 0. The states are counted in a random order, so a run that is cut
    short is a random sample of them without replacement, and says how uncertain its evidence is.

    Args:
      limit: the most states to count.
      num_steps: over how many steps the states are spread.
    """

    limit: int = setting(2**20, integer)
    num_steps: int = setting(256, integer)

    kind = "exact"
    needs = frozenset()
    when_diverged = "A state of the weights must have a finite log joint, or -inf: scale x and y."

    when = "few discrete weights: the answer itself"

    def check(self, model: Any, data: Any) -> None:
        """Refuses weights that are not discrete, and more states than can be counted or kept."""
        if not model.discrete:
            prior = getattr(model, "prior", None)
            got = type(model).__name__ if prior is None else f"the prior {shown(prior)}"
            raise ValueError(
                "Enumeration needs weights that take a few values each, under a discrete prior such as "
                f"cx.priors.Discrete([-1, 1]); got {got}."
            )
        super().check(model, data)
        if jax.tree.leaves(model.init_state()) and not model.network.pretrained:
            raise ValueError(
                "Enumeration needs a network without batch statistics: no method trains those of discrete "
                "weights."
            )
        lattice = Lattice.of(model)
        # A number of a million digits is never written out, not even to be compared.
        if lattice.log10 > 30 or lattice.count > self.limit:
            allowed = f"at least the number of states of the weights, {lattice}"
            message = must("Enumeration", "limit", allowed, self.limit)
            raise ValueError(f"{message} For so many use {ALTERNATIVES}.")
        if lattice.bytes > BYTES:
            raise ValueError(
                f"Enumeration keeps every state, and {lattice} take {lattice.bytes / 1e9:.1f} GB, more than "
                f"the {BYTES / 1e9:.1f} GB that it may. Use {ALTERNATIVES}."
            )

    def init(self, key, model, data):
        """Nothing counted yet."""
        dtype = jnp.result_type(float)
        log_joints = jnp.full(self.num_steps * self._block(Lattice.of(model)), -jnp.inf, dtype)
        # The loop splits the same key in two: the third part is nobody else's.
        order_key = jax.random.split(key, 3)[2]
        nothing = jnp.full((), -jnp.inf, dtype)
        return State(log_joints, nothing, order_key)

    def step(self, key, state, model, batch, step):
        """Counts one block of states."""
        lattice, network = Lattice.of(model), model.init_state()
        block = self._block(lattice)
        places = step * block + jnp.arange(block, dtype=jnp.int32)
        numbers = random.shuffled(state.key, places, lattice.count)

        def log_joint(number):
            value = model.log_joint(lattice.at(number), batch, state=network)
            return value.astype(state.log_joints.dtype)

        values = lax.map(log_joint, numbers, batch_size=at_once(model, batch))
        # Beyond the last place the order begins anew; nothing counts twice.
        values = jnp.where(places < lattice.count, values, -jnp.inf)
        log_joints = lax.dynamic_update_slice(state.log_joints, values, (places[0],))
        log_total = jnp.logaddexp(state.log_total, jax.nn.logsumexp(values))
        counted = jnp.minimum(places[-1] + 1, lattice.count).astype(log_total.dtype)
        estimate = log_total + math.log(lattice.count) - jnp.log(counted)
        finite = jnp.maximum(
            estimate, jnp.finfo(estimate.dtype).min
        )  # no state so far had any weight
        return State(log_joints, log_total, state.key), Info(finite)

    def posterior(self, model, trace):
        """All states counted, in the order of their numbers, weighed by their joint probability."""
        lattice = Lattice.of(model)
        counted = min(trace.steps * self._block(lattice), lattice.count)
        places = np.arange(counted, dtype=np.int32)
        numbers = np.asarray(random.shuffled(trace.state.key[0], places, lattice.count))
        order = np.argsort(numbers)
        log_weights = np.asarray(trace.state.log_joints, np.float64)[:1, order]
        params = jax.tree.map(lambda leaf: leaf[None], lattice.at(numbers[order]))
        repeat = lambda leaf: np.broadcast_to(leaf, (1, counted, *np.shape(leaf)))  # noqa: E731
        draws = Draws(params, jax.tree.map(repeat, model.init_state()), log_weights)
        log_evidence = _log_sum(log_weights[0], lattice)
        info: dict[str, Any] = {"states": lattice.count, "counted": counted}
        if counted < lattice.count:
            # Exact weights may well be uneven; those of a sample must not be.
            info["effective_sample_size"] = effective_sample_size(log_weights)
        return Posterior(model, draws, info=info, log_evidence=log_evidence)

    def _block(self, lattice: Lattice) -> int:
        """States a step."""
        return -(-lattice.count // self.num_steps)


def _log_sum(log_joints: np.ndarray, lattice: Lattice) -> Estimate | None:
    r"""The log of the sum over all states, from a random sample of them without replacement.

    .. math:: \hat Z = \frac{N}{n} \sum_{i=1}^n z_i, \qquad
              \operatorname{Var} \hat Z \approx N^2 \left(1 - \frac{n}{N}\right) \frac{s_z^2}{n}

    With n = N it is the sum itself, and the variance zero. ``None`` where one state says nothing of the others.
    """
    count, total = len(log_joints), lattice.count
    largest = log_joints.max()
    if largest == -np.inf:
        raise ValueError(
            f"Enumeration found no weights that explain the data: each of {count:,} states has the log "
            "joint -inf. Give a likelihood under which the data are possible."
        )
    relative = np.exp(log_joints - largest)
    mean = math.fsum(relative.tolist()) / count
    log_evidence = float(largest + math.log(mean * total))
    if count == total:
        return Estimate(log_evidence, 0.0, "not at all: exact")
    if count == 1:
        return None
    variance = (1 - count / total) * float(np.var(relative, ddof=1)) / count
    return Estimate(log_evidence, math.sqrt(variance) / mean, LOW_BY_HALF_ITS_VARIANCE)
