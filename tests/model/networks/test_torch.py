"""PyTorch modules give the outputs that PyTorch gives, and can be fitted by every family of methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.trees import named_leaves

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    # With so few steps the posteriors are poor, and some methods warn about it.
    pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning"),
    # PyTorch warns about parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 3)).astype(np.float32) + 1
Y = np.sin(X[:, 0]).astype(np.float32)
IMAGES = GENERATOR.normal(size=(12, 1, 6, 6)).astype(np.float32) + 1
TOKENS = GENERATOR.integers(0, 11, size=(12, 5))
KEY = cx.random.key(3)


class Residual(nn.Module):
    """A small ResNet: batch normalisation, pooling, dropout and a shortcut."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        x = self.stem(x)
        x = self.pool(x + self.conv(F.relu(self.norm(x))))
        return self.fc(self.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class Transformer(nn.Module):
    """One encoder block over tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.block(self.embedding(x)).mean(1))


torch.manual_seed(0)
PERCEPTRON = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
MODULES = {"perceptron": PERCEPTRON, "residual": Residual(), "transformer": Transformer()}
NETWORKS = {name: cx.networks.from_torch(module) for name, module in MODULES.items()}
ROWS = {"perceptron": X, "residual": IMAGES, "transformer": TOKENS}


def fit(method, name="perceptron", **arguments):
    model = cx.Model(NETWORKS[name], likelihood=cx.likelihoods.Gaussian(0.3))
    return cx.fit(model, (ROWS[name], Y), method, progress=False, **arguments)


def call(name, params, state, key=None, train=False, rows=slice(None)):
    network, x = NETWORKS[name], jnp.asarray(ROWS[name][rows])
    run = jax.jit(lambda *a: network.call(*a, state=state, key=key, train=train))
    return run(params, x)


def loaded(module, params, state=()):
    """The module with different weights."""
    tensors = {
        path.replace("/", "."): leaf for path, leaf in [*named_leaves(params), *named_leaves(state)]
    }
    tensors = {name: torch.tensor(np.asarray(leaf)) for name, leaf in tensors.items()}
    module.load_state_dict({**module.state_dict(), **tensors})
    return module


def of_torch(module, x):
    with torch.no_grad():
        return module(torch.as_tensor(x)).numpy()


@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_those_of_the_module(name):
    params, state = NETWORKS[name].init(KEY), NETWORKS[name].init_state()
    module = loaded(
        {"residual": Residual, "transformer": Transformer}.get(name, perceptron)(), params
    )
    wanted = of_torch(module.eval(), ROWS[name])
    np.testing.assert_allclose(call(name, params, state)[0], wanted, rtol=1e-5, atol=1e-6)
    assert all(layer.training for layer in MODULES[name].modules()), "left as it was"


def perceptron():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))


def test_statistics_are_those_of_the_module():
    network = NETWORKS["residual"]
    params, state = network.init(KEY), network.init_state()
    module = loaded(Residual(), params, state).train()
    module.dropout.eval()
    wanted = of_torch(module, IMAGES)
    got, new = call("residual", params, state, train=True)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        new["norm"]["running_mean"], module.norm.running_mean, rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(new["norm"]["running_var"], module.norm.running_var, rtol=1e-5)
    held = network.call(params, IMAGES, state=state, key=KEY, train=False)[1]
    assert held is state


@pytest.mark.parametrize("name", MODULES)
def test_the_key_decides_what_is_dropped(name):
    params, state = NETWORKS[name].init(KEY), NETWORKS[name].init_state()
    outputs = lambda key: np.asarray(call(name, params, state, key)[0])  # noqa: E731
    one, other = cx.random.key(1), cx.random.key(2)
    np.testing.assert_array_equal(outputs(one), outputs(one))
    assert np.any(outputs(one) != outputs(other))
    assert np.any(outputs(one) != outputs(None))
    alone = call(name, params, state, rows=slice(0, 1))[0]
    np.testing.assert_allclose(alone, outputs(None)[:1], rtol=1e-5, atol=1e-6)


def test_first_weights():
    weight = PERCEPTRON[0].weight.detach().numpy()
    for pretrained in (True, False):
        network = cx.networks.from_torch(PERCEPTRON, pretrained=pretrained)
        one, other = (network.init(cx.random.key(k))["0"]["weight"] for k in (1, 2))
        assert np.array_equal(one, other) == pretrained
        assert np.array_equal(one, weight) == pretrained
        np.testing.assert_array_equal(np.sort(one, None), np.sort(weight, None))


def test_frozen_parameters_keep_their_values():
    module = perceptron()
    module[0].requires_grad_(False)
    network = cx.networks.from_torch(module, pretrained=True)
    assert [path for path, _ in named_leaves(network.init(KEY))] == ["3/bias", "3/weight"]
    got = network.apply(network.init(KEY), jnp.asarray(X))
    np.testing.assert_allclose(got, of_torch(module.eval(), X), rtol=1e-5, atol=1e-6)


def test_equal_where_the_object_and_its_weights_are():
    module = perceptron()
    one = cx.networks.from_torch(module)
    assert one == cx.networks.from_torch(module)
    with torch.no_grad():
        module[3].bias += 1
    assert one != cx.networks.from_torch(module)


# -- operations -----------------------------------------------------------------------------------


class Operation(nn.Module):
    """A function of an array ``(rows, 2, 6, 6)``, multiplied first by a weight that is one."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x):
        return self.function(self.weight * x)


CONVOLUTION = torch.linspace(-1, 1, 2 * 3 * 3 * 3).reshape(2, 3, 3, 3)
OPERATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "clamp": lambda x: x.clamp(-0.5, 0.5).abs() ** 1.5,
    "where": lambda x: torch.where(x > 0, x, -2 * x),
    "std": lambda x: x.std(-1) + x.var((2, 3), correction=0)[:, :, None],
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x.repeat(1, 2, 1, 1), 2),
    "average_pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "max_pool": lambda x: F.max_pool2d(x, 2, 2, dilation=2),
    "grouped": lambda x: F.conv2d(x, CONVOLUTION[:, :1], groups=2, padding=1, dilation=2),
    "transposed": lambda x: F.conv_transpose2d(
        x, CONVOLUTION, stride=2, padding=1, output_padding=1
    ),
    "pad_flip": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0).flip(2),
    "slices": lambda x: torch.cat([x[:, :, 1:5:2], x[:, :, -2:]], 2).transpose(1, 3),
    "split": lambda x: torch.stack(x.split(4, 2)[::1][:1]) + x.chunk(3, 3)[0][:, :, :4].sum(),
    "index": lambda x: x[:, :, torch.tensor([3, 0])] * torch.arange(6) + torch.eye(6)[:2],
    "einsum": lambda x: torch.einsum("nchw,ncvw->nhv", x, x).cumsum(-1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "reductions": lambda x: (
        x.amax((2, 3)) + x.amin((2, 3)) + x.prod(-1).mean(-1) + x.argmax(-1).sum()
    ),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in OPERATIONS])
def test_operations(name):
    module = Operation(OPERATIONS[name])
    x = GENERATOR.normal(size=(2, 2, 6, 6)).astype(np.float32)
    network = cx.networks.from_torch(module, pretrained=True)
    got = network.apply(network.init(KEY), jnp.asarray(x))
    np.testing.assert_allclose(got, of_torch(module, x), rtol=1e-5, atol=1e-5)


def test_an_unknown_operation_is_named():
    network = cx.networks.from_torch(Operation(torch.special.bessel_j0))
    with pytest.raises(NotImplementedError, match=r"does not know the operation '.*bessel_j0"):
        network.apply(network.init(KEY), jnp.zeros((1, 2)))


def test_refused():
    with pytest.raises(TypeError, match=r"from_torch\(module=...\) must be a torch.nn.Module"):
        cx.networks.from_torch(3)
    for function, message in (
        (
            lambda x: x if x.sum() > 0 else -x,
            "be a module that torch.export .* of shape .1, 2. it failed",
        ),
        (lambda x: (x, x), "return one array, or a dictionary .*; it returns 2 arrays"),
    ):
        network = cx.networks.from_torch(Operation(function))
        with pytest.raises(ValueError, match=rf"from_torch\(module=...\) must .*{message}"):
            network.apply(network.init(KEY), jnp.zeros((1, 2)))


# -- several inputs and outputs -------------------------------------------------------------------


class Tagger(nn.Module):
    """Words with a mask, and numbers for each row: a class for each word, and a number for each row."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.head = (
            nn.Embedding(11, 4),
            nn.Linear(2, 4),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        words, (numbers, flags) = self.embedding(x["words"]), x["more"]
        numbers = torch.where(flags[:, None], self.hidden(numbers), 0.0)
        found = self.head((words + numbers[:, None]) * x["seen"][..., None])
        return {"tag": found, "size": found.mean(1)[:, :1]}


SEEN = (np.arange(5) < GENERATOR.integers(2, 6, 12)[:, None]).astype(np.float32)
TREE = {"words": TOKENS, "seen": SEEN, "more": (X[:, :2], X[:, 0] > 1)}


def test_a_tree_of_inputs_and_several_heads():
    torch.manual_seed(0)
    module = Tagger()
    network = cx.networks.from_torch(module, pretrained=True)
    got = network.apply(network.init(KEY), jax.tree.map(jnp.asarray, TREE))
    want = module(jax.tree.map(torch.tensor, TREE))
    assert set(got) == set(want) == {"tag", "size"}
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name].detach().numpy(), atol=1e-6)

    y = {"tag": np.where(SEEN > 0, TOKENS % 3, -1), "size": Y}
    heads = {"tag": cx.likelihoods.Categorical(3), "size": cx.likelihoods.Gaussian(0.5)}
    model = cx.Model(network, likelihood=heads)
    method, weights = cx.MAP(num_steps=60, learning_rate=0.05), {"tag": SEEN}
    posterior = cx.fit(model, (TREE, y), method, weights=weights, progress=False)
    scores = posterior.evaluate(TREE, y, weights=weights)
    assert scores["tag"].rows == SEEN.sum()
    assert scores["tag"].accuracy > 0.8
    with pytest.raises(ValueError, match=r"\['more'\]\[0\], x?\['more'\]\[1\] missing|missing"):
        posterior.predict({"words": TOKENS, "seen": SEEN})


def test_a_pair_of_inputs():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 1), nn.Linear(2, 1)

        def forward(self, x):
            return self.first(x[0]) - self.second(x[1])

    module = Pair()
    network = cx.networks.from_torch(module, pretrained=True)
    pair = (X, X[:, :2] + 1)
    want = module(tuple(map(torch.tensor, pair))).detach().numpy()
    got = network.apply(network.init(KEY), tuple(map(jnp.asarray, pair)))
    np.testing.assert_allclose(got, want, atol=1e-6)


# -- methods --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_saved_and_loaded(tmp_path, compilations):
    posterior = fit(cx.MAP(num_steps=3), "residual")
    posterior.save(tmp_path / "a.credax")
    again = cx.load(tmp_path / "a.credax", cx.networks.from_torch(MODULES["residual"]))
    np.testing.assert_array_equal(again.predict(IMAGES).mean, posterior.predict(IMAGES).mean)
    with compilations() as count:
        fit(cx.MAP(num_steps=3), "residual")
    assert count() == 0


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
    start = fit(cx.MAP(num_steps=5), "residual") if name == "hmc" else None
    predictive = fit(METHODS[name], "residual", start=start).predict(IMAGES)
    assert np.all(np.isfinite(predictive.mean))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["perceptron", "transformer"])
def test_chains_in_whitened_coordinates(name):
    """PyTorch repeats the weights of an attention for each row, so that their products look different."""
    method = cx.MicrocanonicalEnsemble(members=2, num_warmup=40, num_draws=4, thin=2)
    predictive = fit(method, name).predict(ROWS[name][:4])
    assert np.all(np.isfinite(predictive.mean))
    assert np.all(predictive.epistemic > 0)


@pytest.mark.slow
def test_double_precision(x64):
    posterior = fit(cx.MAP(num_steps=3))
    assert posterior.draws["0"]["weight"].dtype == np.float64
    network = cx.networks.from_torch(PERCEPTRON, pretrained=True)
    got = network.apply(network.init(KEY), jnp.asarray(X, float))
    wanted = of_torch(perceptron().double().eval(), np.float64(X))
    assert got.dtype == wanted.dtype
