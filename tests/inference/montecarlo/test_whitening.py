"""Whitened coordinates of layers: the whitening matrix, and the map between weights and coordinates."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core import random
from credax.core.trees import Flat, named_leaves
from credax.inference.montecarlo.collapsed import Collapsed
from credax.inference.montecarlo.whitening import KAPPA, Layers


def regression(rows=40, columns=3):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, columns)) + 2
    return x, np.sin(x[:, 0]) + 0.1 * generator.normal(size=rows)


def prepared(network, likelihood=None, data=None):
    likelihood = cx.likelihoods.Gaussian(0.1) if likelihood is None else likelihood
    model, data = cx.Model(network, likelihood=likelihood).prepare(data or regression())
    return model, data.everything()


def expected(inputs):
    """T T' for inputs with a one appended."""
    inputs = np.column_stack([inputs, np.ones(len(inputs))]).astype(np.float64)
    return np.linalg.inv(np.eye(inputs.shape[1]) + KAPPA * inputs.T @ inputs / len(inputs))


def noise(params, seed=1):
    generator = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype)  # noqa: E731
    return jax.tree.map(draw, params)


def assert_inverse(layers, units, params):
    """The map to coordinates and back is the identity, and the coordinates differ from the weights."""
    given = noise(params)
    there = layers.coordinates(units, given)
    assert not np.allclose(Flat.of(layers.weights(units, noise(there))).vector, noise(there).vector)
    again = layers.weights(units, there)
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3)
    jax.tree.map(close, again, given)
    np.testing.assert_array_equal(layers.origin(params).vector, jnp.zeros_like(there.vector))


@pytest.mark.slow
def test_units_whiten_what_each_layer_is_given():
    model, batch = prepared(cx.networks.mlp([5, 4], activation="relu"))
    params = model.init(random.key(0))
    layers = Layers(model, batch.x)
    units = layers.units(params, batch, ())
    assert len(units) == 3
    given = np.asarray(batch.x, np.float64)
    for unit, layer in zip(units, params.values(), strict=True):
        np.testing.assert_allclose(unit @ unit.T, expected(given), rtol=1e-3, atol=1e-5)
        given = np.maximum(given @ layer["kernel"] + layer["bias"], 0)
    assert_inverse(layers, units, params)


def test_weights_and_bias_of_a_layer_are_one_matrix():
    model, batch = prepared(cx.networks.mlp([5], activation="tanh"))
    params = model.init(random.key(0))
    layers = Layers(model, batch.x)
    units = layers.units(params, batch, ())
    coordinates = noise(layers.origin(params))
    matrices, _ = coordinates.tree
    found = layers.weights(units, coordinates)
    for unit, matrix, layer in zip(units, matrices, found.values(), strict=True):
        np.testing.assert_allclose(layer["kernel"], (unit @ matrix)[:-1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(layer["bias"], (unit @ matrix)[-1], rtol=1e-4, atol=1e-5)


def test_what_is_left_of_a_last_layer_has_units_too():
    model, batch = prepared(cx.networks.mlp([5]), cx.likelihoods.Heteroscedastic())
    view = Collapsed(model, batch.x)
    whole = model.init(random.key(0))
    layers, all_layers = Layers(view, batch.x), Layers(model, batch.x)
    params = view.init(random.key(0))
    units = layers.units(params, batch, ())
    for a, b in zip(units, all_layers.units(whole, batch, ()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert_inverse(layers, units, params)
    # The column that predicts the noise has the same coordinates as in the whole layer.
    (_, found), _ = layers.coordinates(units, params).tree
    (_, column), _ = all_layers.coordinates(units, whole).tree
    np.testing.assert_allclose(found[:, 0], column[:, 1], rtol=1e-4, atol=1e-4)


def test_a_last_layer_of_which_nothing_is_left_has_none():
    model, batch = prepared(cx.networks.mlp([5]))
    view = Collapsed(model, batch.x)
    assert len(Layers(view, batch.x).units(view.init(random.key(0)), batch, ())) == 1


def test_the_noise_of_a_likelihood_is_left_alone():
    model, batch = prepared(cx.networks.mlp([5]), cx.likelihoods.Gaussian(None))
    params = model.init(random.key(0))
    layers = Layers(model, batch.x)
    units = layers.units(params, batch, ())
    assert len(units) == 2
    coordinates = noise(layers.origin(params))
    _, (scale,) = coordinates.tree
    found = layers.weights(units, coordinates)
    np.testing.assert_array_equal(found["likelihood"]["log_scale"], scale)
    assert_inverse(layers, units, params)


@pytest.mark.slow
def test_patches_of_a_convolution():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(30, 6, 6, 2)).astype(np.float32)
    network = cx.networks.cnn((3,), hidden=(4,))
    model, batch = prepared(network, cx.likelihoods.Categorical(), (x, np.arange(30) % 3))
    params = model.init(random.key(0))
    layers = Layers(model, batch.x)
    units = layers.units(params, batch, ())
    kernel = next(leaf for name, leaf in named_leaves(params) if leaf.ndim == 4)
    height, width, channels, _ = kernel.shape
    first = next(unit for unit in units if len(unit) == height * width * channels + 1)
    padded = np.pad(x, ((0, 0), (height // 2,) * 2, (width // 2,) * 2, (0, 0)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (1, 2))
    # In the order of the weights: channel, then place.
    patches = patches.reshape(-1, channels * height * width)
    np.testing.assert_allclose(first @ first.T, expected(patches), rtol=1e-3, atol=1e-4)
    assert_inverse(layers, units, params)


def test_wide_layers_and_densities_keep_their_units():
    model, batch = prepared(cx.networks.mlp([50]))
    params = model.init(random.key(0))
    assert [len(unit) for unit in Layers(model, batch.x).units(params, batch, ())] == [4]
    density = cx.LogDensity(lambda key: jnp.ones(2), lambda w: -0.5 * jnp.sum(w**2))
    layers = Layers(density, None)
    assert layers.units(jnp.ones(2), None, ()) == ()
    np.testing.assert_array_equal(layers.weights((), Flat.of(jnp.ones(2))), jnp.ones(2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The inputs are not of a scale:credax.core.errors.DataWarning")
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_steps_are_longer_where_inputs_have_a_common_mean(shift):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 8)) + shift
    data = x, x[:, 0] - shift + 0.5 * generator.normal(size=50)
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.5))
    start = cx.fit(model, data, cx.MAP(num_steps=2_000), progress=False)

    def step_size(mass):
        method = cx.MCLMC(chains=2, num_warmup=2_000, num_draws=20, thin=1, mass=mass, length=2.0)
        posterior = cx.fit(model, data, method, start=start, progress=False)
        return posterior.info["step_size"][:, -1].mean()

    gain = step_size("inputs") / step_size("unit")
    assert gain > (10 if shift else 1)
