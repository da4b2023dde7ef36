"""How a network uses each of its weights, which decides whether each row may have its own noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import credax as cx
from credax.tracing.usage import Usage, usages

PRODUCT, PRODUCTS, SUM, OTHER = Usage.PRODUCT, Usage.PRODUCTS, Usage.SUM, Usage.OTHER


def weight(*shape):
    return jnp.ones(shape)


def usage(apply, *shape, row=(3,)):
    """The usage of a single weight of this shape."""
    return usages(lambda params, x: apply(params["w"], x), {"w": weight(*shape)}, weight(1, *row))[
        "w"
    ]


def convolve(x, kernel, **options):
    names = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=names, **options)


def steps(w, x):
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=2)[0]


ONCE = {
    "a product": (lambda w, x: x @ w, (3, 2)),
    "with a vector": (lambda w, x: (x @ w)[:, None], (3,)),
    "on the left": (lambda w, x: (w @ x.T).T, (2, 3)),
    "transposed": (lambda w, x: x @ w.T, (2, 3)),
    "reshaped": (lambda w, x: x @ w.reshape(3, 2), (6,)),
    "squeezed": (lambda w, x: x @ jnp.squeeze(w, 0), (1, 3, 2)),
    "cast": (lambda w, x: x.astype(jnp.float16) @ w.astype(jnp.float16), (3, 2)),
    "copied": (lambda w, x: x @ jnp.array(w), (3, 2)),
    "moved several times": (lambda w, x: x @ w.reshape(2, 3).T.astype(x.dtype), (6,)),
    "in a jitted function": (lambda w, x: jax.jit(jnp.matmul)(x, w), (3, 2)),
    "in a jitted function in one": (
        lambda w, x: jax.jit(lambda a, b: jax.jit(jnp.matmul)(a, b.T))(x, w),
        (2, 3),
    ),
    "row by row": (lambda w, x: jax.vmap(lambda row: row @ w)(x), (3, 2)),
    "one block per feature": (lambda w, x: jnp.einsum("rgk,gko->rgo", x[:, :, None], w), (3, 1, 2)),
    "blocks on the left": (lambda w, x: jnp.einsum("gko,rgk->rgo", w, x[:, :, None]), (3, 1, 2)),
    "a window as wide as the input": (lambda w, x: convolve(x[:, :, None], w)[:, 0], (3, 1, 2)),
    "with a constant": (lambda w, x: x[:, :2] + np.ones((1, 3), np.float32) @ w, (3, 2)),
}

AT_SEVERAL_PLACES = {
    "tokens": (lambda w, x: x.reshape(-1, 3, 2) @ w, (2, 2), (6,)),
    "features as rows": (lambda w, x: x.T @ w, (1, 2), (3,)),
    "tokens in blocks": (
        lambda w, x: jnp.einsum("rtgk,gko->rtgo", x.reshape(-1, 2, 3, 1), w),
        (3, 1, 2),
        (6,),
    ),
    "a sliding window": (lambda w, x: convolve(x[:, :, None], w)[:, 0], (2, 1, 2), (3,)),
}

ANYTHING_ELSE = {
    "two products": (lambda w, x: jnp.tanh(x @ w) @ w, (3, 3)),
    "tied, transposed": (lambda w, x: jnp.tanh(x @ w) @ w.T, (3, 3)),
    "a product and a sum": (lambda w, x: x @ w + w[0], (3, 3)),
    "two views": (lambda w, x: x @ w.T + x @ w.reshape(3, 3), (3, 3)),
    "two sums": (lambda w, x: jnp.tanh(x + w) + w, (3,)),
    "doubled": (lambda w, x: x + (w + w), (3,)),
    "its own Gram matrix": (lambda w, x: x @ (w @ w.T), (3, 3)),
    "squared": (lambda w, x: x @ w**2, (3, 3)),
    "negated": (lambda w, x: x @ (-w), (3, 3)),
    "sliced": (lambda w, x: x @ w[:3], (4, 2)),
    "repeated in a product": (lambda w, x: x @ jnp.broadcast_to(w, (3, 2)), (2,)),
    "an elementwise product": (lambda w, x: x * w, (3,)),
    "in a scan": (steps, (3, 3)),
    "in a loop": (lambda w, x: lax.fori_loop(0, 2, lambda _, h: h @ w, x), (3, 3)),
    "in a branch": (lambda w, x: lax.cond(x[0, 0] > 0, lambda h: h @ w, lambda h: h, x), (3, 3)),
    "rematerialised": (lambda w, x: jax.checkpoint(jnp.matmul)(x, w), (3, 3)),
    "out of a jitted function": (lambda w, x: x @ jax.jit(jnp.transpose)(w), (3, 3)),
    "twice in the same jitted function": (
        lambda w, x: jax.jit(jnp.matmul)(jax.jit(jnp.matmul)(x, w), w),
        (3, 3),
    ),
    "grouped channels": (
        lambda w, x: convolve(x[:, None, :], w, feature_group_count=3)[:, 0],
        (1, 1, 3),
    ),
    "returned": (lambda w, x: w[None], (3,)),
    "never": (lambda w, x: x, (3,)),
}


@pytest.mark.parametrize("case", ONCE)
def test_one_product_at_one_place(case):
    apply, shape = ONCE[case]
    assert usage(apply, *shape) is PRODUCT


@pytest.mark.parametrize("case", AT_SEVERAL_PLACES)
def test_one_product_at_several_places(case):
    apply, shape, row = AT_SEVERAL_PLACES[case]
    assert usage(apply, *shape, row=row) is PRODUCTS


@pytest.mark.parametrize("case", ANYTHING_ELSE)
def test_anything_else(case):
    apply, shape = ANYTHING_ELSE[case]
    assert usage(apply, *shape) is OTHER


@pytest.mark.parametrize(
    "apply", [lambda w, x: x + w, lambda w, x: w + x, lambda w, x: x + w[None]]
)
def test_one_sum(apply):
    assert usage(apply, 3) is SUM


def kinds(network, data):
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.1)).bind(data)
    params = jax.eval_shape(model.network.init, jax.random.key(0))
    row = jax.ShapeDtypeStruct((1, *data[0].shape[1:]), jnp.result_type(float))
    return usages(model.network.apply, params, row)


def test_a_perceptron():
    found = kinds(cx.networks.mlp([4, 3]), (np.zeros((5, 2)), np.zeros(5)))
    layer = {"kernel": PRODUCT, "bias": SUM}
    assert found == {"layer_0": layer, "layer_1": layer, "layer_2": layer}


def test_a_convolutional_network():
    network = cx.networks.cnn((2, 3), (4,), kernel_size=3)
    found = kinds(network, (np.zeros((5, 4, 4)), np.zeros(5)))
    window, layer = {"kernel": PRODUCTS, "bias": SUM}, {"kernel": PRODUCT, "bias": SUM}
    assert found == {"conv_0": window, "conv_1": window, "dense_0": layer, "dense_1": layer}


def test_nothing_is_compiled(compilations):
    params, row = {"w": weight(3, 2)}, weight(1, 3)
    with compilations() as count:
        usages(lambda params, x: jax.nn.softmax(x @ params["w"]), params, row)
    assert count() == 0
