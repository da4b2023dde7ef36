"""BatchEnsemble: members that share their weights, up to a factor for each input and output of a layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.inference.ensembles.batch_ensemble import Point
from credax.posterior.approximations.rank_one import member_weights

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-1, 1, size=(40, 2)).astype(np.float32)
Y = np.sin(3 * X[:, 0]).astype(np.float32)
IMAGES = GENERATOR.normal(size=(5, 8, 8, 2)).astype(np.float32)


def model_of(network=None, likelihood=None, data=None):
    network = network or cx.networks.mlp([6], activation="tanh")
    likelihood = likelihood or cx.likelihoods.Gaussian(0.1)
    return cx.Model(network, likelihood=likelihood).prepare(data or (X, Y))


def ones(point):
    return point._replace(
        inputs=jax.tree.map(jnp.ones_like, point.inputs),
        outputs=jax.tree.map(jnp.ones_like, point.outputs),
    )


def test_a_member_multiplies_inputs_and_outputs():
    """By the definition of Wen et al.: the inputs and outputs of each dense layer are scaled."""
    model, data = model_of()
    method = cx.BatchEnsemble(members=3)
    point = method.init(cx.random.key(0), model, data).params
    layouts = method.layouts(model, data.x)
    for member in range(3):
        r, s = jax.tree.map(lambda leaf: leaf[member], point[1:])  # noqa: B023
        weights = member_weights(point.params, r, s, layouts)
        got = model.network.apply(weights, data.x)
        hidden = X
        for layer in ("layer_0", "layer_1"):
            kernel, bias = (np.asarray(point.params[layer][name]) for name in ("kernel", "bias"))
            inputs, outputs = (np.asarray(tree[layer]["kernel"]) for tree in (r, s))
            hidden = ((hidden * inputs) @ kernel) * outputs + bias
            hidden = np.tanh(hidden) if layer == "layer_0" else hidden
        np.testing.assert_allclose(got, hidden, rtol=1e-5, atol=1e-6)


def test_channels_of_convolutions_are_scaled():
    network = cx.networks.cnn([3], [4], kernel_size=3)
    model, data = model_of(network, data=(IMAGES, np.arange(5.0)))
    method = cx.BatchEnsemble(members=2)
    point = ones(method.init(cx.random.key(0), model, data).params)
    layouts = method.layouts(model, data.x)
    paths = list(point.params)
    kernel = next(path for path in paths if point.params[path]["kernel"].ndim == 4)
    assert point.inputs[kernel]["kernel"].shape == (2, 3 * 3 * 2)
    assert point.outputs[kernel]["kernel"].shape == (2, 3)
    # Twice the output of a channel is twice its kernel.
    doubled = point.outputs[kernel]["kernel"].at[0, 1].set(2.0)
    outputs = {**point.outputs, kernel: {**point.outputs[kernel], "kernel": doubled}}
    first = [jax.tree.map(lambda leaf: leaf[0], tree) for tree in (point.inputs, outputs)]
    weights = member_weights(point.params, *first, layouts)
    want = np.asarray(point.params[kernel]["kernel"]) * np.array([1.0, 2.0, 1.0], np.float32)
    np.testing.assert_allclose(weights[kernel]["kernel"], want, rtol=1e-6)


@pytest.mark.parametrize("network", ["mlp", "batch norm"])
def test_members_with_unit_vectors_are_the_network(network):
    network = cx.networks.mlp([6], batch_norm=network == "batch norm")
    model, data = model_of(network)
    method = cx.BatchEnsemble(members=3)
    state = method.init(cx.random.key(0), model, data)
    point, batch = ones(state.params), data.everything()
    layouts = method.layouts(model, data.x)
    key = cx.random.key(1)
    value, network_state = method.objective_of(model, layouts, point, batch, state.network, key)
    one, one_state = model.train_log_joint(point.params, batch, model.init_state(), key)
    size = sum(leaf[0].size for leaf in jax.tree.leaves(point[1:]))
    assert float(value) == pytest.approx(float(one) + size * stats.norm(1, 0.5).logpdf(1), rel=1e-5)
    for stacked, alone in zip(
        jax.tree.leaves(network_state), jax.tree.leaves(one_state), strict=True
    ):
        np.testing.assert_allclose(stacked, np.broadcast_to(alone, stacked.shape), rtol=1e-5)


@pytest.mark.slow
def test_the_gradient_is_that_of_separate_networks(x64):
    """By the chain rule from the gradients of the log likelihood with respect to each member's weights."""
    model, data = model_of()
    method = cx.BatchEnsemble(members=2)
    state = method.init(cx.random.key(0), model, data)
    layouts, batch = method.layouts(model, data.x), data.everything()

    def value(point):
        return method.objective_of(model, layouts, point, batch, (), cx.random.key(1))[0]

    gradient = jax.jit(jax.grad(value))(state.params)
    slope_of = jax.jit(jax.grad(lambda w: model.log_likelihood(w, batch)))
    point: Point = state.params
    want_w = jax.grad(model.log_prior)(point.params)["layer_0"]["kernel"]
    for member in range(2):
        r, s = jax.tree.map(lambda leaf: leaf[member], point[1:])  # noqa: B023
        weights = member_weights(point.params, r, s, layouts)
        slope = slope_of(weights)["layer_0"]["kernel"]
        r, s = r["layer_0"]["kernel"], s["layer_0"]["kernel"]
        kernel = point.params["layer_0"]["kernel"]
        want_w = want_w + slope * jnp.outer(r, s) / 2
        want_r = (slope * kernel) @ s / 2 - (r - 1) / 0.5**2 / 2
        np.testing.assert_allclose(gradient.inputs["layer_0"]["kernel"][member], want_r, rtol=1e-8)
    np.testing.assert_allclose(gradient.params["layer_0"]["kernel"], want_w, rtol=1e-8)


def test_members_agree_where_there_is_data_and_differ_elsewhere():
    model = cx.Model(cx.networks.mlp([20]), likelihood=cx.likelihoods.Gaussian(0.1))
    posterior = cx.fit(model, (X, Y), cx.BatchEnsemble(num_steps=800), progress=False)
    inside, outside = posterior.predict(X), posterior.predict(4 * X + 3)
    assert np.sqrt(np.mean((inside.mean - Y) ** 2)) < 0.15
    assert np.all(inside.epistemic > 0)
    assert np.mean(outside.std) > 3 * np.mean(inside.std)


def test_saved_with_shared_weights(tmp_path):
    model = cx.Model(
        cx.networks.mlp([6], batch_norm=True), likelihood=cx.likelihoods.Gaussian(None)
    )
    posterior = cx.fit(model, (X, Y), cx.BatchEnsemble(members=3, num_steps=5), progress=False)
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax")
    np.testing.assert_array_equal(loaded.predict(X).mean, posterior.predict(X).mean)
    ensemble = loaded.approximation
    assert ensemble.params["network"]["layer_0"]["kernel"].shape == (2, 6)
    assert ensemble.inputs["network"]["layer_0"]["kernel"].shape == (3, 2)
    few = posterior.predict(X, num_samples=2)
    assert not np.array_equal(few.mean, posterior.predict(X).mean)


@pytest.mark.slow
def test_pretrained_networks_have_members_that_differ():
    network = cx.networks.mlp([6]).build((2,), 1)
    weights = network.init(cx.random.key(0))
    low = cx.networks.subset(network, "layer_1/*", weights=weights)
    model = cx.Model(low, likelihood=cx.likelihoods.Gaussian(0.1))
    posterior = cx.fit(model, (X, Y), cx.BatchEnsemble(members=3, num_steps=5), progress=False)
    assert np.all(posterior.predict(X).epistemic > 0)


def test_refused():
    with pytest.raises(ValueError, match=r"BatchEnsemble\(members=...\) must be at least 2"):
        cx.BatchEnsemble(members=1)
    scaled = cx.networks.from_function(
        lambda key: {"w": jnp.ones(2)}, lambda p, x: jnp.sum(x * p["w"], 1, keepdims=True)
    )
    with pytest.raises(
        ValueError, match="weights that are used in exactly one product; this Network"
    ):
        cx.fit(cx.Model(scaled), (X, Y), cx.BatchEnsemble(), progress=False)
