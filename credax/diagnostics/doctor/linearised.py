r"""The variance of the predictions, relative to that of the network's linear expansion.

Around one set of weights :math:`\hat w`, the expansion has the normal posterior with precision

.. math:: P = S^{-2} + \sum_i J_i^\top H_i J_i

(S holds the prior standard deviations; see :class:`credax.Laplace`). For random signs :math:`\epsilon`, the
variance of :math:`\sum_i \epsilon_i f(x_i)` under it is :math:`u^\top P^{-1} u` with
:math:`u = \sum_i J_i^\top \epsilon_i`, and its mean over the signs is the sum of the variances of all outputs.
Conjugate gradients approach it from below, so it is never overstated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from credax.core.precision import widened
from credax.core.programs import jit
from credax.diagnostics.doctor.conjugate_gradients import conjugate_gradients
from credax.diagnostics.doctor.moments import moments
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import Family

if TYPE_CHECKING:
    from credax.posterior import Posterior, Predictive
    from credax.posterior.training import TrainingRows

PROBES, PROBED = 4, 64
"""The number of random signs for each output, and the number of rows."""
ITERATIONS, WORK = 64, 1e10
"""Iterations of conjugate gradients, and the most products (weights x rows x probes x iterations)."""
SMALL = 3e6
"""Below this number of products in an iteration (weights x rows), compiling takes most of the time."""


def relative_variance(
    posterior: Posterior, rows: TrainingRows, predictive: Predictive
) -> dict[str, Any]:
    """The key ``relative_variance``; empty if the posterior is a point, or the prior is not Gaussian.

    Args:
      posterior: the posterior.
      rows: rows of the fit.
      predictive: the predictions of the first of them, ``PROBED`` or more.
    """
    model: Any = posterior.model
    method, approximation = posterior.method, posterior.approximation
    point = isinstance(approximation, Draws) and approximation.shape == (1, 1)
    if (
        point
        or model.discrete
        or model.correlated_prior
        or getattr(method, "kind", "point") == "point"
    ):
        return {}
    linearised = getattr(approximation, "centre", None) is not None
    if linearised or jax.tree.leaves(model.init_state()):
        return {}  # a linearised posterior is what this compares with; batch statistics couple the rows
    params = _centre(posterior)
    network, learned = model.split(params)
    priors = jax.tree.leaves(model.split(model.leaf_priors(params))[0])
    leaves = jax.tree.leaves(network)
    normals = [prior.gaussian(leaf.shape) for prior, leaf in zip(priors, leaves, strict=True)]
    if any(normal is None for normal in normals):
        return {}
    each = zip(leaves, normals, strict=True)
    precision = np.concatenate(
        [
            np.broadcast_to(np.asarray(n[1], leaf.dtype) ** -2.0, np.shape(leaf)).reshape(-1)
            for leaf, n in each
        ]
    )
    count = int(
        np.clip(WORK / (approximation.num_weights * PROBES * ITERATIONS), PROBED, len(rows.x))
    )
    count = min(count, len(rows.x))
    some, scale = rows.part(slice(count)), rows.total / count
    probed = min(PROBED, count)
    values = np.asarray(predictive.outputs[:, :probed], np.float64)
    weights = np.exp(predictive.log_weights)
    signs = np.sign(np.random.default_rng(0).random((PROBES, probed, values.shape[2])) - 0.5)
    summed = np.einsum("sro,pro->ps", values, signs)
    centred = summed - (summed @ weights)[:, None]
    # The factor makes the variance of few equally weighted samples unbiased.
    variance = np.sum(centred**2 @ weights) / max(1 - np.sum(weights**2), 1e-12)
    arguments = (network, learned, precision, some, scale, signs)
    # A program that keeps what it traced.
    program: Any = _variances.quick if count * approximation.num_weights < SMALL else _variances
    try:
        program.eval_shape(model, *arguments)
    except (NotImplementedError, TypeError, ValueError):
        return {}  # JAX cannot differentiate this network
    linear = program(model, *arguments)
    total = float(np.sum(np.asarray(linear, np.float64)))
    if not np.isfinite(total) or total <= 0 or not np.isfinite(variance):
        return {}
    return {"relative_variance": float(variance / total)}


def _centre(posterior: Posterior) -> Any:
    """Weights around which the posterior lies: the mean of a family, else one of its draws."""
    approximation: Any = posterior.approximation
    if isinstance(approximation, Family):
        return moments(approximation)[0]
    if isinstance(approximation, Draws):
        place = (0, -1)
        if approximation.log_weights is not None:
            place = np.unravel_index(np.argmax(approximation.log_weights), approximation.shape)
        return jax.tree.map(lambda leaf: leaf[place], approximation.params)
    return jax.tree.map(lambda leaf: leaf[0], jax.device_get(posterior.sample(0, 1)))


@jit(static_argnames=("model",))
def _variances(model, network, learned, precision, rows, scale, signs):
    """The variance of the sum of the outputs with each of the signs, under the expansion's posterior."""
    start, unravel = ravel_pytree(network)
    x, y, weights = rows

    def outputs_of(vector):
        return model.network.call(unravel(vector), x, state=(), key=None, train=False)[0]

    def loss(outputs):
        log_prob = model.likelihood.log_prob(widened(outputs), y, learned)
        if weights is not None:
            log_prob = weights.astype(log_prob.dtype) * log_prob
        return -scale * jnp.sum(log_prob).astype(outputs.dtype)

    # The product with J is the transpose of that with its transpose: functions with derivatives of their own
    # often have no forward mode.
    outputs, pull = jax.vjp(outputs_of, start)
    backward = lambda cotangent: pull(cotangent)[0]  # noqa: E731
    forward = lambda v: jax.linear_transpose(backward, outputs)(v)[0]  # noqa: E731
    slope = jax.grad(loss)

    def product(v):
        change = forward(v)
        return precision * v + backward(
            jax.grad(lambda outputs: jnp.vdot(slope(outputs), change))(outputs)
        )

    def variance(signs):
        padded = jnp.zeros_like(outputs).at[: len(signs)].set(signs)
        target = backward(padded)
        return jnp.vdot(target, conjugate_gradients(product, target, ITERATIONS))

    return lax.map(variance, signs.astype(outputs.dtype))
