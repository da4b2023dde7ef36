"""The layers of the built-in networks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import integer, must, number, one_of
from credax.core.evaluation import shapes_from
from credax.core.typing import Array, Key

MOMENTUM = 0.9
"""The weight of the old running statistics when a batch updates them."""
EPSILON = 1e-5
"""Added to the variance of each unit, to avoid division by zero for a unit that is constant."""

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


def known_activation(owner: str, name: str, activation: Any) -> Activation:
    """Check that the value is a name in ``ACTIVATIONS`` or a function; return it."""
    if not callable(activation):
        return one_of(owner, name, activation, ACTIVATIONS)
    row = jax.ShapeDtypeStruct((2, 3), jnp.result_type(float))
    got = shapes_from(f"{owner}({name}=...)", activation, row)
    if getattr(got, "shape", None) != row.shape:
        shape = getattr(got, "shape", type(got).__name__)
        allowed = f"a function that keeps the shape of an array, here {row.shape}"
        raise ValueError(f"{owner}({name}=...) must be {allowed}; it returned {shape}.")
    return activation


def widths(owner: str, name: str, value: Any) -> tuple[int, ...]:
    """Check a sequence of layer widths; return a tuple of positive whole numbers."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(must(owner, name, "a sequence of layer widths, e.g. [50, 50]", value))
    return tuple(integer(owner, name, width) for width in value)


def dropout_rate(owner: str, name: str, value: Any) -> float:
    """Check a dropout rate: at least 0, which means no dropout, and below 1."""
    rate = number(owner, name, value, "at least 0 and below 1")
    if not 0 <= rate < 1:
        raise ValueError(must(owner, name, "at least 0 and below 1", rate))
    return rate


def activate(activation: Activation, x: Array) -> Array:
    """Apply an activation, given by its name or as a function."""
    function = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    return function(x)


def kernel_and_bias(key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
    """Initial parameters of a layer: normal weights of variance 2 / fan-in, zero biases (He et al., 2015)."""
    initialise = jax.nn.initializers.he_normal()
    dtype = jnp.result_type(float)
    return {"kernel": initialise(key, shape, dtype), "bias": jnp.zeros(shape[-1], dtype)}


def dense(params: dict[str, Array], x: Array) -> Array:
    """``x W + b``."""
    return x @ params["kernel"] + params["bias"]


def convolution(params: dict[str, Array], x: Array) -> Array:
    """A 2-D convolution of images ``(rows, height, width, channels)``, which keeps height and width."""
    outputs = jax.lax.conv_general_dilated(
        x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return outputs + params["bias"]


def max_pool(x: Array, window: int) -> Array:
    """The largest value in each ``window`` x ``window`` square."""
    shape = (1, window, window, 1)
    # A NumPy constant: JAX can differentiate a maximum only if it knows the initial value while tracing.
    least = np.array(-np.inf, x.dtype)
    return jax.lax.reduce_window(x, least, jax.lax.max, shape, shape, "VALID")


def dropout(key: Key | None, rate: float, x: Array) -> Array:
    """Set each value to zero with probability ``rate``; scale the others so that the mean is unchanged."""
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def scale_and_shift(width: int) -> dict[str, Array]:
    """Initial parameters of a batch normalisation, which leave the normalised units unchanged."""
    dtype = jnp.result_type(float)
    return {"scale": jnp.ones(width, dtype), "shift": jnp.zeros(width, dtype)}


def no_statistics(width: int) -> dict[str, Array]:
    """Initial running statistics of a batch normalisation: mean zero and variance one."""
    dtype = jnp.result_type(float)
    return {"mean": jnp.zeros(width, dtype), "variance": jnp.ones(width, dtype)}


def batch_norm(
    params: dict[str, Array], statistics: dict[str, Array], x: Array, train: bool
) -> tuple[Array, dict[str, Array]]:
    r"""Normalise each unit (last axis) to mean zero and variance one, then scale and shift it.

    .. math:: \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    In training, mean and variance are those of the batch, and the running statistics are updated with them.
    In prediction they are the running statistics, so that rows do not depend on each other. Ioffe & Szegedy
    (2015).

    Returns:
      The outputs and the next running statistics.
    """
    if train:
        if x[..., 0].size < 2:
            raise ValueError(
                "batch_norm needs batches of at least 2 rows in training; got 1. Raise batch_size."
            )
        axes = tuple(range(x.ndim - 1))
        batch = {"mean": jnp.mean(x, axes), "variance": jnp.var(x, axes)}
        # In the type of the statistics, in which small changes are not rounded away.
        kept = lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new.astype(old.dtype)  # noqa: E731
        # The next statistics are a state, through which no gradient may flow back.
        statistics, used = jax.lax.stop_gradient(jax.tree.map(kept, statistics, batch)), batch
    else:
        used = jax.tree.map(lambda leaf: jnp.asarray(leaf, x.dtype), statistics)
    normalised = (x - used["mean"]) * jax.lax.rsqrt(used["variance"] + EPSILON)
    return normalised * params["scale"] + params["shift"], statistics
