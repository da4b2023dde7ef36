r"""Regression with the last layer integrated out: the exact marginal posterior of the other weights.

The mean that a network predicts is linear in the weights v of its last layer, :math:`\mu = F(u)\, v`, where the
features F depend on the other weights u. For Gaussian noise and a Gaussian prior, the integral over v has a
closed form,

.. math::
    p(u \mid D) \propto p(u) \int p(Y \mid F(u)\, v)\, p(v)\, \mathrm{d}v, \qquad
    v \mid u, D \sim N\!\left(\bar v, A^{-1}\right), \quad A = F^\top W F + P, \quad A \bar v = F^\top W Y

where W is the diagonal matrix of the noise precisions, and P that of the prior precisions (here for a prior of
mean zero). A chain then samples u alone, and v is drawn at the end. The posterior is narrowest in the
directions of v, so without them a chain can take longer steps, and its draws become independent sooner.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from credax.core import random
from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.trees import as_leaf, as_matrix
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.model import Model
from credax.model.likelihoods import Gaussian, Heteroscedastic
from credax.tracing.products import Rows

AT_ONCE = 20
"""The number of draws whose last layer is drawn in one batch. Most numbers of draws are a multiple of it, so
that no program for a remainder has to be compiled."""


class Collapsed:
    """The marginal of a model after integrating out the weights of its last layer that predict the mean.

    It has the methods of a model that a chain needs; its parameters are all other weights.

    Args:
      model: a model bound to data.
      x: the inputs of the data, or their shape.

    Attributes:
      rows: the network, evaluated row by row.
      last: the index of the leaf with the weights of the last layer, among the leaves of the network.

    Raises:
      ValueError: the last layer cannot be integrated out. The message says what is needed.
    """

    def __init__(self, model: Any, x: Any):
        self.model = model
        if not isinstance(model, Model) or not isinstance(
            model.likelihood, Gaussian | Heteroscedastic
        ):
            raise ValueError("normal noise: cx.likelihoods.Gaussian or Heteroscedastic")
        self._params = jax.eval_shape(model.init, jax.random.key(0))
        network, _ = model.split(self._params)
        self.rows = Rows(model.network, network, model.init_state(), x)
        last = self.rows.final()
        if last is None:
            raise ValueError(
                "a network that returns the product with its last layer's weights unchanged"
            )
        self.last: int = last
        self._product = self.rows.products[last]
        priors = jax.tree.leaves(model.split(model.leaf_priors(self._params))[0])
        leaves = jax.tree.leaves(network)
        self._normals = {i: priors[i].gaussian(leaves[i].shape) for i in self._taken}
        if None in self._normals.values():
            raise ValueError("a normal prior (Normal, FanInNormal) for the last layer")
        if any(np.ndim(normal[1]) for normal in self._normals.values() if normal is not None):
            raise ValueError("a normal prior with the same scale for all weights of the last layer")
        rest = jax.tree.leaves(jax.eval_shape(self._rest, self._params))
        if sum(leaf.size for leaf in rest) == 0:
            raise ValueError(
                "weights besides those of the last layer: the posterior of a linear model is known"
            )

    # -- the methods of a model that a chain needs ---------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether ``init`` returns a given starting point."""
        return self.model.started

    def init(self, key: Key) -> Params:
        """The model's initial parameters, without those that are integrated out."""
        return self._rest(self.model.init(key))

    def sample_prior(self, key: Key) -> Params:
        """A draw from the model's prior, without the parameters that are integrated out."""
        return self._rest(self.model.sample_prior(key))

    def init_state(self) -> NetworkState:
        """The model's initial network state."""
        return self.model.init_state()

    def log_joint(self, params: Params, batch: Any, *, state: NetworkState = ()) -> Array:
        """The log joint density log p(u, D) of the remaining parameters and all rows."""
        # The parameters that are integrated out are at their prior mean, where their density is a constant.
        value = self.model.log_prior(self.whole(params))
        for features, scales, residuals in self._regressions(params, batch, state):
            variances = jnp.square(scales)
            shared = weighted(variances, batch.weights)
            evidence = log_evidence(features, shared, residuals, self._precisions)
            if batch.weights is not None:
                logs = jnp.log(2 * math.pi * variances)
                value = value + evidence - 0.5 * jnp.sum(batch.weights.astype(logs.dtype) * logs)
                continue
            constant = len(scales) * math.log(2 * math.pi)
            # Not the log of the scales: the compiler would compute it inside the sum, which takes ten times
            # as long on a CPU.
            value = value + evidence - 0.5 * (jnp.sum(jnp.log(variances)) + constant)
        return value

    # -- the draws ------------------------------------------------------------------------------------

    def complete(self, key: Key, draw: Draw, batch: Any) -> Params:
        """A draw with its last layer, which is drawn from its distribution given the other weights."""
        each = zip(
            jax.random.split(key, self._targets),
            self._regressions(draw.params, batch, draw.state),
            strict=True,
        )
        drawn = [
            conditional(
                *(key, features, weighted(jnp.square(scales), batch.weights), residuals),
                self._precisions,
            )
            for key, (features, scales, residuals) in each
        ]
        return self.whole(draw.params, jnp.stack(drawn, axis=1))

    @property
    def features(self) -> int:
        """The number of weights of the last layer per target, the bias included."""
        shapes = jax.tree.leaves(self.model.split(self._params)[0])
        return sum(shapes[i].size // self.model.schema.outputs for i in self._taken)

    # -- parameters -----------------------------------------------------------------------------------

    @property
    def _taken(self) -> tuple[int, ...]:
        """The indices of the leaves with columns that are integrated out: weights, and bias if there is one."""
        bias = self._product.bias
        return (self.last,) if bias is None else (self.last, bias)

    @property
    def _targets(self) -> int:
        return self.model.schema.targets or 1

    def _layout(self, i: int) -> tuple[int, ...]:
        return self._product.layout if i == self.last else ()

    def _rest(self, params: Params) -> Params:
        network, learned = self.model.split(params)
        leaves, tree = jax.tree.flatten(network)
        for i in self._taken:
            leaves[i] = as_matrix(leaves[i], self._layout(i))[:, self._targets :]
        return self._merged(jax.tree.unflatten(tree, leaves), learned)

    def whole(self, params: Params, drawn: Array | None = None) -> Params:
        """All parameters of the model.

        Args:
          params: the remaining parameters.
          drawn: the deviation of the integrated-out parameters from their prior mean. If ``None``, zero.
        """
        network, learned = self.model.split(params)
        leaves, tree = jax.tree.flatten(network)
        shapes = jax.tree.leaves(self.model.split(self._params)[0])
        begin = 0
        for i in self._taken:
            loc, _ = self._normals[i]
            shape, dtype = shapes[i].shape, leaves[i].dtype
            mean = as_matrix(jnp.broadcast_to(jnp.asarray(loc, dtype), shape), self._layout(i))
            columns = mean[:, : self._targets]
            if drawn is not None:
                end = begin + len(columns)
                columns = columns + drawn[begin:end].astype(dtype)
                begin = end
            matrix = jnp.concatenate([columns, leaves[i]], axis=1)
            leaves[i] = as_leaf(matrix, self._layout(i), shape)
        return self._merged(jax.tree.unflatten(tree, leaves), learned)

    def _merged(self, network: Params, learned: Params | None) -> Params:
        return network if learned is None else {"network": network, "likelihood": learned}

    # -- the regression -------------------------------------------------------------------------------

    def _regressions(self, params: Params, batch: Any, state: NetworkState) -> list[Regression]:
        """One regression per target."""
        network, learned = self.model.split(self.whole(params))
        leaves, tree = jax.tree.flatten(network)
        last = [as_matrix(leaves[i], self._layout(i)) for i in self._taken]
        if self._product.bias is not None:  # the bias is added in _layer instead
            leaves[self._product.bias] = jnp.zeros_like(leaves[self._product.bias])
        network = jax.tree.unflatten(tree, leaves)
        layer = partial(self._layer, last)
        outputs, inputs = self.rows.inputs(self.last, network, state, batch.x, layer)
        location, scales = self.model.likelihood.location_scale(widened(outputs), learned)
        scales = jnp.broadcast_to(scales, location.shape)
        y = batch.y.reshape(location.shape).astype(location.dtype)
        features = widened(inputs).T
        return [
            Regression(features, scale, left)
            for scale, left in zip(scales.T, (y - location).T, strict=True)
        ]

    def _layer(self, last: list[Array], inputs: Array) -> Array:
        """The outputs of the last layer, with the integrated-out weights at their prior mean."""
        loc, _ = self._normals[self.last]
        (mean, others), *bias = (jnp.split(part, [self._targets], axis=1) for part in last)
        nothing = isinstance(loc, int | float) and loc == 0
        shape = (len(inputs), self._targets)
        parts = [
            jnp.zeros(shape, inputs.dtype) if nothing else inputs @ mean,
            # A product with a vector is faster than one with a matrix of one column.
            (inputs @ others[:, 0])[:, None] if others.shape[1] == 1 else inputs @ others,
        ]
        for shifts in bias:
            parts = [part + shift for part, shift in zip(parts, shifts, strict=True)]
        return jnp.concatenate(parts, axis=1)

    @property
    def _precisions(self) -> tuple[float, ...]:
        """The prior precision of the weights of a target and, if there is one, of its bias."""
        return tuple(self._normals[i][1] ** -2 for i in self._taken)


class Regression(NamedTuple):
    """The linear regression of one target on the features."""

    features: Array  # (feature, row), since few long sums are faster than many short ones
    scales: Array  # the standard deviation of the noise in each row
    residuals: Array  # the target minus its prediction at the prior mean


def weighted(variances: Array, weights: Array | None) -> Array:
    """The variances of the noise of rows with weights: a row that counts c times has a c-th of the variance.

    A weight of zero is replaced by one that is negligible, since an infinite variance has no derivative.
    """
    if weights is None:
        return variances
    least = jnp.finfo(variances.dtype).tiny ** 0.5
    return variances / jnp.maximum(weights.astype(variances.dtype), least)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def log_evidence(
    features: Array, variances: Array, residuals: Array, precisions: tuple[float, ...]
) -> Array:
    r"""The log density of residuals :math:`y = F v + \epsilon`, minus the log density of the noise at zero.

    .. math::
        -\tfrac{1}{2} (y - F \bar v)^\top W (y - F \bar v) - \tfrac{1}{2} \bar v^\top P \bar v
        - \tfrac{1}{2} \log\det(F^\top W F + P) + \tfrac{1}{2} \log\det P

    Args:
      features: the columns of F as rows, without the column of ones for the bias.
      variances: the variances of epsilon, the inverse of W.
      residuals: y.
      precisions: the entries of P: the prior precision of all weights and, if there is a bias, that of the
        bias.
    """
    return _evidence(features, variances, residuals, precisions)[0]


@jax.default_matmul_precision("highest")
def _evidence(features, variances, residuals, precisions):
    root, mean, log_det = _solved(features, variances, residuals, precisions)
    prior = _diagonal(precisions, mean)
    left = residuals - _times(mean, features)
    # A division, not a product with the weights: it keeps the compiler from computing this array again for
    # every feature.
    pull = left / variances
    value = log_det - 0.5 * (jnp.sum(pull * left) + jnp.sum(prior * mean**2))
    return value, (features, variances, root, mean, pull)


@jax.default_matmul_precision("highest")
def _evidence_gradient(_, saved, ct):
    # The mean is a maximum, so its own dependence on the features does not contribute to the gradient.
    features, variances, root, mean, pull = saved
    count = len(features)
    weights = 1 / jnp.sqrt(variances)
    # The columns of R F' W^1/2, whose squared lengths are the leverages of the rows. Not (F' W F + P)^-1 F',
    # in whose sums terms that are 1 / sigma^2 times as large cancel.
    scores = root[:, :count] @ (features * weights)
    if len(mean) > count:
        scores = scores + root[:, count:] * weights
    spread = root[:, :count].T @ scores
    leverage = jnp.sum(jnp.square(scores), axis=0)
    to_features = mean[:count, None] * pull - weights * spread
    to_variances = 0.5 * (pull**2 + leverage / variances)
    return ct * to_features, ct * to_variances, -ct * pull


log_evidence.defvjp(_evidence, _evidence_gradient)  # pyright: ignore[reportFunctionMemberAccess]


@jax.default_matmul_precision("highest")
def conditional(
    key: Key, features: Array, variances: Array, residuals: Array, precisions: tuple[float, ...]
) -> Array:
    """A draw of v given the residuals; the arguments are those of :func:`log_evidence`."""
    root, mean, _ = _solved(features, variances, residuals, precisions)
    return mean + random.normal(key, root.shape[:1], root.dtype) @ root


def _solved(features, variances, residuals, precisions):
    """A matrix R with R' R = (F' W F + P)^-1, the mean of v, and half the log determinant of R' R P.

    They are computed in double precision, whatever the precision of the arguments. The eigenvalues of F' W F
    reach from those of P up to the number of rows over the noise variance. In single precision, rounding
    alone exceeds P if the noise is some per cent of the targets or less, and features of smooth functions
    always have directions in which only P is left.
    """

    # Its own rule for a batch: outside of enable_x64, JAX's rules would round everything to single precision.
    @custom_vmap
    def solve(*arguments: Array) -> Any:
        with jax.enable_x64(True):
            double = [each.astype(jnp.float64) for each in arguments]
            found = _solved_double(precisions, *double)
            return tuple(each.astype(features.dtype) for each in found)

    @solve.def_vmap  # pyright: ignore[reportFunctionMemberAccess]
    def _(size, batched, *arguments):
        each = [
            argument if leading else jnp.broadcast_to(argument, (size, *argument.shape))
            for argument, leading in zip(arguments, batched, strict=True)
        ]
        return solve(*each), (True, True, True)

    return solve(features, variances, residuals)


def _solved_double(precisions, features, variances, residuals):
    """What :func:`_solved` returns; the arguments may have further leading axes."""
    weights = 1 / variances
    weighted = features * weights[..., None, :]
    gram = weighted @ features.mT
    towards = jnp.matvec(weighted, residuals)
    if len(precisions) > 1:  # not as a 17th column, which makes the product of 16 twice as slow
        cross, total = jnp.matvec(features, weights)[..., None], jnp.sum(weights, -1)
        last = jnp.concatenate([cross.mT, total[..., None, None]], axis=-1)
        gram = jnp.concatenate([jnp.concatenate([gram, cross], axis=-1), last], axis=-2)
        towards = jnp.append(towards, jnp.sum(weights * residuals, -1, keepdims=True), axis=-1)
    prior = _diagonal(precisions, towards)
    factor = lax.linalg.cholesky(gram + jnp.diag(prior), symmetrize_input=False)
    # For small matrices, the inverse is faster than repeated triangular solves.
    unit = jnp.broadcast_to(jnp.eye(len(prior), dtype=gram.dtype), gram.shape)
    root = lax.linalg.triangular_solve(factor, unit, left_side=True, lower=True)
    mean = jnp.vecmat(jnp.matvec(root, towards), root)
    pivots = jnp.diagonal(root, axis1=-2, axis2=-1)
    return root, mean, jnp.sum(jnp.log(pivots) + 0.5 * jnp.log(prior), -1)


def _diagonal(precisions: tuple[float, ...], like: Array) -> Array:
    """The precision of each weight, with that of the bias last."""
    bias = precisions[1:]
    each = [precisions[0]] * (like.shape[-1] - len(bias))
    return jnp.asarray(np.array([*each, *bias]), like.dtype)


def _times(vector: Array, features: Array) -> Array:
    """The product F v, where the bias is the last entry of v."""
    count = len(features)
    found = vector[:count] @ features
    return found + vector[count] if len(vector) > count else found


@jit(static_argnames="model")
def complete(model: Model, key: Key, draws: Draw, data: Any) -> Params:
    """The draws, with leading axes ``(chain, draw)``, after drawing the last layer of each."""
    shape = jax.tree.leaves(draws.params)[0].shape[:2]
    collapsed, everything = Collapsed(model, data.x), data.everything()
    keys = jax.random.split(key, shape)
    flat = jax.tree.map(lambda leaf: leaf.reshape(math.prod(shape), *leaf.shape[2:]), (keys, draws))
    one = lambda given: collapsed.complete(given[0], given[1], everything)  # noqa: E731
    found = lax.map(one, flat, batch_size=AT_ONCE)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), found)
