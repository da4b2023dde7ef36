r"""Coordinates for the weights of a network in which the inputs of every layer are nearly white.

For a layer that multiplies its inputs h (with a one appended for the bias) by a matrix W, the posterior is the
narrower along a direction of the columns of W, the larger the inputs are in that direction. The positive mean
of ReLU features makes one direction ten times narrower than the others, which forces a chain to take short
steps. With

.. math:: W = T Z, \qquad T T^\top = \Bigl(I + \kappa\, \tfrac{1}{n} \sum_i h_i h_i^\top\Bigr)^{-1}

the directions of Z have similar widths, and a chain that moves Z can take longer steps. T is computed once,
from the inputs at the chain's start, and does not change with W, so the densities of Z and W agree up to a
constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from credax.core.precision import widened
from credax.core.trees import Flat, as_leaf, as_matrix
from credax.core.typing import Array, NetworkState, Params
from credax.inference.montecarlo.collapsed import Collapsed
from credax.model import Model
from credax.tracing.products import Rows

KAPPA = 20.0
"""The strength of the whitening. On networks for tables, 10 to 30 work equally well, 1 works no better than no
whitening, and 100 works worse."""
WIDEST = 512
"""The most inputs of a layer that is whitened. For more inputs, or more inputs than rows, multiplying by T
costs more than the layer itself."""


class Layer(NamedTuple):
    """The leaves that hold the weights and the bias of a layer, and the layout of the weights as a matrix."""

    weights: int
    layout: tuple[int, ...]
    bias: int | None


class Layers:
    """The layers of a model whose inputs are whitened; a ``LogDensity`` has none.

    Args:
      view: the model that a chain samples from; its last layer may be integrated out.
      x: the inputs of the data, or their shape.
    """

    def __init__(self, view: Any, x: Any):
        self._view = view
        self._model = view.model if isinstance(view, Collapsed) else view
        self._layers: dict[int, Layer] = {}
        if not isinstance(self._model, Model) or x is None:
            return
        params = jax.eval_shape(view.init, jax.random.key(0))
        network, _ = self._model.split(params)
        if isinstance(view, Collapsed):
            self._rows = view.rows
        else:
            self._rows = Rows(view.network, network, view.init_state(), x)
        leaves, tree = jax.tree.flatten(params)
        self._tree, self._shapes = tree, [leaf.shape for leaf in leaves]
        # The likelihood may have parameters too: the indices of the network's leaves among all leaves.
        numbers = jax.tree.leaves(
            self._model.split(jax.tree.unflatten(tree, range(len(leaves))))[0]
        )
        for number, product in self._rows.products.items():
            weights, layout, bias = leaves[numbers[number]], product.layout, product.bias
            if isinstance(view, Collapsed) and number == view.last:
                layout = (1, 0, 1)  # its remaining weights are a matrix
            matrix = jax.eval_shape(lambda leaf, layout=layout: as_matrix(leaf, layout), weights)
            if matrix.size == 0 or matrix.shape[0] > min(WIDEST, product.places * len(x)):
                continue
            if bias is not None and leaves[numbers[bias]].dtype != weights.dtype:
                bias = None
            place = None if bias is None else numbers[bias]
            self._layers[number] = Layer(numbers[number], layout, place)

    def units(self, params: Params, batch: Any, state: NetworkState) -> tuple[Array, ...]:
        """The upper triangular matrix T of each layer, from its inputs at these parameters."""
        if not self._layers:
            return ()
        whole = self._view.whole(params) if isinstance(self._view, Collapsed) else params
        inputs = self._rows.all_inputs(self._model.split(whole)[0], state, batch.x)
        return tuple(
            _whitening(inputs[number], layer.bias is not None, batch.weights)
            for number, layer in self._layers.items()
        )

    def weights(self, units: tuple[Array, ...], coordinates: Flat) -> Params:
        """The weights W = T Z of each layer; all other parameters are unchanged."""
        parts = self._mapped(units, coordinates.tree, jnp.matmul)
        return self._apart(parts) if self._layers else parts

    def coordinates(self, units: tuple[Array, ...], weights: Params) -> Flat:
        """The coordinates Z of weights: the inverse of :meth:`weights`."""
        return Flat.of(self._mapped(units, self._together(weights), solve_triangular))

    def origin(self, weights: Params) -> Flat:
        """The coordinates of weights that are all zero."""
        return jax.tree.map(jnp.zeros_like, Flat.of(self._together(weights)))

    @jax.default_matmul_precision("highest")
    def _mapped(self, units, parts, function: Callable[[Array, Array], Array]):
        if not self._layers:
            return parts
        matrices, others = parts
        each = zip(units, matrices, strict=True)
        return [function(unit.astype(matrix.dtype), matrix) for unit, matrix in each], others

    def _together(self, weights: Params):
        """One matrix per layer, the weights with the bias as last row, and a list of all other leaves."""
        if not self._layers:
            return weights
        leaves: dict[int, Array] = dict(enumerate(jax.tree.leaves(weights)))
        matrices = []
        for number, layout, bias in self._layers.values():
            matrix = as_matrix(leaves.pop(number), layout)
            if bias is not None:
                matrix = jnp.concatenate([matrix, leaves.pop(bias).reshape(1, -1)])
            matrices.append(matrix)
        return matrices, list(leaves.values())

    def _apart(self, parts) -> Params:
        """The inverse of :meth:`_together`."""
        matrices, others = parts
        leaves: dict[int, Array] = {}
        for matrix, (number, layout, bias) in zip(matrices, self._layers.values(), strict=True):
            end = len(matrix) if bias is None else -1
            leaves[number] = as_leaf(matrix[:end], layout, self._shapes[number])
            if bias is not None:
                leaves[bias] = matrix[end].reshape(self._shapes[bias])
        left = iter(others)
        found = [leaves[i] if i in leaves else next(left) for i in range(len(self._shapes))]
        return jax.tree.unflatten(self._tree, found)


@jax.default_matmul_precision("highest")
def _whitening(inputs: Array, bias: bool, weights: Array | None) -> Array:
    """T from the inputs of a layer; for a layer with a bias, a one is appended to each of them."""
    inputs = widened(inputs)
    if weights is None:
        gram, mean = inputs.T @ inputs / len(inputs), jnp.mean(inputs, axis=0)
    else:
        share = jnp.repeat(weights.astype(inputs.dtype), len(inputs) // len(weights))
        share = share / jnp.sum(share)
        gram, mean = (inputs * share[:, None]).T @ inputs, share @ inputs
    if bias:
        gram = jnp.block([[gram, mean[:, None]], [mean[None], jnp.ones((1, 1), gram.dtype)]])
    one = jnp.eye(len(gram), dtype=gram.dtype)
    return solve_triangular(jnp.linalg.cholesky(one + KAPPA * gram), one, lower=True).T
