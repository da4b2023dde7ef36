r"""A regression whose last layer is integrated out: what is left of its posterior when that is done exactly.

The mean that a network predicts is linear in the weights v of its last layer, :math:`\mu = F(u)\, v`, with
features F of the other weights u. Under normal noise and a normal prior the integral over v is known,

.. math::
    p(u \mid D) \propto p(u) \int p(Y \mid F(u)\, v)\, p(v)\, \mathrm{d}v, \qquad
    v \mid u, D \sim N\!\left(\bar v, A^{-1}\right), \quad A = F^\top F + I, \quad A \bar v = F^\top Y

(in units of the noise and of the prior's standard deviation), so a chain needs to move u alone, and v is drawn
at the end. The directions in which a posterior is narrowest are those of v: without them a chain takes longer
steps, and what it forgets in one step is more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from credax import random
from credax.inference.products import Rows, as_leaf, as_matrix
from credax.likelihoods import Gaussian, Heteroscedastic
from credax.model import Model, widened
from credax.typing import Array, Draw, Key, NetworkState, Params

AT_ONCE = 16
"""Draws whose last layer is drawn in one batch."""


class Collapsed:
    """A bound model, seen by a chain: its parameters are those of the model without the last layer's mean.

    Args:
      model: bound to data.
      x: rows, or their shape.
    """

    def __init__(self, model: Any, x: Any):
        self._model = model
        if not isinstance(model, Model) or not isinstance(
            model.likelihood, Gaussian | Heteroscedastic
        ):
            raise ValueError("normal noise: cx.likelihoods.Gaussian or Heteroscedastic")
        self._params = jax.eval_shape(model.init, jax.random.key(0))
        network, _ = model.split(self._params)
        self._rows = Rows(model.network, network, model.init_state(), x)
        last = self._rows.final()
        if last is None:
            raise ValueError(
                "a network that returns the product of its last layer's weights as it is"
            )
        self._last: int = last
        self._product = self._rows.products[last]
        priors = jax.tree.leaves(model.split(model.leaf_priors(self._params))[0])
        leaves = jax.tree.leaves(network)
        self._normals = {i: priors[i].gaussian(leaves[i].shape) for i in self._taken}
        if None in self._normals.values():
            raise ValueError("a normal prior (Normal, FanInNormal) of the last layer")
        rest = jax.tree.leaves(jax.eval_shape(self._rest, self._params))
        if sum(leaf.size for leaf in rest) == 0:
            raise ValueError(
                "weights besides the last layer's: of a linear model the posterior is known"
            )

    # -- what a chain asks of a model ---------------------------------------------------------------

    @property
    def started(self) -> bool:
        """As the model."""
        return self._model.started

    def init(self, key: Key) -> Params:
        """As the model, without what is integrated out."""
        return self._rest(self._model.init(key))

    def sample_prior(self, key: Key) -> Params:
        """As the model, without what is integrated out."""
        return self._rest(self._model.sample_prior(key))

    def init_state(self) -> NetworkState:
        """As the model."""
        return self._model.init_state()

    def log_joint(self, params: Params, batch: Any, *, state: NetworkState = ()) -> Array:
        """log p(u, D): of the parameters that are left, and all rows."""
        whole = self._whole(params)
        columns, residuals, scales = self._regression(whole, batch, state)
        found = [log_evidence(c, r) for c, r in zip(columns, residuals.T, strict=True)]
        constant = 0.5 * residuals.size * math.log(2 * math.pi) + jnp.sum(jnp.log(scales))
        # At its mean the prior of what is integrated out is a constant.
        return self._model.log_prior(whole) + sum(found) - constant

    # -- the draws ------------------------------------------------------------------------------------

    def complete(self, key: Key, draw: Draw, batch: Any) -> Params:
        """A draw with its last layer, which is drawn given the rest of it."""
        whole = self._whole(draw.params)
        columns, residuals, _ = self._regression(whole, batch, draw.state)
        keys = jax.random.split(key, self._targets)
        each = zip(keys, columns, residuals.T, strict=True)
        return self._whole(draw.params, jnp.stack([conditional(*one) for one in each], axis=1))

    @property
    def features(self) -> int:
        """How many weights of the last layer a target has."""
        shapes = jax.tree.leaves(self._model.split(self._params)[0])
        return sum(shapes[i].size // self._model.schema.outputs for i in self._taken)

    # -- parameters -----------------------------------------------------------------------------------

    @property
    def _taken(self) -> tuple[int, ...]:
        """The leaves whose columns for the mean are integrated out."""
        bias = self._product.bias
        return (self._last,) if bias is None else (self._last, bias)

    @property
    def _targets(self) -> int:
        return self._model.schema.targets or 1

    def _layout(self, i: int) -> tuple[int, ...]:
        return self._product.layout if i == self._last else ()

    def _rest(self, params: Params) -> Params:
        network, learned = self._model.split(params)
        leaves, tree = jax.tree.flatten(network)
        for i in self._taken:
            leaves[i] = as_matrix(leaves[i], self._layout(i))[:, self._targets :]
        return self._merged(jax.tree.unflatten(tree, leaves), learned)

    def _whole(self, params: Params, units: Array | None = None) -> Params:
        """All parameters; those of the mean at their prior's mean, or so many standard deviations from it."""
        network, learned = self._model.split(params)
        leaves, tree = jax.tree.flatten(network)
        shapes = jax.tree.leaves(self._model.split(self._params)[0])
        begin = 0
        for i in self._taken:
            loc, scale = self._normals[i]
            shape, dtype = shapes[i].shape, leaves[i].dtype
            mean = as_matrix(jnp.broadcast_to(jnp.asarray(loc, dtype), shape), self._layout(i))
            columns = mean[:, : self._targets]
            if units is not None:
                end = begin + len(columns)
                columns = columns + scale * units[begin:end].astype(dtype)
                begin = end
            matrix = jnp.concatenate([columns, leaves[i]], axis=1)
            leaves[i] = as_leaf(matrix, self._layout(i), shape)
        return self._merged(jax.tree.unflatten(tree, leaves), learned)

    def _merged(self, network: Params, learned: Params | None) -> Params:
        return network if learned is None else {"network": network, "likelihood": learned}

    # -- the regression -------------------------------------------------------------------------------

    def _regression(self, whole: Params, batch: Any, state: NetworkState):
        """Columns of F for each target, residuals ``(row, target)``, both in units of the noise; its scales."""
        network, learned = self._model.split(whole)
        outputs, inputs = self._rows.inputs(self._last, network, state, batch.x)
        location, scales = self._model.likelihood.location_scale(widened(outputs), learned)
        scales = jnp.broadcast_to(scales, location.shape)
        y = batch.y.reshape(location.shape).astype(location.dtype)
        parts = [widened(inputs).T * self._normals[self._last][1]]
        if self._product.bias is not None:
            prior_scale = self._normals[self._product.bias][1]
            parts.append(jnp.full((1, len(inputs)), prior_scale, location.dtype))
        columns = [[part / scale for part in parts] for scale in scales.T]
        return columns, (y - location) / scales, scales


@jax.custom_vjp
def log_evidence(columns: Sequence[Array], residuals: Array) -> Array:
    r"""The log density of residuals :math:`F v + \epsilon`, v and epsilon standard normal, plus a constant.

    .. math:: -\tfrac{1}{2} |y - F \bar v|^2 - \tfrac{1}{2} |\bar v|^2 - \tfrac{1}{2} \log\det(F^\top F + I)

    Args:
      columns: of F, a row each: few long sums are faster than many short ones. In parts, of which the bias is
        one: products of 17 columns take twice as long as those of 16.
      residuals: y.
    """
    return _evidence(columns, residuals)[0]


@jax.default_matmul_precision("highest")
def _evidence(columns, residuals):
    root = _inverse_root(columns)
    mean = (root @ _times(columns, residuals)) @ root
    left = residuals - sum(m @ part for m, part in zip(_split(mean, columns), columns, strict=True))
    value = jnp.sum(jnp.log(jnp.diag(root))) - 0.5 * (jnp.sum(left**2) + jnp.sum(mean**2))
    return value, (columns, root, mean, left)


@jax.default_matmul_precision("highest")
def _evidence_gradient(saved, ct):
    # Where the mean is best, it does not matter that it moves with the features.
    columns, root, mean, left = saved
    covariance = _split(root.T @ root, columns)
    gradients = [
        m[:, None] * left - sum(map(_product, _split(rows, columns, axis=1), columns))
        for m, rows in zip(_split(mean, columns), covariance, strict=True)
    ]
    return [ct * gradient for gradient in gradients], -ct * left


log_evidence.defvjp(_evidence, _evidence_gradient)  # pyright: ignore[reportFunctionMemberAccess]


@jax.default_matmul_precision("highest")
def conditional(key: Key, columns: Sequence[Array], residuals: Array) -> Array:
    """A draw of v given the residuals."""
    root = _inverse_root(columns)
    noise = random.normal(key, root.shape[:1], root.dtype)
    return (root @ _times(columns, residuals) + noise) @ root


def _times(columns: Sequence[Array], vector: Array) -> Array:
    return jnp.concatenate([part @ vector for part in columns])


def _split(array: Array, columns: Sequence[Array], axis: int = 0) -> list[Array]:
    """What of an array belongs to each part."""
    ends = np.cumsum([len(part) for part in columns])
    return jnp.split(array, ends[:-1], axis)


# With a single column by elements: the compiler would move the others about in memory for a product.
def _product(weights: Array, part: Array) -> Array:
    return weights * part if len(part) == 1 else weights @ part


def _inner(a: Array, b: Array) -> Array:
    return a @ b.T if min(len(a), len(b)) > 1 else jnp.sum(a * b, axis=1).reshape(len(a), len(b))


def _inverse_root(columns):
    """R with R' R the inverse of F' F + I: small, so that this is faster than solving with its root."""
    parts = range(len(columns))
    below = lambda i, j: _inner(columns[i], columns[j])  # noqa: E731
    gram = jnp.block([[below(i, j) if i >= j else below(j, i).T for j in parts] for i in parts])
    one = jnp.eye(len(gram), dtype=gram.dtype)
    return solve_triangular(jnp.linalg.cholesky(gram + one), one, lower=True)


@partial(jax.jit, static_argnames="model")
def complete(model: Model, key: Key, draws: Draw, data: Any) -> Params:
    """Draws, with leading axes ``(chain, draw)``, each with its last layer."""
    shape = jax.tree.leaves(draws.params)[0].shape[:2]
    collapsed, everything = Collapsed(model, data.x), data.everything()
    keys = jax.random.split(key, shape)
    flat = jax.tree.map(lambda leaf: leaf.reshape(math.prod(shape), *leaf.shape[2:]), (keys, draws))
    one = lambda given: collapsed.complete(given[0], given[1], everything)  # noqa: E731
    found = jax.lax.map(one, flat, batch_size=AT_ONCE)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), found)
