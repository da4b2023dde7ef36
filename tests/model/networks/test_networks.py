"""The built-in networks: shapes, initial weights, dropout, equality and hashing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.core import random
from credax.core.trees import named_leaves
from credax.model import networks
from credax.model.networks.layers import ACTIVATIONS


def rows(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.result_type(float))


def shapes(params):
    return {path: leaf.shape for path, leaf in named_leaves(params)}


# -- the multilayer perceptron ----------------------------------------------------------------------


def test_mlp_shapes():
    network = networks.mlp([7, 5]).build((3,), 2)
    params = network.init(random.key(0))
    assert shapes(params) == {
        "layer_0/kernel": (3, 7),
        "layer_0/bias": (7,),
        "layer_1/kernel": (7, 5),
        "layer_1/bias": (5,),
        "layer_2/kernel": (5, 2),
        "layer_2/bias": (2,),
    }
    assert network.apply(params, rows(4, 3)).shape == (4, 2)
    assert network.init_state() == ()


def test_mlp_is_the_formula(x64):
    network = networks.mlp([4], activation="tanh").build((3,), 2)
    params = jax.tree.map(
        lambda leaf: rows(*leaf.shape, seed=leaf.size), network.init(random.key(0))
    )
    x = rows(6, 3)
    first, last = params["layer_0"], params["layer_1"]
    want = np.tanh(x @ first["kernel"] + first["bias"]) @ last["kernel"] + last["bias"]
    np.testing.assert_allclose(network.apply(params, x), want, rtol=1e-13)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_rows_last_are_the_same_network(x64, activation):
    network = networks.mlp([16, 5], activation=activation).build((3,), 2)
    params = network.init(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(200, 3))
    assert network.rows_last(200)
    assert not network.rows_last(20)
    few = [network.apply(params, x[begin : begin + 20]) for begin in range(0, 200, 20)]
    np.testing.assert_allclose(network.apply(params, x), np.concatenate(few), rtol=1e-12)


def test_wide_networks_and_functions_of_the_user_keep_rows_first():
    assert not networks.mlp([50]).rows_last(1_000)
    assert not networks.mlp([16], activation=lambda x: x[:, ::-1]).rows_last(1_000)
    assert not networks.mlp([16], dropout=0.1).rows_last(1_000)
    assert not networks.linear().rows_last(1_000)


def test_linear_is_an_mlp_without_hidden_layers(x64):
    network = networks.linear().build((3,), 2)
    assert network == networks.mlp([]).build((3,), 2)
    params = {"layer_0": {"kernel": rows(3, 2), "bias": rows(2)}}
    assert shapes(network.init(random.key(0))) == shapes(params)
    x = rows(5, 3)
    want = np.asarray(x) @ np.asarray(params["layer_0"]["kernel"]) + params["layer_0"]["bias"]
    np.testing.assert_allclose(network.apply(params, x), want, rtol=1e-13)


@pytest.mark.matrix
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("make", [networks.mlp, networks.cnn])
def test_starting_weights(make, wide):
    """Zero biases, and truncated normal weights of variance 2 / fan-in (He et al., 2015)."""
    with jax.enable_x64(wide):
        network = make().build((30,) if make is networks.mlp else (28, 28), 40)
        params = network.init(random.key(1))
        for path, leaf in named_leaves(params):
            assert leaf.dtype == jnp.result_type(float)
            assert not leaf.weak_type
            values = np.asarray(leaf, np.float64)
            if path.endswith("bias"):
                assert not values.any()
                continue
            scale = np.sqrt(2 / np.prod(leaf.shape[:-1]))
            error = scale / np.sqrt(2 * leaf.size)  # the standard error of a standard deviation
            assert abs(values.std() - scale) < 4 * error, path
            assert abs(values.mean()) < 4 * scale / np.sqrt(leaf.size), path
            clipped = stats.truncnorm(-2, 2, scale=scale / stats.truncnorm(-2, 2).std())
            assert stats.kstest(values.ravel(), clipped.cdf).pvalue > 1e-4


def test_starting_weights_follow_the_key():
    network = networks.mlp([4, 4]).build((4,), 4)
    one, same, other = (network.init(random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    kernels = [tree[f"layer_{i}"]["kernel"] for tree in (one, other) for i in range(3)]
    assert len({np.asarray(kernel).tobytes() for kernel in kernels}) == 6


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_by_name_and_by_function(name):
    x = rows(5, 3)
    named = networks.mlp([4], activation=name).build((3,), 1)
    function = networks.mlp([4], activation=ACTIVATIONS[name]).build((3,), 1)
    params = named.init(random.key(0))
    np.testing.assert_array_equal(named.apply(params, x), function.apply(params, x))
    others = [n for n in ACTIVATIONS if n != name]
    for other in others:
        different = networks.mlp([4], activation=other).build((3,), 1).apply(params, x)
        assert not np.allclose(named.apply(params, x), different)


@pytest.mark.parametrize(
    "name, value",
    [
        ("relu", 0.0),
        ("tanh", np.tanh(-0.7)),
        ("gelu", -0.7 * stats.norm.cdf(-0.7)),
        ("silu", -0.7 / (1 + np.exp(0.7))),
        ("elu", np.expm1(-0.7)),
        ("softplus", np.log1p(np.exp(-0.7))),
        ("sigmoid", 1 / (1 + np.exp(0.7))),
        ("sin", np.sin(-0.7)),
        ("identity", -0.7),
    ],
)
def test_what_activations_are(name, value):
    # jax.nn.gelu uses the common approximation with tanh.
    tolerance = 1e-3 if name == "gelu" else 1e-6
    assert ACTIVATIONS[name](jnp.asarray(-0.7)) == pytest.approx(value, abs=tolerance)


# -- dropout ----------------------------------------------------------------------------------------


def dropout_networks():
    return [
        (networks.mlp([400], activation="identity", dropout=0.25).build((3,), 1), (6, 3)),
        (networks.cnn([2], [400], activation="identity", dropout=0.25).build((4, 4), 1), (6, 4, 4)),
    ]


@pytest.mark.parametrize("network, shape", dropout_networks(), ids=["mlp", "cnn"])
def test_dropout_needs_a_key(network, shape):
    params, x = network.init(random.key(0)), rows(*shape)
    call = lambda key: network.call(params, x, state=(), key=key, train=True)[0]  # noqa: E731
    plain = network.apply(params, x)
    np.testing.assert_array_equal(call(None), plain)
    np.testing.assert_array_equal(call(random.key(1)), call(random.key(1)))
    assert not np.allclose(call(random.key(1)), plain)
    assert not np.allclose(call(random.key(1)), call(random.key(2)))
    off = dataclasses.replace(network, dropout=0.0)
    np.testing.assert_array_equal(
        off.call(params, x, state=(), key=random.key(1), train=True)[0], plain
    )


@pytest.mark.parametrize("network, shape", dropout_networks(), ids=["mlp", "cnn"])
def test_dropout_keeps_the_mean(network, shape):
    """The layers after the dropout are linear, so the variance is that of scaled Bernoulli draws."""
    params, x = network.init(random.key(0)), rows(*shape)
    keys = jax.random.split(random.key(5), 2000)
    draws = jax.vmap(lambda key: network.call(params, x, state=(), key=key, train=True)[0])(keys)
    plain, draws = np.asarray(network.apply(params, x)), np.asarray(draws)
    error = draws.std(0) / np.sqrt(len(keys))
    assert np.all(np.abs(draws.mean(0) - plain) < 4.5 * error)
    if len(shape) == 2:
        first, last = params["layer_0"], params["layer_1"]
        terms = np.asarray(x @ first["kernel"]) * np.asarray(last["kernel"])[:, 0]
        variance = 0.25 / 0.75 * np.sum(terms**2, axis=1)
        np.testing.assert_allclose(draws.var(0)[:, 0], variance, rtol=0.15)


@pytest.mark.slow
def test_dropout_is_at_work_in_training_only():
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12.0)
    model = cx.Model(networks.mlp([8], dropout=0.5), likelihood=cx.likelihoods.Gaussian(1.0))
    model, data = model.prepare((x, y))
    params, batch = model.init(random.key(0)), data.everything()
    train = [model.train_log_joint(params, batch, (), random.key(k))[0] for k in (0, 1)]
    plain = model.log_joint(params, batch)
    assert float(train[0]) != float(train[1])
    assert float(plain) not in map(float, train)
    assert float(plain) == float(model.log_joint(params, batch))
    with_dropout = cx.fit(model, (x, y), cx.MAP(num_steps=20), progress=False)
    without = dataclasses.replace(model, network=networks.mlp([8]))
    without = cx.fit(without, (x, y), cx.MAP(num_steps=20), progress=False)
    kernels = [p.draws["layer_0"]["kernel"] for p in (with_dropout, without)]
    assert not np.allclose(*kernels)


def test_every_step_drops_other_units():
    """The learning rate is so small that the weights do not change; only the masks differ between steps."""
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12.0)
    model = cx.Model(networks.mlp([8], dropout=0.5), likelihood=cx.likelihoods.Gaussian(1.0))
    method = cx.DeepEnsemble(members=2, num_steps=20, learning_rate=1e-12)
    history = cx.fit(model, (x, y), method, progress=False).info["log_joint"]
    assert len(np.unique(history)) == 40


# -- the convolutional network ----------------------------------------------------------------------


def test_lenet_5():
    network = networks.cnn().build((28, 28), 10)
    assert shapes(network.init(random.key(0))) == {
        "conv_0/kernel": (5, 5, 1, 6),
        "conv_0/bias": (6,),
        "conv_1/kernel": (5, 5, 6, 16),
        "conv_1/bias": (16,),
        "dense_0/kernel": (7 * 7 * 16, 120),
        "dense_0/bias": (120,),
        "dense_1/kernel": (120, 84),
        "dense_1/bias": (84,),
        "dense_2/kernel": (84, 10),
        "dense_2/bias": (10,),
    }


def test_cnn_is_the_formula(x64):
    """A reference implementation with loops: one convolution, one pooling and one dense layer."""
    network = networks.cnn([3], [], kernel_size=3, pool=2).build((5, 4, 2), 2)
    params = jax.tree.map(
        lambda leaf: rows(*leaf.shape, seed=leaf.size), network.init(random.key(0))
    )
    x = rows(2, 5, 4, 2)
    kernel, bias = (np.asarray(params["conv_0"][name]) for name in ("kernel", "bias"))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    maps = np.zeros((2, 5, 4, 3))
    for i in range(5):
        for j in range(4):
            maps[:, i, j] = np.tensordot(padded[:, i : i + 3, j : j + 3], kernel, 3) + bias
    maps = np.maximum(maps, 0)[:, :4]  # the fifth row does not fill a pooling window
    pooled = maps.reshape(2, 2, 2, 2, 2, 3).max((2, 4)).reshape(2, -1)
    want = pooled @ params["dense_0"]["kernel"] + params["dense_0"]["bias"]
    np.testing.assert_allclose(network.apply(params, x), want, rtol=1e-12)


def test_cnn_takes_images_without_channels():
    gray = networks.cnn([2], [3], kernel_size=3).build((6, 6), 2)
    same = networks.cnn([2], [3], kernel_size=3).build((6, 6, 1), 2)
    params, x = gray.init(random.key(0)), rows(4, 6, 6)
    np.testing.assert_array_equal(gray.apply(params, x), same.apply(params, x[..., None]))


# -- batch normalisation ----------------------------------------------------------------------------


def test_batch_norm_is_the_formula(x64):
    network = networks.mlp([4], activation="tanh", batch_norm=True).build((3,), 2)
    params = network.init(random.key(0))
    assert shapes(params) == {
        "layer_0/kernel": (3, 4),
        "layer_0/bias": (4,),
        "layer_1/kernel": (4, 2),
        "layer_1/bias": (2,),
        "norm_0/scale": (4,),
        "norm_0/shift": (4,),
    }
    assert params["norm_0"]["scale"].tolist() == [1] * 4
    assert params["norm_0"]["shift"].tolist() == [0] * 4
    params = jax.tree.map(lambda leaf: rows(*leaf.shape, seed=leaf.size), params)
    params["norm_0"] = {"scale": rows(4, seed=8), "shift": rows(4, seed=9)}
    state = {"norm_0": {"mean": rows(4, seed=5), "variance": 1 + rows(4, seed=6) ** 2}}
    x = rows(6, 3)
    first, last = params["layer_0"], params["layer_1"]
    units = np.asarray(x @ first["kernel"] + first["bias"])

    def outputs(mean, variance):
        normal = (units - mean) / np.sqrt(variance + 1e-5)
        hidden = np.tanh(normal * params["norm_0"]["scale"] + params["norm_0"]["shift"])
        return hidden @ last["kernel"] + last["bias"]

    got, after = network.call(params, x, state=state, key=None, train=True)
    np.testing.assert_allclose(got, outputs(units.mean(0), units.var(0)), rtol=1e-12)
    for name, of_batch in {"mean": units.mean(0), "variance": units.var(0)}.items():
        want = 0.9 * np.asarray(state["norm_0"][name]) + 0.1 * of_batch
        np.testing.assert_allclose(after["norm_0"][name], want, rtol=1e-12)
    got, same = network.call(params, x, state=state, key=None, train=False)
    np.testing.assert_allclose(got, outputs(*state["norm_0"].values()), rtol=1e-12)
    assert same == state
    # The output of a row is the same alone as among others.
    np.testing.assert_allclose(network.apply(params, x[:1], state), got[:1], rtol=1e-12)


def test_batch_norm_of_images():
    network = networks.cnn([2], [3], kernel_size=3, batch_norm=True).build((6, 6), 2)
    params, state = network.init(random.key(0)), network.init_state()
    assert shapes(state) == {
        "conv_norm_0/mean": (2,),
        "conv_norm_0/variance": (2,),
        "dense_norm_0/mean": (3,),
        "dense_norm_0/variance": (3,),
    }
    assert {"conv_norm_0", "dense_norm_0"} < set(params)
    x = 5 * rows(8, 6, 6) + 3
    for _ in range(200):
        outputs, state = network.call(params, x, state=state, key=None, train=True)
    # All batches were the same, so the running statistics are its mean and variance over rows and pixels.
    np.testing.assert_allclose(network.apply(params, x, state), outputs, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        network.apply(params, x[2:3], state), outputs[2:3], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("wide", [False, True])
def test_statistics_have_the_dtype_in_use(wide):
    with jax.enable_x64(wide):
        network = networks.mlp([4], batch_norm=True).build((3,), 2)
        state, x = network.init_state(), rows(6, 3)
        after = network.call(network.init(random.key(0)), x, state=state, key=None, train=True)[1]
        for leaf in jax.tree.leaves((state, after)):
            assert leaf.dtype == jnp.result_type(float)
            assert not leaf.weak_type


def test_a_batch_of_one_row_cannot_be_normalised():
    network = networks.mlp([4], batch_norm=True).build((3,), 2)
    params, state = network.init(random.key(0)), network.init_state()
    with pytest.raises(ValueError, match=r"at least 2 rows in training; got 1\. Raise batch_size"):
        network.call(params, rows(1, 3), state=state, key=None, train=True)
    assert network.apply(params, rows(1, 3), state).shape == (1, 2)


# -- functions --------------------------------------------------------------------------------------


def line_init(key):
    return jax.random.normal(key, (2,))


def line_apply(params, x):
    return x * params[0] + params[1]


def test_from_function():
    network = networks.from_function(line_init, line_apply)
    assert network.build((1,), 1) == network
    np.testing.assert_allclose(
        network.apply(jnp.asarray([2.0, 1.0]), jnp.asarray([[0.0], [3.0]])), [[1], [7]]
    )
    state = {"seen": jnp.ones(2)}
    outputs, after = network.call(
        jnp.ones(2), jnp.ones((3, 1)), state=state, key=random.key(0), train=True
    )
    assert outputs.shape == (3, 1)
    assert after is state


def test_functions_may_take_whole_numbers():
    """Token ids stay integers, so that they can be used as indices."""
    table = networks.from_function(
        lambda key: jnp.arange(10.0)[:, None], lambda params, x: params[x[:, 0]]
    )
    model = cx.Model(table, likelihood=cx.likelihoods.Gaussian(1.0))
    bound, data = model.prepare((np.array([[3], [1]]), [0.0, 1.0]))
    assert data.x.dtype == jnp.int32
    np.testing.assert_array_equal(
        bound.network.apply(table.init(random.key(0)), data.x), [[3.0], [1.0]]
    )
    _, plain = cx.Model(networks.linear()).prepare((np.array([[3], [1]]), [0.0, 1.0]))
    assert plain.x.dtype == jnp.result_type(float)


# -- equality, hashing and repr ----------------------------------------------------------------------------


def test_equality_and_hashing():
    pairs = [
        (networks.mlp([4, 5]), networks.mlp((4, 5))),
        (networks.mlp([4], activation=jnp.tanh), networks.mlp([4], activation=jnp.tanh)),
        (networks.mlp([np.int64(4)], dropout=np.float64(0.5)), networks.mlp([4], dropout=0.5)),
        (networks.cnn([4], [5]), networks.cnn((4,), (5,))),
        (networks.linear(), networks.mlp([])),
        (networks.from_function(line_init, line_apply), networks.Network(line_init, line_apply)),
        (networks.mlp([4]).build((3,), 1), networks.mlp([4]).build((3,), 1)),
    ]
    for one, other in pairs:
        assert one == other
        assert hash(one) == hash(other)
    different = [
        networks.mlp([4]),
        networks.mlp([4, 4]),
        networks.mlp([4], dropout=0.1),
        networks.mlp([4], batch_norm=True),
        networks.mlp([4], activation="tanh"),
        networks.mlp([4]).build((3,), 1),
        networks.mlp([4]).build((3,), 2),
        networks.cnn([4], [4]),
        networks.cnn([4], [4], pool=3),
        networks.from_function(line_init, line_apply),
        networks.from_function(line_init, lambda params, x: x),
    ]
    assert len(set(different)) == len(different)
    with pytest.raises(dataclasses.FrozenInstanceError):
        networks.mlp([4]).hidden = (5,)


# -- errors -----------------------------------------------------------------------------------------

REFUSED = [
    (lambda: networks.mlp(50), TypeError, r"mlp\(hidden=...\) must be a sequence .*; got 50"),
    (lambda: networks.mlp("50"), TypeError, r"mlp\(hidden=...\) must be a sequence .*; got '50'"),
    (lambda: networks.mlp([0]), ValueError, r"mlp\(hidden=...\) must be a whole number, .*; got 0"),
    (
        lambda: networks.mlp([-3]),
        ValueError,
        r"mlp\(hidden=...\) must be a whole number, .*; got -3",
    ),
    (
        lambda: networks.mlp([5.0]),
        TypeError,
        r"mlp\(hidden=...\) must be a whole number, .*; got 5.0",
    ),
    (
        lambda: networks.mlp([True]),
        TypeError,
        r"mlp\(hidden=...\) must be a whole number, .*; got True",
    ),
    (
        lambda: networks.mlp(dropout=1.0),
        ValueError,
        r"mlp\(dropout=...\) must be at least 0 .*; got 1.0",
    ),
    (lambda: networks.mlp(dropout=-0.1), ValueError, r"mlp\(dropout=...\) must be .*; got -0.1"),
    (lambda: networks.mlp(dropout=np.nan), ValueError, r"mlp\(dropout=...\) must be .*; got nan"),
    (lambda: networks.mlp(dropout="a"), TypeError, r"mlp\(dropout=...\) must be .*; got 'a'"),
    (
        lambda: networks.mlp(activation="rleu"),
        ValueError,
        r"mlp\(activation=...\) must be one of 'relu', 'tanh', .*; got 'rleu'",
    ),
    (
        lambda: networks.mlp(activation=3),
        ValueError,
        r"mlp\(activation=...\) must be one of .*; got 3",
    ),
    (
        lambda: networks.mlp(activation=None),
        ValueError,
        r"mlp\(activation=...\) must be .*; got None",
    ),
    (
        lambda: networks.mlp(batch_norm=1),
        TypeError,
        r"mlp\(batch_norm=...\) must be True or False; got 1",
    ),
    (lambda: networks.cnn(batch_norm="a"), TypeError, r"cnn\(batch_norm=...\) must be .*; got 'a'"),
    (lambda: networks.cnn(6), TypeError, r"cnn\(channels=...\) must be a sequence .*; got 6"),
    (lambda: networks.cnn([6], [0]), ValueError, r"cnn\(hidden=...\) must be .*; got 0"),
    (lambda: networks.cnn(kernel_size=0), ValueError, r"cnn\(kernel_size=...\) must be .*; got 0"),
    (lambda: networks.cnn(pool=1.5), TypeError, r"cnn\(pool=...\) must be .*; got 1.5"),
    (lambda: networks.cnn(dropout=2), ValueError, r"cnn\(dropout=...\) must be .*; got 2"),
    (
        lambda: networks.cnn(activation="x"),
        ValueError,
        r"cnn\(activation=...\) must be .*; got 'x'",
    ),
    (
        lambda: networks.cnn().build((28,), 10),
        ValueError,
        r"x must be 3-D, .*for a cnn; got shape \(rows, 28\)",
    ),
    (
        lambda: networks.cnn().build((3, 28), 10),
        ValueError,
        r"at least 4 x 4 pixels for 2 poolings by 2; got 3 x 28",
    ),
    (lambda: networks.cnn().build((28, 28, 0), 10), ValueError, r"at least 1 channel; got 0"),
    (
        lambda: networks.mlp().build((), 1),
        ValueError,
        r"x must be 2-D.*A single feature is x\[:, None\]",
    ),
    (lambda: networks.mlp().build((2, 2), 1), ValueError, r"x must be 2-D.*\(rows, 2, 2\)"),
    (lambda: networks.mlp().build((0,), 1), ValueError, r"x must have at least 1 column; got 0"),
    (lambda: networks.mlp().init(random.key(0)), ValueError, r"mlp does not know the width .*bind"),
    (lambda: networks.cnn().init(random.key(0)), ValueError, r"cnn does not know the shape .*bind"),
    (
        lambda: networks.from_function(3, line_apply),
        TypeError,
        r"\(init=...\) must be a function; got 3",
    ),
    (
        lambda: networks.from_function(line_init, None),
        TypeError,
        r"\(apply=...\) must be a function",
    ),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
