"""Families of distributions over the weights, against scipy, closed forms and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import credax as cx
from credax.core import random
from credax.core.special import softplus, softplus_anew
from credax.posterior.approximations.families import (
    Categorical,
    FullRank,
    LowRank,
    MeanField,
    inverse_softplus,
    perturbed,
)

GAUSSIAN = ("mean_field", "low_rank", "full_rank")
SIZE = 7

every_gaussian = pytest.mark.parametrize("name", GAUSSIAN)


def tree(seed, leading=()):
    """A pytree of seven weights in two leaves, with the given leading axes."""
    generator = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(generator.normal(size=(*leading, *shape)), float)  # noqa: E731
    return {"a": draw(3), "b": draw(2, 2)}


def gaussian(name, seed=0):
    mean = tree(seed)
    rho = jax.tree.map(lambda leaf: 0.5 * leaf - 0.7, tree(seed + 1))
    if name == "mean_field":
        return MeanField(mean, rho)
    if name == "low_rank":
        factors = jax.tree.map(lambda leaf: 0.6 * leaf, tree(seed + 2, (2,)))
        return LowRank(mean, rho, factors)
    # The upper triangle is never read.
    factor = np.random.default_rng(seed + 3).normal(size=(SIZE, SIZE)) * 0.5 - 0.2
    return FullRank(mean, jnp.asarray(factor, float))


def flat(params):
    return ravel_pytree(params)[0]


def rows(stacked):
    """Stacked draws as a matrix."""
    return np.asarray(jax.vmap(flat)(stacked), np.float64)


def covariance(family):
    """The dense covariance by the definition of the family, in JAX so that it is differentiable."""
    if isinstance(family, FullRank):
        strictly = jnp.tril(family.factor, -1)
        lower = strictly + jnp.diag(jnp.log1p(jnp.exp(jnp.diagonal(family.factor))))
        return lower @ lower.T
    sigma = flat(jax.tree.map(lambda rho: jnp.log1p(jnp.exp(rho)), family.rho))
    dense = jnp.diag(sigma**2)
    if isinstance(family, LowRank):
        factors = jax.vmap(flat)(family.factors)
        dense = dense + factors.T @ factors
    return dense


def exact(family):
    dense = np.asarray(covariance(family), np.float64)
    return stats.multivariate_normal(np.asarray(flat(family.mean), np.float64), dense)


def draws(family, count, seed=0):
    return jax.jit(jax.vmap(family.draw))(jax.random.split(random.key(seed), count))


def assert_mean(samples, want, limit=4.0):
    """Check that the mean of samples along the first axis is ``want``, up to Monte Carlo error."""
    samples, want = np.asarray(samples, np.float64), np.asarray(want, np.float64)
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    difference = np.abs(samples.mean(0) - want)
    # Entries without any variance are exact up to rounding.
    assert np.all(difference <= limit * error + 1e-5 * (1 + np.abs(want)))


# -- densities ---------------------------------------------------------------------------------------


@every_gaussian
def test_log_prob_is_that_of_the_dense_normal(name, x64):
    family = gaussian(name)
    points = draws(gaussian(name, seed=10), 20)
    got = jax.jit(jax.vmap(family.log_prob))(points)
    np.testing.assert_allclose(got, exact(family).logpdf(rows(points)), rtol=1e-11)


@every_gaussian
def test_log_prob_in_single_precision(name):
    family = gaussian(name)
    points = draws(gaussian(name, seed=10), 20)
    got = jax.jit(jax.vmap(family.log_prob))(points)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact(family).logpdf(rows(points)), rtol=1e-4)


def test_the_log_probs_of_a_mean_field_add_up(x64):
    family = gaussian("mean_field")
    point = family.draw(random.key(0))
    each = family.log_probs(point)
    assert jax.tree.map(jnp.shape, each) == jax.tree.map(jnp.shape, point)
    sigma = np.log1p(np.exp(family.rho["b"]))
    want = stats.norm(family.mean["b"], sigma).logpdf(point["b"])
    np.testing.assert_allclose(each["b"], want, rtol=1e-12)
    np.testing.assert_allclose(family.log_prob(point), flat(each).sum(), rtol=1e-12)


@every_gaussian
def test_entropy(name, x64):
    family = gaussian(name)
    np.testing.assert_allclose(family.entropy(), exact(family).entropy(), rtol=1e-12)
    log_probs = jax.jit(jax.vmap(family.log_prob))(draws(family, 5_000))
    assert_mean(-log_probs, family.entropy())


@every_gaussian
def test_draws_have_the_moments(name):
    family = gaussian(name)
    mean, variance = family.moments()
    dense = np.asarray(covariance(family))
    np.testing.assert_array_equal(flat(mean), flat(family.mean))
    np.testing.assert_allclose(flat(variance), np.diagonal(dense), rtol=1e-5)
    if name == "full_rank":
        np.testing.assert_allclose(family.covariance(), dense, rtol=1e-5, atol=1e-6)
    samples = rows(draws(family, 20_000))
    assert_mean(samples, flat(mean))
    centred = samples - np.asarray(flat(mean))
    products = centred[:, :, None] * centred[:, None, :]
    assert_mean(products.reshape(len(samples), -1), dense.reshape(-1))


@every_gaussian
def test_reparameterised_gradients_of_a_quadratic(name):
    """E[w'Aw / 2 + b'w] = (m'Am + tr(A S)) / 2 + b'm, differentiated with respect to phi."""
    generator = np.random.default_rng(5)
    a = generator.normal(size=(SIZE, SIZE))
    a = jnp.asarray(a + a.T, float)
    b = jnp.asarray(generator.normal(size=SIZE), float)

    def of_draw(family, key):
        w = flat(family.draw(key))
        return 0.5 * w @ a @ w + b @ w

    def expected(family):
        mean = flat(family.mean)
        return 0.5 * (mean @ a @ mean + jnp.trace(a @ covariance(family))) + b @ mean

    family = gaussian(name)
    keys = jax.random.split(random.key(1), 20_000)
    got = jax.jit(jax.vmap(jax.grad(of_draw), in_axes=(None, 0)))(family, keys)
    want = jax.grad(expected)(family)
    for estimates, value in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_mean(estimates, value)


def test_perturbed_has_the_gradient_of_what_it_computes(x64):
    generator = np.random.default_rng(2)
    mean, rho, weight = (jnp.asarray(generator.normal(size=(4, 5))) for _ in range(3))
    rho, noise = 3 * rho - 2, random.noise(random.key(0), (4, 5))

    def ours(mean, rho, noise):
        return jnp.sum(weight * jnp.sin(perturbed(mean, softplus_anew(rho), rho, noise)))

    def plain(mean, rho, noise):
        return jnp.sum(weight * jnp.sin(mean + jnp.log1p(jnp.exp(rho)) * noise))

    given = mean, rho, noise
    np.testing.assert_allclose(ours(*given), plain(*given), rtol=1e-9)
    got, want = (jax.jit(jax.grad(f, (0, 1, 2)))(*given) for f in (ours, plain))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_softplus_anew_is_softplus(dtype, x64):
    x = jnp.linspace(-60, 60, 2_401, dtype=dtype)
    digits = {"rtol": 4 * jnp.finfo(dtype).eps}
    (value, slope), (want, want_slope) = (
        jax.jit(jax.vmap(jax.value_and_grad(f)))(x) for f in (softplus_anew, softplus)
    )
    np.testing.assert_allclose(value, want, **digits)
    np.testing.assert_allclose(slope, want_slope, **digits)


def test_an_explicit_mean_field_is_the_same_distribution(x64):
    family = gaussian("mean_field")
    weights = tree(5)

    def terms(q):
        square = jax.tree.map(lambda mean, variance: mean**3 * variance, *q.moments())
        draw = q.draw(random.key(1))
        return q.entropy(), q.log_prob(weights), square, jax.tree.map(jnp.sin, draw)

    def total(family, explicit):
        parts = terms(family.explicit() if explicit else family)
        return jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, parts))

    got, want = (jax.value_and_grad(total)(family, explicit) for explicit in (True, False))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), got, want)


def test_a_weight_without_spread_has_a_finite_gradient():
    mean, rho = jnp.ones(2), jnp.full(2, -1000.0)
    noise = jnp.asarray([-1.0, 2.0])

    def total(mean, rho):
        return jnp.sum(perturbed(mean, softplus_anew(rho), rho, noise))

    gradient = jax.grad(total, (0, 1))(mean, rho)
    np.testing.assert_array_equal(gradient[0], 1.0)
    np.testing.assert_array_equal(gradient[1], 0.0)


@pytest.mark.slow
def test_accelerators_keep_the_noise_in_half_its_bits(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    noise = random.noise(random.key(0), (4_000_000,))
    sigma = jnp.full_like(noise, np.log(2))  # softplus(0)
    weights, backward = jax.vjp(perturbed, 0 * noise, sigma, 0 * noise, noise)
    scaled = np.asarray(weights, np.float64) / np.log(2)
    used = scaled.astype(jnp.bfloat16).astype(np.float64)
    np.testing.assert_allclose(scaled, used, rtol=1e-6)
    np.testing.assert_allclose(used, noise, rtol=2**-8)
    # The effect of rounding on the mean and the variance, apart from Monte Carlo error.
    exact = np.asarray(noise, np.float64)
    assert abs(np.mean(used - exact)) < 4 * np.std(used - exact) / np.sqrt(used.size)
    assert abs(np.mean(used**2 - exact**2)) < 1e-5
    for_mean, for_sigma, for_rho, _ = backward(jnp.full_like(noise, 3.0))
    np.testing.assert_array_equal(for_mean, 3.0)
    np.testing.assert_allclose(for_sigma, 3 * used, rtol=1e-6)
    np.testing.assert_array_equal(for_rho, 0.0)


@every_gaussian
def test_mirrored_draws_lie_as_far_on_the_other_side(name, x64):
    family = gaussian(name)
    draw = family.draw(random.key(3))
    other = family.mirrored(draw)
    np.testing.assert_allclose(flat(draw) + flat(other), 2 * flat(family.mean), rtol=1e-12)
    assert np.all(flat(draw) != flat(other))
    np.testing.assert_allclose(family.log_prob(draw), family.log_prob(other), rtol=1e-12)


@every_gaussian
def test_around(name, x64):
    params, scale = tree(4), 0.25
    family = {
        "mean_field": lambda: MeanField.around(params, scale),
        "low_rank": lambda: LowRank.around(params, scale, 3, random.key(0)),
        "full_rank": lambda: FullRank.around(params, scale),
    }[name]()
    np.testing.assert_array_equal(flat(family.mean), flat(params))
    dense = np.asarray(covariance(family))
    if name == "low_rank":
        assert jax.tree.map(lambda leaf: leaf.shape[0], family.factors) == {"a": 3, "b": 3}
        directions = dense - scale**2 * np.eye(SIZE)
        assert np.linalg.matrix_rank(directions, tol=1e-9) == 3, "their symmetry is broken"
        assert np.linalg.norm(directions) < 0.2 * np.linalg.norm(dense)
    else:
        np.testing.assert_allclose(dense, scale**2 * np.eye(SIZE), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-6, 0.02, 1.0, 40.0])
def test_inverse_softplus(scale, x64):
    np.testing.assert_allclose(jax.nn.softplus(inverse_softplus(scale)), scale, rtol=1e-9)


# -- discrete weights --------------------------------------------------------------------------------

VALUES = ((-1.0, 1.0), (0.0, 0.5, 2.0))


def categorical(seed=0):
    """Two weights with two values each and one weight with three."""
    generator = np.random.default_rng(seed)
    logits = {
        "a": jnp.asarray(generator.normal(size=(2, 2)), float),
        "b": jnp.asarray(generator.normal(size=(3, 1)), float),
    }
    return Categorical(logits, VALUES)


def configurations():
    every = list(itertools.product(VALUES[0], VALUES[0], VALUES[1]))
    return {"a": jnp.asarray([e[:2] for e in every]), "b": jnp.asarray([e[2:] for e in every])}


def probabilities(family):
    a, b = (np.exp(np.asarray(family.logits[k], np.float64)) for k in "ab")
    a, b = a / a.sum(0), b / b.sum(0)
    return np.array([a[i, 0] * a[j, 1] * b[k, 0] for i in (0, 1) for j in (0, 1) for k in range(3)])


def test_categorical_by_enumeration(x64):
    family, every = categorical(), configurations()
    probs = probabilities(family)
    np.testing.assert_allclose(probs.sum(), 1)
    np.testing.assert_allclose(jax.vmap(family.log_prob)(every), np.log(probs), rtol=1e-12)
    np.testing.assert_allclose(family.entropy(), -probs @ np.log(probs), rtol=1e-12)
    mean, variance = family.moments()
    for leaf in "ab":
        first = probs @ np.asarray(every[leaf])
        second = probs @ np.asarray(every[leaf]) ** 2
        np.testing.assert_allclose(mean[leaf], first, rtol=1e-12)
        np.testing.assert_allclose(variance[leaf], second - first**2, rtol=1e-10)
    each = jax.vmap(family.log_probs)(every)
    np.testing.assert_allclose(each["a"].sum(1) + each["b"].sum(1), np.log(probs), rtol=1e-12)


def test_categorical_draws():
    family, every = categorical(), configurations()
    samples = draws(family, 20_000)
    keys, wanted = rows(samples), rows(every)
    hits = np.all(keys[:, None] == wanted[None], axis=2)
    assert np.all(hits.sum(1) == 1), "every draw is one of the values"
    assert_mean(hits, probabilities(family))


def test_a_weight_that_is_none_of_the_values_has_no_density():
    point = {"a": jnp.asarray([-1.0, 0.3]), "b": jnp.asarray([0.5])}
    assert categorical().log_prob(point) == -jnp.inf


def test_categorical_begins_at_the_prior(x64):
    first = cx.priors.Discrete((-1, 1), (0.2, 0.8))
    second = cx.priors.Discrete((0, 0.5, 2), (0.1, 0.3, 0.6))
    family = Categorical.of_priors(
        {"a": jnp.zeros(2), "b": jnp.zeros(1)}, {"a": first, "b": second}
    )
    prior = cx.priors.PerLayer({"a": first, "b": second})
    every = configurations()
    np.testing.assert_allclose(
        jax.vmap(family.log_prob)(every), jax.vmap(prior.log_prob)(every), rtol=1e-12
    )


# -- as a posterior ----------------------------------------------------------------------------------


def member(name, params):
    """A distribution of a family over some parameters, in which all numbers are different."""
    generator = np.random.default_rng(0)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    noise = lambda *leading: jax.tree.map(  # noqa: E731
        lambda leaf: np.asarray(generator.normal(size=(*leading, *leaf.shape)), leaf.dtype), params
    )
    if name == "categorical":
        return Categorical(noise(2), ((-1.0, 1.0),) * len(jax.tree.leaves(params)))
    if name == "full_rank":
        return FullRank(noise(), generator.normal(size=(size, size)).astype(np.float32))
    return (
        MeanField(noise(), noise()) if name == "mean_field" else LowRank(noise(), noise(), noise(3))
    )


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*GAUSSIAN, "categorical"])
def test_save_and_load(name, tmp_path):
    generator = np.random.default_rng(0)
    data = generator.normal(size=(6, 2)), generator.normal(size=6)
    prior = cx.priors.Discrete((-1, 1)) if name == "categorical" else cx.priors.Normal()
    model = cx.Model(cx.networks.mlp([3]), prior, cx.likelihoods.Gaussian(0.1)).bind(data)
    family = member(name, jax.eval_shape(model.init, random.key(0)))
    posterior = cx.Posterior(model, family, elbo=(-3.0, 0.1))
    posterior.save(tmp_path / "family.credax")
    loaded = cx.load(tmp_path / "family.credax")
    assert type(loaded.approximation) is type(family)
    assert jax.tree.structure(loaded.approximation) == jax.tree.structure(family)
    jax.tree.map(np.testing.assert_array_equal, loaded.approximation, family)
    jax.tree.map(np.testing.assert_array_equal, loaded.sample(0, 5), posterior.sample(0, 5))
    assert loaded.elbo == (-3.0, 0.1)


def test_samples_are_the_same_however_they_are_taken():
    family = gaussian("low_rank").with_state({"count": jnp.asarray([2.0, 3.0])})
    samples = family.samples(random.key(0), 10)
    np.testing.assert_allclose(np.exp(samples.log_weights), 0.1)
    whole = samples.take(0, 10)
    assert whole.state["count"].shape == (10, 2)
    np.testing.assert_array_equal(whole.state["count"][7], [2.0, 3.0])
    parts = [samples.take(0, 4), samples.take(4, 8), samples.take(8, 12)]
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    beyond = [*range(10), 9, 9]
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b[np.asarray(beyond)]), together, whole
    )
    assert len(np.unique(whole.params["a"])) == whole.params["a"].size
    assert family.samples(random.key(0), None).count == 100
