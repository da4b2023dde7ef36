"""Equinox modules give the outputs that Equinox gives, and can be fitted by every family of methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx

eqx = pytest.importorskip("equinox")

# With so few steps the posteriors are poor, and some methods warn about it.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(24, 3)).astype(np.float32) + 1
Y = np.sin(X[:, 0]).astype(np.float32)
IMAGES = GENERATOR.normal(size=(12, 1, 6, 6)).astype(np.float32) + 1
TOKENS = GENERATOR.integers(0, 11, size=(12, 5))
KEY = cx.random.key(3)


class Perceptron(eqx.Module):
    """A perceptron with dropout."""

    layers: list
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.layers = [eqx.nn.Linear(3, 8, key=one), eqx.nn.Linear(8, 1, key=two)]
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, key):
        return self.layers[1](self.dropout(jnp.tanh(self.layers[0](x)), key=key))


class Residual(eqx.Module):
    """A small ResNet: batch normalisation, dropout and a shortcut."""

    stem: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    conv: eqx.nn.Conv2d
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        one, two, three = jax.random.split(key, 3)
        self.stem = eqx.nn.Conv2d(1, 4, 3, padding=1, key=one)
        self.norm = eqx.nn.BatchNorm(4, axis_name="rows", mode="batch")
        self.conv = eqx.nn.Conv2d(4, 4, 3, padding=1, key=two)
        self.dropout = eqx.nn.Dropout(0.5)
        self.head = eqx.nn.Linear(4, 1, key=three)

    def __call__(self, x, state, key):
        x = self.stem(x)
        y, state = self.norm(x, state)
        x = x + self.conv(jax.nn.relu(y))
        return self.head(self.dropout(jnp.mean(x, (1, 2)), key=key)), state


class Transformer(eqx.Module):
    """One attention block over tokens."""

    embedding: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        one, two, three = jax.random.split(key, 3)
        self.embedding = eqx.nn.Embedding(11, 8, key=one)
        self.attention = eqx.nn.MultiheadAttention(2, 8, dropout_p=0.5, key=two)
        self.norm = eqx.nn.LayerNorm(8)
        self.head = eqx.nn.Linear(8, 1, key=three)

    def __call__(self, x, *, key=None):
        x = jax.vmap(self.embedding)(x)
        x = jax.vmap(self.norm)(x + self.attention(x, x, x, key=key))
        return self.head(jnp.mean(x, 0))


def make_residual(key):
    return eqx.nn.make_with_state(Residual)(key=key)


PERCEPTRON = cx.networks.from_equinox(Perceptron)
RESIDUAL = cx.networks.from_equinox(make_residual)
TRANSFORMER = cx.networks.from_equinox(Transformer)


def fit(method, network=PERCEPTRON, data=(X, Y), **arguments):
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.3))
    return cx.fit(model, data, method, progress=False, **arguments)


# -- the same function ----------------------------------------------------------------------------


@pytest.mark.parametrize("made, x", [(Perceptron, X), (Transformer, TOKENS)])
def test_outputs_are_those_of_the_module(made, x):
    module = made(jax.random.key(1))
    network = cx.networks.from_equinox(module, pretrained=True)
    params = jax.tree.map(lambda leaf: leaf + 0.1, network.init(KEY))
    shifted = jax.tree.map(lambda leaf: leaf + 0.1 if eqx.is_inexact_array(leaf) else leaf, module)
    still = eqx.nn.inference_mode(shifted)
    wanted = jax.jit(jax.vmap(lambda row: still(row, key=None)))(x)
    np.testing.assert_array_equal(jax.jit(network.apply)(params, x), wanted)


def test_outputs_and_statistics_are_those_of_the_module():
    module, state = make_residual(jax.random.key(1))
    network = cx.networks.from_equinox(module, state, pretrained=True)
    params, own = network.init(KEY), network.init_state()
    batched = jax.vmap(module, (0, None, 0), (0, None), axis_name="rows")
    keys = jax.random.split(cx.random.native(KEY), len(IMAGES))
    wanted, state = jax.jit(batched)(IMAGES, state, keys)
    got, new = jax.jit(lambda: network.call(params, IMAGES, state=own, key=KEY, train=True))()
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    for one, other in zip(new.values(), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    still = eqx.nn.inference_mode(module)
    batched = jax.vmap(still, (0, None, None), (0, None), axis_name="rows")
    wanted, _ = jax.jit(batched)(IMAGES, state, None)
    np.testing.assert_allclose(jax.jit(network.apply)(params, IMAGES, new), wanted, rtol=1e-6)


# -- batch statistics and keys --------------------------------------------------------------------


@pytest.mark.slow
def test_training_updates_statistics_and_prediction_does_not():
    params, state = RESIDUAL.init(KEY), RESIDUAL.init_state()
    call = jax.jit(lambda: RESIDUAL.call(params, IMAGES, state=state, key=None, train=True))
    new = call()[1]
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert all(np.all(new[name] != state[name]) for name in state)
    assert RESIDUAL.call(params, IMAGES, state=state, key=KEY, train=False)[1] is state


@pytest.mark.parametrize(
    "network, x",
    [
        (PERCEPTRON, X),
        (RESIDUAL, IMAGES),
        pytest.param(TRANSFORMER, TOKENS, marks=pytest.mark.slow),
    ],
)
def test_the_key_decides_what_is_dropped(network, x):
    params, state = network.init(KEY), network.init_state()

    @jax.jit
    def call(key, x):
        return network.call(params, x, state=state, key=key, train=False)[0]

    one, other = cx.random.key(1), cx.random.key(2)
    np.testing.assert_array_equal(call(one, x), call(one, x))
    assert np.any(call(one, x) != call(other, x))
    assert np.any(call(one, x) != call(None, x))
    np.testing.assert_allclose(call(None, x[:1]), call(None, x)[:1], rtol=1e-5, atol=1e-6)


# -- starts, equality, files ----------------------------------------------------------------------


def test_first_weights():
    module = Perceptron(jax.random.key(1))
    weight = module.layers[0].weight
    own = cx.networks.from_equinox(module, pretrained=True)
    again = cx.networks.from_equinox(module)
    for network, same, same_values in [
        (own, True, True),
        (again, False, True),
        (PERCEPTRON, False, False),
    ]:
        first = [network.init(cx.random.key(k))["layers"]["0"]["weight"] for k in (1, 2)]
        assert np.array_equal(*first) == same
        assert np.array_equal(np.sort(first[1], None), np.sort(weight, None)) == same_values
    made = PERCEPTRON.init(cx.random.key(1))["layers"]["0"]["weight"]
    np.testing.assert_array_equal(made, weight)


def test_networks_built_alike_are_equal():
    one, other = (cx.networks.from_equinox(Perceptron(jax.random.key(0))) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != cx.networks.from_equinox(Perceptron(jax.random.key(1)))


@pytest.mark.slow
def test_a_second_fit_compiles_nothing(compilations):
    fit(cx.MAP(num_steps=2))
    alike = cx.networks.from_equinox(Perceptron)
    with compilations() as count:
        fit(cx.MAP(num_steps=2), alike)
    assert count() == 0


@pytest.mark.slow
def test_saved_and_loaded(tmp_path):
    posterior = fit(cx.MAP(num_steps=3), RESIDUAL, (IMAGES, Y[:12]))
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax", RESIDUAL)
    np.testing.assert_array_equal(loaded.predict(IMAGES).mean, posterior.predict(IMAGES).mean)


@pytest.mark.parametrize(
    "arguments", [(3,), (lambda key: 3,), (Perceptron, "a state")], ids=["no", "made", "state"]
)
def test_refused(arguments):
    with pytest.raises(TypeError, match=r"from_equinox\(model=...\) must be"):
        cx.networks.from_equinox(*arguments)


# -- methods --------------------------------------------------------------------------------------


METHODS = {
    "mc-dropout": cx.MCDropout(num_steps=5),
    "weight": cx.BayesByBackprop(num_steps=5, estimator="weight"),
    "flipout": cx.BayesByBackprop(num_steps=5, estimator="flipout"),
    "local": cx.BayesByBackprop(num_steps=5, estimator="local"),
    "swag": cx.SWAG(num_warmup=4, num_steps=12, thin=2),
    "hmc": cx.HMC(chains=2, num_warmup=4, num_draws=4),
    "laplace": cx.Laplace(num_steps=5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_family_fits(name):
    predictive = fit(METHODS[name]).predict(X[:4])
    assert np.all(np.isfinite(predictive.mean))
    assert np.all(predictive.epistemic > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mc-dropout", "weight", "swag", "hmc"])
def test_networks_with_statistics(name):
    data = IMAGES, Y[:12]
    start = fit(cx.MAP(num_steps=5), RESIDUAL, data) if name == "hmc" else None
    predictive = fit(METHODS[name], RESIDUAL, data, start=start).predict(IMAGES)
    assert np.all(np.isfinite(predictive.mean))


@pytest.mark.slow
def test_tokens_are_fitted():
    posterior = fit(cx.MCDropout(num_steps=5), TRANSFORMER, (TOKENS, Y[:12]))
    assert np.all(posterior.predict(TOKENS).epistemic > 0)


@pytest.mark.slow
def test_double_precision(x64):
    posterior = fit(cx.MAP(num_steps=3))
    assert posterior.predict(X[:2]).mean.dtype == np.float64
    assert posterior.draws["layers"]["0"]["weight"].dtype == np.float64
