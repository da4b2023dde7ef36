"""A network plus a random function of its inputs, which is nearly zero where there are data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from credax.core.typing import Array
from credax.model.networks.shaped import Around


@dataclass(frozen=True)
class Wandering(Around):
    r"""A network plus a function that its state holds, a sum of cosines of some columns of its inputs.

    .. math::
        g(x) = f_w(x) + \Theta^\top \phi(x), \qquad
        \phi_j(x) = \sqrt{2 / m}\, \cos\bigl(b_j + a_j^\top (x - c)\bigr)

    The state is ``(state of the network, function)``. In training, the network alone is called.

    Args:
      network: the network, of inputs that are one array.
      columns: how many of its input columns the function sees.
      features: m, the number of cosines.
      outputs: the number of outputs, of a network that is built.
    """

    columns: int
    features: int
    outputs: int | None = None

    @property
    def quantiles(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As for the inner network."""
        return self.network.quantiles

    def rows_last(self, rows):
        """As the inner network computes."""
        return self.network.rows_last(rows)

    def build(self, input_shape, outputs):
        """The same wrapper around the network completed for these rows."""
        built = self.network.build(input_shape, outputs)
        return replace(self, network=built, outputs=outputs)

    def init_state(self):
        """The initial state of the network, and the function that is zero."""
        dtype, here = jnp.result_type(float), self.columns
        zeros = {"centre": (here,), "frequency": (here, self.features), "phase": (self.features,)}
        function = {name: jnp.zeros(shape, dtype) for name, shape in zeros.items()}
        function["coefficients"] = jnp.zeros((self.features, self.outputs or 0), dtype)
        return self.network.init_state(), {"columns": jnp.arange(here, dtype=jnp.int32), **function}

    def call(self, params, x, *, state, key, train):
        """The outputs of the network, in prediction with the function added to them."""
        if not jax.tree.leaves(state):  # a network without state, as it is
            return self.network.call(params, x, state=state, key=key, train=train)
        own, function = state
        outputs, own = self.network.call(params, x, state=own, key=key, train=train)
        if not train:
            outputs = outputs + value(function, x).astype(outputs.dtype)
        return outputs, (own, function)


def value(function: dict[str, Any], x: Array) -> Array:
    """The values of the function of a state, ``(rows, outputs)``."""
    exact = jax.lax.Precision.HIGHEST  # cosines that cancel to a hundredth leave no digits to spare
    seen = x.reshape(len(x), -1)[:, function["columns"]].astype(function["centre"].dtype)
    angles = jnp.matmul(seen - function["centre"], function["frequency"], precision=exact)
    count = function["phase"].shape[-1]
    features = (2 / count) ** 0.5 * jnp.cos(angles + function["phase"])
    return jnp.matmul(features, function["coefficients"], precision=exact)
