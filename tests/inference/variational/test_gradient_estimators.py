"""For every estimator, each row's weights are distributed as q(w): moments and gradients agree."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats

import credax as cx
from credax.core import random
from credax.inference.variational.gradient_estimators import row_outputs
from credax.posterior.approximations.families import MeanField
from credax.tracing.usage import Usage, usages

DRAWS = 20_000
QUICK = {"xla_backend_optimization_level": 0}
"""For programs that take seconds to compile and moments to run."""


def normals(key, **shapes):
    keys = jax.random.split(key, len(shapes))
    return {
        name: 0.7 * jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


# -- networks that use their weights in different ways -----------------------------------------------


def attention(params, x):
    """One head over three tokens; keys and values are the same projection."""
    query, value = x @ params["query"], x @ params["project"]
    weights = jax.nn.softmax(jnp.einsum("rtd,rsd->rts", query, value))
    return jnp.tanh((weights @ value).mean(1)) @ params["out"] + params["bias"]


def layout(params, x):
    """Weights that are transposed, reshaped, cast or broadcast before they are used."""
    h = jnp.tanh(x @ params["transposed"].T)
    h = jnp.tanh(h @ params["flat"].reshape(4, 2))
    half = jnp.float16
    h = jnp.tanh((h.astype(half) @ params["half"].astype(half)).astype(x.dtype))
    h = jnp.einsum("rgk,gko->rgo", h[:, :, None], params["blocks"]).reshape(-1, 6)
    h = (params["left"] @ jnp.tanh(h).T).T + jnp.broadcast_to(params["repeated"], (len(x), 2))
    return h * params["scale"]


def shared(params, x):
    return jnp.tanh(jnp.tanh(x @ params["w"]) @ params["w"]) @ params["out"]


def tied(params, x):
    return (jnp.tanh(x @ params["w"]) @ params["w"].T)[:, :2] + params["bias"]


def recurrent(params, x):
    def step(h, token):
        return jnp.tanh(h @ params["w"] + token @ params["in"]), None

    first = jnp.zeros((len(x), 2), x.dtype)
    return lax.scan(step, first, x.transpose(1, 0, 2))[0] @ params["out"]


PRODUCT, PRODUCTS, SUM, OTHER = Usage.PRODUCT, Usage.PRODUCTS, Usage.SUM, Usage.OTHER
SHAPES = {
    attention: ({"query": (2, 2), "project": (2, 2), "out": (2, 2), "bias": (2,)}, (3, 2)),
    layout: (
        {
            "transposed": (4, 3),
            "flat": (8,),
            "half": (2, 3),
            "blocks": (3, 1, 2),
            "left": (2, 6),
            "repeated": (2,),
            "scale": (2,),
        },
        (3,),
    ),
    shared: ({"w": (3, 3), "out": (3, 2)}, (3,)),
    tied: ({"w": (3, 4), "bias": (2,)}, (3,)),
    recurrent: ({"w": (2, 2), "in": (2, 2), "out": (2, 2)}, (3, 2)),
}


def own(apply):
    shapes, row = SHAPES[apply]
    return cx.networks.from_function(lambda key: normals(key, **shapes), apply), row


NETWORKS = {
    "perceptron": lambda: (cx.networks.mlp([4], activation="tanh"), (3,)),
    "convolution": lambda: (
        cx.networks.cnn((2,), (3,), kernel_size=3, activation="tanh"),
        (4, 4),
    ),
    "attention": lambda: own(attention),
    "layout": lambda: own(layout),
    "shared": lambda: own(shared),
    "tied": lambda: own(tied),
    "recurrent": lambda: own(recurrent),
}
LAYER = {"kernel": PRODUCT, "bias": SUM}
KINDS = {
    "perceptron": {"layer_0": LAYER, "layer_1": LAYER},
    "convolution": {
        "conv_0": {"kernel": PRODUCTS, "bias": SUM},
        "dense_0": LAYER,
        "dense_1": LAYER,
    },
    "attention": {"query": PRODUCTS, "project": PRODUCTS, "out": PRODUCT, "bias": SUM},
    "layout": dict.fromkeys(SHAPES[layout][0], PRODUCT) | {"repeated": SUM, "scale": OTHER},
    "shared": {"w": OTHER, "out": PRODUCT},
    "tied": {"w": OTHER, "bias": SUM},
    "recurrent": {"w": OTHER, "in": OTHER, "out": PRODUCT},
}
QUICKLY = {
    ("perceptron", "local"),
    ("perceptron", "flipout"),
}
every_network = pytest.mark.parametrize(
    "name, estimator",
    [
        pytest.param(*pair, marks=() if pair in QUICKLY else pytest.mark.slow)
        for pair in itertools.product(NETWORKS, ("local", "flipout"))
    ],
)
both_estimators = pytest.mark.parametrize("estimator", ["local", "flipout"])


def problem(network, row, rows=3, scale=0.4):
    """A bound model with two outputs, its data, and a q whose standard deviations all differ."""
    generator = np.random.default_rng(3)
    data = generator.normal(size=(rows, *row)), generator.normal(size=(rows, 2))
    model, data = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.5)).prepare(data)
    family = MeanField.around(model.init(random.key(0)), scale)
    noise = random.normal_like(random.key(1), family.rho)
    mean = jax.tree.map(lambda m, n: m + 0.3 * n, family.mean, noise)
    rho = jax.tree.map(lambda r, n: r + 0.3 * n, family.rho, noise)
    return model, data, MeanField(mean, rho)


def outputs_of(network, family, x, key, estimator, network_key=None):
    if estimator == "weight":
        params = family.draw(key)
        return network.call(params, x, state=(), key=network_key, train=True)[0]
    return row_outputs(network, family, x, key, estimator, network_key)


def many(function, count=DRAWS, seed=2):
    """The values of a function of a key, for many keys."""
    keys = jax.random.split(random.key(seed), count)
    size = min(count, 1_000)
    run = jax.jit(lambda keys: lax.map(function, keys, batch_size=size), compiler_options=QUICK)
    return jax.device_get(run(keys))


@cache
def study(name, estimator):
    """The outputs of the network and the gradients of the lower bound for each draw."""
    model, data, family = problem(*NETWORKS[name]())
    method, batch = cx.BayesByBackprop(estimator=estimator), data.everything()

    def of_key(key):
        outputs = outputs_of(model.network, family, data.x, key, estimator)
        gradient = method.gradient(key, family, model, batch)[-1]
        return outputs, jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(gradient)])

    outputs, gradients = many(of_key)
    return outputs.astype(np.float64), gradients.astype(np.float64)


def assert_same_mean(one, other):
    """The means of two sets of draws agree in all coordinates; this fails by chance in one of 1,000 tests."""
    one, other = (samples.reshape(len(samples), -1) for samples in (one, other))
    error = np.sqrt(one.var(0, ddof=1) / len(one) + other.var(0, ddof=1) / len(other))
    limit = stats.norm.isf(5e-4 / one.shape[1])
    assert np.max(np.abs(one.mean(0) - other.mean(0)) / error) < limit


def products(outputs, centre):
    """The products of the deviations of any two outputs of a row from ``centre``."""
    deviations = outputs - centre
    return deviations[..., :, None] * deviations[..., None, :]


@pytest.mark.slow
@every_network
def test_rows_have_the_moments_of_q(name, estimator):
    want, got = study(name, "weight")[0], study(name, estimator)[0]
    assert_same_mean(got, want)
    assert_same_mean(products(got, want.mean(0)), products(want, want.mean(0)))


@every_network
def test_the_gradient_of_the_bound_has_the_same_mean(name, estimator):
    assert_same_mean(study(name, estimator)[1], study(name, "weight")[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_usages(name):
    model, data, family = problem(*NETWORKS[name]())
    assert usages(model.network.apply, family.mean, data.x[:1]) == KINDS[name]


# -- how the rows share random numbers ---------------------------------------------------------------


def correlations(outputs):
    """For each output, the correlations between the rows."""
    return np.stack([np.corrcoef(outputs[:, :, i].T) for i in range(outputs.shape[2])])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, estimator",
    [("perceptron", "local"), ("perceptron", "flipout"), ("convolution", "local")],
)
def test_rows_do_not_err_together(name, estimator):
    outputs = study(name, estimator)[0]
    between = correlations(outputs)[:, *np.triu_indices(outputs.shape[1], 1)]
    assert np.max(np.abs(between)) < 4 / np.sqrt(DRAWS)
    together = correlations(study(name, "weight")[0])[:, *np.triu_indices(outputs.shape[1], 1)]
    assert np.max(np.abs(together)) > 0.3, "otherwise the test would show nothing"


def test_local_noise_is_independent_from_row_to_row():
    """Even squared deviations are independent; with flipout they are not, since rows share a perturbation."""
    _, data, _ = problem(*NETWORKS["perceptron"]())
    same = jnp.broadcast_to(data.x[:1], data.x.shape)
    model, _, family = problem(*NETWORKS["perceptron"]())
    squares = {}
    for estimator in ("local", "flipout"):
        outputs = many(lambda key, e=estimator: row_outputs(model.network, family, same, key, e))
        assert np.all(outputs[0, 0] != outputs[0, 1])
        deviations = outputs - outputs.mean(0)
        squares[estimator] = np.abs(correlations(deviations**2)[:, 0, 1:]).max()
    assert squares["local"] < 4 / np.sqrt(DRAWS) < squares["flipout"]


def test_biases_are_drawn_row_by_row():
    network = cx.networks.from_function(lambda key: jnp.zeros(2), lambda bias, x: x + bias)
    family = MeanField.around(jnp.zeros(2), 0.5)
    outputs = many(lambda key: row_outputs(network, family, jnp.zeros((3, 2)), key, "local"), 4_000)
    flat = outputs.reshape(4_000, 6)
    want = 0.25 * np.eye(6)
    error = np.where(np.eye(6) == 1, np.sqrt(2) * 0.25, 0.25) / np.sqrt(4_000)
    assert np.max(np.abs(flat.T @ flat / 4_000 - want) / error) < 4


def test_flipout_flips_inputs_and_outputs():
    """With signs for the inputs only, two rows would agree in both outputs or in none."""
    network = cx.networks.from_function(lambda key: jnp.zeros((1, 2)), lambda w, x: x @ w)
    family = MeanField.around(jnp.zeros((1, 2)), 1.0)
    outputs = many(lambda key: row_outputs(network, family, jnp.ones((2, 1)), key, "flipout"))
    np.testing.assert_allclose(np.abs(outputs[:, 0]), np.abs(outputs[:, 1]), rtol=1e-5)
    agree = outputs[:, 0] * outputs[:, 1] > 0
    patterns = np.stack([agree[:, 0], agree[:, 1], agree[:, 0] == agree[:, 1]])
    # With signs for the outputs only, the perturbations of two rows would have the same size.
    network = cx.networks.from_function(lambda key: jnp.zeros((2, 1)), lambda w, x: x @ w)
    family = MeanField.around(jnp.zeros((2, 1)), 1.0)
    outputs = many(lambda key: row_outputs(network, family, jnp.ones((2, 2)), key, "flipout"))
    same_size = np.isclose(*np.abs(outputs[:, :, 0].T), rtol=1e-4)
    shares = np.append(patterns.mean(1), same_size.mean())
    assert np.max(np.abs(shares - 0.5)) < 4 * 0.5 / np.sqrt(DRAWS)


@pytest.mark.matrix
@pytest.mark.parametrize("dead", ["inputs", "units"])
@both_estimators
def test_rows_of_zeros_have_finite_gradients(dead, estimator):
    model, data, family = problem(cx.networks.mlp([4], activation="relu"), (3,), scale=0.01)
    batch = data.everything()
    if dead == "inputs":
        batch = cx.Batch(batch.x.at[1].set(0), batch.y, batch.scale, batch.index, batch.count)
    else:
        family.mean["layer_0"]["bias"] = jnp.full(4, -1e3)
    method = cx.BayesByBackprop(estimator=estimator)
    gradient = jax.jit(
        lambda key: method.gradient(key, family, model, batch)[-1], compiler_options=QUICK
    )(random.key(0))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_gradients_vary_less_with_noise_for_each_row():
    model, data, family = problem(cx.networks.mlp([8]), (4,), rows=128, scale=0.1)
    batch = data.everything()

    def variance(estimator):
        method = cx.BayesByBackprop(estimator=estimator)
        gradients = many(lambda key: method.gradient(key, family, model, batch)[-1], 300)
        return sum(leaf.var(0).sum() for leaf in jax.tree.leaves(gradients))

    total = {estimator: variance(estimator) for estimator in ("weight", "local", "flipout")}
    # The measured ratio is a fifth or less; 300 draws estimate a total to within about a fifth.
    assert max(total["local"], total["flipout"]) < 0.5 * total["weight"]


# -- transformations, dtypes and networks ------------------------------------------------------------


@pytest.mark.slow
@both_estimators
def test_transformed_by_jit_and_vmap_in_double_precision(estimator, x64):
    model, data, family = problem(*NETWORKS["perceptron"]())
    assert data.x.dtype == jnp.float64

    def of_key(key):
        return row_outputs(model.network, family, data.x, key, estimator)

    keys = jax.random.split(random.key(0), 3)
    one = jax.jit(of_key, compiler_options=QUICK)
    stacked = jax.jit(jax.vmap(of_key), compiler_options=QUICK)(keys)
    assert stacked.dtype == jnp.float64
    assert stacked.shape == (3, 3, 2)
    for key, outputs in zip(keys, stacked, strict=True):
        np.testing.assert_allclose(one(key), outputs, rtol=1e-12)
    assert len(np.unique(stacked)) == stacked.size


@pytest.mark.parametrize("estimator", ["local", pytest.param("flipout", marks=pytest.mark.slow)])
def test_dropout(estimator):
    network = cx.networks.mlp([4], activation="tanh", dropout=0.5)
    model, data, family = problem(network, (3,))

    def draw(estimator):
        def of_key(key):
            key, network_key = jax.random.split(key)
            return outputs_of(model.network, family, data.x, key, estimator, network_key)

        return many(of_key).astype(np.float64)

    want, got = draw("weight"), draw(estimator)
    assert_same_mean(got, want)
    assert_same_mean(products(got, want.mean(0)), products(want, want.mean(0)))
    without = study("perceptron", "weight")[0]
    assert np.all(want.var(0) > 1.1 * without.var(0)), "dropout must have had an effect"


@pytest.mark.parametrize(
    "apply, shape",
    [
        (lambda w, x: x @ jnp.array(w), (3, 2)),
        (lambda w, x: x[:, :2] + np.full((1, 3), 0.5, np.float32) @ w, (3, 2)),
        (lambda w, x: x[:, :2] + w @ np.full(3, 0.5, np.float32), (2, 3)),
    ],
    ids=["copied", "with a constant", "with a constant on the right"],
)
@both_estimators
def test_products_with_copies_and_constants(apply, shape, estimator):
    """With zero variance, every estimator gives the outputs of the network."""
    network = cx.networks.from_function(lambda key: jnp.ones(shape), apply)
    family = MeanField(jnp.arange(6.0).reshape(shape), jnp.full(shape, -200.0))
    x = jnp.arange(12.0).reshape(4, 3)
    run = jax.jit(
        lambda key: row_outputs(network, family, x, key, estimator), compiler_options=QUICK
    )
    np.testing.assert_allclose(run(random.key(0)), apply(family.mean, x), rtol=1e-6)


@pytest.mark.slow
@both_estimators
def test_images_are_learned_in_minibatches(estimator):
    """Horizontal and vertical stripes, told apart by a convolution."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 60)
    stripes = np.broadcast_to([[1.0], [-1.0], [1.0], [-1.0]], (4, 4))
    x = np.where(y[:, None, None] == 1, stripes, stripes.T) + generator.normal(size=(60, 4, 4))
    network = cx.networks.cnn((3,), (4,), kernel_size=2)
    model = cx.Model(network, likelihood=cx.likelihoods.Bernoulli())
    method = cx.BayesByBackprop(num_steps=300, batch_size=20, estimator=estimator)
    posterior = cx.fit(model, (x, y), method, progress=False)
    sample = posterior.sample(0, 20)
    logits = jax.vmap(posterior.model.network.apply, in_axes=(0, None))(
        sample, jnp.asarray(x, float)
    )
    assert np.mean((np.asarray(logits)[..., 0] > 0) == y) > 0.85
