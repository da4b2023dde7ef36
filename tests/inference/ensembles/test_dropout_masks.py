"""Dropout masks: which inputs they apply to, and their distribution over the rows in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import credax as cx
from credax.core import random
from credax.core.trees import tree_paths
from credax.inference.ensembles.dropout import MCDropout
from credax.posterior.approximations.masks import maskable, masked, masks, relaxed_masks
from credax.tracing.random_weights import each_row
from credax.tracing.usage import sites as find_sites


def moved_about(params, x):
    """Weights that are transposed or reshaped before they are used, and two that cannot be masked."""
    h = jnp.tanh(x @ params["transposed"].T)
    h = jnp.tanh(h @ params["flat"].reshape(4, 2))
    h = jnp.einsum("rgk,gko->rgo", h[:, :, None], params["blocks"]).reshape(-1, 6)
    h = (params["left"] @ jnp.tanh(h).T).T
    h = jnp.tensordot(h.reshape(-1, 2, 1), params["merged"].transpose(2, 0, 1), [[1, 2], [1, 2]])
    h = jnp.tanh(h @ params["shared"]) @ params["shared"]
    return lax.conv_general_dilated(
        h[:, :, None] + 0 * params["scale"],
        params["window"],
        (1,),
        "SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
    )[:, :, 0]


MOVED = {
    "transposed": (4, 3),
    "flat": (8,),
    "blocks": (2, 1, 3),
    "left": (2, 6),
    "merged": (2, 1, 3),
    "shared": (3, 3),
    "window": (2, 1, 1),
    "scale": (1,),
}


def moved_network():
    def init(key):
        keys = jax.random.split(key, len(MOVED))
        return {n: jax.random.normal(k, s) for k, (n, s) in zip(keys, MOVED.items(), strict=True)}

    return cx.networks.from_function(init, moved_about), (3,)


def image_network():
    network = cx.networks.cnn((2, 3), (4,), kernel_size=3).build((4, 4, 2), 2)
    return network, (4, 4, 2)


@pytest.mark.slow
@pytest.mark.parametrize("make", [moved_network, image_network])
def test_the_mask_of_a_row_is_the_same_on_its_inputs_and_on_the_weights(make):
    network, shape = make()
    params = network.init(random.key(0))
    x = jax.random.normal(random.key(1), (5, *shape))
    sites = tuple(find_sites(network.apply, params, x[:1]))
    key = random.key(2)
    rates = jnp.full(len(sites), 0.4)

    def weights(key):
        return maskable(params, sites, masks(key, sites, rates))

    def one(key, row):
        return network.apply(masked(params, sites, masks(key, sites, rates)), row[None])[0]

    by_inputs = jax.jit(lambda x: each_row(network, weights, x, key))(x)
    by_weights = jax.jit(jax.vmap(one))(jax.random.split(key, 5), x)
    np.testing.assert_allclose(by_inputs, by_weights, rtol=1e-4, atol=1e-5)
    names = sorted(MOVED) if make is moved_network else None
    if names:
        assert {n for n, s in zip(names, sites, strict=True) if s is None} == {"shared", "scale"}
        assert [s.inputs for s in sites if s] == [(1, 2), (4,), (6,), (2, 1), (3,), (1,)]
    else:
        counts = [None if s is None else s.inputs for s in sites]
        assert counts == [None, (2,), None, (2,), None, (3,), None, (4,)]


@pytest.mark.parametrize("draw", [masks, relaxed_masks])
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_masks_in_training_have_the_rate_and_are_independent_from_row_to_row(draw, rate):
    inputs, rows = 4, 20_000
    network = cx.networks.from_function(lambda key: jnp.eye(inputs), lambda w, x: x @ w)
    row = jax.ShapeDtypeStruct((1, inputs), jnp.result_type(float))
    sites = tuple(find_sites(network.apply, jnp.eye(inputs), row))

    def weights(key):
        return maskable(jnp.eye(inputs), sites, draw(key, sites, jnp.full(1, rate)))

    scale = np.asarray(each_row(network, weights, jnp.ones((rows, inputs)), random.key(0)))
    kept = scale * (1 - rate)
    if draw is masks:
        assert set(np.unique(kept.round(5))) == {0.0, 1.0}
    else:
        assert np.all((kept >= 0) & (kept <= 1.00001))
    # A relaxed mask exceeds one half with the probability that a mask is one.
    kept = kept > 0.5
    error = np.sqrt(rate * (1 - rate) / rows)
    assert np.all(np.abs(kept.mean(0) - (1 - rate)) < 4 * error)
    centred = (kept - (1 - rate)) / np.sqrt(rate * (1 - rate))
    between_rows = np.mean(centred[1:] * centred[:-1], axis=0)
    between_inputs = (centred.T @ centred / rows)[np.triu_indices(inputs, 1)]
    assert np.all(np.abs(np.append(between_rows, between_inputs)) < 4 / np.sqrt(rows))


@pytest.mark.parametrize("given, rate", [(None, 0.2), (0.4, 0.4)])
def test_the_dropout_of_our_own_networks_keeps_its_places(given, rate):
    method = MCDropout(given)
    images, rows = np.zeros((6, 8, 8)), np.ones((6, 2))
    cases = [
        (cx.networks.cnn((2,), (5, 4), dropout=0.2), images, {"dense_1/kernel", "dense_2/kernel"}),
        (cx.networks.mlp([5], dropout=0.2), rows, {"layer_1/kernel"}),
        # Without hidden units the network has no dropout, so its only weight is masked.
        (cx.networks.MLP(dropout=0.2), rows, {"layer_0/kernel"}),
    ]
    for network, x, wanted in cases:
        model, checked = cx.Model(network, likelihood=cx.likelihoods.Gaussian(1.0)).prepare(
            (x, np.arange(6.0))
        )
        sites = method.sites(model, checked.x)
        paths = tree_paths(jax.eval_shape(model.init, random.key(0)))
        assert {p for p, site in zip(paths, sites, strict=True) if site} == wanted
        rates = method.rates(model, sites, None)
        np.testing.assert_allclose(rates, [rate if site else 0 for site in sites])
