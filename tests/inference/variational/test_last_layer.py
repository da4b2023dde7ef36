"""The variational last layer: exact for linear regression, and the optimum of its bound elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import expit, gammaln, logsumexp

import credax as cx
from credax.inference.variational.expected import expected_log_prob
from credax.inference.variational.last_layer import bound, renewed
from credax.inference.variational.layer import Last, Layer, Seen

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 3)).astype(np.float32)
Y = (np.sin(X) @ [[1.0, 0.3], [0.5, -1.0], [0.0, 0.4]]).astype(np.float32)
CLASSES = np.argmax(np.column_stack([X[:, 0], X[:, 1], -X[:, 0]]), axis=1)
QUICK = {"num_steps": 30, "learning_rate": 0.02}


def fit(likelihood, y, network=None, prior=None, **settings):
    model = cx.Model(network or cx.networks.linear(), prior or cx.priors.Normal(1.5), likelihood)
    method = cx.VariationalLastLayer(**{**QUICK, **settings})
    return cx.fit(model, (X, y), method, progress=False)


def regression(features, y, noise, scales, loc=0.0):
    """The mean and covariance of the weights of a Bayesian linear regression, for one target."""
    precision = features.T @ features / noise**2 + np.diag(scales**-2.0)
    covariance = np.linalg.inv(precision)
    pull = features.T @ y / noise**2 + loc * scales**-2.0
    return covariance @ pull, covariance


def with_ones(features):
    return np.column_stack([np.float64(features), np.ones(len(features))])


def weights_of(posterior, layer, target):
    """The mean and the covariance of the weights of one target: kernel first, then the bias."""
    normal = posterior.approximation
    mean = normal.mean[layer]
    outputs = len(mean["bias"])
    size = normal.root.shape[0]
    # Leaves are in alphabetical order: the bias, then the kernel with its outputs along the last axis.
    numbers = np.arange(size)
    kernel = numbers[outputs:].reshape(-1, outputs)[:, target]
    chosen = np.append(kernel, target)
    covariance = np.float64(normal.root) @ np.float64(normal.root).T
    centre = np.append(mean["kernel"][:, target], mean["bias"][target])
    return centre, covariance[np.ix_(chosen, chosen)]


@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 8])
def test_linear_regression_is_exact(batch_size):
    noises = (0.2, 0.5)
    prior = {"*/kernel": cx.priors.Normal(1.5, loc=0.3), "*/bias": cx.priors.Normal(0.7)}
    likelihood = cx.likelihoods.Gaussian(noises)
    posterior = fit(likelihood, Y, prior=prior, batch_size=batch_size)
    scales, loc = np.array([1.5, 1.5, 1.5, 0.7]), np.array([0.3, 0.3, 0.3, 0.0])
    evidence = 0.0
    columns = with_ones(X)
    for target, noise in enumerate(noises):
        got = weights_of(posterior, "layer_0", target)
        want = regression(columns, Y[:, target], noise, scales, loc)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-7)
        covariance = columns @ np.diag(scales**2) @ columns.T + noise**2 * np.eye(len(X))
        evidence += stats.multivariate_normal(columns @ loc, covariance).logpdf(Y[:, target])
    # There are no other weights, so the bound is the evidence.
    assert posterior.elbo.value == pytest.approx(evidence, abs=1e-3)


def test_little_noise_on_many_rows():
    """The eigenvalues of the precision then reach from one to 10^9, more than single precision resolves."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(300, 2)).astype(np.float32)
    x = np.column_stack([x, x @ [0.5, 0.5] + 1e-3 * x[:, 0]]).astype(np.float32)
    y = (x @ [1.0, -1.0, 0.5]).astype(np.float32)
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(1.5), cx.likelihoods.Gaussian(1e-3))
    method = cx.VariationalLastLayer(num_steps=20, batch_size=50)
    posterior = cx.fit(model, (x, y), method, progress=False)
    want = regression(with_ones(x), y, 1e-3, np.full(4, 1.5))
    got = weights_of(posterior, "layer_0", 0)
    np.testing.assert_allclose(got[0], want[0], atol=1e-3)
    unit = np.sqrt(np.diag(want[1]))
    np.testing.assert_allclose(
        got[1] / np.outer(unit, unit), want[1] / np.outer(unit, unit), atol=1e-3
    )


def test_regression_is_exact_given_the_features():
    posterior = fit(cx.likelihoods.Gaussian(0.3), Y[:, 0], cx.networks.mlp([5], activation="tanh"))
    layer = posterior.approximation.mean["layer_0"]
    hidden = np.tanh(np.float64(X) @ np.float64(layer["kernel"]) + np.float64(layer["bias"]))
    got = weights_of_last(posterior)
    want = regression(with_ones(hidden), Y[:, 0], 0.3, np.full(6, 1.5))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-3, atol=1e-5)
    # The predictions are those of this regression, without sampling.
    predictive = posterior.predict(X)
    columns = with_ones(hidden)
    np.testing.assert_allclose(predictive.mean, columns @ want[0], rtol=1e-3, atol=1e-3)
    variance = np.einsum("ij,jk,ik->i", columns, want[1], columns)
    np.testing.assert_allclose(predictive.epistemic, variance, rtol=1e-3)
    assert posterior.elbo is None, "a bound for these features only"


def weights_of_last(posterior):
    normal = posterior.approximation
    mean = normal.mean["layer_1"]
    covariance = np.float64(normal.root) @ np.float64(normal.root).T
    order = [1, 2, 3, 4, 5, 0]  # the bias comes first
    return np.append(mean["kernel"][:, 0], mean["bias"]), covariance[np.ix_(order, order)]


@pytest.mark.slow
def test_features_and_noise_are_trained():
    few, many = (
        fit(cx.likelihoods.Gaussian(None), Y[:, 0], cx.networks.mlp([10]), num_steps=steps)
        for steps in (1, 400)
    )
    errors = [np.mean((p.predict(X).mean - Y[:, 0]) ** 2) for p in (few, many)]
    assert errors[1] < 0.3 * errors[0]
    assert many.info["last_layer_elbo"] > few.info["last_layer_elbo"] + 10
    scales = [
        float(np.exp(p.approximation.mean["likelihood"]["log_scale"][0])) for p in (few, many)
    ]
    assert scales[1] < 0.5 * scales[0]


# -- the expected log likelihood ----------------------------------------------------------------------


def by_quadrature(log_prob, mean, variance):
    deviation = np.sqrt(variance)
    density = stats.norm(mean, deviation).pdf
    ends = (mean - 12 * deviation, mean + 12 * deviation)
    return integrate.quad(lambda f: log_prob(f) * density(f), *ends, epsabs=1e-10)[0]


CASES = {
    "gaussian": (cx.likelihoods.Gaussian(0.4), 0.7, stats.norm(0.7, 0.4).logpdf),
    "bernoulli": (cx.likelihoods.Bernoulli(), 1, lambda f: np.log(expit(f))),
    "poisson": (cx.likelihoods.Poisson(), 3.0, lambda f: 3 * f - np.exp(f) - gammaln(4)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mean, variance", [(0.3, 0.01), (-1.2, 0.8), (2.0, 2.5)])
def test_expectations(name, mean, variance):
    likelihood, y, log_prob = CASES[name]
    moments = [jnp.full((1, 1), value, jnp.float32) for value in (mean, variance)]
    target = jnp.asarray([[y]])
    got = expected_log_prob(likelihood, *moments, target, None)
    assert got[0] == pytest.approx(by_quadrature(log_prob, mean, variance), rel=2e-5, abs=1e-5)


def test_classes_are_bounded_from_below():
    generator = np.random.default_rng(1)
    mean, variance = generator.normal(size=(6, 3)), generator.uniform(0.1, 2, size=(6, 3))
    y = generator.integers(0, 3, 6)
    got = expected_log_prob(
        cx.likelihoods.Categorical(3),
        jnp.float32(mean),
        jnp.float32(variance),
        jnp.asarray(y),
        None,
    )
    rows = np.arange(6)
    want = mean[rows, y] - logsumexp(mean + variance / 2, axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    outputs = mean + np.sqrt(variance) * generator.normal(size=(20_000, 6, 3))
    values = outputs[:, rows, y] - logsumexp(outputs, axis=2)
    error = values.std(0) / np.sqrt(len(values))
    assert np.all(got < values.mean(0) + 5 * error)
    tight = expected_log_prob(
        cx.likelihoods.Categorical(3), jnp.float32(mean), jnp.zeros((6, 3)), jnp.asarray(y), None
    )
    np.testing.assert_allclose(tight, mean[rows, y] - logsumexp(mean, axis=1), rtol=1e-5, atol=1e-6)


# -- the optimum of the bound -------------------------------------------------------------------------

CLASSIFIED = {
    "categorical": (cx.likelihoods.Categorical(), CLASSES),
    "bernoulli": (cx.likelihoods.Bernoulli(), (X[:, 0] > 0).astype(int)),
    "poisson": (cx.likelihoods.Poisson(), np.round(np.exp(X[:, 0]))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIED)
def test_the_bound_is_at_its_optimum(name, x64):
    """Neither its mean nor its precision has a gradient; plain ascent from there finds nothing better."""
    likelihood, y = CLASSIFIED[name]
    model, data = cx.Model(cx.networks.linear(), cx.priors.Normal(1.5), likelihood).prepare((X, y))
    layer = Layer(model, data.x)
    (others, learned), mean = layer.split(model.init(cx.random.key(0)))
    seen = layer.rows_of((others, learned), (), data.x)
    identity = jnp.eye(4)
    last = Last(mean, jnp.broadcast_to(identity, (mean.shape[1], 4, 4)))
    for _ in range(200):
        last = renewed(model, last, seen, data.y, learned, 1.0, 0.5)
    gradient = jax.grad(lambda last: bound(model, last, seen, data.y, learned, 1.0))(last)
    assert max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(gradient)) < 1e-5
    posterior = fit(likelihood, y)
    want = layer.normal((others, learned), last, ())
    for got, leaf in zip(
        jax.tree.leaves(posterior.approximation.mean), jax.tree.leaves(want.mean), strict=True
    ):
        np.testing.assert_allclose(got, leaf, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        posterior.approximation.covariance(), want.covariance(), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("size, scale", [(10, 2.0), (1_000, 2.0), (10, 30.0)])
def test_large_counts_are_reached(size, scale):
    """Newton's first step from a mean of one would end beyond all numbers, as would a count of a wide prior."""
    y = GENERATOR.poisson(size * np.exp(0.5 * X[:, 0]))
    posterior = fit(cx.likelihoods.Poisson(), y, prior=cx.priors.Normal(scale))
    features = with_ones(X)
    weights = np.array([0.0, 0.0, 0.0, np.log(y.mean())])
    for _ in range(20):  # the mode, by iterated regressions
        means = np.exp(features @ weights)
        hessian = features.T @ (means[:, None] * features) + np.eye(4) / scale**2
        weights += np.linalg.solve(hessian, features.T @ (y - means) - weights / scale**2)
    error = np.sqrt(np.sum(features @ np.linalg.inv(hessian) * features, axis=1))
    got = np.log(posterior.predict(X).mean)
    np.testing.assert_array_less(np.abs(got - features @ weights), 0.5 * error + 1e-3)


@pytest.mark.parametrize("scale, batch_size", [(3.0, None), (10.0, 16)])
def test_counts_under_a_wide_prior(scale, batch_size):
    """The features of a network leave directions in which only the prior bounds the variance."""
    y = GENERATOR.poisson(np.exp(X[:, 0]))
    model = cx.Model(
        cx.networks.mlp([20], activation="tanh"),
        cx.priors.Normal(scale),
        cx.likelihoods.Poisson(),
    )
    method = cx.VariationalLastLayer(num_steps=300, batch_size=batch_size)
    posterior = cx.fit(model, (X, y), method, progress=False)
    assert np.isfinite(posterior.info["last_layer_elbo"])
    constant = y * np.log(y.mean()) - y.mean() - gammaln(y + 1)
    assert np.mean(posterior.predict(X).log_prob(y)) > np.mean(constant)


def test_the_first_step_on_all_rows_is_a_regression():
    """With rho = 1 and Gaussian noise, one step along the natural gradient is the exact posterior."""
    model, data = cx.Model(
        cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.5)
    ).prepare((X, Y[:, 0]))
    seen = Seen(jnp.asarray(with_ones(X), jnp.float32), jnp.zeros((len(X), 1)))
    last = Last(jnp.full((4, 1), 3.0), 7.0 * jnp.eye(4)[None])
    got = renewed(model, last, seen, data.y, None, 1.0, 1.0)
    mean, covariance = regression(with_ones(X), Y[:, 0], 0.5, np.ones(4))
    np.testing.assert_allclose(got.mean[:, 0], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.linalg.inv(got.precision[0]), covariance, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_networks_with_other_terms_after_the_last_layer():
    """A shortcut that is added to the product is part of the mean and not of the features."""

    def init(key):
        return {"w": jnp.ones((3, 1)), "c": jnp.ones((3, 1))}

    network = cx.networks.from_function(
        init, lambda p, x: jnp.tanh(x) @ p["w"] + jnp.sin(x @ p["c"])
    )
    posterior = fit(cx.likelihoods.Gaussian(0.3), Y[:, 0], network)
    slope = np.float64(posterior.approximation.mean["c"])
    rest = Y[:, 0] - np.sin(np.float64(X) @ slope)[:, 0]
    mean, covariance = regression(np.tanh(np.float64(X)), rest, 0.3, np.full(3, 1.5))
    np.testing.assert_allclose(posterior.approximation.mean["w"][:, 0], mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        posterior.approximation.covariance(), covariance, rtol=1e-3, atol=1e-6
    )


def test_refused():
    with pytest.raises(ValueError, match=r"last_layer_rate=...\) must be above 0 and at most 1"):
        cx.VariationalLastLayer(last_layer_rate=0)
    with pytest.raises(ValueError, match="needs one of the likelihoods Gaussian, Categorical"):
        fit(cx.likelihoods.StudentT(5.0, 0.3), Y[:, 0])
    with pytest.raises(ValueError, match=r"needs a normal prior .* got Laplace"):
        fit(cx.likelihoods.Gaussian(0.3), Y[:, 0], prior=cx.priors.Laplace(1.0))
    squashed = cx.networks.from_function(
        lambda key: {"w": jnp.ones((3, 1))}, lambda p, x: jnp.tanh(x @ p["w"])
    )
    with pytest.raises(ValueError, match="returns the product with its last layer's weights"):
        fit(cx.likelihoods.Gaussian(0.3), Y[:, 0], squashed)
    wide = cx.networks.mlp([20_000])
    with pytest.raises(
        ValueError, match=r"a matrix of all 20,001 weights of the last layer, 1.5 GiB"
    ):
        fit(cx.likelihoods.Gaussian(0.3), Y[:, 0], wide)
