"""A posterior as a prior: the normal distribution of each approximation, against its covariance by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.posterior import approximations

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 2))
MODEL = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(None)).bind((X, X[:, 0]))
SIZE = 4
"""One noise scale, one bias and two slopes: the leaves in their order."""


def tree(vector, axes=()):
    """The parameters of the model from a vector, or from arrays with leading axes."""
    vector = np.asarray(vector, np.float64)
    return {
        "likelihood": {"log_scale": vector[..., :1]},
        "network": {
            "layer_0": {"bias": vector[..., 1:2], "kernel": vector[..., 2:].reshape(*axes, 2, 1)}
        },
    }


def flat(parts):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parts)])


def posterior(approximation):
    return cx.Posterior(MODEL, approximation, info={"num_rows": 12})


MEAN = GENERATOR.normal(size=SIZE)
SIGMA = GENERATOR.uniform(0.1, 0.6, SIZE)
FACTORS = 0.4 * GENERATOR.normal(size=(2, SIZE))
DIAGONAL = np.diag(SIGMA**2)
RHO = np.log(np.expm1(SIGMA))


def mean_field():
    return approximations.MeanField(tree(MEAN), tree(RHO)), DIAGONAL


def low_rank():
    family = approximations.LowRank(tree(MEAN), tree(RHO), tree(FACTORS, (2,)))
    return family, DIAGONAL + FACTORS.T @ FACTORS


def full_rank():
    lower = np.tril(0.3 * GENERATOR.normal(size=(SIZE, SIZE)), -1)
    factor = jnp.asarray(lower + np.diag(RHO))
    lower = lower + np.diag(SIGMA)
    return approximations.FullRank(tree(MEAN), factor), lower @ lower.T


def mixture():
    means = np.stack([MEAN - 0.3 * SIGMA, MEAN + 0.3 * SIGMA])
    scales, factors = np.stack([SIGMA, SIGMA]), np.stack([FACTORS, FACTORS])
    made = approximations.GaussianMixture(
        tree(means, (2,)), tree(scales, (2,)), tree(factors, (2, 2))
    )
    between = np.outer(0.3 * SIGMA, 0.3 * SIGMA)
    return made, DIAGONAL + FACTORS.T @ FACTORS + between


def draws():
    values = MEAN + GENERATOR.normal(size=(2, 30, SIZE)) * SIGMA
    log_weights = GENERATOR.normal(size=(2, 30))
    weights = np.exp(log_weights).reshape(-1) / np.exp(log_weights).sum()
    covariance = np.cov(values.reshape(-1, SIZE).T, aweights=weights, ddof=0)
    covariance /= 1 - np.sum(weights**2)
    return approximations.Draws(tree(values, (2, 30)), log_weights=log_weights), covariance


CASES = {each.__name__: each() for each in (mean_field, low_rank, full_rank, mixture, draws)}
STRUCTURES = [
    *[(name, "diagonal") for name in CASES],
    *(("low_rank", "low_rank"), ("mixture", "low_rank"), ("full_rank", "full"), ("draws", "full")),
]


@pytest.mark.parametrize("name, structure", STRUCTURES)
def test_the_prior_is_the_normal_with_the_same_moments(name, structure, x64):
    approximation, covariance = CASES[name]
    handed = posterior(approximation).as_prior(structure)
    centre = flat(handed.prior.weights.tree)
    if name != "draws":
        np.testing.assert_allclose(centre, MEAN[1:], rtol=1e-6)
    wanted = covariance[1:, 1:]
    wanted = np.diag(np.diag(wanted)) if structure == "diagonal" else wanted
    at = tree(MEAN + 0.3)["network"]
    by_hand = stats.multivariate_normal(centre, wanted).logpdf(MEAN[1:] + 0.3)
    np.testing.assert_allclose(
        handed.prior.log_prob(jax.tree.map(jnp.asarray, at)), by_hand, rtol=1e-6
    )
    # The noise scale, as independent of the weights.
    np.testing.assert_allclose(
        flat(handed.likelihood.scale.tree), covariance[0, 0] ** 0.5, rtol=1e-6
    )


@pytest.mark.parametrize("name, structure", [("low_rank", "low_rank"), ("full_rank", "full")])
def test_draws_from_a_correlated_prior_have_its_covariance(name, structure, x64):
    approximation, covariance = CASES[name]
    prior = posterior(approximation).as_prior(structure).prior
    like = jax.tree.map(jnp.asarray, tree(MEAN)["network"])
    keys = jax.random.split(cx.random.key(0), 4000)
    many = jax.vmap(lambda key: prior.sample(key, like))(keys)
    rows = np.concatenate([leaf.reshape(4000, -1) for leaf in jax.tree.leaves(many)], axis=1)
    whitened = np.linalg.solve(np.linalg.cholesky(covariance[1:, 1:]), (rows - MEAN[1:]).T)
    assert np.all(np.abs(whitened.mean(1)) < 4.5 / np.sqrt(4000))
    assert np.all(np.abs(np.cov(whitened) - np.eye(3)) < 4.5 * np.sqrt(2 / 4000))


def test_a_low_rank_prior_of_draws_keeps_every_variance(x64):
    approximation, covariance = CASES["draws"]
    prior = posterior(approximation).as_prior("low_rank", rank=1).prior
    like = jax.tree.map(jnp.zeros_like, jax.tree.map(jnp.asarray, tree(MEAN)["network"]))
    residual = prior.residual(like)
    columns = jax.vmap(lambda e: prior.colour(replace(residual, vector=e)))(jnp.eye(3))
    np.testing.assert_allclose(np.diag(columns.T @ columns), np.diag(covariance)[1:], rtol=2e-3)


def test_a_kronecker_prior_has_the_density_of_the_posterior(x64):
    kernel = GENERATOR.normal(size=(3, 2))
    turn = lambda n: np.linalg.qr(GENERATOR.normal(size=(n, n)))[0]  # noqa: E731
    inputs, outputs, scale = turn(3), turn(2), GENERATOR.uniform(0.2, 1, (3, 2))
    prior = cx.priors.Kronecker(
        {"a": kernel}, {"a": inputs}, {"a": outputs}, {"a": scale}, layouts=((1, 0, 1),)
    )
    # The covariance of the entries, row after row, is that of U_A (S o E) U_G'.
    root = np.kron(inputs, outputs) * scale.reshape(-1)
    at = kernel + 0.2
    by_hand = stats.multivariate_normal(kernel.reshape(-1), root @ root.T).logpdf(at.reshape(-1))
    np.testing.assert_allclose(prior.log_prob({"a": jnp.asarray(at)}), by_hand, rtol=1e-9)
    # With fewer directions than inputs, all others have the last row's standard deviations.
    short = cx.priors.Kronecker(
        {"a": kernel}, {"a": inputs[:, :2]}, {"a": outputs}, {"a": scale}, layouts=((1, 0, 1),)
    )
    np.testing.assert_allclose(short.log_prob({"a": jnp.asarray(at)}), by_hand, rtol=1e-9)


def test_around_takes_a_scale_for_each_weight():
    scale = {"a": np.float32([0.5, 2.0])}
    prior = cx.priors.Around({"a": np.float32([1.0, 2.0])}, scale)
    wanted = stats.norm([1, 2], scale["a"]).logpdf([1.3, 2.3]).sum()
    np.testing.assert_allclose(prior.log_prob({"a": jnp.float32([1.3, 2.3])}), wanted, rtol=1e-6)
    with pytest.raises(ValueError, match=r"Around\(scale=...\) must be positive at 'a'; got 0.0"):
        cx.priors.Around({"a": np.ones(2)}, {"a": np.array([1.0, 0.0])})
    with pytest.raises(ValueError, match=r"Around\(scale=...\) must have the shapes"):
        cx.priors.Around({"a": np.ones(2)}, {"a": np.ones(3)}).check({"a": np.ones(2)})


@pytest.mark.slow
def test_ordered_classes_stay_those_of_the_first_rows():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), np.arange(30) % 4
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Ordinal())
    method = cx.Laplace(structure="full", num_steps=300)
    first = cx.fit(model, (x, y), method, progress=False)
    few = y < 2  # the new rows have two of the four classes
    second = cx.fit(model, (x[few], y[few]), method, prior=first.as_prior(), progress=False)
    assert second.predict(x).probs.shape == (30, 4)
    other = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Ordinal(5))
    with pytest.raises(ValueError, match=r"Ordinal\(num_classes=...\) must be 4, as in the fit"):
        cx.fit(other, (x, y), method, prior=first.as_prior(), progress=False)
