"""The last layer of a network: its features, and a normal distribution of its weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.precision import widened
from credax.core.trees import as_leaf, as_matrix
from credax.core.typing import Array, NetworkState, Params
from credax.inference.variational.expected import SUPPORTED
from credax.model import Model
from credax.posterior.approximations.normals import FullNormal
from credax.tracing.products import Rows


class Last(NamedTuple):
    """q of the last layer, in units of the prior: N(mean_k, precision_k^-1) for output k."""

    mean: Array  # (features, outputs)
    precision: Array  # (outputs, features, features)


class Seen(NamedTuple):
    """What the last layer sees of some rows: the outputs are ``base + features @ w``."""

    features: Array  # (rows, features), in units of the prior
    base: Array  # (rows, outputs), the outputs at the prior mean of the last layer


class Layer:
    """The last layer of a model: its weights, and its bias if it has one.

    Args:
      model: a model bound to data.
      x: the inputs of the data, or their shape.

    Raises:
      ValueError: the model has no posterior of the last layer in closed form. The message says what is needed.
    """

    def __init__(self, model: Any, x: Any):
        self._model = model
        if isinstance(model, Model) and model.divided:
            raise ValueError(
                "VariationalLastLayer needs rows with targets of their own; this model has positions or heads. "
                "Use Laplace(structure='last_layer')."
            )
        if not isinstance(model, Model) or not isinstance(model.likelihood, SUPPORTED):
            names = ", ".join(kind.__name__ for kind in SUPPORTED)
            got = type(getattr(model, "likelihood", model)).__name__
            raise ValueError(
                f"VariationalLastLayer needs one of the likelihoods {names}; got {got}."
            )
        params = jax.eval_shape(model.init, jax.random.key(0))
        network, _ = model.split(params)
        self._shapes, self._tree = jax.tree.flatten(network)
        self._rows = Rows(model.network, network, model.init_state(), x)
        last = self._rows.final()
        if last is None:
            raise ValueError(
                "VariationalLastLayer needs a network that returns the product with its last layer's weights "
                "unchanged, up to a sum; this one does not."
            )
        self._last: int = last
        self._product = self._rows.products[last]
        bias = self._product.bias
        self._taken = (last,) if bias is None else (last, bias)
        priors = jax.tree.leaves(model.split(model.leaf_priors(params))[0])
        normals = [priors[i].gaussian(self._shapes[i].shape) for i in self._taken]
        if None in normals:
            raise ValueError(
                "VariationalLastLayer needs a normal prior (Normal, FanInNormal) of the last layer; got "
                f"{next(priors[i] for i, n in zip(self._taken, normals, strict=True) if n is None)}."
            )
        self._normals: list[Any] = normals

    @property
    def weights(self) -> int:
        """The number of weights of the last layer."""
        return sum(self._shapes[i].size for i in self._taken)

    def split(self, params: Params) -> tuple[tuple[list[Array], Any], Array]:
        """The other weights, together with what the likelihood learns; and those of the last layer.

        The latter are a matrix of features by outputs, as distances from the prior mean in units of its scale.
        """
        network, learned = self._model.split(params)
        leaves = jax.tree.leaves(network)
        others = [leaf for i, leaf in enumerate(leaves) if i not in self._taken]
        parts = [
            (as_matrix(widened(leaves[i]), self._layout(i)) - mean) / scale
            for i, mean, scale in self._moments()
        ]
        return (others, learned), jnp.concatenate(parts)

    def join(self, others: tuple[list[Array], Any], last: Array) -> Params:
        """The inverse of :meth:`split`."""
        leaves, learned = list(others[0]), others[1]
        begin = 0
        taken = {}
        for i, mean, scale in self._moments():
            part = mean + scale * last[begin : begin + len(mean)]
            leaf = as_leaf(part, self._layout(i), self._shapes[i].shape)
            taken[i] = leaf.astype(self._shapes[i].dtype)
            begin += len(mean)
        rest = iter(leaves)
        whole = [taken[i] if i in taken else next(rest) for i in range(len(self._shapes))]
        network = jax.tree.unflatten(self._tree, whole)
        return network if learned is None else {"network": network, "likelihood": learned}

    def rows_of(self, others: Any, state: NetworkState, x: Array) -> Seen:
        """The features of some rows and their outputs at the prior mean."""
        outputs = self._shapes[self._last].size // self._inputs
        nothing = jnp.zeros((self.features, outputs), jnp.result_type(float))
        network, _ = self._model.split(self.join(others, nothing))
        centre = as_matrix(jax.tree.leaves(network)[self._last], self._layout(self._last))
        base, inputs = self._rows.inputs(self._last, network, state, x, lambda a: a @ centre)
        scales = [scale for _, _, scale in self._moments()]
        parts = [widened(inputs) * scales[0]]
        if len(scales) > 1:
            parts.append(jnp.full((len(inputs), 1), scales[1], parts[0].dtype))
        return Seen(jnp.concatenate(parts, axis=1), widened(base))

    def normal(self, others: Any, last: Last, state: NetworkState) -> FullNormal:
        """The distribution of all weights, of which only those of the last layer are free."""
        mean, precision = (np.asarray(part, np.float64) for part in last)
        # What rounding in the precision of a run may have taken away from the eigenvalues is added again.
        rounding = np.finfo(last.precision.dtype).eps * np.max(np.sum(np.abs(precision), axis=2))
        precision = precision + rounding * np.eye(precision.shape[1])
        dtype = np.dtype(jnp.result_type(float))
        numbers = np.split(np.arange(self.weights), np.cumsum(self._sizes())[:-1])
        order = dict(zip(sorted(self._taken), numbers, strict=True))
        places = np.concatenate(
            [
                np.asarray(as_matrix(order[i].reshape(self._shapes[i].shape), self._layout(i)))
                for i in self._taken
            ]
        )
        scales = np.concatenate([np.full(len(m), s) for _, m, s in self._moments()])
        root = np.zeros((self.weights, self.weights), dtype)
        for k, matrix in enumerate(precision):
            # With P = L L', the covariance is L^-T L^-1.
            half = np.linalg.inv(np.linalg.cholesky(matrix)).T
            root[np.ix_(places[:, k], places[:, k])] = scales[:, None] * half
        params = jax.device_get(self.join(others, jnp.asarray(mean, dtype)))
        marks = [i in self._taken for i in range(len(self._shapes))]
        marked: Any = jax.tree.unflatten(self._tree, marks)
        if others[1] is not None:
            learned = jax.tree.map(lambda _: False, others[1])
            marked = {"network": marked, "likelihood": learned}
        free = tuple(jax.tree.leaves(marked))
        return FullNormal(params, root, free, linearised=True, state=jax.device_get(state))

    @property
    def features(self) -> int:
        """The number of features, the constant one of the bias included."""
        return self._inputs + len(self._taken) - 1

    @property
    def _inputs(self) -> int:
        shape = self._shapes[self._last]
        return as_matrix(np.empty(shape.shape, bool), self._layout(self._last)).shape[0]

    def _sizes(self) -> list[int]:
        return [self._shapes[i].size for i in sorted(self._taken)]

    def _layout(self, i: int) -> tuple[int, ...]:
        return self._product.layout if i == self._last else ()

    def _moments(self) -> list[tuple[int, Array, float]]:
        """For each leaf of the layer: its index, and the prior's mean as a matrix and scale."""
        found = []
        for i, (loc, scale) in zip(self._taken, self._normals, strict=True):
            mean = jnp.broadcast_to(jnp.asarray(loc, jnp.result_type(float)), self._shapes[i].shape)
            found.append((i, as_matrix(mean, self._layout(i)), float(scale)))
        return found
