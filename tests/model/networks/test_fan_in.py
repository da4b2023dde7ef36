"""The fan-in of a weight comes from its product, whatever the order of its axes in a library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.model.networks.fan_in import fan_in, multiplies_inputs

WIDE, UNITS, CHANNELS = 40, 60, 5
ROWS = np.random.default_rng(0).normal(size=(6, WIDE)).astype(np.float32)
IMAGES = np.random.default_rng(1).normal(size=(6, 8, 8, 3)).astype(np.float32)
Y = np.linspace(-1, 1, 6)


def own_dense():
    def init(key):
        first, last = jax.random.split(key)
        a = jax.random.normal(first, (UNITS, WIDE), jnp.float32)
        return {"a": a, "b": jax.random.normal(last, (1, UNITS), jnp.float32)}

    def apply(params, x):
        return (params["b"] @ jnp.tanh(params["a"] @ x.T)).T

    return cx.networks.from_function(init, apply)


def own_convolution():
    def init(key):
        return {
            "k": jnp.ones((CHANNELS, 3, 3, 3), jnp.float32),
            "b": jnp.ones((1, CHANNELS), jnp.float32),
        }

    def apply(params, x):
        numbers = ("NHWC", "OIHW", "NHWC")
        z = jax.lax.conv_general_dilated(x, params["k"], (1, 1), "VALID", dimension_numbers=numbers)
        return jnp.tanh(z).mean((1, 2)) @ params["b"].T

    return cx.networks.from_function(init, apply)


def equinox_dense():
    eqx = pytest.importorskip("equinox")
    sizes = {"in_size": WIDE, "out_size": 1, "width_size": UNITS, "depth": 1, "use_bias": False}
    network = lambda key: eqx.nn.MLP(  # noqa: E731
        **sizes, use_final_bias=False, activation=jnp.tanh, key=key
    )
    return cx.networks.from_equinox(network)


def flax_dense():
    nnx = pytest.importorskip("flax.nnx")

    def network(rngs):
        return nnx.Sequential(
            nnx.Linear(WIDE, UNITS, use_bias=False, rngs=rngs),
            jnp.tanh,
            nnx.Linear(UNITS, 1, use_bias=False, rngs=rngs),
        )

    return cx.networks.from_flax(network)


def keras_dense():
    keras = pytest.importorskip("keras")
    layers = [
        keras.layers.Input((WIDE,)),
        keras.layers.Dense(UNITS, "tanh", use_bias=False),
        keras.layers.Dense(1, use_bias=False),
    ]
    return cx.networks.from_keras(keras.Sequential(layers))


def torch_dense():
    torch = pytest.importorskip("torch")
    linear = lambda a, b: torch.nn.Linear(a, b, bias=False)  # noqa: E731
    module = torch.nn.Sequential(linear(WIDE, UNITS), torch.nn.Tanh(), linear(UNITS, 1))
    return cx.networks.from_torch(module)


def sd_of_prior(network, x):
    """The standard deviation of the outputs under the prior, over 2,000 draws of the weights."""
    model = cx.Model(network, cx.priors.FanInNormal()).bind((x, Y))
    rows = jnp.asarray(x)

    @jax.jit
    def outputs(key):
        return model.network.apply(model.split(model.sample_prior(key))[0], rows)

    found = jax.lax.map(outputs, jax.random.split(jax.random.key(0), 2_000))
    return float(jnp.std(found[:, 0]))


@pytest.mark.parametrize(
    "network", [own_dense, equinox_dense, flax_dense, keras_dense, torch_dense]
)
def test_the_prior_of_a_dense_network_is_the_same_in_every_library(network, standard_promotion):
    # With inputs of unit variance the units are N(0, |x|^2 / n), and the output is their mean square.
    sd = np.sqrt(np.mean(ROWS[0] ** 2))
    exact = np.sqrt(np.mean(np.tanh(sd * np.random.default_rng(2).normal(size=1_000_000)) ** 2))
    # The relative standard error of a standard deviation over 2,000 draws is 1.6 %.
    assert sd_of_prior(network(), ROWS) == pytest.approx(exact, rel=4 * 0.016)


def test_our_own_networks_have_the_fan_in_of_their_axes():
    rows = jax.ShapeDtypeStruct((7, WIDE), jnp.float32)
    found = fan_in(cx.networks.mlp([UNITS]).build((WIDE,), 1), rows)
    assert found == {
        "layer_0/kernel": WIDE,
        "layer_0/bias": 1,
        "layer_1/kernel": UNITS,
        "layer_1/bias": 1,
    }
    images = jax.ShapeDtypeStruct((7, 8, 8, 3), jnp.float32)
    found = fan_in(cx.networks.cnn([CHANNELS], [4], kernel_size=3).build((8, 8, 3), 1), images)
    assert found["conv_0/kernel"] == 27
    assert found["dense_0/kernel"] == 4 * 4 * CHANNELS


def test_convolutions_sum_over_the_window_and_its_channels(standard_promotion):
    eqx = pytest.importorskip("equinox")
    images = jax.ShapeDtypeStruct((7, 3, 8, 8), jnp.float32)
    network = cx.networks.from_equinox(
        lambda key: eqx.nn.Sequential(
            [
                eqx.nn.Conv2d(3, CHANNELS, 3, key=key),
                eqx.nn.Lambda(jnp.ravel),
                eqx.nn.Linear(CHANNELS * 36, 1, key=key),
            ]
        )
    )
    found = fan_in(network.build((3, 8, 8), 1), images)
    sizes = {path.rpartition("/")[0]: size for path, size in found.items() if "weight" in path}
    assert sorted(sizes.values()) == [27, CHANNELS * 36]
    own = fan_in(own_convolution(), jax.ShapeDtypeStruct((7, 8, 8, 3), jnp.float32))
    assert own == {"k": 27, "b": CHANNELS}


def test_weights_without_a_product():
    def init(key):
        return {
            "table": jnp.ones((9, 4), jnp.float32),
            "scale": jnp.ones(4, jnp.float32),
            "odd": jnp.ones((4, 3), jnp.float32),
        }

    def apply(params, x):
        found = params["table"][x[:, 0]] * params["scale"]
        return jnp.sum(found[:, :, None] * params["odd"], 1)

    rows = jax.ShapeDtypeStruct((7, 1), jnp.int32)
    assert fan_in(cx.networks.from_function(init, apply), rows) == {"table": 1, "scale": 1}


def test_a_bound_prior_is_kept_with_the_posterior(tmp_path):
    prior = {"layer_1/*": cx.priors.FanInNormal(2.0), "*": cx.priors.Normal(1.0)}
    model = cx.Model(cx.networks.mlp([UNITS]), prior, cx.likelihoods.Gaussian(0.1))
    posterior = cx.fit(model, (ROWS, Y), cx.MAP(num_steps=5), progress=False)
    assert posterior.model.prior.at("layer_1/kernel") == cx.priors.Normal(2 / np.sqrt(UNITS))
    assert posterior.model.prior.at("layer_1/bias") == cx.priors.Normal(2.0)
    posterior.save(tmp_path / "it.credax")
    assert cx.load(tmp_path / "it.credax").model == posterior.model


def test_whether_inputs_are_multiplied_as_they_are():
    rows = jax.ShapeDtypeStruct((7, WIDE), jnp.float32)
    assert multiplies_inputs(cx.networks.mlp([3]).build((WIDE,), 1), rows)
    assert multiplies_inputs(own_dense(), rows)
    centred = lambda params, x: own_dense().apply(params, (x - 1e6) / 3)  # noqa: E731
    assert not multiplies_inputs(cx.networks.from_function(own_dense().init, centred), rows)
