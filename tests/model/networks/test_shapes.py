"""Networks of other libraries with outputs at positions and trees of inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx

ROWS, LENGTH, LETTERS, WIDTH, CLASSES = 6, 3, 4, 5, 2
GENERATOR = np.random.default_rng(0)
X = {
    "tokens": GENERATOR.integers(0, LETTERS, (ROWS, LENGTH)),
    "scale": GENERATOR.normal(size=(ROWS, LENGTH, 1)).astype(np.float32),
}
Y = GENERATOR.integers(0, CLASSES, (ROWS, LENGTH))

pytestmark = pytest.mark.usefixtures("standard_promotion")


def nnx_network():
    nnx = pytest.importorskip("flax.nnx")

    class Module(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(LETTERS, WIDTH, rngs=rngs)
            self.last = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

        def __call__(self, x):
            return self.last(self.embed(x["tokens"]) * x["scale"])

    return cx.networks.from_flax(Module)


def linen_network():
    linen = pytest.importorskip("flax.linen")

    class Module(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(CLASSES)(linen.Embed(LETTERS, WIDTH)(x["tokens"]) * x["scale"])

    return cx.networks.from_flax(Module())


def equinox_network():
    eqx = pytest.importorskip("equinox")

    class Module(eqx.Module):
        embed: eqx.nn.Embedding
        last: eqx.nn.Linear

        def __init__(self, key):
            first, second = jax.random.split(key)
            self.embed = eqx.nn.Embedding(LETTERS, WIDTH, key=first)
            self.last = eqx.nn.Linear(WIDTH, CLASSES, key=second)

        def __call__(self, row):
            words = jax.vmap(self.embed)(row["tokens"]) * row["scale"]
            return jax.vmap(self.last)(words)

    return cx.networks.from_equinox(lambda key: Module(key))  # noqa: PLW0108


def keras_network():
    keras = pytest.importorskip("keras")
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    scale = keras.Input((LENGTH, 1), name="scale")
    words = keras.layers.Multiply()([keras.layers.Embedding(LETTERS, WIDTH)(tokens), scale])
    outputs = keras.layers.Dense(CLASSES)(words)
    model = keras.Model({"tokens": tokens, "scale": scale}, outputs)
    return cx.networks.from_keras(model)


NETWORKS = {
    "nnx": nnx_network,
    "linen": linen_network,
    "equinox": equinox_network,
    "keras": keras_network,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_takes_a_tree_and_returns_positions(name):
    model = cx.Model(NETWORKS[name](), likelihood=cx.likelihoods.Categorical(CLASSES))
    bound, data = model.prepare((X, Y))
    assert bound.schema.positions == (LENGTH,)
    params = bound.init(jax.random.key(0))

    got = bound.log_likelihood(params, data.everything())

    outputs = bound.network.network.apply(params, data.x.tree, bound.init_state())
    want = cx.likelihoods.Categorical(CLASSES).log_prob(outputs, Y).sum()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert outputs.shape == (ROWS, LENGTH, CLASSES)


def test_a_torch_module_returns_positions():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Embedding(LETTERS, WIDTH), torch.nn.Linear(WIDTH, CLASSES)
    )
    model = cx.Model(cx.networks.from_torch(module), likelihood=cx.likelihoods.Categorical(CLASSES))
    bound, data = model.prepare((X["tokens"], Y))
    params = bound.init(jax.random.key(0))
    outputs = bound.network.network.apply(params, jnp.asarray(data.x), bound.init_state())
    want = cx.likelihoods.Categorical(CLASSES).log_prob(outputs, Y).sum()
    got = bound.log_likelihood(params, data.everything())
    np.testing.assert_allclose(got, want, rtol=1e-5)
    with pytest.raises(ValueError, match=r"from_torch\(module=...\) must be a module that torch"):
        model.prepare((X, Y))  # this module is written for one array
