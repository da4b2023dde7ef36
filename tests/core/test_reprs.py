"""Short representations: they name what matters, and never print the entries of an array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.reprs import brief, short
from credax.core.trees import Flat
from credax.core.weights import Weights
from credax.model.data import ArrayData

X = np.linspace(-1, 1, 20)[:, None]


def start(key):
    return jnp.zeros(1)


def apply(params, x):
    return x * params


@pytest.mark.parametrize(
    "value, text",
    [
        (np.zeros((3, 2)), "float64[3, 2]"),
        (jnp.zeros((), jnp.int32), "int32[]"),
        (jax.ShapeDtypeStruct((4,), jnp.bfloat16), "bfloat16[4]"),
        (start, "start"),
        (jnp.tanh, "tanh"),
        (cx.MAP, "MAP"),
        ("tanh", "'tanh'"),
        (None, "None"),
        ((1, 2.0), "(1, 2.0)"),
    ],
)
def test_values(value, text):
    assert short(value) == text


REPRS = {
    "Model(network=MLP(hidden=(50,), activation='relu'), prior=Normal(scale=1.0, loc=0.0), "
    "likelihood=Gaussian(scale=None, scale_prior=Normal(scale=1.0, loc=0.0)))": cx.Model(cx.networks.mlp([50])),
    "MLP(hidden=(3,), activation=tanh, dropout=0.2)": cx.networks.mlp([3], activation=jnp.tanh, dropout=0.2),
    "CNN(channels=(6, 16), hidden=(120, 84), activation='relu')": cx.networks.cnn(),
    "Network(init=start, apply=apply)": cx.networks.from_function(start, apply),
    "LogDensity(init=start, log_joint=sum)": cx.LogDensity(start, jnp.sum),
    "PerLayer({'a/*': Normal(scale=0.1, loc=0.0), '*': FanInNormal(scale=1.0)})": cx.priors.PerLayer(
        {"a/*": cx.priors.Normal(0.1), "*": cx.priors.FanInNormal()}
    ),
    "ArrayData(x=float32[20, 1], y=int32[20])": ArrayData(jnp.zeros((20, 1)), jnp.zeros(20, jnp.int32)),
    "Batch(x=float32[2, 1], y=float32[2], scale=float32[], index=int32[], count=1)": ArrayData(
        jnp.zeros((2, 1)), jnp.zeros(2)
    ).everything(),
    "Flat(vector=float32[5], leaves=2)": Flat.of({"a": jnp.zeros(3), "b": jnp.zeros((2, 1))}),
}  # fmt: skip


@pytest.mark.parametrize("text", REPRS)
def test_objects(text):
    assert repr(REPRS[text]) == text
    assert len(text) < 200


def test_fixed_weights_are_counted():
    weights = Weights.of({"a": np.zeros(3), "b": np.ones((2, 2))})
    assert repr(weights) == f"Weights(arrays=2, size=7, digest={weights.digest[:8]!r})"
    assert repr(cx.priors.Around({"a": np.zeros(3), "b": np.ones((2, 2))})) == (
        f"Around(weights={weights!r}, scale=1.0)"
    )
    model = cx.Model(cx.networks.mlp([5])).bind((X, X[:, 0]))
    last = cx.networks.subset(
        model.network, "layer_1/*", weights=model.network.init(jax.random.key(0))
    )
    assert repr(last).startswith(
        "Subset(network=MLP(hidden=(5,), activation='relu', inputs=1, outputs=1), "
    )
    assert "weights=Weights(arrays=4, size=16" in repr(last)


def test_wrapped_modules_are_named():
    equinox = pytest.importorskip("equinox")
    module = equinox.nn.MLP(2, 1, 50, 2, key=jax.random.key(0))
    text = repr(cx.networks.from_equinox(module))
    assert text.startswith(
        "EquinoxNetwork(module=MLP, weights=Weights(arrays=6, size=2751, digest="
    )
    assert text.endswith("pretrained=False)")


def test_wrapped_flax_modules_are_named():
    nnx, linen = pytest.importorskip("flax.nnx"), pytest.importorskip("flax.linen")
    text = repr(cx.networks.from_flax(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
    assert text.startswith("FlaxNNX(module=Linear, weights=Weights(arrays=2, size=9, digest=")
    text = repr(cx.networks.from_flax(linen.Dense(3)))
    assert text == "FlaxLinen(module=Dense, pretrained=False)"


def test_traced_and_mapped_data():
    data = ArrayData(jnp.zeros((4, 2)), jnp.zeros(4))
    seen = []
    jax.jit(lambda data: seen.append(repr(data)))(data)
    assert seen == ["ArrayData(x=float32[4, 2], y=float32[4])"]
    assert repr(jax.tree.map(lambda leaf: leaf.shape, data)) == "ArrayData(x=(4, 2), y=(4,))"
    assert brief(jax.tree.map(lambda leaf: None, data)) == "ArrayData(x=None, y=None)"
