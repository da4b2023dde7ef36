"""Conversion between float types. The default of JAX is float32, or float64 if ``jax_enable_x64`` is set."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import must
from credax.core.typing import Array, PyTree


def widened(outputs: Array) -> Array:
    """Convert outputs to the default float type: log densities need more digits than half precision has."""
    return outputs.astype(jnp.result_type(float))


def widest(leaf: Any) -> jax.Array:
    """Convert float32 and float64 arrays to the default float type; leave all other dtypes unchanged."""
    single_or_double = leaf.dtype in (np.float32, np.float64)
    return jnp.asarray(leaf, jnp.result_type(float) if single_or_double else None)


def at_least_single(leaf: Array) -> Array:
    """Convert half precision to float32; leave all other dtypes unchanged."""
    half = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4
    return leaf.astype(jnp.float32) if half else leaf


def total(tree: PyTree) -> Array:
    """The sum of all elements of all leaves, at least in float32: half precision would round whole units away.

    >>> total({"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(())})
    Array(4., dtype=float32)
    """
    leaves = jax.tree.leaves(tree)
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(jnp.float32, *leaves)
    return functools.reduce(jnp.add, [jnp.sum(leaf, dtype=dtype) for leaf in leaves])


def check_range(owner: str, name: str, value: float, dtype: Any, power: int = 1) -> None:
    """Refuse a setting that would be zero or infinite in a float type, or whose power would be.

    Numbers below the smallest normal one count as zero, since XLA replaces them by zero.
    """
    limits = jnp.finfo(dtype)
    least, most = (float(limit) ** (1 / power) for limit in (limits.tiny, limits.max))
    if value != 0 and not least <= abs(value) <= most:
        allowed = f"between {least:.2g} and {most:.2g} in size for {np.dtype(dtype)}"
        raise ValueError(
            f"{must(owner, name, allowed, value)} Scale the data, or enable jax_enable_x64."
        )
