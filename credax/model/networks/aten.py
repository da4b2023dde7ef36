"""PyTorch's core operations (ATen), implemented on JAX arrays.

Each function below takes the arguments of the operation that it implements; arguments that concern only memory
(devices, layouts) are ignored. https://docs.pytorch.org/docs/stable/torch.compiler_ir.html
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core.typing import Array, Key


@dataclass(frozen=True, eq=False)
class Program:
    """An exported module.

    Attributes:
      graph: its operations, a ``torch.fx.Graph``.
      inputs: for the name of a placeholder, the path of the weight that it takes.
      constants: for the name of any other placeholder except the inputs', its value.
      arguments: the names of the placeholders that take the arrays of ``x``, in the order of JAX.
      form: a function that puts the results into the containers that the module returns.
      outputs: the names of the results.
      changed: for the name of a result, the path of the buffer whose next value it is.
    """

    graph: Any
    inputs: Mapping[str, str]
    constants: Mapping[str, np.ndarray]
    arguments: Sequence[str]
    form: Callable[[list[Array]], Any]
    outputs: Sequence[str]
    changed: Mapping[str, str]


def run(
    program: Program, weights: Mapping[str, Array], x: Sequence[Array], key: Key | None
) -> tuple[Any, dict[str, Array]]:
    """Run an exported module; return what it returns and the next values of the buffers that it changes.

    Args:
      program: the module.
      weights: the values of its parameters and buffers, by path.
      x: the arrays of its inputs.
      key: the key for dropout; ``None`` for no dropout.
    """
    values: dict[str, Any] = dict(zip(program.arguments, x, strict=True))
    draws = itertools.count()

    def get(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [get(item) for item in argument]
        return values[argument.name] if hasattr(argument, "op") else argument

    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in program.inputs:
                values[node.name] = weights[program.inputs[node.name]]
            elif node.name in program.constants:
                values[node.name] = jnp.asarray(program.constants[node.name])
        elif node.op == "call_function":
            function = _find(node.target)
            arguments = [get(argument) for argument in node.args]
            named = {name: get(argument) for name, argument in node.kwargs.items()}
            if function in RANDOM:
                named["key"] = None if key is None else jax.random.fold_in(key, next(draws))
            values[node.name] = function(*arguments, **named)
    outputs = program.form([values[name] for name in program.outputs])
    if isinstance(outputs, Mapping):
        outputs = dict(outputs)
    elif len(program.outputs) != 1:
        raise ValueError(
            "from_torch(module=...) must return one array, or a dictionary of arrays for several heads; it "
            f"returns {len(program.outputs)} arrays."
        )
    changed = {path: values[name] for name, path in program.changed.items()}
    return outputs, changed


def _find(target: Any) -> Callable:
    if target is operator.getitem:
        return operator.getitem
    name = str(target)
    namespace, _, rest = name.partition(".")
    function = OPERATIONS.get(rest.split(".")[0])
    if namespace != "aten" or function is None:
        raise NotImplementedError(
            f"from_torch does not know the operation {name!r} of this module. Write that part with other "
            "operations, or give the network by cx.networks.from_function."
        )
    return function


def _dtype(dtype: Any) -> Any:
    """Convert a dtype of PyTorch to the nearest one that JAX allows."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    return jax.dtypes.canonicalize_dtype({"bool": np.bool_}.get(name, name))


def _axes(axes: Any) -> Any:
    """Axes for JAX: ``None`` and the empty list both mean all axes."""
    return tuple(axes) if isinstance(axes, list) and axes else None if axes == [] else axes


def _ntuple(value: Any, length: int) -> tuple[int, ...]:
    value = [value] if isinstance(value, int) else list(value)
    return tuple(value * length if len(value) == 1 else value)


# -- reductions -----------------------------------------------------------------------------------


def _reduction(function: Callable) -> Callable:
    def reduce(x, dim=None, keepdim=False, *, dtype=None):
        x = x if dtype is None else x.astype(_dtype(dtype))
        return function(x, axis=_axes(dim), keepdims=keepdim)

    return reduce


def _variance(x, dim=None, unbiased=True, keepdim=False, *, correction=None):
    # var.dim(x, dim, unbiased, keepdim) and var.correction(x, dim, *, correction, keepdim)
    correction = int(bool(unbiased)) if correction is None else correction
    return jnp.var(x, axis=_axes(dim), ddof=correction, keepdims=keepdim)


# -- products -------------------------------------------------------------------------------------


def _addmm(bias, x, y, *, beta=1, alpha=1):
    product = x @ y if alpha == 1 else alpha * (x @ y)
    return product + (bias if beta == 1 else beta * bias)


def _convolution(x, kernel, bias, stride, padding, dilation, transposed, output_padding, groups):
    spatial = "HWD"[: x.ndim - 2]
    one = (1,) * len(spatial)
    strides, dilation = _ntuple(stride, len(spatial)), _ntuple(dilation, len(spatial))
    pads = [(p, p) for p in _ntuple(padding, len(spatial))]
    stretch = one
    if transposed:
        # The gradient of a convolution: the input is dilated and the kernel is flipped.
        size, extra = kernel.shape[2:], _ntuple(output_padding, len(spatial))
        full = [d * (n - 1) for d, n in zip(dilation, size, strict=True)]
        pads = [(f - p, f - p + e) for f, (p, _), e in zip(full, pads, extra, strict=True)]
        stretch, strides = strides, one
        inputs, outputs = kernel.shape[0] // groups, kernel.shape[1]
        kernel = kernel.reshape(groups, inputs, outputs, *size)
        kernel = jnp.swapaxes(kernel, 1, 2).reshape(groups * outputs, inputs, *size)
        kernel = jnp.flip(kernel, tuple(range(2, kernel.ndim)))
    result = lax.conv_general_dilated(
        x,
        kernel,
        strides,
        pads,
        lhs_dilation=stretch,
        rhs_dilation=dilation,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
    )
    return result if bias is None else result + bias.reshape(1, -1, *one)


# -- pooling --------------------------------------------------------------------------------------


def _windows(x, size, stride, padding, dilation, ceil_mode):
    """Window, strides, padding and dilation over the last axes of an array, for ``reduce_window``."""
    if ceil_mode:
        raise NotImplementedError("from_torch does not know pooling with ceil_mode=True.")
    count = len(size) if isinstance(size, list) else x.ndim - 2
    lead = x.ndim - count
    size = _ntuple(size, count)
    stride = _ntuple(stride, count) if stride else size
    pads = [(0, 0)] * lead + [(p, p) for p in _ntuple(padding, count)]
    one = (1,) * lead
    return one + size, one + stride, pads, (1,) * x.ndim, one + _ntuple(dilation, count)


def _max_pool(x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    windows = _windows(x, kernel_size, stride, padding, dilation, ceil_mode)
    # A NumPy constant: JAX can differentiate a maximum only if it knows the initial value while tracing.
    return lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, *windows), None


def _average_pool(
    x, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor=None
):
    windows = _windows(x, kernel_size, stride, padding, 1, ceil_mode)
    zero = np.array(0, x.dtype)
    total = lax.reduce_window(x, zero, lax.add, *windows)
    if divisor is not None or count_include_pad:
        return total / (divisor or math.prod(windows[0]))
    return total / lax.reduce_window(jnp.ones_like(x), zero, lax.add, *windows)


def _adaptive_average_pool(x, output_size):
    for axis, bins in zip(range(-len(output_size), 0), output_size, strict=True):
        size = x.shape[axis]
        edges = [(i * size // bins, -(-(i + 1) * size // bins)) for i in range(bins)]
        parts = [
            jnp.mean(lax.slice_in_dim(x, a, b, axis=axis), axis, keepdims=True) for a, b in edges
        ]
        x = jnp.concatenate(parts, axis)
    return x


# -- normalisation --------------------------------------------------------------------------------


def _normalised(x, mean, variance, weight, bias, eps):
    """Normalise, then scale and shift; all parameters run along the second axis of ``x``."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    y = (x - mean.reshape(shape)) * lax.rsqrt(variance.reshape(shape) + eps)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        y = _normalised(x, running_mean, running_var, weight, bias, eps)
        return y, None, None, running_mean, running_var
    axes = (0, *range(2, x.ndim))
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    count = x.size // x.shape[1]
    if count < 2:
        raise ValueError(
            "BatchNorm needs batches of at least 2 rows in training; got 1. Raise batch_size."
        )
    unbiased = variance * (count / (count - 1))
    follow = lambda old, new: (1 - momentum) * old + momentum * new  # noqa: E731
    y = _normalised(x, mean, variance, weight, bias, eps)
    return y, mean, variance, follow(running_mean, mean), follow(running_var, unbiased)


def _batch_norm_fixed(x, weight, bias, running_mean, running_var, momentum, eps):
    return _normalised(x, running_mean, running_var, weight, bias, eps), None, None


def _layer_norm(x, shape, weight, bias, eps):
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean, variance = jnp.mean(x, axes, keepdims=True), jnp.var(x, axes, keepdims=True)
    y = (x - mean) * lax.rsqrt(variance + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, lax.rsqrt(variance + eps)


def _group_norm(x, weight, bias, rows, channels, size, groups, eps):
    parts = x.reshape(rows, groups, -1)
    mean, variance = jnp.mean(parts, -1, keepdims=True), jnp.var(parts, -1, keepdims=True)
    y = ((parts - mean) * lax.rsqrt(variance + eps)).reshape(x.shape)
    zero, one = jnp.zeros(channels, x.dtype), jnp.ones(channels, x.dtype)
    return _normalised(y, zero, one, weight, bias, 0.0), mean, variance


# -- shapes and indices ---------------------------------------------------------------------------


def _expand(x, sizes, **_):
    shape = (1,) * (len(sizes) - x.ndim) + x.shape
    wanted = [old if new == -1 else new for new, old in zip(sizes, shape, strict=True)]
    return jnp.broadcast_to(x, wanted)


def _cat(parts, axis=0):
    # PyTorch leaves out vectors without entries, whatever the shape of the others: a cache before its use.
    full = [part for part in parts if part.shape != (0,)]
    return jnp.concatenate(full or parts, axis)


def _squeeze(x, dim=None):
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


def _slice(x, dim=0, start=None, end=None, step=1):
    cut = [slice(None)] * x.ndim
    cut[dim] = slice(start, end, step)
    return x[tuple(cut)]


def _split(x, sizes, dim=0):
    total = x.shape[dim]
    sizes = (
        [min(sizes, total - i) for i in range(0, total, sizes)] if isinstance(sizes, int) else sizes
    )
    return jnp.split(x, np.cumsum(sizes)[:-1], dim)


def _index(x, indices):
    return x[tuple(slice(None) if index is None else index for index in indices)]


def _pad(x, pad, value=0.0):
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][
        ::-1
    ]  # the pairs begin with the last axis
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    return lax.pad(x, jnp.asarray(value, x.dtype), [(low, high, 0) for low, high in pairs])


def _full(size, value, *, dtype=None, **_):
    return jnp.full(tuple(size), value, _dtype(dtype))


def _arange(*bounds, dtype=None, **_):
    return jnp.arange(*bounds, dtype=_dtype(dtype))


def _copy(x, *, dtype=None, **_):
    return jnp.asarray(x) if dtype is None else jnp.asarray(x).astype(_dtype(dtype))


# -- other operations -----------------------------------------------------------------------------


def _div(x, y, *, rounding_mode=None):
    quotient = x / y
    return {None: lambda q: q, "floor": jnp.floor, "trunc": jnp.trunc}[rounding_mode](quotient)


def _clamp(x, min=None, max=None):
    return jnp.clip(x, min, max)


def _elu(x, alpha=1.0, scale=1.0, input_scale=1.0):
    below = alpha * jnp.expm1(input_scale * jnp.minimum(x, 0))
    return scale * jnp.where(x > 0, x, below)


def _softplus(x, beta=1.0, threshold=20.0):
    return jnp.where(beta * x > threshold, x, jax.nn.softplus(beta * x) / beta)


def _gelu(x, *, approximate="none"):
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _dropout(x, rate, train=True, *, key):
    if key is None or not train or rate == 0:
        return x, None
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x)), kept


def _bernoulli(x, p=None, *, key, **_):
    return jax.random.bernoulli(key, x if p is None else p, x.shape).astype(x.dtype)


def _uniform(shape, *, key, dtype=None, **_):
    shape = shape.shape if hasattr(shape, "shape") else tuple(shape)
    return jax.random.uniform(key, shape, _dtype(dtype) or jnp.result_type(float))


def _normal(shape, *, key, dtype=None, **_):
    shape = shape.shape if hasattr(shape, "shape") else tuple(shape)
    return jax.random.normal(key, shape, _dtype(dtype) or jnp.result_type(float))


RANDOM = {_dropout, _bernoulli, _uniform, _normal}

OPERATIONS: dict[str, Callable] = {
    # elementwise
    "add": lambda x, y, alpha=1: x + (y if alpha == 1 else alpha * y),
    "sub": lambda x, y, alpha=1: x - (y if alpha == 1 else alpha * y),
    "rsub": lambda x, y, alpha=1: y - (x if alpha == 1 else alpha * x),
    "mul": operator.mul,
    "div": _div,
    "remainder": jnp.remainder,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "reciprocal": jnp.reciprocal,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "atan": jnp.arctan,
    "tanh": jnp.tanh,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "erf": lax.erf,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round": jnp.round,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": _gelu,
    "elu": _elu,
    "softplus": _softplus,
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "hardtanh": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "clamp": _clamp,
    "minimum": jnp.minimum,
    "maximum": jnp.maximum,
    "where": jnp.where,
    "masked_fill": lambda x, mask, value: jnp.where(mask, jnp.asarray(value, x.dtype), x),
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_not": jnp.logical_not,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_not": jnp.bitwise_not,
    # reductions
    "sum": _reduction(jnp.sum),
    "mean": _reduction(jnp.mean),
    "prod": _reduction(jnp.prod),
    "amax": _reduction(jnp.max),
    "amin": _reduction(jnp.min),
    "any": _reduction(jnp.any),
    "all": _reduction(jnp.all),
    "argmax": _reduction(jnp.argmax),
    "argmin": _reduction(jnp.argmin),
    "var": _variance,
    "cumsum": lambda x, dim, **_: jnp.cumsum(x, dim),
    "_softmax": lambda x, dim, _: jax.nn.softmax(x, dim),
    "_log_softmax": lambda x, dim, _: jax.nn.log_softmax(x, dim),
    # products
    "mm": operator.matmul,
    "mv": operator.matmul,
    "bmm": operator.matmul,
    "dot": operator.matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "convolution": _convolution,
    # pooling and normalisation
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "avg_pool1d": _average_pool,
    "avg_pool2d": _average_pool,
    "avg_pool3d": _average_pool,
    "_adaptive_avg_pool2d": _adaptive_average_pool,
    "_adaptive_avg_pool3d": _adaptive_average_pool,
    "_native_batch_norm_legit_no_training": _batch_norm_fixed,
    "_native_batch_norm_legit_functional": _batch_norm,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    # shapes and indices
    "view": lambda x, shape: x.reshape(shape),
    "_unsafe_view": lambda x, shape: x.reshape(shape),
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": jnp.transpose,
    "transpose": jnp.swapaxes,
    "t": jnp.transpose,
    "unsqueeze": jnp.expand_dims,
    "squeeze": _squeeze,
    "expand": _expand,
    "repeat": jnp.tile,
    "flip": jnp.flip,
    "cat": _cat,
    "stack": jnp.stack,
    "split": _split,
    "split_with_sizes": _split,
    "slice": _slice,
    "select": lambda x, dim, index: jnp.take(x, index, dim),
    "index": _index,
    "index_select": lambda x, dim, index: jnp.take(x, index, dim),
    "gather": lambda x, dim, index, **_: jnp.take_along_axis(x, index, dim),
    "embedding": lambda table, index, *_: table[index],
    "constant_pad_nd": _pad,
    "tril": jnp.tril,
    "triu": jnp.triu,
    # new arrays and copies
    "full": _full,
    "full_like": lambda x, value, dtype=None, **_: jnp.full(
        x.shape, value, _dtype(dtype) or x.dtype
    ),
    "zeros": lambda size, **named: _full(size, 0, **named),
    "ones": lambda size, **named: _full(size, 1, **named),
    "zeros_like": lambda x, dtype=None, **_: jnp.zeros(x.shape, _dtype(dtype) or x.dtype),
    "ones_like": lambda x, dtype=None, **_: jnp.ones(x.shape, _dtype(dtype) or x.dtype),
    "scalar_tensor": lambda value, dtype=None, **_: jnp.asarray(value, _dtype(dtype)),
    "arange": _arange,
    "clone": _copy,
    "alias": _copy,
    "detach": lax.stop_gradient,
    "lift_fresh_copy": _copy,
    "_to_copy": _copy,
    "_assert_tensor_metadata": lambda *_, **__: (
        None
    ),  # the shapes were checked when it was exported
    # randomness
    "native_dropout": _dropout,
    "bernoulli": _bernoulli,
    "rand": _uniform,
    "rand_like": _uniform,
    "randn": _normal,
    "randn_like": _normal,
}
"""The implemented operations, by their names."""
