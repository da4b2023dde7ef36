"""Conversion to the default float type of JAX: float32, or float64 if ``jax_enable_x64`` is set."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.typing import Array


def widened(outputs: Array) -> Array:
    """Convert outputs to the default float type: log densities need more digits than half precision has."""
    return outputs.astype(jnp.result_type(float))


def widest(leaf: Any) -> jax.Array:
    """Convert float32 and float64 arrays to the default float type; leave all other dtypes unchanged."""
    single_or_double = leaf.dtype in (np.float32, np.float64)
    return jnp.asarray(leaf, jnp.result_type(float) if single_or_double else None)
