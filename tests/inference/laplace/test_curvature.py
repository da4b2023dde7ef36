"""The curvature of networks against explicit Jacobians and finite differences."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_networks import LIKELIHOODS, explicit, problem

import credax as cx
from credax.core.trees import tree_paths
from credax.inference.laplace import curvature
from credax.inference.laplace.curvature import accumulate, accumulate_hessian, gram, output_root
from credax.tracing.products import Rows

# -- the generalised Gauss-Newton matrix -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, likelihood",
    [
        ("mlp", "categorical"),
        pytest.param("function", "gaussian", marks=pytest.mark.slow),
        pytest.param("cnn", "categorical", marks=pytest.mark.slow),
        pytest.param("mlp", "poisson", marks=pytest.mark.slow),
        pytest.param("cnn", "gaussian", marks=pytest.mark.slow),
    ],
)
def test_gauss_newton(network, likelihood, x64, monkeypatch):
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 20_000)  # several blocks, the last one smaller
    accumulate = jax.jit(curvature.accumulate.__wrapped__, static_argnums=(0, 1, 2))
    model, rows, params = problem(network, likelihood)
    _, want = explicit(model, rows, params)
    full = accumulate(model, "full", "ggn", params, (), rows)
    np.testing.assert_allclose(full.joint, want, rtol=1e-8, atol=1e-10)
    diagonal = accumulate(model, "diagonal", "ggn", params, (), rows).leaves
    flat = np.concatenate([leaf.ravel() for leaf in diagonal])
    np.testing.assert_allclose(flat, np.diag(want), rtol=1e-8, atol=1e-10)
    last = accumulate(model, "last_layer", "ggn", params, (), rows).joint
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    chosen = {"mlp": "layer_2", "cnn": "dense_1", "function": "last|offset"}[network]
    mask = np.repeat([bool(re.search(chosen, name)) for name in tree_paths(params)], sizes)
    np.testing.assert_allclose(last, want[np.ix_(mask, mask)], rtol=1e-8, atol=1e-10)
    # The gradient and the log likelihood come with the curvature.
    log_likelihood = lambda p: model.full_log_likelihood(p, rows)  # noqa: E731
    value, gradient = jax.value_and_grad(log_likelihood)(params)
    assert full.log_likelihood == pytest.approx(value)
    jax.tree.map(np.testing.assert_allclose, list(full.gradient), jax.tree.leaves(gradient))


def sums_of_a_sure_network(monkeypatch, **settings):
    """The sums over 300 rows in 15 blocks; the network is certain about most of the rows."""
    jax.clear_caches()  # the settings are no arguments of what was compiled
    monkeypatch.setattr(curvature, "row_bytes", lambda *_, **__: 1)
    for name, value in {"BLOCK_BYTES": 20, **settings}.items():
        monkeypatch.setattr(curvature, name, value)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(300, 3)), generator.integers(5, size=300)
    likelihood = cx.likelihoods.Categorical(5)
    model, rows = cx.Model(cx.networks.mlp([8]), likelihood=likelihood).prepare((x, y))
    params = jax.tree.map(lambda leaf: 4 * leaf, model.init(cx.random.key(0)))
    outputs = model.network.apply(params, rows.x)
    root = lambda outputs, y: curvature.output_root(likelihood, "ggn", outputs, y, None)  # noqa: E731
    squares = jnp.sum(jax.vmap(root)(outputs, rows.y) ** 2, axis=2)
    left = float(jnp.mean(squares > curvature._negligible(squares)))
    kind = ("kronecker", "ggn")
    # Traced again, since the settings are global variables and not arguments.
    accumulate = jax.jit(lambda p: curvature.accumulate.__wrapped__(model, *kind, p, (), rows))
    return accumulate(params), left


def relative(found, want):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True)
    return [float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs]


@pytest.mark.slow
def test_what_is_lost_in_rounding_is_left_out(monkeypatch):
    whole, _ = sums_of_a_sure_network(monkeypatch, FEWEST_BLOCKS=1_000)
    found, left = sums_of_a_sure_network(monkeypatch, FEWEST_BLOCKS=8)
    assert left < 0.8
    assert max(relative(found, whole)) < 64 * 10 * np.finfo(np.float32).eps
    # If more is left out, the error is larger; the gradient and the input factors are not affected.
    found, fewer = sums_of_a_sure_network(monkeypatch, FEWEST_BLOCKS=8, NEGLIGIBLE=2e5)
    assert fewer < 0.7 * left
    changes = relative(found, whole)
    kernel = relative(found.leaves[1], whole.leaves[1])
    assert kernel[0] < 1e-6
    assert 1e-4 < kernel[1] < 0.1
    assert max(relative(found.gradient, whole.gradient)) < 1e-5
    assert max(changes) < 0.1


@pytest.mark.parametrize("structure", ["kronecker", pytest.param("full", marks=pytest.mark.slow)])
def test_no_column_may_be_needed_of_leaves_with_a_matrix_of_their_own(structure, monkeypatch):
    """Many rows with several columns each, and a gain after a layer, as in a layer normalisation."""
    monkeypatch.setattr(curvature, "row_bytes", lambda *_, **__: 1)
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 2)
    model, rows, params = problem("function", "gaussian")
    x, y = (jnp.concatenate([a] * 3) for a in (rows.x, rows.y))
    more = dataclasses.replace(rows, x=x, y=y)
    accumulate = jax.jit(lambda p: curvature.accumulate.__wrapped__(*settings, p, (), more))
    settings = model, structure, "ggn"
    found = accumulate(params)
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 10_000)
    jax.clear_caches()
    accumulate = jax.jit(lambda p: curvature.accumulate.__wrapped__(*settings, p, (), more))
    want = accumulate(params)
    assert max(relative(found, want)) < 1e-5


@pytest.mark.matrix
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_never_left_out(wrong):
    squares = jnp.asarray([[1e-12, 1.0], [wrong, 1.0]])
    assert curvature._negligible(squares) == 0


def test_gram_of_many_columns(x64):
    z = np.random.default_rng(0).normal(size=(2, 5, 700))
    flat = z.reshape(-1, 700)
    np.testing.assert_allclose(gram(jnp.asarray(z)), flat.T @ flat, rtol=1e-9, atol=1e-9)


# -- Kronecker factors -----------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    "network", ["mlp", pytest.param("cnn", marks=pytest.mark.slow), "function"]
)
def test_kronecker_factors(network, x64):
    """Weights of products have factors, biases share the output factor, all other leaves have a block."""
    model, rows, params = problem(network)
    sums = accumulate(model, "kronecker", "ggn", params, (), rows).leaves
    names = tree_paths(params)
    _, want = explicit(model, rows, params)
    sizes = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(params))])
    blocks = {name: want[a:b, a:b] for name, a, b in zip(names, sizes, sizes[1:], strict=False)}
    found = dict(zip(names, sums, strict=True))
    expected = {
        "mlp": {f"layer_{i}/kernel" for i in range(3)},
        "cnn": {"conv_0/kernel", "conv_1/kernel", "dense_0/kernel", "dense_1/kernel"},
        "function": {"first", "last"},
    }[network]
    assert {name for name, kept in found.items() if isinstance(kept, tuple)} == expected
    for name, kept in found.items():
        if isinstance(kept, tuple):
            assert all(np.allclose(factor, factor.T) for factor in kept)
        elif kept is not None:
            np.testing.assert_allclose(kept, blocks[name], rtol=1e-8, atol=1e-10, err_msg=name)
        else:  # a bias shares the output factor, which equals its block of the matrix
            kernel = found[name.replace("bias", "kernel").replace("offset", "last")]
            np.testing.assert_allclose(kernel[1], blocks[name], rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_kronecker_of_one_row_is_the_block(x64):
    """For a single row, the Kronecker product of the factors is the block itself, for any layer."""
    model, rows, params = problem("function")
    one = type(rows)(rows.x[:1], rows.y[:1])
    first, last = (accumulate(model, "kronecker", "ggn", params, (), one).leaves[i] for i in (0, 2))
    _, want = explicit(model, one, params)
    sizes = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(params))])
    # With fewer rows than inputs, the inputs are kept in place of their factor.
    inputs, g = first  # the shape of the leaf is (outputs, inputs)
    assert inputs.shape == (1, 3)
    a = inputs.T @ inputs
    np.testing.assert_allclose(np.kron(g, a), want[: sizes[1], : sizes[1]], rtol=1e-8, atol=1e-12)
    inputs, g = last
    assert inputs.shape == (1, 4)
    a = inputs.T @ inputs
    block = want[sizes[2] : sizes[3], sizes[2] : sizes[3]]
    np.testing.assert_allclose(np.kron(a, g), block, rtol=1e-8, atol=1e-12)


@pytest.mark.slow
def test_convolution_factors(x64):
    """KFAC-expand: the factors are those of the image patches and of derivatives at every position."""
    model, rows, params = problem("cnn")
    place = tree_paths(params).index("conv_0/kernel")
    a, g = accumulate(model, "kronecker", "ggn", params, (), rows).leaves[place]
    padded = np.pad(np.asarray(rows.x), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2)).reshape(-1, 9)
    np.testing.assert_allclose(a, windows.T @ windows, rtol=1e-9, atol=1e-12)

    def outputs(shift, row):
        inner = {**params, "conv_0": {**params["conv_0"], "bias": params["conv_0"]["bias"] + shift}}
        return model.network.apply(inner, row[None])[0]

    @jax.jit
    @jax.vmap
    def of_row(row):
        shifts = jnp.zeros((6, 6, 2))
        found = outputs(shifts, row)
        probs = jax.nn.softmax(found)
        return jax.jacobian(outputs)(shifts, row), jnp.diag(probs) - jnp.outer(probs, probs)

    jacobian, hessian = map(np.asarray, of_row(rows.x))
    want = np.einsum("rchwi,rcd,rdhwj->ij", jacobian, hessian, jacobian)
    np.testing.assert_allclose(g, want, rtol=1e-8, atol=1e-12)


def test_a_bias_added_twice_has_a_block_of_its_own():
    shapes = [(4,), (3, 4), (4, 4)]
    params = dict(zip(("b", "v", "w"), map(jnp.ones, shapes), strict=True))
    once = cx.networks.from_function(
        lambda key: params, lambda p, x: (x @ p["v"]) @ p["w"] + p["b"]
    )
    apply = lambda p, x: jnp.tanh(x @ p["v"] + p["b"]) @ p["w"] + p["b"]  # noqa: E731
    twice = cx.networks.from_function(once.init_function, apply)
    kinds = [
        curvature.kinds_of(Rows(network, params, (), jnp.ones((2, 3))), shapes, "kronecker")[0]
        for network in (once, twice)
    ]
    assert kinds == [curvature.Kind.SHARED, curvature.Kind.OWN]


def test_a_weight_that_is_reshaped_is_no_product():
    init = lambda key: jnp.ones(6)  # noqa: E731
    network = cx.networks.from_function(init, lambda w, x: x @ w.reshape(3, 2))
    rows = Rows(network, jnp.ones(6), (), jnp.ones((4, 3)))
    assert rows.products == {}


# -- the curvature in the outputs, and the exact Hessian -------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_roots_of_the_output_hessian(likelihood, x64):
    f = jnp.asarray([0.3, -1.2, 2.0])
    y = {"categorical": jnp.asarray(1), "gaussian": f + 0.1}.get(likelihood, jnp.asarray([1, 0, 1]))
    negative = lambda f: -LIKELIHOODS[likelihood].log_prob(f[None], y[None])[0]  # noqa: E731
    root = output_root(LIKELIHOODS[likelihood], "ggn", f, y, None)
    np.testing.assert_allclose(root.T @ root, jax.hessian(negative)(f), rtol=1e-9, atol=1e-12)
    empirical = output_root(LIKELIHOODS[likelihood], "fisher", f, y, None)
    np.testing.assert_allclose(empirical[0], jax.grad(negative)(f), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood", [cx.likelihoods.Heteroscedastic(), cx.likelihoods.StudentT(4.0, 0.5)]
)
def test_roots_where_the_hessian_may_be_negative_are_its_expectation(likelihood, x64):
    f = jnp.asarray([0.3, -0.4])
    width = 1 if isinstance(likelihood, cx.likelihoods.Heteroscedastic) else 2
    draw = lambda key: likelihood.sample(key, f[None])[0]  # noqa: E731
    keys = jax.random.split(cx.random.key(0), 40_000)
    y = jax.jit(jax.vmap(draw))(keys).reshape(-1, width)
    negative = lambda f, y: -likelihood.log_prob(f[None], y[None])[0]  # noqa: E731
    each = jax.jit(jax.vmap(lambda y: jax.hessian(negative)(f, y)))(y)
    root = output_root(likelihood, "ggn", f, y[0], None)
    error = np.std(each, axis=0) / math.sqrt(len(y))
    assert np.all(np.abs(root.T @ root - each.mean(0)) < 4.5 * error + 1e-12)


@pytest.mark.slow
def test_hessian_against_finite_differences(x64):
    model, rows, params = problem("mlp")
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    gradient = jax.jit(jax.grad(lambda w: -model.full_log_likelihood(unravel(w), rows)))
    step = 1e-5
    columns = [
        (gradient(flat + e) - gradient(flat - e)) / (2 * step) for e in step * np.eye(len(flat))
    ]
    want = np.stack(columns)
    full = accumulate_hessian(model, "full", params, (), rows).joint
    np.testing.assert_allclose(full, want, atol=1e-7)
    diagonal = accumulate_hessian(model, "diagonal", params, (), rows).leaves
    flat_diagonal = np.concatenate([leaf.ravel() for leaf in diagonal])
    np.testing.assert_allclose(flat_diagonal, np.diag(want), atol=1e-7)
    last = accumulate_hessian(model, "last_layer", params, (), rows).joint
    np.testing.assert_allclose(last, want[-len(last) :, -len(last) :], atol=1e-7)
