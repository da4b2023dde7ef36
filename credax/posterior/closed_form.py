r"""The predictions of a linear network under normal noise, which are normal themselves.

.. math:: y \sim N\left(f(x, \hat w),\; J \Sigma J^\top + \Sigma_\text{noise}\right)
"""

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.special import normal_log_density
from credax.model import Model
from credax.model.likelihoods import Gaussian, MultivariateGaussian


def exists(model: Model) -> bool:
    """Whether the noise is normal, so that predictions under normal outputs are normal too."""
    return isinstance(model.likelihood, Gaussian | MultivariateGaussian)


@jit(static_argnames=("model",))
def outputs(model, normal, x):
    """For each row, the mean of the outputs, their covariance matrix, and that of the noise."""
    network, learned = model.split(normal.mean)
    mean = widened(model.network.apply(network, x, normal.state))
    likelihood = model.likelihood
    if isinstance(likelihood, MultivariateGaussian):
        factor = likelihood.factor(mean, learned)
        noise = jnp.broadcast_to(factor @ factor.T, (*mean.shape, mean.shape[1]))
    else:
        noise = jax.vmap(jnp.diag)(likelihood.variance(mean, learned))
    return mean, normal.output_covariance(model, x), noise


@jit(static_argnames=("model",))
def moments(model, normal, x):
    """The fields of :class:`credax.posterior.mixture.Moments`, of which a regression has no entropy."""
    mean, spread, noise = outputs(model, normal, x)
    epistemic, aleatoric = (jnp.diagonal(a, axis1=1, axis2=2) for a in (spread, noise))
    none = jnp.zeros_like(mean[:, 0])
    return none, mean, epistemic, aleatoric, none


@jit(static_argnames=("model",))
def log_density(model, normal, x, y):
    """The log density of the targets of each row."""
    mean, spread, noise = outputs(model, normal, x)
    factor = jnp.linalg.cholesky(spread + noise)
    residual = y.reshape(mean.shape).astype(mean.dtype) - mean
    z = lax.linalg.triangular_solve(factor, residual[..., None], left_side=True, lower=True)[..., 0]
    log_scale = jnp.log(jnp.diagonal(factor, axis1=1, axis2=2))
    return jnp.sum(normal_log_density(z) - log_scale, axis=1)
