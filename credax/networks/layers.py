"""The few layers that the built-in networks are made of."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.checks import one_of
from credax.typing import Array, Key

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
