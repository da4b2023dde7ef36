"""The noise at the mode of the weights, against marginal likelihoods computed in NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar

import credax as cx
from credax.inference import noise
from credax.inference.laplace import Laplace

# The joint modes below understate the noise on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

LIKELIHOODS = {
    "gaussian": cx.likelihoods.Gaussian(None),
    "student": cx.likelihoods.StudentT(5.0, None),
    "correlated": cx.likelihoods.MultivariateGaussian(),
}


def fit(model, data, method, **arguments):
    return cx.fit(model, data, method, progress=False, **arguments)


def two_targets(likelihood, hidden):
    """A network with two outputs at its initial weights, and its learned parameters away from zero."""
    generator = np.random.default_rng(0)
    data = generator.normal(size=(12, 3)), generator.normal(size=(12, 2))
    prior = {"layer_0/*": cx.priors.Normal(0.7, loc=0.2), "*": cx.priors.FanInNormal(1.3)}
    network = cx.networks.mlp([hidden], activation="tanh")
    model, rows = cx.Model(network, prior, LIKELIHOODS[likelihood]).prepare(data)
    params = model.init(cx.random.key(1))
    learned = {
        name: jnp.asarray(generator.normal(size=leaf.shape))
        for name, leaf in params["likelihood"].items()
    }
    return model, rows, {**params, "likelihood": learned}


def explicit(model, rows, params):
    """The Jacobians ``(row, output, weight)`` by forward differentiation, and the prior's precisions."""
    flat, unravel = jax.flatten_util.ravel_pytree(params["network"])
    jacobian = jax.jit(jax.jacfwd(lambda w: model.network.apply(unravel(w), rows.x)))(flat)
    priors = jax.tree.leaves(model.leaf_priors(params)["network"])
    leaves = jax.tree.leaves(params["network"])
    pairs = zip(priors, leaves, strict=True)
    scales = [np.full(leaf.size, prior.gaussian(leaf.shape)[1]) for prior, leaf in pairs]
    return jacobian, np.concatenate(scales) ** -2


@pytest.mark.matrix
@pytest.mark.parametrize("hidden", [1, 9])  # fewer weights than targets, and more
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_term_has_the_derivative_of_the_log_determinant(likelihood, hidden, x64):
    model, rows, params = two_targets(likelihood, hidden)
    jacobian, precision = explicit(model, rows, params)
    assert (jacobian.shape[2] > 24) == (hidden == 9)

    def posterior_precision(learned):
        information = noise.information(model.likelihood, learned, 2)
        return jnp.diag(precision) + jnp.einsum("rci,cd,rdj->ij", jacobian, information, jacobian)

    compute = jax.jit(lambda params: noise.output_spread(cx.random.key(0), model, params, (), rows))
    spread = compute(params)
    covariance = jnp.linalg.inv(posterior_precision(params["likelihood"]))
    want = jnp.einsum("rci,ij,rdj->cd", jacobian, covariance, jacobian)
    np.testing.assert_allclose(spread, want, rtol=1e-8)

    half = lambda learned: -0.5 * jnp.linalg.slogdet(posterior_precision(learned))[1]  # noqa: E731
    term = lambda learned: noise.correction(model, {**params, "likelihood": learned}, spread)  # noqa: E731
    want, got = (jax.jit(jax.grad(f))(params["likelihood"]) for f in (half, term))
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-7)


@pytest.mark.matrix
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_information_is_the_expected_curvature(likelihood, x64):
    """By integrating the squared score over y: a product of trapezoidal sums over its two components."""
    model, _, params = two_targets(likelihood, 1)
    learned = params["likelihood"]
    z = np.linspace(-60, 60, 1201)
    y = jnp.asarray(np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2))
    y = y * jnp.sqrt(model.likelihood.variance(jnp.zeros((1, 2)), learned)) / 5
    log_prob = lambda f: model.likelihood.log_prob(jnp.zeros_like(y) + f, y, learned)  # noqa: E731
    density = jnp.exp(log_prob(jnp.zeros(2)))
    score = jax.jacfwd(log_prob)(jnp.zeros(2))
    want = jnp.einsum("r,rc,rd->cd", density, score, score) / jnp.sum(density)
    got = noise.information(model.likelihood, learned, 2)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-3 * float(jnp.max(jnp.abs(got))))


def test_a_subset_of_the_rows_gives_somewhat_less(monkeypatch, x64):
    model, rows, params = two_targets("gaussian", 9)
    exact = np.diag(noise.output_spread(cx.random.key(0), model, params, (), rows))
    weights = sum(leaf.size for leaf in jax.tree.leaves(params["network"]))
    monkeypatch.setattr(noise, "ENTRIES", 8 * 2 * weights)
    keys = jax.random.split(cx.random.key(1), 200)
    part = jax.jit(jax.vmap(lambda key: noise.output_spread(key, model, params, (), rows)))(keys)
    mean = np.mean(np.diagonal(part, axis1=1, axis2=2), axis=0)
    assert np.all((mean > 0.7 * exact) & (mean < exact))


# -- linear regression, whose marginal likelihood has a closed form ----------------------------------------

PRIOR = 2.0


def line(rows=24, features=10):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(rows, features))
    return x, x @ generator.normal(size=features) + 0.4 * generator.normal(size=rows)


MODEL = cx.Model(cx.networks.linear(), cx.priors.Normal(PRIOR))


def log_marginal(log_scale, x, y):
    """log p(y, log sigma), with the weights integrated out."""
    design = np.column_stack([x, np.ones(len(x))])
    covariance = np.exp(2 * log_scale) * np.eye(len(x)) + PRIOR**2 * design @ design.T
    likelihood = stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y)
    return likelihood + stats.norm.logpdf(log_scale)


def best(function):
    return minimize_scalar(lambda v: -function(v), bounds=(-4, 2), method="bounded").x


@pytest.mark.parametrize("method", [Laplace, cx.DeepEnsemble])
def test_training_maximises_the_marginal_likelihood(method):
    x, y = line()
    want = best(lambda log_scale: log_marginal(log_scale, x, y))
    found = {}
    for choice in noise.CHOICES:
        posterior = fit(MODEL, (x, y), method(num_steps=3_000, learning_rate=0.02, noise=choice))
        found[choice] = np.mean(posterior.sample(0, 2)["likelihood"]["log_scale"])
    assert found["marginal"] == pytest.approx(want, abs=0.02)
    assert found["mode"] < want - 0.2


@pytest.mark.slow
def test_minibatches_maximise_the_marginal_likelihood():
    x, y = line()
    want = best(lambda log_scale: log_marginal(log_scale, x, y))
    posterior = fit(MODEL, (x, y), cx.SWAG(num_warmup=6_000, num_steps=8_000, batch_size=12))
    assert np.mean(posterior.approximation.mean["likelihood"]["log_scale"]) == pytest.approx(
        want, abs=0.1
    )


@pytest.mark.parametrize("features", [10, 40])  # fewer weights than rows, and more
def test_map_knows_the_noise_that_it_understates(features):
    x, y = line(features=features)
    posterior = fit(MODEL, (x, y), cx.MAP(num_steps=2_000, learning_rate=0.02))
    want = best(lambda log_scale: log_marginal(log_scale, x, y))
    assert posterior.info["marginal_noise_scale"] == pytest.approx(np.exp(want), rel=0.01)
    assert posterior.info["noise_scale"] == pytest.approx(
        np.exp(posterior.draws["likelihood"]["log_scale"].item())
    )
    [finding] = [f for f in posterior.diagnose() if "noise scale at the mode" in f.what]
    assert finding.value > 1.25


@pytest.mark.parametrize(
    "model",
    [
        cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.4)),
        cx.Model(cx.networks.linear(), cx.priors.StudentT()),
    ],
)
def test_known_noise_and_other_priors_are_left_alone(model):
    posterior = fit(model, line(), cx.MAP(num_steps=5))
    assert "marginal_noise_scale" not in posterior.info
    draws = [
        fit(model, line(), cx.DeepEnsemble(2, num_steps=5, noise=n)).draws for n in noise.CHOICES
    ]
    jax.tree.map(np.testing.assert_array_equal, *draws)


def test_enough_rows_need_no_word(x64):
    posterior = fit(MODEL, line(400, 3), cx.MAP(num_steps=1_000, learning_rate=0.02))
    assert posterior.info["marginal_noise_scale"] < 1.02 * posterior.info["noise_scale"]
    assert not list(posterior.diagnose())


# -- a network with as many weights as rows -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", [Laplace(), cx.SWAG(), cx.DeepEnsemble()])
def test_intervals_cover_where_the_joint_mode_has_fitted_the_noise(method):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1_500, 8))
    direction = generator.normal(size=8) / np.sqrt(8)
    y = np.sin(2 * x @ direction) + 0.5 * x[:, 0] * x[:, 1] + 0.3 * generator.normal(size=1_500)
    posterior = fit(cx.Model(cx.networks.mlp([50])), (x[:500], y[:500]), method)
    scores = posterior.evaluate(x[500:], y[500:])
    assert 0.82 < scores.coverage < 0.97
    joint = fit(cx.Model(cx.networks.mlp([50])), (x[:500], y[:500]), cx.MAP())
    assert joint.evaluate(x[500:], y[500:]).coverage < 0.5
    assert any("noise scale at the mode" in finding.what for finding in joint.diagnose())
