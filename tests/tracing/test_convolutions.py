"""Convolutions with their axes in the order that is fast in loops on CPUs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from credax.tracing.convolutions import _convolutions, _in_order, has_convolutions, rearranged

LAST = ("NHWC", "HWIO", "NHWC")
FIRST = ("NCHW", "OIHW", "NCHW")


def convolve(x, kernel, numbers=LAST, **settings):
    settings = {"window_strides": (1, 1), "padding": "SAME", **settings}
    return lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **settings)


def random(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), jnp.float32)


def loss(kernel, x, **settings):
    return jnp.sum(jnp.sin(convolve(x, kernel, **settings)))


def in_order(function, *arguments):
    return [_in_order(e) for e in _convolutions(jax.make_jaxpr(function)(*arguments))]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"window_strides": (2, 1)},
        {"padding": ((1, 0), (2, 3))},
        {"rhs_dilation": (2, 1)},
        {"feature_group_count": 2},
    ],
)
def test_gradients_keep_their_values_and_get_the_fast_order(settings):
    inputs = 4 // settings.get("feature_group_count", 1)
    x, kernel = random(5, 7, 6, 4), random(3, 2, inputs, 6)
    both = jax.grad(partial(loss, **settings), argnums=(0, 1))
    assert not all(in_order(both, kernel, x))
    assert all(in_order(rearranged(both), kernel, x))
    for plain, fast in zip(both(kernel, x), rearranged(both)(kernel, x), strict=True):
        np.testing.assert_allclose(plain, fast, rtol=1e-5, atol=1e-5)


def test_channels_first_and_one_and_three_dimensions():
    x, kernel = random(5, 4, 7, 6), random(8, 4, 3, 2)
    first = partial(convolve, numbers=FIRST)
    np.testing.assert_allclose(first(x, kernel), rearranged(first)(x, kernel), rtol=1e-5, atol=1e-5)
    for numbers, shapes in {
        ("NCW", "OIW", "NCW"): ((5, 4, 7), (8, 4, 3)),
        ("CNDHW", "IODHW", "DHWNC"): ((4, 5, 3, 4, 6), (4, 8, 2, 3, 2)),
    }.items():
        x, kernel = (random(*shape) for shape in shapes)
        call = partial(convolve, numbers=numbers, window_strides=(1,) * (x.ndim - 2))
        assert all(in_order(rearranged(call), x, kernel))
        np.testing.assert_allclose(
            call(x, kernel), rearranged(call)(x, kernel), rtol=1e-5, atol=1e-5
        )


def nested(kernel, x):
    """Convolutions in each kind of program that another one calls."""
    first = partial(convolve, numbers=FIRST)
    body = jax.checkpoint(lambda k, x: jnp.tanh(first(x, k)))
    carry, _ = lax.scan(lambda x, _: (body(kernel, x), None), x, None, length=2)
    carry = lax.fori_loop(0, 2, lambda i, x: jax.jit(body)(kernel, x), carry)
    carry = lax.cond(jnp.sum(kernel) > 0, partial(body, kernel), lambda x: -first(x, kernel), carry)

    @jax.custom_vjp
    def own(x):
        return first(x, kernel)

    own.defvjp(lambda x: (own(x), None), lambda _, g: (g,))
    return jnp.sum(own(carry))


def test_convolutions_inside_other_programs():
    x, kernel = random(2, 3, 5, 5), random(3, 3, 3, 3)
    assert len(in_order(nested, kernel, x)) >= 4
    assert all(in_order(rearranged(nested), kernel, x))
    np.testing.assert_allclose(nested(kernel, x), rearranged(nested)(kernel, x), rtol=1e-5)
    assert has_convolutions(jax.make_jaxpr(nested)(kernel, x))


def test_programs_without_convolutions_stay_as_they_are():
    def plain(tree, k):
        return {"a": tree["a"] @ tree["b"], "b": 2.0 * k}

    tree = {"a": random(2, 3), "b": random(3, 2)}
    made = [jax.make_jaxpr(f)(tree, 1.5) for f in (plain, rearranged(plain))]
    assert str(made[0]) == str(made[1])
    assert not has_convolutions(made[0])
