"""Perceptrons with one hidden layer for many chains on a GPU, by kernels that keep activations on the chip.

XLA writes the activations of all chains to memory and reads them again several times per gradient, which takes
most of the time: with 1,024 chains of an 8-50-1 network and 500 rows they are 100 MB. The kernels keep those of
a tile of rows in registers. For one real target with normal noise, one kernel computes the sum of squares and
its gradient. Otherwise, one computes the outputs and another the gradients of the parameters, which computes
the activations again. Only gradients of parameters are fast; a derivative forwards is refused by JAX.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core.typing import Array, NetworkState, Params
from credax.model import Model
from credax.model.data import ArrayData, Batch
from credax.model.likelihoods import Gaussian
from credax.model.networks.layers import ACTIVATIONS
from credax.model.networks.mlp import MLP

FEWEST = 64
"""The smallest number of replicas for which the kernels are used: each is one block of threads."""
WIDEST, INPUTS, OUTPUTS = 64, 31, 8
"""The most hidden units, inputs and outputs: registers hold tiles of all of them."""
ROWS, WARPS, EACH = 32, 2, 4
"""The rows in a tile, the groups of 32 threads that share a program, and the most tiles that one adds up.

On an H200, 32 rows and 2 warps were the fastest of five pairs for 1,024 chains of an 8-50-1 network.
"""
SLOPES = {
    "tanh": lambda a: 1 - a * a,
    "relu": lambda a: jnp.where(a > 0, jnp.ones_like(a), jnp.zeros_like(a)),
    "sigmoid": lambda a: a * (1 - a),
}
"""The derivative of each activation, from its value."""


class Fused(MLP):
    """An :class:`MLP` whose outputs and gradients are computed by the kernels."""

    def call(self, params, x, *, state, key, train):
        """The outputs and the state, as those of the ``MLP``."""
        return _outputs(self.activation, _interpreted(), *_weights(params), x), state


class OfSquares(NamedTuple):
    """The log joint density of a model of one real target with normal noise, whose squares a kernel adds up."""

    model: Model

    def log_joint(self, params: Params, batch: Batch, *, state: NetworkState = ()) -> Array:
        """The log joint density, as that of the model for a network without state."""
        network, learned = self.model.split(params)
        y = batch.y.reshape(-1)
        each = jnp.ones_like(y) if batch.weights is None else batch.weights.astype(y.dtype)
        activation = self.model.network.activation  # pyright: ignore[reportAttributeAccessIssue]
        given = (activation, _interpreted(), *_weights(network), batch.x, y, each)
        squares, _ = _squares(*given)
        nothing = jnp.zeros((1, 1), y.dtype)
        scale = self.model.likelihood.location_scale(nothing, learned)[1].reshape(())  # pyright: ignore[reportAttributeAccessIssue]
        constant = jnp.log(scale) + 0.5 * math.log(2 * math.pi)
        log_likelihood = -0.5 * squares / scale**2 - jnp.sum(each) * constant
        return self.model.log_prior(params) + batch.scale * log_likelihood


def _weights(params: Params) -> tuple[Array, ...]:
    first, last = params["layer_0"], params["layer_1"]
    return first["kernel"], first["bias"], last["kernel"], last["bias"]


def _interpreted() -> bool:
    return jax.default_backend() == "cpu"


def fused(model: Any, batch: Any, replicas: int) -> Any:
    """The model with the kernels in its network, if these are faster for so many replicas; or as it is.

    Args:
      model: the model.
      batch: the rows of a step.
      replicas: how many replicas take their steps at once.
    """
    if not ready(model, batch, replicas) or (jax.device_count() > 1 and not _own_program()):
        return model
    return with_kernels(model)


def ready(model: Any, rows: Any, replicas: int) -> bool:
    """Whether there are kernels for this model and so many replicas, which are tried at the first question.

    Args:
      model: the model.
      rows: the rows of a step, or all rows.
      replicas: how many replicas take their steps at once.
    """
    return (
        jax.default_backend() == "gpu" and replicas >= FEWEST and _suits(model, rows) and _works()
    )


def with_kernels(model: Model) -> Any:
    """The model with the kernels: in its network, or in its log joint density."""
    if type(model.likelihood) is Gaussian and model.network.outputs == 1:  # pyright: ignore[reportAttributeAccessIssue]
        return OfSquares(model)
    own = {field.name: getattr(model.network, field.name) for field in fields(MLP)}
    return replace(model, network=Fused(**own))


def _own_program() -> bool:
    """Whether each device runs a program of its own; the compiler cannot divide a kernel among devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and set(mesh.manual_axes) == set(mesh.axis_names)


def _suits(model: Any, rows: Any) -> bool:
    if type(model) is not Model or type(model.network) is not MLP or model.compute is not None:
        return False
    network: MLP = model.network
    if network.inputs is None or network.outputs is None or len(network.hidden) != 1:
        return False
    if network.dropout or network.batch_norm:
        return False
    small = network.inputs <= INPUTS and network.outputs <= OUTPUTS
    small = small and network.hidden[0] <= WIDEST and network.activation in SLOPES
    arrays = isinstance(rows, Batch | ArrayData) and not model.divided
    return small and arrays and _single(rows)


def _single(rows: Any) -> bool:
    return {rows.x.dtype, rows.y.dtype, jnp.result_type(float)} == {np.dtype(np.float32)}


@cache
def _works() -> bool:
    """Whether this version of JAX has kernels that compute the right gradient on this GPU."""
    try:
        # In a thread of its own, since the first use may be while a step is traced in this one.
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(_agrees).result()
    except Exception:  # noqa: BLE001 - whatever a compiler raises, the network works without kernels
        return False


def _agrees() -> bool:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((70, 3), np.float32), rng.standard_normal(70, np.float32)
    shapes = [(2, 3, 5), (2, 5), (2, 5, 1), (2, 1)]
    params = [jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes]
    ones, given = jnp.ones_like(y), ("tanh", _interpreted())
    plain: Any = partial(_plain, "tanh")

    def sines(outputs, *params):
        return jnp.sum(jnp.sin(outputs(*params, x)))

    def gradients(function):
        gradient = jax.value_and_grad(function, argnums=(0, 1, 2, 3))
        return jax.jit(jax.vmap(gradient))(*params)

    pairs = [
        (partial(sines, partial(_outputs, *given)), partial(sines, plain)),
        (
            lambda *p: _squares(*given, *p, x, y, ones)[0],
            lambda *p: jnp.sum((y - plain(*p, x)[:, 0]) ** 2),
        ),
    ]
    # In the default precision a product has three digits on some GPUs.
    for precision, error in (("highest", 1e-3), (None, 5e-2)):
        close = partial(np.allclose, rtol=error, atol=error)
        with jax.default_matmul_precision(precision):
            for pair in pairs:
                values, want = map(gradients, pair)
                if not all(jax.tree.leaves(jax.tree.map(close, values, want))):
                    return False
    return True


# -- the function and its derivative -----------------------------------------------------------------


def _plain(activation, w1, b1, w2, b2, x):
    return ACTIVATIONS[activation](x @ w1 + b1) @ w2 + b2


def _given(activation, interpret, w1, b1, w2, b2, x):
    """``activation(x w1 + b1) w2 + b2``."""
    tiles = Tiles(w1, w2, x)
    found = tiles.forward(activation, interpret, *tiles.padded(w1, b1, w2), tiles.columns(x))
    return found[: w2.shape[1], : len(x)].T + b2


def _forward(activation, interpret, *given):
    return _given(activation, interpret, *given), given


def _backward(activation, interpret, given, slopes):
    w1, b1, w2, b2, x = given
    tiles = Tiles(w1, w2, x)
    rows = tiles.columns(x), tiles.rows(slopes)
    parts = tiles.backward(activation, interpret, *tiles.padded(w1, b1, w2), *rows)
    first, last = (jnp.sum(part, 0) for part in parts)
    (inputs, units), outputs = w1.shape, w2.shape[1]
    weights = first[:inputs, :units], first[inputs, :units], last[:outputs, :units].T
    # Computed as without the kernels; XLA leaves it out where it is not used.
    dx = jax.vjp(lambda x: _plain(activation, w1, b1, w2, b2, x), x)[1](slopes)[0]
    return *weights, jnp.sum(slopes, 0), dx


_outputs: Any = jax.custom_vjp(_given, nondiff_argnums=(0, 1))
_outputs.defvjp(_forward, _backward)


def _sum_of_squares(activation, interpret, w1, b1, w2, b2, x, y, each):
    """The weighted sum of the squares of ``y - outputs``, and the sums that its gradient needs."""
    tiles = Tiles(w1, w2, x)
    goal = tiles.rows(jnp.stack([y, each], 1), 2)
    parts = tiles.squares(
        activation, interpret, *tiles.last(w1, b1, w2, b2), tiles.columns(x), goal
    )
    first, last = (jnp.sum(part, 0) for part in parts)
    return last[2, 0], (first, last)


def _squares_forward(activation, interpret, *given):
    squares, sums = _sum_of_squares(activation, interpret, *given)
    return (squares, sums), (given, sums)


def _squares_backward(activation, interpret, saved, slopes):
    (w1, b1, w2, b2, x, y, each), (first, last) = saved
    inputs, units = w1.shape
    sums = first[:inputs, :units], first[inputs, :units], last[0, :units, None], last[1, :1]
    weights = (-2 * slopes[0] * part for part in sums)

    def plain(*rows):
        outputs = _plain(activation, w1, b1, w2, b2, rows[0])[:, 0]
        return jnp.sum(rows[2] * (rows[1] - outputs) ** 2)

    # Computed as without the kernel; XLA leaves it out where it is not used.
    return *weights, *jax.vjp(plain, x, y, each)[1](slopes[0])


_squares: Any = jax.custom_vjp(_sum_of_squares, nondiff_argnums=(0, 1))
_squares.defvjp(_squares_forward, _squares_backward)


def _power(count: int, least: int = 1) -> int:
    while least < count:
        least *= 2
    return least


class Tiles:
    """The shapes of a network and its rows, filled up to powers of two, and the kernels for them.

    The inputs have a last column of ones, whose weights are the biases of the hidden units: products then
    compute the biases and their gradients too.
    """

    def __init__(self, w1: Array, w2: Array, x: Array):
        self.inputs, self.units = w1.shape
        self.outputs = w2.shape[1]
        self.deep, self.wide = _power(self.inputs + 1, 16), _power(self.units, 16)
        self.each = min(EACH, -(-len(x) // ROWS))
        self.parts = -(-len(x) // (ROWS * self.each))
        self.length = _power(self.parts * self.each * ROWS)

    def padded(self, w1: Array, b1: Array, w2: Array) -> tuple[Array, Array]:
        """The parameters; units beyond the last one have weights of zero."""
        more = (0, self.wide - self.units)
        first = jnp.concatenate([w1, b1[None]])
        first = jnp.pad(first, [(0, self.deep - self.inputs - 1), more])
        return first, jnp.pad(w2.T, [(0, 16 - self.outputs), more])

    def last(self, w1: Array, b1: Array, w2: Array, b2: Array) -> tuple[Array, Array]:
        """As ``padded`` for one output, with its bias in a row below its weights."""
        first, last = self.padded(w1, b1, w2)
        return first, jnp.stack([last[0], jnp.broadcast_to(b2, last[0].shape)])

    def columns(self, x: Array) -> Array:
        """The inputs and a one, with rows along the last axis."""
        ones = jnp.ones((len(x), 1), x.dtype)
        return self.rows(jnp.concatenate([x, ones], 1), self.deep)

    def rows(self, table: Array, columns: int = 16) -> Array:
        """A table with its rows along the last axis; those beyond the last one are zero."""
        more = [(0, columns - table.shape[1]), (0, self.length - len(table))]
        return jnp.pad(table.T, more)

    def forward(self, activation, interpret, *given: Array) -> Array:
        """The outputs at ``(w1, w2, x)``, with rows along the last axis, without the last bias."""
        pl, how = _pallas(interpret)

        def body(w1_ref, w2_ref, x_ref, out_ref):
            at = pl.ds(pl.program_id(0) * ROWS, ROWS)
            hidden = ACTIVATIONS[activation](_dot(x_ref[:, at].T, w1_ref[...]))
            for k in range(self.outputs):
                out_ref[k, at] = jnp.sum(hidden * w2_ref[k, :][None, :], 1)

        shape = jax.ShapeDtypeStruct((16, self.length), given[0].dtype)
        return pl.pallas_call(body, shape, grid=(self.parts * self.each,), **how)(*given)

    def backward(self, activation, interpret, *given: Array) -> tuple[Array, Array]:
        """The gradients at ``(w1, w2, x, slopes)``, in the shapes of w1 and w2, for each part of the rows."""
        pl, how = _pallas(interpret)
        slope_of = SLOPES[activation]

        def body(w1_ref, w2_ref, x_ref, slopes_ref, first_ref, last_ref):
            part = pl.program_id(0)

            def add(tile, sums):
                at = pl.ds((part * self.each + tile) * ROWS, ROWS)
                x, slopes = x_ref[:, at], slopes_ref[:, at]
                hidden = ACTIVATIONS[activation](_dot(x.T, w1_ref[...]))
                down = jnp.zeros_like(hidden)
                for k in range(self.outputs):
                    down += slopes_ref[k, at][:, None] * w2_ref[k, :][None, :]
                first, last = sums
                return first + _dot(x, down * slope_of(hidden)), last + _dot(slopes, hidden)

            zero = lambda ref: jnp.zeros(ref.shape, ref.dtype)  # noqa: E731
            sums = lax.fori_loop(0, self.each, add, (zero(w1_ref), zero(w2_ref)))
            first_ref[part, :, :], last_ref[part, :, :] = sums

        shapes = [
            jax.ShapeDtypeStruct((self.parts, *weight.shape), weight.dtype) for weight in given[:2]
        ]
        return pl.pallas_call(body, shapes, grid=(self.parts,), **how)(*given)

    def squares(self, activation, interpret, *given: Array) -> tuple[Array, Array]:
        """Sums at ``(w1, (w2, b2), x, (y, weights))``, for each part of the rows.

        The first are those for w1 of half the negative squares' gradient; the others, in rows, those for w2
        and b2, and the squares.
        """
        pl, how = _pallas(interpret)
        slope_of = SLOPES[activation]

        def body(w1_ref, w2_ref, x_ref, goal_ref, first_ref, last_ref):
            part, w2 = pl.program_id(0), w2_ref[0, :]

            def add(tile, sums):
                at = pl.ds((part * self.each + tile) * ROWS, ROWS)
                x = x_ref[:, at]
                hidden = ACTIVATIONS[activation](_dot(x.T, w1_ref[...]))
                away = goal_ref[0, at] - jnp.sum(hidden * w2[None, :], 1) - w2_ref[1, 0]
                slope = away * goal_ref[1, at]
                down = slope[:, None] * w2[None, :] * slope_of(hidden)
                first, last, bias, squares = sums
                first += _dot(x, down)
                last += jnp.sum(slope[:, None] * hidden, 0)
                return first, last, bias + jnp.sum(slope), squares + jnp.sum(slope * away)

            none = jnp.zeros((), jnp.float32)
            sums = (jnp.zeros(w1_ref.shape, jnp.float32), jnp.zeros_like(w2), none, none)
            sums = lax.fori_loop(0, self.each, add, sums)
            first_ref[part, :, :] = sums[0]
            for row, total in enumerate(sums[1:]):
                last_ref[part, row, :] = jnp.broadcast_to(total, w2.shape)

        first, wide = given[0], self.wide
        shapes = [
            jax.ShapeDtypeStruct((self.parts, *first.shape), first.dtype),
            jax.ShapeDtypeStruct((self.parts, 4, wide), first.dtype),
        ]
        return pl.pallas_call(body, shapes, grid=(self.parts,), **how)(*given)


def _dot(a: Array, b: Array) -> Array:
    """A product in the precision that the backend has by default, as that of the network without kernels."""
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _pallas(interpret: bool) -> tuple[Any, dict[str, Any]]:
    """JAX's module of kernels, imported when they are used, and how they are compiled."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    if interpret:
        return pallas, {"interpret": True}
    return pallas, {"compiler_params": triton.CompilerParams(num_warps=WARPS, num_stages=1)}
