"""Ensembles whose members share their weights: BatchEnsemble (Wen, Tran & Ba, 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from credax.core.checks import integer, positive
from credax.core.settings import optional, setting
from credax.core.special import normal_log_density
from credax.core.typing import Array, Params
from credax.inference.ensembles.deep_ensemble import several
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.point import JointInfo, State, ascend
from credax.posterior import Posterior
from credax.posterior.approximations.rank_one import (
    Layouts,
    RankOne,
    matrix_sides,
    member_weights,
)
from credax.tracing.products import Rows


class Point(NamedTuple):
    """The variables that the optimiser changes."""

    params: Params  # W, and everything that the members share unchanged
    inputs: Params  # r, with the members along the first axis
    outputs: Params  # s, likewise


@dataclass(frozen=True)
class BatchEnsemble(Method):
    r"""An ensemble whose members share their weights, up to a factor for each input and output of a layer.

    .. math::
        W_e = W \circ r_e s_e^\top, \qquad
        \max_{W, r, s}\; \log p(W) + \frac{1}{S} \sum_{e=1}^{S} \left[\log p(D \mid W_e)
            + \log N(r_e, s_e \mid 1, \tau^2)\right]

    The vectors r and s begin at draws from their prior, so that members differ; if they are all one, every
    member is the network itself. They belong to the weights that are used in exactly one product, as in dense
    layers and convolutions. All other parameters, such as biases, are shared.

    Args:
      members: the number of members S, at least two.
      num_steps: the number of optimiser steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax``, or an optax transformation.
      spread: tau, the standard deviation of the factors around one.

    References: Wen, Tran & Ba, BatchEnsemble: An alternative approach to efficient ensemble and lifelong
    learning, 2020; Dusenberry et al., Efficient and scalable Bayesian neural nets with rank-1 factors, 2020,
    for the prior of the factors.
    """

    members: int = setting(4, several)
    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    spread: float = setting(0.5, positive)

    kind = "approximate"
    needs = frozenset({"gradient", "likelihood"})
    when = "an ensemble in the memory of a single network, also of a pretrained one"
    errs = "members that share their weights differ less than separate ones: too sure"

    def check(self, model: Any, data: Any) -> None:
        """Also refuse a network in which no weight is used in exactly one product."""
        super().check(model, data)
        if not any(self.layouts(model, data.x)):
            raise ValueError(
                "BatchEnsemble needs a network with weights that are used in exactly one product; this "
                f"{type(model.network).__name__} has none. Use DeepEnsemble."
            )

    def layouts(self, model: Any, x: Any) -> Layouts:
        """How each leaf of the parameters is arranged as a matrix; ``()`` where members share it."""
        params = jax.eval_shape(model.init, jax.random.key(0))
        leaves, tree = jax.tree.flatten(params)
        network, _ = model.split(params)
        rows = Rows(model.network, network, model.init_state(), x)
        # The likelihood may have parameters too: the indices of the network's leaves among all leaves.
        numbers = jax.tree.leaves(model.split(jax.tree.unflatten(tree, range(len(leaves))))[0])
        found = {numbers[i]: product.layout for i, product in rows.products.items()}
        return tuple(found.get(i, ()) for i in range(len(leaves)))

    def init(self, key, model, data: Any):
        """The initial weights of the network, and vectors drawn from their prior."""
        weights_key, vectors_key = jax.random.split(key)
        params = model.init(weights_key)
        leaves, tree = jax.tree.flatten(params)
        sides = [
            matrix_sides(leaf.shape, layout)
            for leaf, layout in zip(leaves, self.layouts(model, data.x), strict=True)
        ]

        def draw(key, side):
            keys = jax.random.split(key, len(sides))
            dtype = jnp.result_type(float)
            vectors = [
                1 + self.spread * jax.random.normal(k, (self.members, each[side]), dtype)
                for k, each in zip(keys, sides, strict=True)
            ]
            return jax.tree.unflatten(tree, vectors)

        inputs_key, outputs_key = jax.random.split(vectors_key)
        point = Point(params, draw(inputs_key, 0), draw(outputs_key, 1))
        repeat = lambda leaf: jnp.broadcast_to(leaf, (self.members, *leaf.shape))  # noqa: E731
        network = jax.tree.map(repeat, model.init_state())
        return State(point, network, make_optimiser(self).init(point))

    def step(self, key, state, model, batch: Any, step):
        """Take one optimiser step with the shared weights and all vectors."""
        layouts = self.layouts(model, batch.x)

        def objective(point, batch, network, key):
            return self.objective_of(model, layouts, point, batch, network, key)

        state, value = ascend(self, key, state, objective, batch)
        return state, JointInfo(value)

    def objective_of(self, model, layouts: Layouts, point: Point, batch, network, key):
        """A minibatch estimate of what is maximised, and the next state of the network for each member."""

        def member(r, s, network, key):
            weights = member_weights(point.params, r, s, layouts)
            return model.train_log_likelihood(weights, batch, network, key)

        keys = jax.random.split(key, self.members)
        values, network = jax.vmap(member)(point.inputs, point.outputs, network, keys)
        value = model.log_prior(point.params) + jnp.mean(values)
        return value + self._log_prior(point).astype(value.dtype), network

    def _log_prior(self, point: Point) -> Array:
        """The log density of the vectors of a member, averaged over the members."""
        leaves = jax.tree.leaves((point.inputs, point.outputs))
        count = sum(leaf[0].size for leaf in leaves)
        total = sum(jnp.sum(normal_log_density((leaf - 1) / self.spread)) for leaf in leaves)
        return total / self.members - count * jnp.log(jnp.asarray(self.spread, leaves[0].dtype))

    def posterior(self, model, trace: Any):
        """The members, equally weighted."""
        state = jax.tree.map(lambda leaf: leaf[0], jax.device_get(trace.state))
        layouts = self.layouts(model, trace.data.x)
        point: Point = state.params
        ensemble = RankOne(point.params, point.inputs, point.outputs, layouts, state.network)
        return Posterior(model, ensemble)
