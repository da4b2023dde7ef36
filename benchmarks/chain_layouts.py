"""Layouts of the gradients of many small chains, written by hand in JAX, for the benchmark ``chains``.

The log joint is that of ``benchmarks/sampling.py``: an 8-50-1 tanh network, 500 rows, noise of a known scale.
Each layout has the parameters of all chains as a pytree of its own, and a function that returns their
gradients. They run in a leapfrog loop, so that the times are those of a trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.sampling import FEATURES, HIDDEN, NOISE, first, log_joint

STEP = 1e-3
HIGHEST = lax.Precision.HIGHEST


class Layout(NamedTuple):
    """How the parameters of all chains lie in memory, and their gradient.

    Attributes:
      pack: from a list of arrays with a leading axis for chains.
      gradient: of the sum of the log joints of all chains.
      unpack: the inverse of ``pack``.
      group: if given, so many chains take their whole trajectory at a time.
      precision: of the products.
    """

    pack: Callable[[Any], Any]
    gradient: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    group: int | None = None
    precision: str | None = None


def starts(chains: int) -> list[jax.Array]:
    """First parameters, with a leading axis for chains."""
    return jax.jit(jax.vmap(first))(jax.random.split(jax.random.key(0), chains))


def trajectory(layout: Layout, leapfrogs: int) -> Callable[[Any], Any]:
    """Leapfrog steps of all chains, from and to stacked lists of parameters."""

    def together(params):
        position = layout.pack(params)
        momentum = jax.tree.map(jnp.ones_like, position)

        def leapfrog(_, carry):
            position, momentum = carry
            gradient = layout.gradient(position)
            momentum = jax.tree.map(lambda p, g: p + STEP * 1e-3 * g, momentum, gradient)
            return jax.tree.map(lambda w, p: w + STEP * p, position, momentum), momentum

        return layout.unpack(lax.fori_loop(0, leapfrogs, leapfrog, (position, momentum))[0])

    def run(params):
        if layout.group is None:
            return together(params)
        divided = lambda leaf: leaf.reshape(-1, layout.group, *leaf.shape[1:])  # noqa: E731
        result = lax.map(together, jax.tree.map(divided, params))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), result)

    return _at(layout.precision, jax.jit(run))


def gradients(layout: Layout) -> Callable[[Any], Any]:
    """The gradients of all chains, from and to stacked lists of parameters."""
    return _at(
        layout.precision,
        jax.jit(lambda params: layout.unpack(layout.gradient(layout.pack(params)))),
    )


def _at(precision: str | None, function: Callable) -> Callable:
    def run(params):
        with jax.default_matmul_precision(precision):
            return function(params)

    return function if precision is None else run


def layouts(x: Any, y: Any, chains: int) -> dict[str, Layout]:
    """All layouts that need nothing but XLA."""
    xt, same = jnp.asarray(x.T), lambda params: params
    each = jax.vmap(jax.grad(partial(log_joint, x=x, y=y)))

    def prior(params):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in params)

    def fit(mean, axis):  # the rows of y lie along the given axis of the two
        target = jnp.expand_dims(y, 1 - axis)
        return -0.5 * jnp.sum(((target - mean) / NOISE) ** 2)

    def rows_last(params):
        w1, b1, w2, b2 = params
        hidden = jnp.tanh(jnp.einsum("cfh,fr->chr", w1, xt) + b1[:, :, None])
        return prior(params) + fit(jnp.einsum("chr,ch->cr", hidden, w2[..., 0]) + b2, 1)

    def rows_last_sums(params):
        w1, b1, w2, b2 = params
        hidden = jnp.tanh(jnp.einsum("cfh,fr->chr", w1, xt) + b1[:, :, None])
        return prior(params) + fit(jnp.sum(hidden * w2, 1) + b2, 1)

    def unrolled(params, keep=False):
        w1, b1, w2, b2 = params

        def mean(w1, b1, w2):
            z = b1[:, :, None]
            for feature in range(FEATURES):
                z = z + w1[:, feature, :, None] * xt[feature]
            return jnp.sum(jnp.tanh(z) * w2, 1)

        mean = mean if keep else jax.checkpoint(mean)
        return prior(params) + fit(mean(w1, b1, w2) + b2, 1)

    def half(params):
        w1, b1, w2, b2 = params
        z = jnp.einsum("cfh,fr->chr", w1.astype(jnp.bfloat16), xt.astype(jnp.bfloat16))
        hidden = jnp.tanh(z + b1[:, :, None].astype(jnp.bfloat16))
        out = jnp.sum(hidden * w2.astype(jnp.bfloat16), 1, dtype=jnp.float32)
        return prior(params) + fit(out + b2, 1)

    def chains_last(params):
        w1, b1, w2, b2 = params  # (features, hidden, chains), (hidden, chains), ...
        hidden = jnp.tanh(jnp.einsum("fhc,fr->hrc", w1, xt) + b1[:, None])
        return prior(params) + fit(jnp.sum(hidden * w2, 0) + b2, 0)

    def flat(params):
        w1, b1, w2, b2 = params  # (features, chains * hidden), (chains * hidden,), ...
        hidden = jnp.tanh(x @ w1 + b1) * w2
        out = hidden.reshape(len(y), -1, HIDDEN).sum(2) + b2
        return prior(params) + fit(out, 0)

    def last(params):
        w1, b1, w2, b2 = params
        w1, b1 = jnp.moveaxis(w1, 0, -1), b1.T
        return [w1, b1, jnp.moveaxis(w2, 0, -1), b2[:, 0]]

    def first_again(params):
        w1, b1, w2, b2 = params
        return [jnp.moveaxis(w1, -1, 0), b1.T, jnp.moveaxis(w2, -1, 0), b2[:, None]]

    def flattened(params):
        w1, b1, w2, b2 = params
        return [jnp.moveaxis(w1, 1, 0).reshape(FEATURES, -1), b1.ravel(), w2.ravel(), b2[:, 0]]

    def unflattened(params):
        w1, b1, w2, b2 = params
        w1 = jnp.moveaxis(w1.reshape(FEATURES, -1, HIDDEN), 0, 1)
        return [w1, b1.reshape(-1, HIDDEN), w2.reshape(-1, HIDDEN, 1), b2[:, None]]

    vmapped = Layout(same, each, same)
    by_rows = Layout(same, jax.grad(rows_last), same)
    by_sums = Layout(same, jax.grad(rows_last_sums), same)
    found = {
        "vmap": vmapped,
        "rows last": by_rows,
        "rows last, sums": by_sums,
        "features unrolled, recomputed": Layout(same, jax.grad(unrolled), same),
        "features unrolled, kept": Layout(same, jax.grad(partial(unrolled, keep=True)), same),
        "chains last": Layout(last, jax.grad(chains_last), first_again),
        "one flat product": Layout(flattened, jax.grad(flat), unflattened),
        "rows last, bfloat16 kept": Layout(same, jax.grad(half), same),
    }
    for name in ("vmap", "rows last", "rows last, sums", "one flat product"):
        for precision in ("tensorfloat32", "bfloat16", "highest"):
            found[f"{name}, {precision}"] = found[name]._replace(precision=precision)
    for group in (32, 64, 128, 256):
        if group < chains and chains % group == 0:
            for name in ("vmap", "rows last", "rows last, sums"):
                found[f"{name}, groups of {group}"] = found[name]._replace(group=group)
    return found


# -- a kernel that keeps the activations on the chip ---------------------------------------------------

WIDE = 64  # the hidden units, padded with units whose weights are zero
PACKED = 16  # rows of packed parameters: those of the first layer, its biases, the last layer, its bias, zeros


def packed(params: Any) -> jax.Array:
    """The parameters of all chains as one array (chains, ``PACKED``, ``WIDE``)."""
    w1, b1, w2, b2 = params
    rows = jnp.concatenate([w1, b1[:, None], jnp.moveaxis(w2, 1, 2)], 1)
    rows = jnp.pad(rows, [(0, 0), (0, 0), (0, WIDE - HIDDEN)])
    bias = jnp.broadcast_to(b2[:, :, None], (len(b2), 1, WIDE))
    zeros = jnp.zeros((len(b2), PACKED - FEATURES - 3, WIDE), rows.dtype)
    return jnp.concatenate([rows, bias, zeros], 1)


def unpacked(array: jax.Array) -> list[jax.Array]:
    """The inverse of :func:`packed`."""
    w1 = array[:, :FEATURES, :HIDDEN]
    b1, w2 = array[:, FEATURES, :HIDDEN], array[:, FEATURES + 1, :HIDDEN, None]
    return [w1, b1, w2, array[:, FEATURES + 2, :1]]


class Tile(NamedTuple):
    """The settings of the kernel."""

    rows: int = 64
    warps: int = 4
    products: str = (
        "sums"  # "sums" of one feature at a time, or "tf32" or "float32" by matrix products
    )
    tanh: str = "library"  # or "exp", by the exponential function, or "approximate"
    interpret: bool = False


def kernel(x: Any, y: Any, tile: Tile) -> Layout:
    """One program for each chain, which goes over its rows in tiles; forwards and backwards in one."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    count = -(-len(y) // tile.rows)
    size = 1
    while size < count * tile.rows:
        size *= 2  # an array that a program sees has a power of two entries
    deep = FEATURES if tile.products == "sums" else PACKED
    rows = jnp.zeros((deep, size), jnp.float32).at[:FEATURES, : len(y)].set(x.T)
    # The targets, and a weight of zero for the rows that fill the last tile.
    goal = jnp.zeros((2, size), jnp.float32).at[0, : len(y)].set(y)
    goal = goal.at[1, : len(y)].set(1 / NOISE**2)

    def tanh(z):
        if tile.tanh == "exp":
            return 1 - 2 / (jnp.exp(2 * z) + 1)
        return triton.approx_tanh(z) if tile.tanh == "approximate" else jnp.tanh(z)

    def dot(a, b):
        how = lax.Precision.HIGHEST if tile.products == "float32" else lax.Precision.DEFAULT
        return jnp.dot(a, b, precision=how, preferred_element_type=jnp.float32)

    def body(x_ref, y_ref, w_ref, out_ref):
        b1, w2 = w_ref[FEATURES, :], w_ref[FEATURES + 1, :]
        b2 = w_ref[FEATURES + 2, 0]

        def residual(a, at):
            mean = jnp.sum(a * w2[None, :], 1) + b2
            return (y_ref[0, at] - mean) * y_ref[1, at]

        def sums(index, carry):
            at = pl.ds(index * tile.rows, tile.rows)
            dw1, db1, dw2, db2 = carry
            inputs = [x_ref[feature, at] for feature in range(FEATURES)]
            z = jnp.broadcast_to(b1[None, :], (tile.rows, WIDE))
            for feature in range(FEATURES):
                z += inputs[feature][:, None] * w_ref[feature, :][None, :]
            a = tanh(z)
            r = residual(a, at)
            dz = r[:, None] * w2[None, :] * (1 - a * a)
            dw1 = tuple(
                old + jnp.sum(dz * inputs[feature][:, None], 0) for feature, old in enumerate(dw1)
            )
            return (
                dw1,
                db1 + jnp.sum(dz, 0),
                dw2 + jnp.sum(r[:, None] * a, 0),
                db2 + jnp.sum(r),
            )

        def products(index, carry):
            at = pl.ds(index * tile.rows, tile.rows)
            dw1, db1, dw2, db2 = carry
            block = x_ref[:, at]
            a = tanh(dot(block.T, w_ref[...] * mask[:, None]) + b1[None, :])
            r = residual(a, at)
            dz = r[:, None] * w2[None, :] * (1 - a * a)
            return (
                dw1 + dot(block, dz),
                db1 + jnp.sum(dz, 0),
                dw2 + jnp.sum(r[:, None] * a, 0),
                db2 + jnp.sum(r),
            )

        zero = jnp.zeros((WIDE,), jnp.float32)
        if tile.products == "sums":
            carry = (tuple(zero for _ in range(FEATURES)), zero, zero, jnp.float32(0))
            dw1, db1, dw2, db2 = lax.fori_loop(0, count, sums, carry)
            for feature in range(FEATURES):
                out_ref[feature, :] = dw1[feature] - w_ref[feature, :]
        else:
            mask = (lax.broadcasted_iota(jnp.int32, (PACKED,), 0) < FEATURES).astype(jnp.float32)
            carry = (jnp.zeros((PACKED, WIDE), jnp.float32), zero, zero, jnp.float32(0))
            dw1, db1, dw2, db2 = lax.fori_loop(0, count, products, carry)
            out_ref[...] = dw1 - w_ref[...]
        out_ref[FEATURES, :] = db1 - b1
        out_ref[FEATURES + 1, :] = dw2 - w2
        out_ref[FEATURES + 2, :] = jnp.broadcast_to(db2 - b2, (WIDE,))
        if tile.products == "sums":
            for row in range(FEATURES + 3, PACKED):
                out_ref[row, :] = zero

    def gradient(array):
        whole = lambda a: pl.BlockSpec(a.shape, lambda c: (0,) * a.ndim)  # noqa: E731
        own = pl.BlockSpec((None, PACKED, WIDE), lambda c: (c, 0, 0))
        how = {} if tile.interpret else {"compiler_params": triton.CompilerParams(tile.warps, 1)}
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(array.shape, array.dtype),
            grid=(len(array),),
            in_specs=[whole(rows), whole(goal), own],
            out_specs=own,
            interpret=tile.interpret,
            **how,
        )(rows, goal, array)

    return Layout(packed, gradient, unpacked)


TILES = {
    f"kernel, {rows} rows, {warps} warps, {products}, tanh {tanh}": Tile(
        rows, warps, products, tanh
    )
    for products in ("sums", "tf32", "float32")
    for tanh in ("library", "exp")
    for rows, warps in ((32, 2), (32, 4), (64, 4), (64, 8), (128, 8))
}
