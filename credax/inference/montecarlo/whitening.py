r"""Units for the weights of a network in which the inputs of every layer are nearly white.

A layer that multiplies inputs h, and a one for its bias, by a matrix W is as stiff along a direction of W's
columns as its inputs are long there. The common mean of relu features makes one direction ten times stiffer
than the rest, and all steps of a chain short. In

.. math:: W = T Z, \qquad T T^\top = \Bigl(I + \kappa\, \tfrac{1}{n} \sum_i h_i h_i^\top\Bigr)^{-1}

it is not, and steps in Z are longer. T is that of one place and does not change with W, so the density of Z is
that of W but for a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from credax.core.precision import widened
from credax.core.trees import Flat
from credax.core.typing import Array, NetworkState, Params
from credax.inference.montecarlo.collapsed import Collapsed
from credax.model import Model
from credax.tracing.products import Rows, as_leaf, as_matrix

KAPPA = 20.0
"""From 10 to 30 chains of networks on tables climb alike; at 1 as without units, at 100 more slowly."""
WIDEST = 512
"""Inputs. The T of a layer with more of them, or with more than it is given, costs more than its product."""


class Layer(NamedTuple):
    """Which leaves its weights and its bias are, and the weights' layout as a matrix."""

    weights: int
    layout: tuple[int, ...]
    bias: int | None


class Layers:
    """The layers of a model, or of one whose last layer is integrated out, that have units of their own.

    A density without a network has none.

    Args:
      view: the model as a chain sees it.
      x: rows, or their shape.
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
        # A likelihood may have parameters too: where the network's are among all.
        numbers = jax.tree.leaves(
            self._model.split(jax.tree.unflatten(tree, range(len(leaves))))[0]
        )
        for number, product in self._rows.products.items():
            weights, layout, bias = leaves[numbers[number]], product.layout, product.bias
            if isinstance(view, Collapsed) and number == view.last:
                layout = (1, 0, 1)  # what is left of it is a matrix
            matrix = jax.eval_shape(lambda leaf, layout=layout: as_matrix(leaf, layout), weights)
            if matrix.size == 0 or matrix.shape[0] > min(WIDEST, product.places * len(x)):
                continue
            if bias is not None and leaves[numbers[bias]].dtype != weights.dtype:
                bias = None
            place = None if bias is None else numbers[bias]
            self._layers[number] = Layer(numbers[number], layout, place)

    def units(self, params: Params, batch: Any, state: NetworkState) -> tuple[Array, ...]:
        """T of each layer at these parameters: upper triangular."""
        if not self._layers:
            return ()
        whole = self._view.whole(params) if isinstance(self._view, Collapsed) else params
        inputs = self._rows.all_inputs(self._model.split(whole)[0], state, batch.x)
        return tuple(
            _whitening(inputs[number], layer.bias is not None)
            for number, layer in self._layers.items()
        )

    def weights(self, units: tuple[Array, ...], coordinates: Flat) -> Params:
        """W = T Z of each layer; all else as it is."""
        parts = self._mapped(units, coordinates.tree, jnp.matmul)
        return self._apart(parts) if self._layers else parts

    def coordinates(self, units: tuple[Array, ...], weights: Params) -> Flat:
        """Z of W: the inverse of :meth:`weights`."""
        return Flat.of(self._mapped(units, self._together(weights), solve_triangular))

    def origin(self, weights: Params) -> Flat:
        """The coordinates of weights that are zero."""
        return jax.tree.map(jnp.zeros_like, Flat.of(self._together(weights)))

    @jax.default_matmul_precision("highest")
    def _mapped(self, units, parts, function: Callable[[Array, Array], Array]):
        if not self._layers:
            return parts
        matrices, others = parts
        each = zip(units, matrices, strict=True)
        return [function(unit.astype(matrix.dtype), matrix) for unit, matrix in each], others

    def _together(self, weights: Params):
        """The weights of each layer, and its bias below them, as one matrix; and the other leaves."""
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
def _whitening(inputs: Array, bias: bool) -> Array:
    """T of a layer's inputs, a row each, and of a one where there is a bias."""
    inputs = widened(inputs)
    gram = inputs.T @ inputs / len(inputs)
    if bias:
        mean = jnp.mean(inputs, axis=0)
        gram = jnp.block([[gram, mean[:, None]], [mean[None], jnp.ones((1, 1), gram.dtype)]])
    one = jnp.eye(len(gram), dtype=gram.dtype)
    return solve_triangular(jnp.linalg.cholesky(one + KAPPA * gram), one, lower=True).T
