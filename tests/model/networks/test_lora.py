"""Low-rank changes of trained networks, and the whole weights after a fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.trees import named_leaves

# With so few steps the posteriors are poor, and some methods warn about it.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(30, 3)).astype(np.float32)
Y = np.sin(X[:, 0]).astype(np.float32)
IMAGES = GENERATOR.normal(size=(6, 8, 8, 1)).astype(np.float32)
KEY = cx.random.key(1)


def linear_apply(params, x):
    return jnp.tanh(x @ params["hidden"].T) @ params["out"]


def linear_init(key):
    hidden, out = jax.random.split(key)
    return {"hidden": jax.random.normal(hidden, (6, 3)), "out": jax.random.normal(out, (6, 1))}


def equinox():
    eqx = pytest.importorskip("equinox")
    return cx.networks.from_equinox(eqx.nn.MLP(3, 1, 6, 1, key=KEY), pretrained=True), X


def flax():
    nnx = pytest.importorskip("flax.nnx")
    net = nnx.Sequential(
        nnx.Linear(3, 6, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(6, 1, rngs=nnx.Rngs(1))
    )
    return cx.networks.from_flax(net, pretrained=True), X


def keras():
    keras = pytest.importorskip("keras")
    layers = [keras.Input((3,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)]
    return cx.networks.from_keras(keras.Sequential(layers), pretrained=True), X


def torch():
    nn = pytest.importorskip("torch").nn
    module = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    return cx.networks.from_torch(module, pretrained=True), X


NETWORKS = {
    "mlp": lambda: (cx.networks.mlp([6]), X),
    "batch norm": lambda: (cx.networks.mlp([6], batch_norm=True), X),
    "cnn": lambda: (cx.networks.cnn([4], hidden=[5]), IMAGES),
    "function": lambda: (cx.networks.from_function(linear_init, linear_apply), X),
    "equinox": equinox,
    "flax": flax,
    "keras": keras,
    "torch": torch,
}


def adapted(name, rank=1, pattern="*", **arguments):
    """A built network with low-rank changes, its whole network, its trained weights and some rows."""
    network, x = NETWORKS[name]()
    network = network.build(x.shape[1:], 1)
    weights = network.init(KEY)
    given = None if network.pretrained else weights
    low = cx.networks.lora(network, rank, pattern, weights=given, **arguments)
    return low.build(x.shape[1:], 1), network, weights, jnp.asarray(x)


def moved(params, seed=0):
    generator = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype)  # noqa: E731
    return jax.tree.map(draw, params)


@pytest.mark.parametrize("name", NETWORKS)
def test_begins_as_the_trained_network(name):
    low, network, weights, x = adapted(name)
    params = low.init(cx.random.key(7))
    want = network.apply(weights, x, network.init_state())
    np.testing.assert_allclose(low.apply(params, x), want, rtol=1e-6, atol=1e-6)
    assert all(path.endswith(("/a", "/b")) for path, _ in named_leaves(params))
    assert low.init_state() == ()


@pytest.mark.parametrize("name", NETWORKS)
def test_merged_weights_give_the_same_outputs(name):
    low, network, weights, x = adapted(name)
    params = moved(low.init(KEY))
    merged = low.merged(params)
    assert jax.tree.structure(merged) == jax.tree.structure(weights)
    got = network.apply(merged, x, network.init_state())
    np.testing.assert_allclose(low.apply(params, x), got, rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(got - network.apply(weights, x, network.init_state()))) > 0.1


def test_the_change_is_the_scaled_product_of_the_factors():
    low, _, weights, _ = adapted("mlp", 1, "layer_0/*", scale=3.0)
    params = moved(low.init(KEY))
    factors = params["layer_0"]["kernel"]
    assert list(params) == ["layer_0"]
    change = 3.0 / np.sqrt(6) * np.asarray(factors["a"]) @ np.asarray(factors["b"])
    merged = low.merged(params)
    want = np.asarray(weights["layer_0"]["kernel"]) + change
    np.testing.assert_allclose(merged["layer_0"]["kernel"], want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(merged["layer_0"]["bias"], weights["layer_0"]["bias"])
    np.testing.assert_array_equal(merged["layer_1"]["kernel"], weights["layer_1"]["kernel"])


@pytest.mark.parametrize("rank", [1, 4])
def test_changes_have_the_same_size_for_every_rank(rank):
    network = cx.networks.from_function(
        lambda key: {"w": jnp.zeros((5, 8))}, lambda params, x: x @ params["w"]
    )
    low = cx.networks.lora(network, rank, weights={"w": np.zeros((5, 8), np.float32)}, scale=2.0)
    draw = jax.vmap(lambda seed: low.merged(_normal(seed, low.init(KEY)))["w"])
    changes = np.asarray(draw(jnp.arange(4000)), np.float64).reshape(4000, -1)
    # The squares of the changes of one draw are correlated, so the error is that of the means of the draws.
    squares = np.mean(changes**2, axis=1)
    error = np.std(squares) / np.sqrt(len(squares))
    assert abs(np.mean(squares) - 2.0**2 / 8) < 5 * error


def _normal(seed, like):
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    draws = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, draws)


def model_of(name="mlp"):
    low, *_ = adapted(name)
    return cx.Model(low, likelihood=cx.likelihoods.Gaussian(0.3))


@pytest.mark.parametrize(
    "method",
    [
        cx.MAP(num_steps=20),
        pytest.param(cx.DeepEnsemble(members=2, num_steps=20), marks=pytest.mark.slow),
        pytest.param(cx.IVON(num_steps=20), marks=pytest.mark.slow),
        pytest.param(cx.Laplace(num_steps=20), marks=pytest.mark.slow),
        pytest.param(cx.Laplace(structure="diagonal", num_steps=20), marks=pytest.mark.slow),
        pytest.param(cx.BayesByBackprop(num_steps=20), marks=pytest.mark.slow),
        pytest.param(cx.SWAG(num_warmup=4, num_steps=20, thin=2), marks=pytest.mark.slow),
        pytest.param(cx.HMC(chains=2, num_warmup=20, num_draws=20), marks=pytest.mark.slow),
        pytest.param(cx.SGHMC(num_warmup=20, num_draws=20), marks=pytest.mark.slow),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_family_fits(method):
    posterior = cx.fit(model_of(), (X, Y), method, progress=False)
    predictive = posterior.predict(X[:4])
    assert np.all(np.isfinite(predictive.mean))
    if not isinstance(method, cx.MAP):
        assert np.all(predictive.epistemic > 0)


def test_a_fit_comes_nearer_to_the_data_and_merges():
    model = model_of()
    posterior = cx.fit(model, (X, Y), cx.MAP(num_steps=300), progress=False)
    start = model.network.apply(model.network.init(KEY), jnp.asarray(X))[:, 0]
    end = posterior.predict(X).mean
    assert np.mean((end - Y) ** 2) < 0.5 * np.mean((start - Y) ** 2)
    weights = cx.networks.merge(posterior)
    np.testing.assert_allclose(
        model.network.network.apply(weights, jnp.asarray(X))[:, 0], end, rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_the_mean_of_the_merged_weights_is_that_of_the_products():
    model = model_of()
    posterior = cx.fit(model, (X, Y), cx.DeepEnsemble(members=3, num_steps=50), progress=False)
    got = cx.networks.merge(posterior)["layer_0"]["kernel"]
    factors = posterior.draws["layer_0"]["kernel"]
    a, b = (np.float64(factors[name][:, 0]) for name in ("a", "b"))
    trained = np.float64(model.network.trained()["layer_0"]["kernel"])
    want = trained + np.mean(a @ b, axis=0) / np.sqrt(6)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    draw = cx.networks.merge(posterior, key=3)["layer_0"]["kernel"]
    each = trained + a @ b / np.sqrt(6)
    assert np.min(np.max(np.abs(each - np.asarray(draw)), axis=(1, 2))) < 1e-5


def test_equal_by_value_and_saved_whole(tmp_path, compilations):
    posterior = cx.fit(model_of(), (X, Y), cx.MAP(num_steps=5), progress=False)
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax")
    assert loaded.model == posterior.model
    np.testing.assert_array_equal(loaded.predict(X).mean, posterior.predict(X).mean)
    with compilations() as count:
        cx.fit(model_of(), (X, Y), cx.MAP(num_steps=5), progress=False)
    assert count() == 0


def test_double_precision(x64):
    low, *_ = adapted("mlp")
    assert {leaf.dtype for leaf in jax.tree.leaves(low.init(KEY))} == {np.dtype(np.float64)}


def test_half_precision_weights_have_factors_in_single_precision():
    weights = {"w": jnp.ones((5, 4), jnp.bfloat16)}
    network = cx.networks.from_function(lambda key: weights, lambda p, x: x @ p["w"])
    low = cx.networks.lora(network, 2, weights=weights)
    assert low.init(KEY)["w"]["a"].dtype == jnp.float32
    assert low.merged(low.init(KEY))["w"].dtype == jnp.bfloat16


def test_refused():
    network = cx.networks.mlp([6]).build((3,), 1)
    weights = network.init(KEY)
    lora = cx.networks.lora
    with pytest.raises(TypeError, match=r"lora\(network=...\) must be a network"):
        lora(3, 1)
    with pytest.raises(ValueError, match=r"lora\(rank=...\) must be a whole number, at least 1"):
        lora(network, 0, weights=weights)
    with pytest.raises(ValueError, match=r"lora\(scale=...\) must be positive"):
        lora(network, 1, weights=weights, scale=-1)
    with pytest.raises(ValueError, match=r"lora\(weights=...\) must be a posterior or a pytree"):
        lora(network, 1)
    with pytest.raises(ValueError, match=r"'layer_9/.' matches none. Similar paths: 'layer_"):
        lora(network, 1, "layer_9/*", weights=weights).build((3,), 1)
    with pytest.raises(
        ValueError, match=r"at most the smaller side .* got 2 for 'layer_1/kernel' \(6, 1\)"
    ):
        lora(network, 2, weights=weights).build((3,), 1)
    with pytest.raises(ValueError, match=r"must match weights of two or more axes; .*layer_0/bias"):
        lora(network, 1, "*/bias", weights=weights).build((3,), 1)
    whole = cx.fit(cx.Model(network), (X, Y), cx.MAP(num_steps=2), progress=False)
    with pytest.raises(TypeError, match=r"merge\(posterior=...\) must be a posterior of a network"):
        cx.networks.merge(whole)


# -- subsets whose other weights are trained first ----------------------------------------------------


def test_the_whole_network_is_trained_first():
    """As if it had been trained in a fit of its own, on the same rows and with the method given."""
    network, training = cx.networks.mlp([6]), cx.MAP(num_steps=150)
    last = cx.networks.subset(network, "layer_1/*", rest=training)
    model = cx.Model(last, likelihood=cx.likelihoods.Gaussian(0.3))
    posterior = cx.fit(model, (X, Y), cx.MAP(num_steps=2), progress=False)
    assert posterior.model.network.rest == "frozen"
    weights = cx.networks.merge(posterior)
    assert list(posterior.draws) == ["layer_1"]
    np.testing.assert_array_equal(
        weights["layer_1"]["kernel"], posterior.draws["layer_1"]["kernel"][0, 0]
    )
    whole = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.3))
    untrained = cx.fit(whole, (X, Y), cx.MAP(num_steps=1), progress=False).predict(X).mean
    errors = [np.mean((mean - Y) ** 2) for mean in (posterior.predict(X).mean, untrained)]
    assert errors[0] < 0.2 * errors[1]
    again = cx.fit(model, (X, Y), cx.MAP(num_steps=2), progress=False)
    np.testing.assert_array_equal(again.predict(X).mean, posterior.predict(X).mean)


def test_refused_where_the_rest_is_not_trained():
    network = cx.networks.mlp([6])
    subset = cx.networks.subset
    with pytest.raises(
        ValueError, match=r"subset\(rest=...\) must be 'frozen', 'first', 'trained' or a method"
    ):
        subset(network, "*", rest="learned")
    with pytest.raises(ValueError, match=r"subset\(weights=...\) must be None with rest='first'"):
        subset(network, "*", weights={}, rest="first")
    first = cx.Model(subset(network, "layer_1/*", rest="first"))
    with pytest.raises(ValueError, match=r"subset\(rest='first'\) has no trained weights yet"):
        first.bind((X, Y))
    with pytest.raises(ValueError, match=r"fit\(early_stopping=...\) must be None for a subset"):
        cx.fit(first, (X, Y), cx.MAP(num_steps=2), early_stopping=True, progress=False)
    sampled = cx.Model(subset(network, "layer_1/*", rest=cx.HMC()))
    with pytest.raises(
        ValueError, match=r"subset\(rest=...\) must be .* a method that returns a point"
    ):
        cx.fit(sampled, (X, Y), cx.MAP(num_steps=2), progress=False)


def test_biases_with_axes_of_length_one_are_frozen():
    """Equinox gives the bias of a convolution an axis for each axis of the image."""
    eqx = pytest.importorskip("equinox")

    class Convolution(eqx.Module):
        conv: eqx.nn.Conv2d
        line: eqx.nn.Conv1d

        def __call__(self, x):
            return self.line(jax.nn.relu(self.conv(x)).mean(2)).mean(1)

    first, second = jax.random.split(jax.random.key(0))
    module = Convolution(eqx.nn.Conv2d(2, 4, 3, key=first), eqx.nn.Conv1d(4, 3, 2, key=second))
    adapted = cx.networks.lora(cx.networks.from_equinox(module, pretrained=True), 2)
    factors = adapted.build((2, 6, 6), 3).init(cx.random.key(0))
    shapes = {path: leaf.shape for path, leaf in named_leaves(factors)}
    assert shapes == {
        "conv/weight/a": (8, 2),
        "conv/weight/b": (2, 9),
        "line/weight/a": (3, 2),
        "line/weight/b": (2, 8),
    }
