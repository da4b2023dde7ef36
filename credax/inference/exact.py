"""Exact inference: Bayes' rule, summed over all values that discrete weights can take."""

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
"""The most memory that the states of an enumeration may take; all of them are kept."""
ALTERNATIVES = "Metropolis, SimulatedAnnealing or BlackBoxVI, which also take discrete weights"


@dataclass(frozen=True)
class Lattice:
    """All states (sets of weights) that a discrete prior allows, numbered from 0.

    A state's number, written in a mixed radix with one digit for each weight, lists which of its values each
    weight takes. The radix of a digit is the number of values of its weight.

    Attributes:
      structure: the treedef of the parameters.
      leaves: for each leaf of the parameters, its shape, its dtype and the values of its weights.
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
        """A map from each number of values to the number of weights that have this many values."""
        powers = Counter()
        for shape, _, values in self.leaves:
            powers[len(values)] += math.prod(shape)
        return dict(sorted(powers.items()))

    @cached_property
    def count(self) -> int:
        """The number of states."""
        return math.prod(values**weights for values, weights in self.powers.items())

    @property
    def log10(self) -> float:
        """The decimal logarithm of the number of states, which itself may have millions of digits."""
        return sum(weights * math.log10(values) for values, weights in self.powers.items())

    @property
    def bytes(self) -> int:
        """The memory that all states take, with a log weight for each."""
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
        """The weights of the state with this number.

        For an array of numbers, each leaf has the array's shape in front of its own.
        """
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
    """The sum over the states visited so far."""

    log_joints: Array  # of each state, in the order of the visits; -inf where not yet visited
    log_total: Array  # the log of the sum of the joint densities
    key: Key  # determines the order of the visits


class Info(NamedTuple):
    """The info of a step."""

    log_evidence: Array  # estimated from the states visited so far


@dataclass(frozen=True)
class Enumeration(Method):
    r"""Every state of the weights, with its exact posterior probability.

    .. math::
        P(w \mid D) = \frac{p(D \mid w)\, P(w)}{\sum_{w'} p(D \mid w')\, P(w')}

    The draws of the posterior are all states, weighted by their joint densities. The log evidence is the log of
    the denominator, with standard error 0. The states are visited in a random order, so a run that is stopped
    early has visited a random sample of them, drawn without replacement, and the standard error of its log
    evidence is that of such a sample.

    Args:
      limit: the largest number of states to enumerate.
      num_steps: the number of steps over which the states are divided.

    Reference: MacKay, Information Theory, Inference, and Learning Algorithms, 2003, chapter 21.
    """

    limit: int = setting(2**20, integer)
    num_steps: int = setting(256, integer)

    kind = "exact"
    needs = frozenset()
    when_diverged = "A state of the weights must have a finite log joint, or -inf: scale x and y."

    when = "a few discrete weights, for which it gives the exact posterior"
    errs = "nothing: the sum over all states is exact"

    def check(self, model: Any, data: Any) -> None:
        """Also refuse weights that are not discrete, and more states than ``limit`` or the memory allows."""
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
        # The number of states may have a million digits; then it is never computed.
        if lattice.log10 > 30 or lattice.count > self.limit:
            allowed = f"at least the number of states of the weights, {lattice}"
            message = must("Enumeration", "limit", allowed, self.limit)
            raise ValueError(f"{message} For so many states, use {ALTERNATIVES}.")
        if lattice.bytes > BYTES:
            raise ValueError(
                f"Enumeration keeps every state, and {lattice} take {lattice.bytes / 1e9:.1f} GB; the limit is "
                f"{BYTES / 1e9:.1f} GB. Use {ALTERNATIVES}."
            )

    def init(self, key, model, data):
        """No state visited yet."""
        dtype = jnp.result_type(float)
        log_joints = jnp.full(self.num_steps * self._block(Lattice.of(model)), -jnp.inf, dtype)
        # `fit` splits the same key in two, for rows and steps; the third part is used nowhere else.
        order_key = jax.random.split(key, 3)[2]
        nothing = jnp.full((), -jnp.inf, dtype)
        return State(log_joints, nothing, order_key)

    def step(self, key, state, model, batch, step):
        """Visit one block of states."""
        lattice, network = Lattice.of(model), model.init_state()
        block = self._block(lattice)
        places = step * block + jnp.arange(block, dtype=jnp.int32)
        numbers = random.shuffled(state.key, places, lattice.count)

        def log_joint(number):
            value = model.log_joint(lattice.at(number), batch, state=network)
            return value.astype(state.log_joints.dtype)

        values = lax.map(log_joint, numbers, batch_size=at_once(model, batch))
        # Beyond the last place, the order starts again: those states must not be counted twice.
        values = jnp.where(places < lattice.count, values, -jnp.inf)
        log_joints = lax.dynamic_update_slice(state.log_joints, values, (places[0],))
        log_total = jnp.logaddexp(state.log_total, jax.nn.logsumexp(values))
        counted = jnp.minimum(places[-1] + 1, lattice.count).astype(log_total.dtype)
        estimate = log_total + math.log(lattice.count) - jnp.log(counted)
        # Infinite as long as every state visited has probability zero; an info must be finite.
        finite = jnp.maximum(estimate, jnp.finfo(estimate.dtype).min)
        return State(log_joints, log_total, state.key), Info(finite)

    def posterior(self, model, trace):
        """The states visited, in the order of their numbers, weighted by their joint densities."""
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
            # Uneven weights are no problem if they are exact, but they are if the states are a sample.
            info["effective_sample_size"] = effective_sample_size(log_weights)
        return Posterior(model, draws, info=info, log_evidence=log_evidence)

    def _block(self, lattice: Lattice) -> int:
        """The number of states per step."""
        return -(-lattice.count // self.num_steps)


def _log_sum(log_joints: np.ndarray, lattice: Lattice) -> Estimate | None:
    r"""The log of the sum over all states, from a random sample of them without replacement.

    .. math:: \hat Z = \frac{N}{n} \sum_{i=1}^n z_i, \qquad
              \operatorname{Var} \hat Z \approx N^2 \left(1 - \frac{n}{N}\right) \frac{s_z^2}{n}

    With n = N this is the sum itself, and its variance is zero. The result is ``None`` if n = 1 < N, since one
    state does not tell how much the states vary.
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
