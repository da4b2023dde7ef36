"""Whether the outputs of a network depend on its random key."""

import jax
import jax.numpy as jnp
import pytest

import credax as cx
from credax.model.networks.network import AbstractNetwork
from credax.tracing.randomness import uses_key


def rows(*shape):
    """The shape and dtype of a row."""
    return jax.ShapeDtypeStruct((1, *shape), jnp.result_type(float))


class Noisy(AbstractNetwork):
    """A linear model that uses its key in a given way."""

    def __init__(self, use):
        self.use = use

    def init(self, key):
        return jnp.ones((2, 1))

    def call(self, params, x, *, state, key, train):
        return self.use(x @ params, key), state


def added(outputs, key):
    return outputs + jax.random.normal(key, outputs.shape, outputs.dtype)


def drawn_and_dropped(outputs, key):
    jax.random.normal(key, outputs.shape)
    return outputs


def second_result(outputs, key):
    return jax.jit(lambda a, key: (added(a, key), a))(outputs, key)[1]


USES = {
    "added": (added, True),
    "in a jitted function": (jax.jit(added), True),
    "in a jitted function in one": (jax.jit(lambda a, key: 2 * jax.jit(added)(a, key)), True),
    "drawn and dropped": (drawn_and_dropped, False),
    "drawn and dropped in a jitted function": (jax.jit(drawn_and_dropped), False),
    "in another result of a jitted function": (second_result, False),
    "never": (lambda outputs, key: outputs, False),
}


@pytest.mark.parametrize("case", USES)
def test_uses(case):
    use, expected = USES[case]
    assert uses_key(Noisy(use), rows(2)) is expected


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_built_in_networks(rate):
    assert uses_key(cx.networks.mlp([3], dropout=rate).build((2,), 1), rows(2)) == bool(rate)
    assert uses_key(cx.networks.cnn(dropout=rate).build((8, 8), 3), rows(8, 8)) == bool(rate)
    assert not uses_key(cx.networks.MLP(dropout=rate).build((2,), 1), rows(2))


def test_nothing_is_compiled(compilations):
    network = cx.networks.mlp([3], dropout=0.2).build((2,), 1)
    uses_key(network, rows(2))
    with compilations() as count:
        uses_key(network, rows(2))
    assert count() == 0
