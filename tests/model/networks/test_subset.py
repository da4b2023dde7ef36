"""Networks of which only some weights are parameters, while the others are fixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.trees import named_leaves
from credax.core.weights import Weights, nested, shuffled

# With so few steps the posteriors are poor, and some methods warn about it.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(30, 2)).astype(np.float32) + 2
Y = np.sin(X[:, 0]).astype(np.float32)
KEY = cx.random.key(0)
WHOLE = cx.networks.mlp([4], activation="tanh", batch_norm=True)


def fit(method, network, likelihood=None, **arguments):
    likelihood = likelihood or cx.likelihoods.Gaussian(0.3)
    model = cx.Model(network, likelihood=likelihood)
    return cx.fit(model, (X, Y), method, progress=False, **arguments)


@pytest.fixture(scope="module")
def trained():
    return fit(cx.MAP(num_steps=50), WHOLE, cx.likelihoods.Gaussian(None))


@pytest.fixture(scope="module")
def last(trained):
    return cx.networks.subset(WHOLE, "layer_1/*", weights=trained)


@pytest.mark.slow
def test_the_last_layer_begins_as_the_whole_network(trained, last):
    built = last.build((2,), 1)
    params = built.init(KEY)
    assert [path for path, _ in named_leaves(params)] == ["layer_1/bias", "layer_1/kernel"]
    assert built.init_state() == ()
    whole = trained.model.network
    weights, state = jax.tree.map(
        lambda leaf: leaf[0, 0], (trained.draws["network"], trained.approximation.state)
    )
    wanted = whole.apply(weights, X, state)
    np.testing.assert_array_equal(built.apply(params, X), wanted)
    outputs, kept = built.call(params, X, state=(), key=KEY, train=True)
    np.testing.assert_array_equal(outputs, wanted)  # the statistics are fixed also in training
    assert kept == ()
    moved = jax.tree.map(lambda leaf: 2 * leaf, params)
    np.testing.assert_allclose(built.apply(moved, X), 2 * wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_posterior_of_the_last_layer_is_the_exact_one(last):
    """If all other weights are fixed, the model is linear and its posterior is known."""
    built = last.build((2,), 1)
    weights = jnp.eye(5)
    basis = [built.apply({"layer_1": {"kernel": w[:4, None], "bias": w[4:]}}, X) for w in weights]
    features = np.concatenate(basis, 1).astype(np.float64)
    precision = features.T @ features / 0.3**2 + np.eye(5)
    mean = np.linalg.solve(precision, features.T @ Y / 0.3**2)
    posterior = fit(cx.Laplace(structure="full", num_steps=2000), last)
    draws = posterior.sample(1, 20_000)["layer_1"]
    got = np.concatenate([draws["kernel"][..., 0], draws["bias"]], 1).astype(np.float64)
    covariance = np.linalg.inv(precision)
    error = np.sqrt(np.diag(covariance) / len(got))
    assert np.all(np.abs(got.mean(0) - mean) < 5 * error + 1e-3)
    np.testing.assert_allclose(np.cov(got.T), covariance, atol=0.05 * np.diag(covariance).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        cx.HMC(chains=2, num_warmup=20, num_draws=20),
        cx.BayesByBackprop(num_steps=20, estimator="flipout"),
        cx.BayesByBackprop(num_steps=20, estimator="local"),
        cx.MCDropout(num_steps=20),
        cx.SWAG(num_warmup=4, num_steps=20, thin=2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_family_fits(method, last):
    """Also methods that accept no batch statistics, or only trained ones: a subset keeps them fixed."""
    predictive = fit(method, last).predict(X[:4])
    assert np.all(np.isfinite(predictive.mean))
    assert np.all(predictive.epistemic > 0)


def test_equal_by_value_and_saved_whole(last, trained, tmp_path):
    again = cx.networks.subset(WHOLE, "layer_1/*", weights=trained)
    assert again == last
    assert hash(again) == hash(last)
    other = jax.tree.map(lambda leaf: leaf[0, 0] + 1, trained.draws["network"])
    assert cx.networks.subset(WHOLE, "layer_1/*", weights=other) != last
    posterior = fit(cx.MAP(num_steps=5), last)
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax")
    assert loaded.model == posterior.model
    np.testing.assert_array_equal(loaded.predict(X).mean, posterior.predict(X).mean)


def test_a_second_fit_compiles_nothing(last, trained, compilations):
    fit(cx.MAP(num_steps=5), last)
    with compilations() as count:
        fit(cx.MAP(num_steps=5), cx.networks.subset(WHOLE, "layer_1/*", weights=trained))
    assert count() == 0


def test_prior_patterns_name_the_same_paths(last):
    prior = {"layer_1/kernel": cx.priors.Normal(0.5), "*": cx.priors.Normal(2.0)}
    cx.Model(last, prior).bind((X, Y))
    with pytest.raises(ValueError, match="'layer_0/kernel' matches none"):
        cx.Model(last, {"layer_0/kernel": cx.priors.Normal(), **prior}).bind((X, Y))


def test_refused(trained):
    subset = cx.networks.subset
    with pytest.raises(TypeError, match=r"subset\(network=...\) must be a network"):
        subset(3, "*")
    with pytest.raises(TypeError, match=r"subset\(bayesian=...\) must be one or more"):
        subset(WHOLE, ())
    with pytest.raises(ValueError, match=r"subset\(weights=...\) must be a posterior or a pytree"):
        subset(WHOLE, "layer_1/*")
    with pytest.raises(ValueError, match=r"'layer_9/.' matches none. Similar paths: 'layer_"):
        subset(WHOLE, "layer_9/*", weights=trained).build((2,), 1)
    with pytest.raises(
        ValueError,
        match=r"subset\(weights=...\) must have the paths and shapes of the network's weights",
    ):
        subset(cx.networks.mlp([5]), "layer_1/*", weights=trained).build((2,), 1)


@pytest.mark.slow
def test_several_draws_are_refused():
    several = fit(cx.DeepEnsemble(members=2, num_steps=1), WHOLE)
    with pytest.raises(ValueError, match="must be a posterior of one draw"):
        cx.networks.subset(WHOLE, "layer_1/*", weights=several)


def test_weights_are_equal_by_their_bits():
    tree = {"a": np.arange(3.0), "b": {"c": np.ones((2, 2), np.float32)}}
    one = Weights.of(tree)
    tree["a"][0] = 7  # the weights hold a copy
    assert one.arrays["a"][0] == 0
    assert one != Weights.of(tree)
    tree["a"][0] = 0
    assert one == Weights.of(tree)
    assert one != Weights.of({"a": tree["a"], "b": {"d": tree["b"]["c"]}})
    assert one != Weights.of({"a": tree["a"].reshape(3, 1), "b": tree["b"]})
    assert one.tree["b"]["c"].dtype == jnp.result_type(float)
    assert nested(one.arrays)["b"]["c"] is one.arrays["b/c"]


def test_shuffled_keeps_the_values_of_each_array():
    tree = {"a": jnp.arange(50.0).reshape(5, 10), "b": jnp.zeros(3)}
    new = shuffled(KEY, tree)
    assert np.any(new["a"] != tree["a"])
    np.testing.assert_array_equal(np.sort(new["a"], None), np.arange(50))
    np.testing.assert_array_equal(new["b"], 0)


# -- the rest trained along ------------------------------------------------------------------------

PLAIN = cx.networks.mlp([4], activation="tanh")
ALONG = cx.networks.subset(PLAIN, "layer_1/*", rest="trained")


@pytest.mark.slow
def test_the_rest_is_a_point_that_is_trained_along(tmp_path):
    posterior = fit(cx.BayesByBackprop(num_steps=300, learning_rate=0.03), ALONG)
    draws = posterior.sample(cx.random.key(1), 5)
    for path, leaf in named_leaves(draws):
        assert bool(np.ptp(leaf, axis=0).max() > 0) == path.startswith("layer_1")
    start = PLAIN.build((2,), 1).init(KEY)
    assert not np.allclose(draws["layer_0"]["kernel"][0], start["layer_0"]["kernel"], atol=0.01)
    assert np.mean((posterior.predict(X).mean - Y) ** 2) < 0.25 * np.var(Y)
    assert posterior.elbo is None
    assert np.all(np.isfinite(posterior.info["elbo"]))
    posterior.save(tmp_path / "along.credax")
    again = cx.load(tmp_path / "along.credax")
    assert again.model.network.bayesian == ("layer_1/*",)
    np.testing.assert_array_equal(again.predict(X).mean, posterior.predict(X).mean)


def test_with_a_trained_rest_the_last_layer_is_its_exact_posterior():
    """Given the point estimate of the rest, the model is linear, and q has known optimal moments."""
    method = cx.BayesByBackprop(
        num_steps=4_000, learning_rate=0.02, kl_annealing=0, samples=4, antithetic=True
    )
    posterior = fit(method, ALONG)
    family = posterior.approximation
    hidden = np.tanh(X @ family.mean["layer_0"]["kernel"] + family.mean["layer_0"]["bias"])
    features = np.concatenate([hidden, np.ones((len(X), 1))], axis=1)
    precision = features.T @ features / 0.3**2 + np.eye(features.shape[1])
    mean = np.linalg.solve(precision, features.T @ Y / 0.3**2)
    found = np.append(family.mean["layer_1"]["kernel"].ravel(), family.mean["layer_1"]["bias"])
    np.testing.assert_allclose(features @ found, features @ mean, atol=0.03)
    # The best independent Gaussians have the diagonal of the precision.
    sigma = family.sigma["layer_1"]
    sigma = np.append(np.ravel(sigma["kernel"]), np.ravel(sigma["bias"]))
    np.testing.assert_allclose(sigma, 1 / np.sqrt(np.diag(precision)), rtol=0.1)


def test_a_point_method_trains_all_weights():
    along, whole = (fit(cx.MAP(num_steps=20), network) for network in (ALONG, PLAIN))
    jax.tree.map(np.testing.assert_array_equal, along.draws, whole.draws)


@pytest.mark.parametrize(
    "method, match",
    [
        (cx.NUTS(), "NUTS cannot train the rest"),
        (cx.IVON(), "IVON cannot train the rest"),
        (cx.DeepEnsemble(), "rest='first'"),
        (cx.BayesByBackprop(family="low_rank"), r"family=.*mean_field"),
        (cx.BayesByBackprop(estimator="local"), 'estimator=.*"weight"'),
    ],
)
def test_what_cannot_train_the_rest_along(method, match):
    with pytest.raises(ValueError, match=match):
        fit(method, ALONG)


def test_no_learned_prior_where_the_rest_is_a_point():
    model = cx.Model(
        ALONG, prior=cx.priors.LearnedNormal(), likelihood=cx.likelihoods.Gaussian(0.3)
    )
    with pytest.raises(ValueError, match="given scale"):
        cx.fit(model, (X, Y), cx.BayesByBackprop(), progress=False)


def test_weights_are_not_given_where_the_rest_is_trained():
    with pytest.raises(ValueError, match=r"weights=.*rest='trained'"):
        cx.networks.subset(PLAIN, "layer_1/*", weights={"a": np.ones(1)}, rest="trained")
