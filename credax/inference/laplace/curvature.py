r"""The curvature of the log likelihood, summed over the rows in blocks that fit in memory.

The generalised Gauss-Newton matrix treats the network as linear in its weights,

.. math:: G = \sum_i J_i^\top H_i J_i, \qquad J_i = \frac{\partial f(x_i)}{\partial w}, \quad
          H_i = -\nabla_f^2 \log p(y_i \mid f),

so it is positive semidefinite. With a root :math:`H_i = R_i R_i^\top`, it is the sum of :math:`z z^\top` over
the columns z of all :math:`J_i^\top R_i`, and each column takes one backward pass. For a weight that is
multiplied by inputs a, a column is the outer product :math:`a g^\top`, with the derivative g with respect to
the product. The Jacobian for all weights is therefore computed only if the whole matrix is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.trees import Flat, as_leaf
from credax.core.typing import Array, Params
from credax.model import Model
from credax.model.data import roots
from credax.model.likelihoods import (
    Categorical,
    Heads,
    Heteroscedastic,
    Likelihood,
    PerPosition,
    StudentT,
)
from credax.tracing.backward import BLOCK_BYTES, Backward, backward, row_bytes
from credax.tracing.convolutions import rearranged
from credax.tracing.products import Rows

FEWEST_BLOCKS = 8
"""With fewer blocks of rows than this, all columns are computed: sorting the rows would not pay."""
NEGLIGIBLE = 64
"""The columns left out may add up to this many rounding errors of the whole; a float32 sum has more."""
PARTS = 5
"""Blocks compute 0, 1, ... or all fifths of their columns; each of these is compiled separately."""
ROW_BYTES = 4 << 30
"""The most bytes that the derivatives of one row may take."""
OWN_BLOCK = 2048
"""A leaf without a product (a bias, a scale) of up to this size has a full matrix, a larger one a diagonal."""


class Kind(Enum):
    """The part of the curvature that is kept for a leaf of the parameters."""

    FIXED = "nothing"
    DIAGONAL = "its diagonal"
    KRONECKER = "two factors, of its product's inputs and outputs"
    SHARED = "the output factor of the product that it is added to"
    OWN = "its whole matrix"
    JOINT = "its part of one matrix of all such leaves"


class Sums(NamedTuple):
    """Sums over all rows.

    Attributes:
      leaves: for each leaf of the network, depending on its kind: the diagonal in the shape of the leaf, the
        pair of factors (or the inputs and the output factor, if there are fewer rows than inputs), the matrix,
        or ``None``.
      joint: the matrix over all joint leaves, concatenated, or its largest eigenvectors; ``None`` if there are
        none.
      gradient: for each leaf, the gradient of the log likelihood; zero if the leaf is fixed.
      log_likelihood: the log likelihood.
    """

    leaves: tuple[Any, ...]
    joint: Any
    gradient: tuple[Array, ...]
    log_likelihood: Array


def kinds_of(rows: Rows, shapes: Sequence[tuple[int, ...]], structure: str) -> tuple[Kind, ...]:
    """The part of the curvature that a structure keeps for each leaf."""
    indices = range(len(shapes))
    if structure == "last_layer":
        return tuple(Kind.JOINT if i in rows.last else Kind.FIXED for i in indices)
    if structure != "kronecker":
        return (Kind.DIAGONAL if structure == "diagonal" else Kind.JOINT,) * len(shapes)
    shared = {p.bias for p in rows.products.values() if p.places == 1}

    def kind(i: int) -> Kind:
        if i in rows.products:
            return Kind.KRONECKER
        if i in shared and shapes[i] == _outputs_of(rows, i):
            return Kind.SHARED
        return Kind.OWN if math.prod(shapes[i]) <= OWN_BLOCK else Kind.DIAGONAL

    return tuple(kind(i) for i in indices)


def few_inputs(rows: Rows, i: int, leaf: Array, count: int) -> bool:
    """Whether a product has more inputs than there are rows, so that its input factor has a low rank.

    Then the inputs themselves are kept, ``(rows, inputs)``, instead of the larger matrix of their products.
    """
    product = rows.products[i]
    return product.places == 1 and count < leaf.size // math.prod(product.shape)


def check_memory(model: Model, rows: Rows, kinds, leaves, structure: str, curvature: str) -> None:
    """Refuse a model with positions or heads if the derivatives of all outputs of one row take too much memory.

    Rows of tables have few outputs; those of long sequences and large images may have many thousands.
    """
    if not model.divided or curvature == "hessian" or structure == "low_rank":
        return
    likelihoods = model.likelihood, *(each for _, each in getattr(model.likelihood, "_pairs", ()))
    positions = sum(each.size for each in likelihoods if isinstance(each, PerPosition)) or 1
    columns: int = positions if curvature == "fisher" else model.schema.outputs  # pyright: ignore[reportOptionalMemberAccess]
    outer = structure == "diagonal"
    size = row_bytes(rows, *split_leaves(rows, kinds), leaves, columns + 1, outer=outer)
    if size > ROW_BYTES:
        raise ValueError(
            f"Laplace(structure={structure!r}, curvature={curvature!r}) takes one backward pass for each of "
            f"the {columns:,} directions of the outputs of a row, {size / 2**30:,.1f} GiB; the limit is "
            f"{ROW_BYTES / 2**30:g} GiB. Shorten the rows, use curvature='fisher' or structure='last_layer', "
            "or another method, such as IVON."
        )


def product_with(rows: Rows, bias: int) -> int:
    """The leaf to whose product a bias is added."""
    return next(leaf for leaf, product in rows.products.items() if product.bias == bias)


def _outputs_of(rows: Rows, bias: int) -> tuple[int, ...]:
    return (math.prod(rows.products[product_with(rows, bias)].shape),)


# -- the curvature in the outputs ------------------------------------------------------------------


def output_root(likelihood: Likelihood, curvature: str, outputs: Array, y: Any, learned: Any):
    r"""R', of shape ``(columns, outputs)``, where R R' is the curvature of one row in its outputs.

    If the Hessian depends on y and may be indefinite (Student's t, a scale that the network predicts), its
    expectation over y is used instead: the Fisher information, which is positive semidefinite. For all other
    likelihoods the two are equal. Positions and heads are independent given the outputs, so theirs is made of
    one block for each.
    """
    if isinstance(likelihood, PerPosition):
        table = outputs.reshape(likelihood.size, -1)
        root = partial(output_root, likelihood.likelihood, curvature, learned=learned)
        blocks = jax.vmap(root)(table, y.values)
        if y.weights is not None:
            blocks = blocks * roots(y.weights, blocks)
        return _block_diagonal(list(blocks))
    if isinstance(likelihood, Heads):
        blocks = []
        for name, where in likelihood.slices().items():
            own = None if learned is None else learned.get(name)
            part = outputs[where], y.tree[name], own
            blocks.append(output_root(likelihood[name], curvature, *part))
        return _block_diagonal(blocks)

    def negative(outputs):
        return -likelihood.log_prob(outputs[None], y[None], learned)[0]

    if curvature == "fisher":
        return jax.grad(negative)(outputs)[None]
    if isinstance(likelihood, Categorical):
        # diag(p) - p p' = S (I - s s') S with s = sqrt(p) and S = diag(s). A reflection that maps s to an axis
        # is orthogonal, so its other columns C satisfy C C' = I - s s'.
        s = jnp.sqrt(jax.nn.softmax(outputs))
        return (jnp.eye(len(s), dtype=s.dtype)[1:] - s[1:, None] * _mirror(s)) * s
    if isinstance(likelihood, Heteroscedastic):
        location, scale = likelihood.location_scale(outputs[None], learned)
        slope = jax.nn.sigmoid(outputs[location.shape[1] :])
        both = jnp.concatenate([1 / scale[0], math.sqrt(2) * slope / scale[0]])
        return jnp.diag(both)
    if isinstance(likelihood, StudentT):
        _, scale = likelihood.location_scale(outputs[None], learned)
        share = math.sqrt(likelihood.noise_information())
        return jnp.diag(share / jnp.broadcast_to(scale, outputs.shape))
    hessian = jax.hessian(negative)(outputs)
    if len(outputs) == 1:
        return jnp.sqrt(jnp.maximum(hessian, 0))
    values, vectors = jnp.linalg.eigh(hessian)
    return jnp.sqrt(jnp.maximum(values, 0))[:, None] * vectors.T


def _block_diagonal(blocks: list[Array]) -> Array:
    return jax.scipy.linalg.block_diag(*blocks)


def _mirror(s: Array) -> Array:
    """The normal of the reflection that maps s to minus the first axis, divided by its first entry."""
    return s.at[0].add(1) / (1 + s[0])


# -- sums over the rows -----------------------------------------------------------------------------


@jit(static_argnames=("model", "structure", "curvature"))
def accumulate(model: Model, structure: str, curvature: str, params: Params, state, data) -> Sums:
    """The sums over all rows of a data set.

    If the network is certain about a row, the columns of that row are almost zero. With many rows and several
    columns, the smallest columns are therefore left out, as many as together amount to a few rounding errors of
    the whole curvature. The rows are sorted by their number of remaining columns, and each block computes as
    many columns as its first row needs.
    """
    network, learned = model.split(params)
    leaves = jax.tree.leaves(network)
    rows = Rows(model.network, network, state, data.x)
    kinds = kinds_of(rows, [leaf.shape for leaf in leaves], structure)
    tapped, wanted = split_leaves(rows, kinds)

    def log_prob(outputs, target):
        return model.likelihood.log_prob(outputs[None], target[None], learned)[0]

    def root_of(outputs, target):
        return output_root(model.likelihood, curvature, outputs, target, learned)

    def outputs_of(x):
        return widened(model.network.apply(network, x, state))

    columns = jax.eval_shape(lambda: root_of(outputs_of(data.x[:1])[0], data.y[0])).shape[0]
    outer = structure == "diagonal"
    per_row = row_bytes(rows, tapped, wanted, leaves, columns + 1, outer=outer)
    size = min(data.rows, max(1, BLOCK_BYTES // per_row))
    weights = data.weights
    begins = jnp.arange(0, data.rows, size)
    # The last block starts early enough to have the full size; rows that were already counted get weight 0.
    start_of = lambda begin: jnp.minimum(begin, data.rows - size)  # noqa: E731

    def of_block(count, chosen, new):
        """The sums over the ``chosen`` rows, weighted by ``new``, with ``count`` columns of each row.

        If the rows have weights, they multiply the slopes and values, and their roots multiply the columns.
        """
        weight = new if weights is None else new * weights[chosen].astype(new.dtype)
        share = new if weights is None else jnp.sqrt(weight)

        def one(row, target, new, weight, share):
            def root(outputs):
                whole = root_of(outputs, target)
                if count < columns:
                    whole = whole[jnp.argsort(-jnp.sum(whole**2, axis=1))[:count]]
                return share * whole

            slope = lambda outputs: weight * jax.grad(log_prob)(outputs, target)  # noqa: E731
            opened = (rows, tapped, wanted, leaves, state, row)
            outputs, found, slopes = backward(*opened, root, slope)
            inputs = jax.tree.map(lambda a: new * a, found.inputs)
            return found._replace(inputs=inputs), slopes, weight * log_prob(outputs, target)

        x, y = data.x[chosen], data.y[chosen]
        found, slopes, values = jax.vmap(one)(x, y, new, weight, share)

        def input_factor(i):
            inputs = found.inputs[i]
            if weights is not None:
                inputs = inputs * roots(weights[chosen], inputs)
            if not few_inputs(rows, i, leaves[i], data.rows):
                return gram(inputs)
            return (
                jnp.zeros((data.rows, inputs.shape[2]), inputs.dtype).at[chosen].add(inputs[:, 0])
            )

        kept = tuple(
            _kept(kind, i, found, rows, leaves[i], input_factor) for i, kind in enumerate(kinds)
        )
        gradient = tuple(_slope(kind, i, slopes, rows, leaves[i]) for i, kind in enumerate(kinds))
        joint = [
            found.leaves[i].reshape(*found.leaves[i].shape[:2], leaves[i].size)
            for i, kind in enumerate(kinds)
            if kind is Kind.JOINT
        ]
        whole = gram(jnp.concatenate(joint, axis=2)) if joint else None
        return Sums(kept, whole, gradient, jnp.sum(values))

    def squares_of(squares, begin):
        start = start_of(begin)
        take = lambda a: lax.dynamic_slice_in_dim(a, start, size)  # noqa: E731
        x, y, some = jax.tree.map(take, (data.x, data.y, weights))
        found = jnp.sum(jax.vmap(root_of)(outputs_of(x), y) ** 2, axis=2)
        if weights is not None:
            found = found * some[:, None].astype(found.dtype)
        return lax.dynamic_update_slice_in_dim(squares, found, start, axis=0), None

    with jax.default_matmul_precision("highest"):
        # Each entry of a diagonal has its own rounding error, so small columns matter there.
        if columns < 3 or len(begins) < FEWEST_BLOCKS or structure == "diagonal":
            order, needed = jnp.arange(data.rows), jnp.full(data.rows, columns)
            counts = [columns]
        else:
            nothing = jnp.zeros((data.rows, columns), jnp.result_type(float))
            squares = lax.scan(rearranged(squares_of), nothing, begins)[0]
            # NaN is not left out, so that it shows in the sums.
            needed = jnp.sum(~(squares <= _negligible(squares)), axis=1)
            order = jnp.argsort(-needed)
            needed = needed[order]
            counts = sorted({round(columns * part / PARTS) for part in range(PARTS + 1)})
        parts = [partial(of_block, count) for count in counts]

        def add(total, begin):
            chosen = lax.dynamic_slice_in_dim(order, start_of(begin), size)
            new = (start_of(begin) + jnp.arange(size) >= begin).astype(jnp.result_type(float))
            part = jnp.searchsorted(jnp.asarray(counts), needed[begin])
            return jax.tree.map(jnp.add, total, lax.switch(part, parts, chosen, new)), None

        new = jnp.ones(size, jnp.result_type(float))
        shapes = jax.eval_shape(parts[0], order[:size], new)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        return lax.scan(rearranged(add), zeros, begins)[0]


def _negligible(squares: Array) -> Array:
    """The largest value such that all values up to it add up to a few rounding errors of the total."""
    ascending = jnp.sort(squares.reshape(-1))
    sums = jnp.cumsum(ascending)
    few = sums <= NEGLIGIBLE * jnp.finfo(squares.dtype).eps * sums[-1]
    few &= jnp.isfinite(sums[-1])
    return jnp.max(jnp.where(few, ascending, 0))


def split_leaves(rows: Rows, kinds: tuple[Kind, ...]) -> tuple[list[int], list[int]]:
    """The leaves whose products are tapped, and the leaves whose derivatives are computed directly."""
    of_product = (Kind.KRONECKER, Kind.DIAGONAL)
    tapped = [i for i in rows.products if kinds[i] in of_product]
    idle = (Kind.FIXED, Kind.SHARED)
    return tapped, [i for i, kind in enumerate(kinds) if i not in tapped and kind not in idle]


def _kept(kind: Kind, i: int, found: Backward, rows: Rows, leaf: Array, input_factor) -> Any:
    """The contribution of a block of rows to what is kept for a leaf."""
    if kind is Kind.KRONECKER:
        return input_factor(i), gram(found.results[i])
    if kind is Kind.OWN:
        # Not -1, which is not defined where a block needs none of the columns.
        return gram(found.leaves[i].reshape(*found.leaves[i].shape[:2], leaf.size))
    if kind is not Kind.DIAGONAL:
        return None
    if i not in rows.products:
        return jnp.sum(found.leaves[i] ** 2, axis=(0, 1))
    a, g, layout = found.inputs[i], found.results[i], rows.products[i].layout
    if rows.products[i].places == 1:
        squares = (a[:, 0] ** 2).T @ jnp.sum(g[:, :, 0] ** 2, axis=1)
    else:
        squares = jnp.sum(jnp.einsum("rpi,rcpj->rcij", a, g) ** 2, axis=(0, 1))
    return as_leaf(squares, layout, leaf.shape)


def _slope(kind: Kind, i: int, slopes: Backward, rows: Rows, leaf: Array) -> Array:
    """The contribution of a block of rows to the gradient with respect to a leaf."""
    if i in slopes.results:
        inputs, results = slopes.inputs[i], slopes.results[i]
        matrix = jnp.einsum("rpi,rpj->ij", inputs, results)
        return as_leaf(matrix, rows.products[i].layout, leaf.shape)
    if kind is Kind.SHARED:
        return jnp.sum(slopes.results[product_with(rows, i)], axis=(0, 1)).reshape(leaf.shape)
    if i in slopes.leaves:
        return jnp.sum(slopes.leaves[i], axis=0)
    return jnp.zeros(leaf.shape, jnp.result_type(float))


def gram(rows: Array) -> Array:
    """The sum of z z' over the vectors z along the last axis.

    The result is symmetric, so only the blocks on and above the diagonal are computed.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    size = flat.shape[1]
    step = max(256, -(-size // 3))  # products of smaller blocks lose more time than they save
    parts = []
    for begin in range(0, size, step):
        part = flat[:, begin : begin + step].T @ flat[:, begin:]
        parts.append(jnp.pad(part, ((0, 0), (begin, 0))))
    upper = jnp.concatenate(parts)
    return jnp.triu(upper) + jnp.triu(upper, 1).T


# -- the exact Hessian -------------------------------------------------------------------------------


@jit(static_argnames=("model", "structure"))
def accumulate_hessian(model: Model, structure: str, params: Params, state, data) -> Sums:
    """As :func:`accumulate`, with the exact Hessian of the negative log likelihood, one column per weight."""
    network, _ = model.split(params)
    leaves, tree = jax.tree.flatten(network)
    rows = Rows(model.network, network, state, data.x)
    kinds = kinds_of(rows, [leaf.shape for leaf in leaves], structure)
    free = [kind is not Kind.FIXED for kind in kinds]
    flat = Flat.of([leaf for leaf, chosen in zip(leaves, free, strict=True) if chosen])

    def merged(vector):
        chosen = iter(jax.tree.map(lambda _: vector, flat).tree)
        return [
            next(chosen) if is_free else leaf for leaf, is_free in zip(leaves, free, strict=True)
        ]

    def log_likelihood(vector):
        inner = jax.tree.unflatten(tree, merged(vector))
        whole = inner if not model.likelihood.learned else {**params, "network": inner}
        return model.full_log_likelihood(whole, data, state)

    value, gradient = jax.value_and_grad(log_likelihood)(flat.vector)

    def column(i):
        direction = jnp.zeros_like(flat.vector).at[i].set(1)
        found = -jax.jvp(jax.grad(log_likelihood), (flat.vector,), (direction,))[1]
        return found[i] if structure == "diagonal" else found

    with jax.default_matmul_precision("highest"):
        found = lax.map(column, jnp.arange(flat.size))
    each = zip(merged(gradient), free, strict=True)
    slopes = [widened(g) if chosen else jnp.zeros_like(g) for g, chosen in each]
    if structure == "diagonal":
        return Sums(tuple(merged(found)), None, tuple(slopes), value)
    return Sums((None,) * len(leaves), 0.5 * (found + found.T), tuple(slopes), value)
