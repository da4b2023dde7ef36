"""The inputs of each product, for networks that write a product in different ways for one row and for many."""

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.tracing.products import Rows

GENERATOR = np.random.default_rng(0)
WORDS = jnp.asarray(GENERATOR.normal(size=(7, 5, 3)), jnp.float32)


def init(key):
    first, last = jax.random.split(key)
    return {"first": jax.random.normal(first, (3, 4)), "last": jax.random.normal(last, (4, 2))}


def apply(params, x):
    """Two layers; for several rows the weights are repeated, as PyTorch does in an attention."""
    first, last = params["first"], params["last"]
    if len(x) == 1:
        hidden = jnp.tanh(x.reshape(-1, 3) @ first).reshape(1, 5, 4)
        return jnp.mean(hidden, 1) @ last
    repeated = jnp.broadcast_to(first, (len(x), *first.shape))
    hidden = jnp.mean(jnp.tanh(jnp.matmul(x, repeated)), 1)
    return jnp.matmul(hidden[:, None], jnp.broadcast_to(last, (len(x), *last.shape)))[:, 0]


NETWORK = cx.networks.from_function(init, apply)
PARAMS = NETWORK.init(cx.random.key(1))


def hidden(params):
    return np.mean(np.tanh(np.asarray(WORDS) @ np.asarray(params["first"])), axis=1)


def test_inputs_of_weights_that_are_repeated_for_many_rows():
    inputs = Rows(NETWORK, PARAMS, (), WORDS).all_inputs(PARAMS, (), WORDS)
    np.testing.assert_allclose(inputs[0], WORDS.reshape(35, 3), rtol=1e-6)
    np.testing.assert_allclose(inputs[1], hidden(PARAMS), rtol=1e-5)


def test_a_product_that_takes_the_place_of_a_repeated_one():
    rows = Rows(NETWORK, PARAMS, (), WORDS)
    assert rows.final() == 1
    other = jnp.asarray(GENERATOR.normal(size=(4, 2)), jnp.float32)
    outputs, inputs = rows.inputs(1, PARAMS, (), WORDS, lambda inputs: inputs @ other)
    np.testing.assert_allclose(inputs, hidden(PARAMS), rtol=1e-5)
    np.testing.assert_allclose(outputs, hidden(PARAMS) @ np.asarray(other), rtol=1e-4, atol=1e-6)
