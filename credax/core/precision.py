"""The float type of numbers: the one in use is float32, or float64 under ``jax_enable_x64``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.typing import Array


def widened(outputs: Array) -> Array:
    """Outputs in the float type in use: densities of a network in half precision need more digits."""
    return outputs.astype(jnp.result_type(float))


def widest(leaf: Any) -> jax.Array:
    """Single and double precision become the float type in use; all else stays what it is."""
    single_or_double = leaf.dtype in (np.float32, np.float64)
    return jnp.asarray(leaf, jnp.result_type(float) if single_or_double else None)
