"""The few layers that the built-in networks are made of."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import one_of
from credax.core.typing import Array, Key

MOMENTUM = 0.9
"""What running statistics keep of themselves at each batch."""
EPSILON = 1e-5
"""Added to a variance, so that a unit that is always the same does not divide by zero."""

Activation = str | Callable[[Array], Array]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "identity": lambda x: x,
}


def check_activation(owner: str, activation: Any) -> Activation:
    """A name in ``ACTIVATIONS`` or any function of an array."""
    if callable(activation):
        return activation
    return one_of(owner, "activation", activation, ACTIVATIONS)


def activate(activation: Activation, x: Array) -> Array:
    """The activation, by its name or as a function."""
    function = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    return function(x)


def kernel_and_bias(key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
    """He et al. (2015): normal weights of variance 2 / fan-in, zero biases."""
    initialise = jax.nn.initializers.he_normal()
    dtype = jnp.result_type(float)
    return {"kernel": initialise(key, shape, dtype), "bias": jnp.zeros(shape[-1], dtype)}


def dense(params: dict[str, Array], x: Array) -> Array:
    """``x W + b``."""
    return x @ params["kernel"] + params["bias"]


def convolution(params: dict[str, Array], x: Array) -> Array:
    """A 2-D convolution of images ``(rows, height, width, channels)`` that keeps their size."""
    outputs = jax.lax.conv_general_dilated(
        x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return outputs + params["bias"]


def max_pool(x: Array, window: int) -> Array:
    """The largest value in each ``window`` x ``window`` square."""
    shape = (1, window, window, 1)
    # Of NumPy: JAX finds the derivative of a maximum only where it knows the first value while it traces.
    least = np.array(-np.inf, x.dtype)
    return jax.lax.reduce_window(x, least, jax.lax.max, shape, shape, "VALID")


def dropout(key: Key | None, rate: float, x: Array) -> Array:
    """Each value is zero with probability ``rate``, else scaled so that the mean is kept."""
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def scale_and_shift(width: int) -> dict[str, Array]:
    """Parameters of a batch normalisation that leaves normalised units as they are."""
    dtype = jnp.result_type(float)
    return {"scale": jnp.ones(width, dtype), "shift": jnp.zeros(width, dtype)}


def no_statistics(width: int) -> dict[str, Array]:
    """Running statistics before the first batch: those of units that are normalised already."""
    dtype = jnp.result_type(float)
    return {"mean": jnp.zeros(width, dtype), "variance": jnp.ones(width, dtype)}


def batch_norm(
    params: dict[str, Array], statistics: dict[str, Array], x: Array, train: bool
) -> tuple[Array, dict[str, Array]]:
    r"""Each unit (last axis) with mean zero and variance one, scaled and shifted, and the next statistics.

    .. math:: \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    In training mean and variance are those of the batch, and the running ones follow them; in prediction they
    are the running ones, so that rows do not depend on each other. Ioffe & Szegedy (2015).
    """
    if train:
        if x[..., 0].size < 2:
            raise ValueError(
                "batch_norm needs batches of at least 2 rows in training; got 1. Raise batch_size."
            )
        axes = tuple(range(x.ndim - 1))
        batch = {"mean": jnp.mean(x, axes), "variance": jnp.var(x, axes)}
        kept = lambda old, new: (MOMENTUM * old + (1 - MOMENTUM) * new).astype(old.dtype)  # noqa: E731
        # The next statistics are a state, and no gradient may find its way back through them.
        statistics, used = jax.lax.stop_gradient(jax.tree.map(kept, statistics, batch)), batch
    else:
        used = jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), statistics)
    normalised = (x - used["mean"]) * jax.lax.rsqrt(used["variance"] + EPSILON)
    return normalised * params["scale"] + params["shift"], statistics
