"""Small networks of every library under fourteen methods: each pair works, or the error says why not."""

import os
import re

import jax
import numpy as np
import pytest

import credax as cx

pytestmark = [
    pytest.mark.slow,
    # With so few steps the posteriors are poor, and some methods warn about it.
    pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning"),
    # PyTorch and Keras warn about parts of themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

RNG = np.random.default_rng(0)
ROWS = 12
TABLE = RNG.normal(size=(ROWS, 3)).astype(np.float32)
IMAGES = RNG.normal(size=(ROWS, 6, 6, 2)).astype(np.float32)
CHANNELS_FIRST = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))
SERIES = RNG.normal(size=(ROWS, 5, 3)).astype(np.float32)
TOKENS = RNG.integers(0, 7, (ROWS, 5))
Y = RNG.integers(0, 3, ROWS)

METHODS = {
    "MAP": cx.MAP(num_steps=2, batch_size=6),
    "DeepEnsemble": cx.DeepEnsemble(2, 2, batch_size=6),
    "MCDropout": cx.MCDropout(num_steps=2, batch_size=6),
    "SWAG": cx.SWAG(num_warmup=2, num_steps=6, thin=2, batch_size=6),
    "SVGD": cx.SVGD(particles=2, num_steps=2),
    "BayesByBackprop": cx.BayesByBackprop(num_steps=2, batch_size=6),
    "BayesByBackprop local": cx.BayesByBackprop(num_steps=2, estimator="local"),
    "BayesByBackprop flipout": cx.BayesByBackprop(num_steps=2, estimator="flipout"),
    "IVON": cx.IVON(num_steps=2, batch_size=6),
    "VariationalLastLayer": cx.VariationalLastLayer(num_steps=2, batch_size=6),
    "Laplace": cx.Laplace(num_steps=2, structure="diagonal"),
    "SGHMC": cx.SGHMC(num_warmup=2, num_draws=2, batch_size=6),
    "HMC": cx.HMC(chains=2, num_warmup=2, num_draws=2),
    "MicrocanonicalEnsemble": cx.MicrocanonicalEnsemble(2, num_warmup=4, num_draws=2),
}
NOT_WITH_STATISTICS = {
    "BayesByBackprop local",
    "BayesByBackprop flipout",
    "VariationalLastLayer",
    "HMC",
}
"""Methods that need a network without batch statistics, or one whose statistics were trained before.

They are named in the section "Which methods run" of ``docs/guide/networks.md``."""


# -- Flax ------------------------------------------------------------------------------------------


def nnx_mlp():
    nnx = pytest.importorskip("flax.nnx")
    make = lambda rngs: nnx.Sequential(  # noqa: E731
        nnx.Linear(3, 4, rngs=rngs), nnx.relu, nnx.Linear(4, 3, rngs=rngs)
    )
    return cx.networks.from_flax(make), TABLE


def nnx_resnet():
    nnx = pytest.importorskip("flax.nnx")

    class ResNet(nnx.Module):
        def __init__(self, rngs):
            self.stem, self.conv = (
                nnx.Conv(2, 4, (3, 3), rngs=rngs),
                nnx.Conv(4, 4, (3, 3), rngs=rngs),
            )
            self.norm, self.head = nnx.BatchNorm(4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            x = self.stem(x)
            return self.head((x + nnx.relu(self.norm(self.conv(x)))).mean((1, 2)))

    return cx.networks.from_flax(ResNet), IMAGES


def nnx_gru():
    nnx = pytest.importorskip("flax.nnx")

    class Recurrent(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs))
            self.head = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            return self.head(self.layer(x)[:, -1])

    return cx.networks.from_flax(Recurrent), SERIES


def linen_cnn():
    linen = pytest.importorskip("flax.linen")

    class CNN(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Conv(4, (3, 3))(x))
            return linen.Dense(3)(linen.max_pool(x, (2, 2), (2, 2)).mean((1, 2)))

    return cx.networks.from_flax(CNN()), IMAGES


def linen_transformer():
    linen = pytest.importorskip("flax.linen")

    class Transformer(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.Embed(7, 4)(x)
            x = x + linen.MultiHeadDotProductAttention(2)(linen.LayerNorm()(x))
            x = x + linen.Dense(4)(linen.gelu(linen.Dense(8)(linen.LayerNorm()(x))))
            return linen.Dense(3)(x.mean(1))

    return cx.networks.from_flax(Transformer()), TOKENS


# -- Equinox ---------------------------------------------------------------------------------------


def equinox_mlp():
    eqx = pytest.importorskip("equinox")
    return cx.networks.from_equinox(lambda key: eqx.nn.MLP(3, 3, 4, 1, key=key)), TABLE


def equinox_cnn():
    eqx = pytest.importorskip("equinox")

    class CNN(eqx.Module):
        conv: eqx.nn.Conv2d
        head: eqx.nn.Linear

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(2, 4, 3, key=a)
            self.head = eqx.nn.Linear(4, 3, key=b)

        def __call__(self, x):
            return self.head(jax.nn.relu(self.conv(x)).mean((1, 2)))

    return cx.networks.from_equinox(CNN), CHANNELS_FIRST


def equinox_gru():
    eqx = pytest.importorskip("equinox")

    class Recurrent(eqx.Module):
        cell: eqx.nn.GRUCell
        head: eqx.nn.Linear

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.cell = eqx.nn.GRUCell(3, 4, key=a)
            self.head = eqx.nn.Linear(4, 3, key=b)

        def __call__(self, x):
            step = lambda h, row: (self.cell(row, h), None)  # noqa: E731
            return self.head(jax.lax.scan(step, jax.numpy.zeros(4), x)[0])

    return cx.networks.from_equinox(Recurrent), SERIES


# -- Keras and PyTorch -----------------------------------------------------------------------------


def _keras():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "jax":
        pytest.skip("Keras was imported with another backend")
    keras.utils.set_random_seed(0)
    return keras


def keras_cnn():
    keras = _keras()
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(IMAGES.shape[1:]),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    return cx.networks.from_keras(model), IMAGES


def keras_lstm():
    keras = _keras()
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(7, 4),
            layers.LSTM(4),
            layers.Dropout(0.2),
            layers.Dense(3),
        ]
    )
    return cx.networks.from_keras(model), TOKENS


def torch_resnet():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.conv, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

        def forward(self, x):
            x = self.stem(x)
            return self.head((x + torch.relu(self.norm(self.conv(x)))).mean((2, 3)))

    torch.manual_seed(0)
    return cx.networks.from_torch(ResNet()), CHANNELS_FIRST


def torch_transformer():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.layer(self.embedding(x)).mean(1))

    torch.manual_seed(0)
    return cx.networks.from_torch(Transformer()), TOKENS


NETWORKS = (
    nnx_mlp,
    nnx_resnet,
    nnx_gru,
    linen_cnn,
    linen_transformer,
    equinox_mlp,
    equinox_cnn,
    equinox_gru,
    keras_cnn,
    keras_lstm,
    torch_resnet,
    torch_transformer,
)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_it_works_or_says_why_not(name, network):
    made, x = network()
    model = cx.Model(made, likelihood=cx.likelihoods.Categorical(3))
    statistics = made.build(x.shape[1:], 3).init_state() != ()
    reason = None
    try:
        posterior = cx.fit(model, (x, Y), METHODS[name], progress=False)
    except (TypeError, ValueError) as error:
        reason = str(error)
    if reason is not None:
        assert statistics, reason
        assert name in NOT_WITH_STATISTICS, reason
        assert type(METHODS[name]).__name__ in reason  # it names the method,
        assert re.search(r"\b(use|give|fit|add|needs?|must|pass|train)\b", reason, re.IGNORECASE)
        assert reason.endswith(".")  # and says in a sentence what to do
        return
    assert not statistics or name not in NOT_WITH_STATISTICS
    probs = posterior.predict(x[:4], num_samples=3).probs
    assert probs.shape == (4, 3)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)
