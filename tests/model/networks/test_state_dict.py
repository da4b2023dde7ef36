"""Weights of a posterior that are given back to the library of the module predict as the posterior does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx

pytestmark = [
    # With so few steps the posteriors are poor, and some methods warn about it.
    pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning"),
    # PyTorch warns about parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 3)).astype(np.float32)
Y = np.sin(X[:, 0]).astype(np.float32)
IMAGES = GENERATOR.normal(size=(12, 1, 5, 5)).astype(np.float32)


def fit(network, method, x=X):
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.3))
    return cx.fit(model, (x, Y), method, progress=False)


def check(posterior, x, call, *, keys=(None, 7)):
    """Compare what the module of the library returns with the network at the same weights."""
    for key in keys:
        if key is None and posterior.draws is not None:
            draw = jax.tree.map(lambda a: a.mean((0, 1)), posterior.draws)
            state = jax.tree.map(lambda a: a.mean((0, 1)), posterior.approximation.state)
        else:
            drawn = posterior.approximation.sample(cx.random.key(key or 0), 1)
            draw, state = jax.tree.map(lambda a: a[0], drawn)
        wanted = posterior.model.network.apply(draw, jnp.asarray(x), state)
        module = cx.networks.to_module(posterior, key=key)
        np.testing.assert_allclose(call(module), wanted, rtol=1e-4, atol=1e-5)


# -- PyTorch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_with_batch_statistics(torch):
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 1)
    )
    posterior = fit(cx.networks.from_torch(module), cx.DeepEnsemble(2, 4, batch_size=6), IMAGES)
    named = cx.networks.state_dict(posterior, key=7)
    assert set(named) == set(module.state_dict())
    assert named["0.weight"].shape == (3, 1, 3, 3)
    assert named["1.num_batches_tracked"].dtype == np.int64

    def call(module):
        with torch.no_grad():
            return module(torch.tensor(IMAGES)).numpy()

    check(posterior, IMAGES, call)
    loaded = {name: torch.tensor(array) for name, array in named.items()}
    module.load_state_dict(loaded)  # strictly: every name, every shape
    np.testing.assert_allclose(
        call(module), call(cx.networks.to_module(posterior, key=7)), rtol=1e-5
    )


def test_torch_with_shared_and_half_precision_tensors(torch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.outer.weight = self.inner.weight
            self.head = torch.nn.Linear(3, 1)
            self.register_buffer("shift", torch.ones(3, dtype=torch.bfloat16))

        def forward(self, x):
            return self.head(torch.tanh(self.outer(torch.tanh(self.inner(x))) + self.shift.float()))

    module = Tied()
    posterior = fit(cx.networks.from_torch(module), cx.MAP(num_steps=3))
    named = cx.networks.state_dict(posterior)
    np.testing.assert_array_equal(named["inner.weight"], named["outer.weight"])
    check(posterior, X, lambda module: module(torch.tensor(X)).detach().numpy())
    assert module.inner.weight is module.outer.weight


def test_torch_after_low_rank_changes_and_subsets(torch):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    whole = cx.networks.from_torch(module, pretrained=True)
    for network in (
        cx.networks.subset(whole, "2/*"),
        cx.networks.lora(whole, rank=1),
        cx.networks.subset(whole, "2/*", rest="trained"),
    ):
        posterior = fit(network, cx.MAP(num_steps=5))
        assert set(cx.networks.state_dict(posterior)) == set(module.state_dict())
        check(posterior, X, lambda module: module(torch.tensor(X)).detach().numpy())


# -- the others ------------------------------------------------------------------------------------


def test_keras_with_batch_statistics(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "jax":
        pytest.skip("Keras was imported with another backend")
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)]
    )
    posterior = fit(cx.networks.from_keras(model), cx.DeepEnsemble(2, 4, batch_size=6))
    check(posterior, X, lambda model: np.asarray(model(X)))
    shapes = {a.shape for a in cx.networks.state_dict(posterior).values()}
    assert shapes == {(3, 4), (4,), (4, 1), (1,)}


def test_flax_modules_and_variables():
    nnx, linen = pytest.importorskip("flax.nnx"), pytest.importorskip("flax.linen")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
            self.drop, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))

    check(
        fit(cx.networks.from_flax(Net), cx.DeepEnsemble(2, 4, batch_size=6)),
        X,
        lambda module: module(X),
    )
    dense = linen.Sequential((linen.Dense(4), linen.relu, linen.Dense(1)))
    posterior = fit(cx.networks.from_flax(dense), cx.BayesByBackprop(num_steps=4))
    check(posterior, X, lambda variables: dense.apply(variables, X), keys=(7,))


def test_equinox_modules():
    eqx = pytest.importorskip("equinox")
    network = cx.networks.from_equinox(lambda key: eqx.nn.MLP(3, 1, 4, 1, key=key))
    check(fit(network, cx.MAP(num_steps=4)), X, lambda module: jax.vmap(module)(X))


def test_mean_of_a_distribution_and_of_weighted_draws():
    network = cx.networks.linear()
    posterior = fit(network, cx.BayesByBackprop(num_steps=50))
    mean = cx.networks.state_dict(posterior, num_samples=4000)
    exact = posterior.approximation.mean
    spread = np.asarray(posterior.approximation.sigma["layer_0"]["kernel"])
    found = mean["layer_0/kernel"] - exact["layer_0"]["kernel"]
    assert np.all(np.abs(found) < 5 * spread / np.sqrt(4000))
    weighted = fit(network, cx.ImportanceSampling(num_draws=200))
    draws = np.asarray(weighted.draws["layer_0"]["kernel"]).reshape(200, -1)
    shares = np.exp(np.ravel(weighted.log_weights).astype(np.float64))
    shares = shares / shares.sum()
    found = cx.networks.state_dict(weighted)["layer_0/kernel"].ravel()
    np.testing.assert_allclose(found, shares @ draws, rtol=1e-4, atol=1e-5)


def test_networks_without_a_module_of_their_own():
    posterior = fit(cx.networks.linear(), cx.MAP(num_steps=2))
    with pytest.raises(TypeError, match="from_torch"):
        cx.networks.to_module(posterior)
    with pytest.raises(TypeError, match="with a network"):
        cx.networks.state_dict(3)
