"""Keras models give the outputs that Keras gives, and can be fitted by every family of methods."""

import jax
import numpy as np
import pytest

import credax as cx
from credax.core.trees import named_leaves

keras = pytest.importorskip("keras")
if keras.backend.backend() != "jax":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

# With so few steps the posteriors are poor, and some methods warn about it.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(24, 3)).astype(np.float32) + 1
Y = np.sin(X[:, 0]).astype(np.float32)
IMAGES = GENERATOR.normal(size=(12, 6, 6, 1)).astype(np.float32) + 1
TOKENS = GENERATOR.integers(0, 11, size=(12, 5))
KEY = cx.random.key(3)
layers = keras.layers


def residual():
    """A small ResNet: batch normalisation, dropout and a shortcut."""
    inputs = keras.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    y = layers.Activation("relu")(layers.BatchNormalization(name="norm")(x))
    x = layers.Add()([x, layers.Conv2D(4, 3, padding="same")(y)])
    x = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(1, name="head")(x))


def transformer():
    """One attention block over tokens."""
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(11, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, dropout=0.5)(x, x))
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def perceptron():
    dense = [
        layers.Dense(8, "tanh", name="first"),
        layers.Dropout(0.5),
        layers.Dense(1, name="head"),
    ]
    return keras.Sequential([keras.Input((3,)), *dense])


@pytest.fixture(scope="module", autouse=True)
def _promotion():
    """Standard dtype promotion, which Keras needs when it builds a model."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def made(function):
    with jax.numpy_dtype_promotion("standard"):
        keras.utils.set_random_seed(0)
        return function()


MODELS = {f.__name__: made(f) for f in (residual, transformer, perceptron)}
NETWORKS = {name: cx.networks.from_keras(model) for name, model in MODELS.items()}
ROWS = {"residual": IMAGES, "transformer": TOKENS, "perceptron": X}


def fit(method, network=NETWORKS["perceptron"], data=(X, Y), **arguments):
    with jax.numpy_dtype_promotion("strict"):
        model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.3))
        return cx.fit(model, data, method, progress=False, **arguments)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_model(name):
    model, x = MODELS[name], ROWS[name]
    network = cx.networks.from_keras(model, pretrained=True)
    params = jax.tree.map(lambda leaf: leaf + 0.1, network.init(KEY))
    given = dict(named_leaves(params))
    trainable = [given[v.path.removeprefix("sequential/")] for v in model.trainable_variables]
    fixed = [v.value for v in model.non_trainable_variables]
    wanted = jax.jit(lambda x: model.stateless_call(trainable, fixed, x, training=False)[0])(x)
    got = jax.jit(network.apply)(params, x, network.init_state())
    np.testing.assert_array_equal(got, wanted)
    assert np.any(got != model.predict_on_batch(x)), "the weights given, not those of the model"


@pytest.mark.slow
def test_statistics_are_those_of_the_model():
    model, network = MODELS["residual"], NETWORKS["residual"]
    params, state = network.init(KEY), network.init_state()
    given = dict(named_leaves(params))
    trainable = [given[v.path.removeprefix("sequential/")] for v in model.trainable_variables]
    fixed = [v.value for v in model.non_trainable_variables]
    _, wanted = model.stateless_call(trainable, fixed, IMAGES, training=True)
    call = jax.jit(network.call, static_argnames="train")
    _, new = call(params, IMAGES, state=state, key=KEY, train=True)
    wanted = {
        v.path: value
        for v, value in zip(model.non_trainable_variables, wanted, strict=True)
        if v.name != "seed_generator_state"
    }
    assert sorted(wanted) == ["norm/moving_mean", "norm/moving_variance"]
    for path, value in named_leaves(new):
        np.testing.assert_allclose(value, wanted[path], rtol=1e-5)
        assert np.all(value != dict(named_leaves(state))[path])
    assert network.call(params, IMAGES, state=state, key=KEY, train=False)[1] is state
    assert "call" not in vars(model.get_layer("norm"))


@pytest.mark.parametrize(
    "name", ["residual", "perceptron", pytest.param("transformer", marks=pytest.mark.slow)]
)
def test_the_key_decides_what_is_dropped(name):
    network, x = NETWORKS[name], ROWS[name]
    params, state = network.init(KEY), network.init_state()
    seeds = [np.asarray(v.value) for v in MODELS[name].non_trainable_variables]

    @jax.jit
    def call(key, x):
        return network.call(params, x, state=state, key=key, train=False)[0]

    one, other = cx.random.key(1), cx.random.key(2)
    np.testing.assert_array_equal(call(one, x), call(one, x))
    assert np.any(call(one, x) != call(other, x))
    assert np.any(call(one, x) != call(None, x))
    np.testing.assert_allclose(call(None, x[:1]), call(None, x)[:1], rtol=1e-5, atol=1e-6)
    for before, after in zip(seeds, MODELS[name].non_trainable_variables, strict=True):
        np.testing.assert_array_equal(before, after.value)


def test_first_weights():
    model = MODELS["perceptron"]
    kernel = np.asarray(model.get_layer("first").kernel.value)
    for pretrained in (True, False):
        network = cx.networks.from_keras(model, pretrained=pretrained)
        one, other = (network.init(cx.random.key(k)) for k in (1, 2))
        paths = [path for path, _ in named_leaves(one)]
        assert paths == ["first/bias", "first/kernel", "head/bias", "head/kernel"]
        one, other = one["first"]["kernel"], other["first"]["kernel"]
        assert np.array_equal(one, other) == pretrained
        assert np.array_equal(one, kernel) == pretrained
        np.testing.assert_array_equal(np.sort(one, None), np.sort(kernel, None))


def test_frozen_layers_keep_their_weights():
    model = made(perceptron)
    model.get_layer("first").trainable = False
    network = cx.networks.from_keras(model, pretrained=True)
    assert [path for path, _ in named_leaves(network.init(KEY))] == ["head/bias", "head/kernel"]
    assert network.init_state() == ()
    got = network.apply(network.init(KEY), X)
    np.testing.assert_allclose(got, model.predict_on_batch(X), rtol=1e-5, atol=1e-6)


def test_recurrent_layers_can_be_batched_on_every_device(monkeypatch):
    # On an NVIDIA GPU Keras takes kernels that JAX cannot batch, unless it is told not to.
    shapes = [layers.LSTM(3, return_sequences=True), layers.Bidirectional(layers.GRU(2))]
    model = made(lambda: keras.Sequential([keras.Input((5, 2)), *shapes, layers.Dense(1)]))
    recurrent = [layer for layer in model._flatten_layers() if hasattr(layer, "use_cudnn")]
    assert len(recurrent) >= 3
    seen = []
    for layer in recurrent:

        def noted(*arguments, call=layer.inner_loop, layer=layer, **named):
            seen.append(layer.use_cudnn)
            return call(*arguments, **named)

        monkeypatch.setattr(layer, "inner_loop", noted)
    network = cx.networks.from_keras(model)
    params = jax.vmap(network.init)(jax.random.split(jax.random.key(0), 2))
    outputs = jax.vmap(lambda p: network.apply(p, np.ones((4, 5, 2), np.float32)))(params)
    assert outputs.shape == (2, 4, 1)
    assert len(seen) >= 3
    assert not any(seen)
    assert all(layer.use_cudnn == "auto" for layer in recurrent), "the user's model is as it was"


def test_equal_where_the_object_and_its_weights_are():
    model = made(perceptron)
    one = cx.networks.from_keras(model)
    assert one == cx.networks.from_keras(model)
    assert one != cx.networks.from_keras(made(perceptron))
    model.get_layer("head").bias.assign([1.0])
    assert one != cx.networks.from_keras(model)


@pytest.mark.slow
def test_a_second_fit_compiles_nothing(compilations):
    fit(cx.MAP(num_steps=2))
    with compilations() as count:
        fit(cx.MAP(num_steps=2))
    assert count() == 0


def test_refused(monkeypatch):
    with pytest.raises(TypeError, match=r"from_keras\(model=...\) must be a keras.Model"):
        cx.networks.from_keras(3)
    with pytest.raises(ValueError, match=r"from_keras\(model=...\) must be built"):
        cx.networks.from_keras(keras.Sequential([layers.Dense(1)]))
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    with pytest.raises(ValueError, match="before keras is imported for the first time"):
        cx.networks.from_keras(MODELS["perceptron"])


@pytest.mark.slow
def test_saved_and_loaded(tmp_path):
    posterior = fit(cx.MAP(num_steps=3), NETWORKS["residual"], (IMAGES, Y[:12]))
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax", cx.networks.from_keras(MODELS["residual"]))
    np.testing.assert_array_equal(loaded.predict(IMAGES).mean, posterior.predict(IMAGES).mean)


METHODS = {
    "mc-dropout": cx.MCDropout(num_steps=5),
    "weight": cx.BayesByBackprop(num_steps=5, estimator="weight"),
    "flipout": cx.BayesByBackprop(num_steps=5, estimator="flipout"),
    "local": cx.BayesByBackprop(num_steps=5, estimator="local"),
    "swag": cx.SWAG(num_warmup=4, num_steps=12, thin=2),
    "hmc": cx.HMC(chains=2, num_warmup=4, num_draws=4),
    "laplace": cx.Laplace(num_steps=5),
    "ensemble": cx.DeepEnsemble(members=2, num_steps=5),
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
    network, data = NETWORKS["residual"], (IMAGES, Y[:12])
    start = fit(cx.MAP(num_steps=5), network, data) if name == "hmc" else None
    predictive = fit(METHODS[name], network, data, start=start).predict(IMAGES)
    assert np.all(np.isfinite(predictive.mean))


@pytest.mark.slow
def test_double_precision(x64):
    """Keras computes in its own float type."""
    posterior = fit(cx.MAP(num_steps=3))
    assert np.all(np.isfinite(posterior.predict(X[:2]).mean))
