"""Functions whose gradient computes the inside of segments again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credax.core.programs import known_options
from credax.core.segments import rematerialised

DEPTH, WIDTH, ROWS = 16, 32, 2048


def network(weights, x, key=None):
    for i, w in enumerate(weights):
        x = jax.nn.gelu(x @ w)
        if key is not None:
            x = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape), x, 0.0)
    return jnp.sum(x**2), {"outputs": x, "rows": len(x)}


@pytest.fixture(scope="module")
def problem():
    keys = jax.random.split(jax.random.key(0), DEPTH + 1)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[1:]]
    return weights, jax.random.normal(keys[0], (ROWS, WIDTH))


@pytest.mark.parametrize("key", [None, 1])
def test_values_and_gradients_are_the_same(problem, key):
    weights, x = problem
    key = None if key is None else jax.random.key(key)
    plain = jax.jit(jax.value_and_grad(network, has_aux=True))
    again = jax.jit(jax.value_and_grad(rematerialised(network), has_aux=True))
    (value, aux), gradient = plain(weights, x, key)
    (found, other), slope = again(weights, x, key)
    np.testing.assert_allclose(found, value, rtol=1e-6)
    assert other["rows"] == ROWS
    np.testing.assert_allclose(other["outputs"], aux["outputs"], atol=1e-6)
    for a, b in zip(slope, gradient, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_arrays_from_outside_have_gradients_too(problem):
    weights, x = problem

    def outer(weights):
        return rematerialised(lambda x: network(weights, x)[0])(x)

    expected = jax.grad(lambda w: network(w, x)[0])(weights)
    for a, b in zip(jax.grad(outer)(weights), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_the_compiled_gradient_needs_less_than_half_the_memory(problem):
    weights, x = problem

    def temporaries(function):
        step = jax.jit(jax.grad(function, has_aux=True), compiler_options=known_options("LEAN"))
        return step.lower(weights, x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(rematerialised(network)) < 0.5 * temporaries(network)


def test_a_function_without_products_and_one_that_returns_its_argument():
    function = rematerialised(lambda a, b: (a, 3.0, jnp.sin(b)))
    a, constant, sine = function(jnp.ones(2), jnp.zeros(3))
    assert constant == 3.0
    np.testing.assert_array_equal(a, np.ones(2))
    np.testing.assert_array_equal(sine, np.zeros(3))
