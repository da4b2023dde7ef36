"""The last layer integrated out: the marginal density, the draws of the last layer, and unsuitable models."""

import itertools
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import LIMIT, Target, check, mcse_mean, mcse_sd, z_mean, z_sd
from scipy.stats import multivariate_normal, norm

import credax as cx
from credax.core.typing import Draw
from credax.inference.montecarlo.collapsed import Collapsed, log_evidence
from credax.tables.recommended import recommended_method
from credax.tracing.products import Rows

PRIORS = {
    "one for all": cx.priors.Normal(0.7),
    "off zero": cx.priors.Normal(0.5, loc=0.3),
    "by fan-in": cx.priors.FanInNormal(1.3),
    "by layer": {"layer_1/bias": cx.priors.Normal(2.0), "*": cx.priors.Normal(0.7)},
    "others not normal": {"layer_0/*": cx.priors.Laplace(0.5), "*": cx.priors.Normal(0.7)},
}
LIKELIHOODS = {
    "known": cx.likelihoods.Gaussian(0.4),
    "one a target": cx.likelihoods.Gaussian((0.4, 0.7)),
    "learned": cx.likelihoods.Gaussian(scale=None),
    "predicted": cx.likelihoods.Heteroscedastic(),
}


def rows(targets, count=12):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    y = np.stack([np.sin(x[:, 0]), x[:, 0] * x[:, 1]], axis=1)[:, :targets]
    y = (y + 0.3 * rng.normal(size=y.shape)).astype(np.float32)
    return x, y[:, 0] if targets == 1 else y


def prior_of(model, path, shape):
    loc, scale = model.prior.at(path).gaussian(shape)
    return np.full(shape, loc, np.float64), float(scale)


def by_hand(model, params, x, y):
    """log p(u, D) as a normal density of all rows, and the moments of the last layer, in double precision."""
    network, learned = model.split(params)
    double = lambda a: np.asarray(a, np.float64)  # noqa: E731
    y = double(y).reshape(len(x), -1)
    targets = y.shape[1]
    hidden = np.tanh(double(x) @ double(network["layer_0"]["kernel"]) + network["layer_0"]["bias"])
    features = np.concatenate([hidden, np.ones((len(x), 1))], axis=1)
    kernel, bias = (double(network["layer_1"][name]) for name in ("kernel", "bias"))
    outputs = features @ np.vstack([kernel, bias])
    _, scales = model.likelihood.location_scale(jnp.asarray(outputs), learned)
    scales = np.broadcast_to(double(scales), y.shape)
    kernel_mean, kernel_sd = prior_of(model, "layer_1/kernel", kernel.shape)
    bias_mean, bias_sd = prior_of(model, "layer_1/bias", bias.shape)
    prior_mean = np.vstack([kernel_mean, bias_mean])[:, :targets]
    spread = np.diag(np.r_[np.full(len(kernel), kernel_sd), bias_sd] ** 2)
    value, means, covariances = 0.0, [], []
    for k in range(targets):
        noise = np.diag(scales[:, k] ** 2)
        whole = features @ spread @ features.T + noise
        value += multivariate_normal.logpdf(y[:, k], features @ prior_mean[:, k], whole)
        gain = spread @ features.T @ np.linalg.inv(whole)
        means.append(prior_mean[:, k] + gain @ (y[:, k] - features @ prior_mean[:, k]))
        covariances.append(spread - gain @ features @ spread)
    of_rest = {path: model.prior.at(path) for path in ("layer_0/kernel", "layer_0/bias")}
    for path, prior in of_rest.items():
        value += float(np.sum(prior.log_density(jnp.asarray(network["layer_0"][path[8:]]))))
    for leaf, loc, sd in ((kernel, kernel_mean, kernel_sd), (bias, bias_mean, bias_sd)):
        value += norm.logpdf(leaf[..., targets:], loc[..., targets:], sd).sum()
    if learned is not None:
        value += float(model.likelihood.log_prior(learned))
    return value, np.stack(means), np.stack(covariances)


def bound(prior="one for all", likelihood="known", targets=1):
    network = cx.networks.mlp([3], activation="tanh")
    model = cx.Model(network, PRIORS[prior], LIKELIHOODS[likelihood])
    model, data = model.prepare(rows(targets))
    return model, data, Collapsed(model, data.x)


# -- the density -------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    "prior, likelihood, targets",
    [
        *[(prior, "known", 1) for prior in PRIORS],
        *[("off zero", name, 2) for name in LIKELIHOODS],
        ("by layer", "predicted", 1),
        ("one for all", "learned", 1),
    ],
)
def test_what_is_left_is_the_integral(prior, likelihood, targets):
    model, data, collapsed = bound(prior, likelihood, targets)
    differences = []
    for seed in range(3):
        params = model.sample_prior(cx.random.key(seed))
        exact, _, _ = by_hand(model, params, data.x, data.y)
        rest = collapsed._rest(params)
        differences.append(float(collapsed.log_joint(rest, data.everything())) - exact)
    # Up to the prior density of the last layer at its mean, which is a constant.
    np.testing.assert_allclose(differences, differences[0], atol=1e-4)


def test_gradient_is_that_of_the_value():
    with jax.enable_x64(True):
        model, data, collapsed = bound("off zero", "predicted", 2)
        rest = collapsed._rest(model.sample_prior(cx.random.key(0)))
        value = jax.jit(lambda rest: collapsed.log_joint(rest, data.everything()))
        flat, tree = jax.flatten_util.ravel_pytree(rest)
        gradient = jax.flatten_util.ravel_pytree(jax.grad(value)(rest))[0]
        step = 1e-6
        for i in range(len(flat)):
            up, down = (value(tree(flat.at[i].add(sign * step))) for sign in (1, -1))
            assert (up - down) / (2 * step) == pytest.approx(float(gradient[i]), rel=1e-5, abs=1e-6)


def test_products_are_precise_on_every_device():
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)  # noqa: E731
    program = jax.make_jaxpr(jax.value_and_grad(partial(log_evidence, precisions=(1.0, 1.0))))(
        shape(4, 9), shape(9), shape(9)
    )
    products = [e for e in program.jaxpr.eqns if e.primitive.name == "dot_general"]
    assert products
    assert {e.params["precision"] for e in products} == {(jax.lax.Precision.HIGHEST,) * 2}


def by_least_squares(features, variances, residuals, precisions):
    """The log evidence and its gradients by a QR decomposition in double precision."""
    features, variances, residuals = (
        np.asarray(a, np.float64) for a in (features, variances, residuals)
    )
    count, weights = len(features), 1 / np.sqrt(variances)
    prior = np.r_[np.full(count, precisions[0]), precisions[1]]
    design = np.vstack([features, np.ones(len(residuals))]).T
    stacked = np.vstack([weights[:, None] * design, np.diag(np.sqrt(prior))])
    target = np.r_[weights * residuals, np.zeros(count + 1)]
    q, r = np.linalg.qr(stacked)
    mean = np.linalg.solve(r, q.T @ target)
    value = 0.5 * np.log(prior).sum() - np.log(np.abs(np.diag(r))).sum()
    value -= 0.5 * np.sum((target - stacked @ mean) ** 2)
    pull = (residuals - design @ mean) / variances
    q = q[: len(residuals)]
    to_features = mean[:, None] * pull - np.linalg.solve(r, q.T) * weights
    to_variances = 0.5 * (pull**2 + np.sum(q**2, axis=1) / variances)
    return value, to_features[:count], to_variances


@pytest.mark.parametrize("noise", [0.1, 1e-3])
@pytest.mark.parametrize("condition", [1e2, 1e8])
def test_single_precision_is_enough_for_smooth_features_and_little_noise(condition, noise):
    rng = np.random.default_rng(0)
    count, rows = 20, 200
    left, _ = np.linalg.qr(rng.normal(size=(rows, count)))
    right, _ = np.linalg.qr(rng.normal(size=(count, count)))
    features = (left * np.geomspace(1, 1 / condition, count) * np.sqrt(rows)) @ right.T
    features = features.T.astype(np.float32)
    y = features.T @ rng.normal(size=count) + noise * rng.normal(size=rows)
    y, variances = y.astype(np.float32), np.full(rows, noise**2, np.float32)
    precisions = (1.0, 4.0)
    exact = by_least_squares(features, variances, y, precisions)

    def together(features, variances):
        return log_evidence(features, variances, jnp.asarray(y), precisions)

    both = jax.value_and_grad(jax.jit(together), argnums=(0, 1))
    alone = jax.jit(both)(features, variances)
    batch = jax.jit(jax.vmap(both, in_axes=(0, None)))(np.stack([features] * 2), variances)
    for value, gradients in (alone, jax.tree.map(lambda leaf: leaf[1], batch)):
        assert float(value) == pytest.approx(exact[0], abs=0.01)
        for found, right in zip(gradients, exact[1:], strict=True):
            assert np.linalg.norm(found - right) < 1e-3 * np.linalg.norm(right)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_little_noise_is_found(noise):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(300, 1))
    y = np.sin(3 * x[:, 0]) + noise * rng.normal(size=300)
    at = np.linspace(-0.95, 0.95, 100)[:, None]
    method = replace(recommended_method(len(x)), members=2)
    regressor = cx.BayesianRegressor(method, random_state=0).fit(x, y)
    found = regressor.predict_distribution(at)
    # With no noise at all, what is found is how closely the networks of the chain fit the function.
    low, high = (0.8e-3, 1.3e-3) if noise else (0, 1e-3)
    assert low < np.sqrt(np.mean(found.aleatoric)) < high
    assert np.sqrt(np.mean((found.mean - np.sin(3 * at[:, 0])) ** 2)) < 1.5e-3


# -- the draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prior, likelihood, targets", [("off zero", "predicted", 2), ("by layer", "learned", 1)]
)
def test_last_layer_is_drawn_from_its_conditional(prior, likelihood, targets):
    model, data, collapsed = bound(prior, likelihood, targets)
    params = model.sample_prior(cx.random.key(1))
    _, means, covariances = by_hand(model, params, data.x, data.y)
    draw = Draw(collapsed._rest(params), model.init_state())
    keys = jax.random.split(cx.random.key(0), 20_000)
    found = jax.vmap(lambda key: collapsed.complete(key, draw, data.everything()))(keys)
    network, _ = model.split(found)
    last, given = network["layer_1"], model.split(params)[0]["layer_1"]
    drawn = np.concatenate([last["kernel"], last["bias"][:, None]], axis=1, dtype=np.float64)
    for k in range(targets):
        values = drawn[None, :, :, k]
        z = z_mean(values, means[k]), z_sd(values, np.sqrt(np.diag(covariances[k])))
        assert np.abs(z).max() < LIMIT
        correlation = np.corrcoef(values[0].T)
        scale = np.sqrt(np.diag(covariances[k]))
        np.testing.assert_allclose(correlation, covariances[k] / np.outer(scale, scale), atol=0.03)
    # The weights that predict the noise are unchanged.
    np.testing.assert_array_equal(
        last["kernel"][0, :, targets:], given["kernel"][:, targets:], strict=True
    )


@cache
def one_unit():
    """The moments of all four weights of a network with one unit, by quadrature over the first two."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(15, 1)).astype(np.float32)
    y = (np.tanh(1.5 * x[:, 0] + 0.3) + 0.2 * rng.normal(size=15)).astype(np.float32)
    prior = {"layer_0/kernel": cx.priors.Normal(0.4, loc=1.5), "*": cx.priors.Normal(1.0)}
    network = cx.networks.mlp([1], activation="tanh")
    model = cx.Model(network, prior, cx.likelihoods.Gaussian(0.2)).bind((x, y))
    kernels, biases = np.linspace(-0.5, 3.5, 41), np.linspace(-1.2, 1.8, 41)
    logs, moments = [], []
    for kernel, bias in itertools.product(kernels, biases):
        first = {"kernel": np.array([[kernel]], np.float64), "bias": np.array([bias], np.float64)}
        last = {"kernel": np.zeros((1, 1)), "bias": np.zeros(1)}
        value, mean, covariance = by_hand(model, {"layer_0": first, "layer_1": last}, x, y)
        logs.append(value)
        moments.append([kernel, bias, *mean[0], 0, 0, *np.diag(covariance[0])])
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    moments = np.array(moments)
    mean = weights @ moments[:, :4]
    variance = weights @ ((moments[:, :4] - mean) ** 2 + moments[:, 4:])

    def quantities(draws):
        leaves = [draws[f"layer_{i}"][name] for i in (0, 1) for name in ("kernel", "bias")]
        return np.concatenate([np.asarray(a).reshape(*a.shape[:2], -1) for a in leaves], axis=2)

    return Target(model, (x, y), quantities, mean, np.sqrt(variance))


# The prior makes the mirror image of the mode, between which and the mode no chain moves, unlikely.
EXACT = {
    "HMC": cx.HMC(num_warmup=500, num_draws=10_000, num_leapfrog=6, initial="prior", collapse=True),
    "NUTS": cx.NUTS(num_warmup=500, num_draws=10_000, initial="prior", collapse=True),
    "MCLMC": cx.MCLMC(num_draws=10_000, initial="prior", collapse=True, adjusted=True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["HMC", *[pytest.param(name, marks=pytest.mark.slow) for name in ("NUTS", "MCLMC")]]
)
def test_posterior_is_exact(name):
    target = one_unit()
    check(cx.fit(target.model, target.data, EXACT[name], key=0, progress=False), target)


@pytest.mark.slow
def test_a_network_has_the_same_posterior_either_way():
    x = np.linspace(-1.5, 1.5, 30, dtype=np.float32)[:, None]
    y = (np.sin(2 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=30)).astype(np.float32)
    network = cx.networks.mlp([8], activation="tanh")
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.1))
    at = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    found = []
    for method in (
        cx.HMC(num_warmup=1_000, num_draws=4_000, num_leapfrog=32, collapse=True),
        cx.NUTS(num_warmup=1_000, num_draws=4_000, target_accept=0.97),
    ):
        posterior = cx.fit(model, (x, y), method, key=0, progress=False)
        outputs = np.asarray(posterior.predict(at).outputs, np.float64)[..., 0]
        found.append(outputs.reshape(4, -1, len(at)))
    first, second = found
    error = np.hypot(mcse_mean(first), mcse_mean(second))
    assert np.abs((first.mean((0, 1)) - second.mean((0, 1))) / error).max() < LIMIT
    error = np.hypot(mcse_sd(first), mcse_sd(second))
    assert np.abs((first.std((0, 1)) - second.std((0, 1))) / error).max() < LIMIT


@pytest.mark.slow
def test_ensemble_of_collapsed_chains_is_exact():
    target = one_unit()
    start = cx.fit(target.model, target.data, EXACT["HMC"], key=0, progress=False)
    # A long run, with steps so short that their bias is not visible.
    method = cx.MicrocanonicalEnsemble(
        members=4,
        num_warmup=3_000,
        num_draws=5_000,
        thin=10,
        desired_energy_variance=1e-4,
        collapse=True,
    )
    # With some keys a member finds the mirror image of the mode, which its chain does not leave.
    for key in range(1, 7):
        posterior = cx.fit(target.model, target.data, method, key=key, start=start, progress=False)
        if (target.values(posterior)[..., 0] > 0).all():
            break
    check(posterior, target)


@pytest.mark.slow
def test_goes_on_from_a_posterior():
    target = one_unit()
    point = cx.fit(target.model, target.data, cx.MAP(num_steps=500), key=0, progress=False)
    method = cx.HMC(
        chains=2, num_warmup=0, num_draws=1, step_size=1e-6, num_leapfrog=1, collapse=True
    )
    posterior = cx.fit(target.model, target.data, method, key=0, start=point, progress=False)
    for name in ("kernel", "bias"):
        start, now = (p.draws["layer_0"][name] for p in (point, posterior))
        np.testing.assert_allclose(now, np.broadcast_to(start, now.shape), atol=1e-4)


# -- which networks -----------------------------------------------------------------------------------


def network_of(apply, shapes):
    def init(key):
        return {name: jnp.full(shape, 0.1) for name, shape in shapes.items()}

    return cx.networks.from_function(init, apply)


def doubled(z):
    return z + z


SHAPES = {"a": (2, 3), "b": (3, 1)}
FINAL = {
    "product": (lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"], 1),
    "plus a path around it": (lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"] + x[:, :1], 1),
    "transposed": (lambda p, x: (p["b"].T @ jnp.tanh(x @ p["a"]).T).T, 1),
    "a function of it": (lambda p, x: jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"]), None),
    "twice it": (lambda p, x: 2 * (jnp.tanh(x @ p["a"]) @ p["b"]), None),
    "it and itself": (lambda p, x: doubled(jnp.tanh(x @ p["a"]) @ p["b"]), None),
    "used before": (lambda p, x: jnp.tanh(x @ p["a"] * jnp.sum(p["b"])) @ p["b"], None),
}


@pytest.mark.parametrize("name", FINAL)
def test_last_layer_is_found_where_it_is_returned_as_it_is(name):
    apply, expected = FINAL[name]
    network = network_of(apply, SHAPES).build((2,), 1)
    params = network.init(jax.random.key(0))
    found = Rows(network, params, (), jnp.zeros((5, 2))).final()
    assert found == expected


# -- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        ({"likelihood": cx.likelihoods.StudentT()}, "needs normal noise"),
        ({"prior": cx.priors.Laplace(1.0)}, "needs a normal prior"),
        ({"network": cx.networks.linear()}, "needs weights besides those of the last layer"),
        (
            {"network": network_of(FINAL["a function of it"][0], SHAPES)},
            "needs a network that returns the product",
        ),
    ],
)
def test_models_that_cannot_are_refused(change, message):
    settings = {
        "network": cx.networks.mlp([3]),
        "prior": cx.priors.Normal(1.0),
        "likelihood": cx.likelihoods.Gaussian(0.1),
    }
    with pytest.raises(ValueError, match=rf"HMC\(collapse=True\) {message}"):
        cx.fit(cx.Model(**(settings | change)), rows(1), cx.HMC(collapse=True))


def test_a_log_density_is_refused():
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(ValueError, match=r"NUTS\(collapse=True\) needs normal noise"):
        cx.fit(density, None, cx.NUTS(collapse=True))
    with pytest.raises(
        ValueError, match=r"MicrocanonicalEnsemble\(collapse=True\) needs normal noise"
    ):
        cx.fit(density, None, cx.MicrocanonicalEnsemble(collapse=True))


@pytest.mark.parametrize("name", [name for name, (_, leaf) in FINAL.items() if leaf is not None])
def test_features_are_what_the_last_weights_multiply(name):
    network = network_of(FINAL[name][0], SHAPES)
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3))
    model, data = model.prepare(rows(1))
    params = model.sample_prior(cx.random.key(0))
    x, y = np.asarray(data.x, np.float64), np.asarray(data.y, np.float64)
    features = np.tanh(x @ np.asarray(params["a"], np.float64))
    around = x[:, 0] if "around" in name else np.zeros(len(x))
    exact = multivariate_normal.logpdf(
        y - around, cov=features @ features.T + 0.09 * np.eye(len(x))
    )
    exact += norm.logpdf(np.asarray(params["a"], np.float64)).sum() + 3 * norm.logpdf(0)
    collapsed = Collapsed(model, data.x)
    found = collapsed.log_joint(collapsed._rest(params), data.everything())
    assert float(found) == pytest.approx(exact, abs=1e-3)
