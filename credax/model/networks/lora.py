"""Low-rank adaptation of a trained network (Hu et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from credax.core.checks import integer, positive
from credax.core.trees import named_leaves, tree_paths
from credax.core.typing import Array, Key, Params
from credax.core.weights import Weights, nested
from credax.model.networks.frozen import (
    FrozenNetwork,
    check_network,
    check_patterns,
    check_weights,
    matching,
    path_patterns,
    replaced,
    trained_values,
)
from credax.model.networks.network import AbstractNetwork

LEFT, RIGHT = "a", "b"
"""The names of the two factors, after the path of the weight that they change."""


def lora(
    network: AbstractNetwork,
    rank: int,
    pattern: str | Sequence[str] = "*",
    *,
    weights: Any = None,
    scale: float = 1.0,
) -> LoRA:
    r"""Freeze a trained network and learn low-rank changes of its weight matrices.

    .. math:: W = W_0 + \frac{s}{\sqrt{r\, n}}\, A B, \qquad A \in \mathbb{R}^{m \times r},\quad
              B \in \mathbb{R}^{r \times k},\quad n = \max(m, k)

    The factors A and B are the only parameters. A begins at a standard normal draw and B at zero: at the start
    the network is the trained one. Under the prior ``Normal(1.0)`` of the factors, each weight changes by a
    standard deviation of :math:`s/\sqrt{n}`, for every rank. Vectors (biases, scales of normalisations),
    weights that do not match, and batch statistics are frozen. The factors are multiplied out before the
    network runs, so any network is adapted, however it uses its weights.

    >>> import credax as cx
    >>> network = cx.networks.mlp([20, 20]).build((3,), 1)
    >>> trained = network.init(cx.random.key(0))
    >>> adapted = cx.networks.lora(network, 2, "layer_1/*", weights=trained)
    >>> [factor.shape for factor in adapted.init(cx.random.key(1))["layer_1"]["kernel"].values()]
    [(20, 2), (2, 20)]

    Args:
      network: any network.
      rank: r, at most the smaller side of every matrix that the pattern chooses.
      pattern: one or more path patterns, as for priors; of the weights that match one of them, those with two
        or more axes are adapted, except biases. An array of more axes, such as the kernel of a convolution, is
        taken as a matrix over two groups of neighbouring axes, divided so that it is as square as possible.
      weights: the values of all weights: a posterior with a single draw (such as one of ``MAP``), or a pytree
        of the network's parameters. If ``None``, the weights of a pretrained network are used.
      scale: s.

    Reference: Hu et al., LoRA: Low-rank adaptation of large language models, 2022.
    """
    check_network("lora", network)
    patterns = path_patterns("lora", "pattern", pattern)
    values = trained_values("lora", network, weights)
    rank, scale = integer("lora", "rank", rank), positive("lora", "scale", scale)
    return LoRA(network, rank, patterns, scale, *values)


@dataclass(frozen=True, repr=False)
class LoRA(FrozenNetwork):
    """A trained network with low-rank changes of its weights. Made by :func:`lora`.

    Attributes:
      network: the whole network.
      rank: the rank of the changes.
      pattern: patterns for the paths of the weights that are changed.
      scale: the size of the changes.
      weights: the trained values of all weights. If ``None``, those of ``network.init``.
      state: the batch statistics. If ``None``, those of ``network.init_state``.
    """

    network: AbstractNetwork
    rank: int
    pattern: tuple[str, ...]
    scale: float = 1.0
    weights: Weights | None = None
    state: Weights | None = None

    def build(self, input_shape, outputs):
        """The adapted network completed for these rows, after checks of patterns, rank and weights."""
        built = replace(self, network=self.network.build(input_shape, outputs))
        like = jax.eval_shape(built.network.init, jax.random.key(0))
        check_patterns("lora", "pattern", self.pattern, tree_paths(like))
        check_weights("lora", self.weights, like)
        sides = {path: matrix_shape(leaf.shape) for path, leaf in self._changed(like).items()}
        if not sides:
            shapes = {path: leaf.shape for path, leaf in named_leaves(like) if self._matches(path)}
            raise ValueError(
                f"lora(pattern=...) must match weights of two or more axes; it matches {shapes}."
            )
        narrow = {path: shape for path, shape in sides.items() if min(shape) < self.rank}
        if narrow:
            listed = ", ".join(f"{path!r} {shape}" for path, shape in narrow.items())
            raise ValueError(
                f"lora(rank=...) must be at most the smaller side of each matrix; got {self.rank} for "
                f"{listed}. Lower the rank, or give a pattern that leaves these weights out."
            )
        return built

    def _matches(self, path: str) -> bool:
        return matching(self.pattern, path)

    def _changed(self, tree: Params) -> dict[str, Any]:
        """The weights that are changed, by their paths."""
        leaves = named_leaves(tree)
        return {
            path: leaf
            for path, leaf in leaves
            if not is_vector(path, leaf.shape) and self._matches(path)
        }

    def init(self, key: Key):
        """A standard normal factor and a factor of zeros for each matrix, as nested dictionaries."""
        changed = self._changed(jax.eval_shape(self.network.init, key))
        found = {}
        for (path, leaf), leaf_key in zip(
            changed.items(), jax.random.split(key, len(changed)), strict=True
        ):
            rows, columns = matrix_shape(leaf.shape)
            dtype = _factor_dtype(leaf.dtype)
            found[f"{path}/{LEFT}"] = jax.random.normal(leaf_key, (rows, self.rank), dtype)
            found[f"{path}/{RIGHT}"] = jnp.zeros((self.rank, columns), dtype)
        return nested(found)

    def merged(self, params):
        """The trained weights and their changes, added up."""
        whole, factors = self.trained(), dict(named_leaves(params))
        changed = {
            path: leaf + self._change(factors, path, leaf)
            for path, leaf in self._changed(whole).items()
        }
        return replaced(whole, changed)

    def _change(self, factors: dict[str, Array], path: str, leaf: Array) -> Array:
        left, right = factors[f"{path}/{LEFT}"], factors[f"{path}/{RIGHT}"]
        size = self.scale / math.sqrt(self.rank * max(matrix_shape(leaf.shape)))
        return (size * (left @ right)).reshape(leaf.shape).astype(leaf.dtype)


def is_vector(path: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight is a vector, also with axes of length one, such as the bias of a convolution in Equinox.

    >>> (
    ...     is_vector("conv/bias", (4, 1, 1)),
    ...     is_vector("conv/bias", (4, 1)),
    ...     is_vector("head/weight", (4, 1)),
    ... )
    (True, True, False)
    """
    one = sum(length > 1 for length in shape) < 2
    return len(shape) < 2 or (one and (len(shape) > 2 or path.endswith("bias")))


def _factor_dtype(dtype: Any) -> Any:
    """The dtype of factors: that of the weight, at least single precision."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(dtype, jnp.float32)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of an array as a matrix over two groups of neighbouring axes, as square as possible.

    For the kernel of a convolution or of an attention, this separates the inputs from the outputs.

    >>> matrix_shape((3, 3, 16, 32)), matrix_shape((32, 16, 3, 3)), matrix_shape((64, 4, 16))
    ((144, 32), (32, 144), (64, 64))
    """
    splits = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(1, len(shape))]
    return max(splits, key=min)
