"""Likelihoods against scipy.stats: densities, moments, distribution functions, draws, messages."""
# Some tests pass wrong arguments on purpose.
# pyright: reportArgumentType=false

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from credax.model import likelihoods, priors

COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
GENERATOR = np.random.default_rng(0)
OUTPUTS = GENERATOR.normal(size=(6, 2))
TARGETS = OUTPUTS + GENERATOR.normal(size=(6, 2)) * 3
SOFTPLUS = np.logaddexp(OUTPUTS[:, 1:], 0) + 1e-3

# The likelihood, its learned parameters, the targets, and the scipy distribution of each target.
REGRESSIONS = {
    "gaussian": (likelihoods.Gaussian(0.7), None, TARGETS, stats.norm(OUTPUTS, 0.7)),
    "gaussian per target": (
        likelihoods.Gaussian((0.7, 2.0)),
        None,
        TARGETS,
        stats.norm(OUTPUTS, [0.7, 2.0]),
    ),
    "gaussian learned": (
        likelihoods.Gaussian(None),
        {"log_scale": np.array([0.3, -1.0])},
        TARGETS,
        stats.norm(OUTPUTS, np.exp([0.3, -1.0])),
    ),
    "heteroscedastic": (
        likelihoods.Heteroscedastic(),
        None,
        TARGETS[:, :1],
        stats.norm(OUTPUTS[:, :1], SOFTPLUS),
    ),
    "student": (likelihoods.StudentT(3.5, 0.7), None, TARGETS, stats.t(3.5, OUTPUTS, 0.7)),
    "student learned": (
        likelihoods.StudentT(50.0, None),
        {"log_scale": np.array([0.3, -1.0])},
        TARGETS,
        stats.t(50.0, OUTPUTS, np.exp([0.3, -1.0])),
    ),
    "poisson": (
        likelihoods.Poisson(),
        None,
        np.floor(np.abs(TARGETS)),
        stats.poisson(np.exp(OUTPUTS)),
    ),
}
FACTOR = np.array([[math.exp(0.2), 0.0], [0.7, math.exp(-0.4)]])
MULTIVARIATE = {
    "known": (likelihoods.MultivariateGaussian(COVARIANCE), None, COVARIANCE),
    "learned": (
        likelihoods.MultivariateGaussian(),
        {"log_diagonal": np.array([0.2, -0.4]), "lower": np.array([0.7])},
        FACTOR @ FACTOR.T,
    ),
}
EVERY = [
    likelihoods.Gaussian(),
    likelihoods.Gaussian(None),
    likelihoods.Heteroscedastic(),
    likelihoods.MultivariateGaussian(),
    likelihoods.MultivariateGaussian(COVARIANCE),
    likelihoods.StudentT(),
    likelihoods.StudentT(scale=None),
    likelihoods.Categorical(2),
    likelihoods.Bernoulli(),
    likelihoods.Poisson(),
]
PRECISIONS = pytest.mark.parametrize("x64, rtol", [(True, 1e-10), (False, 1e-5)])
regressions = pytest.mark.parametrize("case", REGRESSIONS.values(), ids=REGRESSIONS)
multivariate = pytest.mark.parametrize("case", MULTIVARIATE.values(), ids=MULTIVARIATE)
every = pytest.mark.parametrize("likelihood", EVERY, ids=str)


def arrays(*trees):
    return [jax.tree.map(jnp.asarray, tree) for tree in trees]


def assert_within(draws, expected, standard_deviation):
    """Check that the mean of the draws is within four standard errors of its expectation."""
    error = np.abs(np.mean(draws, axis=0) - expected)
    assert np.all(error < 4 * standard_deviation / math.sqrt(len(draws)))


# -- Regression and counts ------------------------------------------------------------------------


@pytest.mark.matrix
@PRECISIONS
@regressions
def test_log_prob_moments_and_cdf(case, x64, rtol):
    likelihood, params, targets, reference = case
    log_density = getattr(reference, "logpmf" if likelihood.task == "count" else "logpdf")
    with jax.enable_x64(x64):
        outputs, y, params = arrays(OUTPUTS, targets, params)
        log_prob = likelihood.log_prob(outputs, y, params)
        assert log_prob.dtype == outputs.dtype
        assert not log_prob.weak_type
        np.testing.assert_allclose(log_prob, log_density(targets).sum(-1), rtol)
        np.testing.assert_allclose(likelihood.mean(outputs, params), reference.mean(), rtol)
        variance = likelihood.variance(outputs, params)
        np.testing.assert_allclose(variance, reference.var(), rtol)
        assert variance.shape == y.shape
        cdf = likelihood.cdf(outputs, y, params)
        np.testing.assert_allclose(cdf, reference.cdf(targets), rtol=rtol, atol=rtol / 10)
        scalar = likelihood.cdf(outputs, 0.5, params)
        np.testing.assert_allclose(scalar, reference.cdf(0.5), rtol=rtol, atol=rtol / 10)


@PRECISIONS
@multivariate
def test_multivariate_gaussian(case, x64, rtol):
    likelihood, params, covariance = case
    residuals = TARGETS - OUTPUTS
    with jax.enable_x64(x64):
        outputs, y, params = arrays(OUTPUTS, TARGETS, params)
        expected = stats.multivariate_normal.logpdf(residuals, cov=covariance)
        np.testing.assert_allclose(likelihood.log_prob(outputs, y, params), expected, rtol)
        np.testing.assert_array_equal(likelihood.mean(outputs, params), outputs)
        variance = likelihood.variance(outputs, params)
        np.testing.assert_allclose(variance, np.tile(np.diag(covariance), (6, 1)), rtol)
        marginal = stats.norm.cdf(residuals, scale=np.sqrt(np.diag(covariance)))
        np.testing.assert_allclose(likelihood.cdf(outputs, y, params), marginal, rtol, rtol / 10)


@regressions
def test_draws_have_the_moments(case):
    likelihood, params, targets, reference = case
    outputs, params = arrays(np.tile(OUTPUTS, (5000, 1)), params)
    draws = likelihood.sample(jax.random.key(0), outputs, params)
    assert draws.shape == (30_000, targets.shape[1])
    assert draws.dtype == outputs.dtype
    draws = np.asarray(draws, float).reshape(5000, *targets.shape)
    assert_within(draws, reference.mean(), reference.std())
    # Frequencies rather than the sample variance, which has no standard error under StudentT(3.5).
    below = reference.cdf(targets)
    assert_within(draws <= targets, below, np.sqrt(below * (1 - below)) + 1e-2)


@multivariate
def test_multivariate_draws_have_the_covariance(case):
    likelihood, params, covariance = case
    outputs, params = arrays(np.zeros((20_000, 2)), params)
    draws = np.asarray(likelihood.sample(jax.random.key(1), outputs, params), float)
    products = draws[:, :, None] * draws[:, None, :]
    diagonal = np.diag(covariance)
    assert_within(products, covariance, np.sqrt(np.outer(diagonal, diagonal) + covariance**2))
    assert_within(draws, 0, np.sqrt(diagonal))


@regressions
def test_one_target_may_have_one_axis(case):
    likelihood, params, targets, _ = case
    if likelihood == likelihoods.Gaussian((0.7, 2.0)):
        likelihood = likelihoods.Gaussian((0.7,))
    columns = 2 if isinstance(likelihood, likelihoods.Heteroscedastic) else 1
    params = {name: value[:1] for name, value in params.items()} if params else None
    outputs, y, params = arrays(OUTPUTS[:, :columns], targets[:, :1], params)
    flat = y[:, 0]
    for method in (likelihood.log_prob, likelihood.cdf):
        np.testing.assert_array_equal(method(outputs, flat, params), method(outputs, y, params))


def test_outputs_and_targets_never_broadcast():
    outputs = jnp.zeros((4, 3))
    for likelihood in (likelihoods.Gaussian(), likelihoods.Bernoulli(), likelihoods.Poisson()):
        with pytest.raises(ValueError, match="needs y in the shape of the outputs' targets"):
            likelihood.log_prob(outputs, jnp.zeros(4))
        with pytest.raises(ValueError, match="needs y in the shape of the outputs' targets"):
            likelihood.log_prob(jnp.zeros(4), jnp.zeros(4))


# -- Classification -------------------------------------------------------------------------------


@PRECISIONS
def test_categorical(x64, rtol):
    logits = GENERATOR.normal(size=(5, 4)) * 3
    labels = np.array([0, 3, 2, 1, 0])
    probs = special.softmax(logits, axis=-1)
    likelihood = likelihoods.Categorical(4)
    with jax.enable_x64(x64):
        outputs, y = arrays(logits, labels)
        log_prob = likelihood.log_prob(outputs, y)
        np.testing.assert_allclose(log_prob, np.log(probs[np.arange(5), labels]), rtol)
        np.testing.assert_array_equal(likelihood.log_prob(outputs, y[:, None]), log_prob)
        np.testing.assert_allclose(likelihood.probs(outputs), probs, rtol)
        np.testing.assert_allclose(likelihood.mean(outputs), probs, rtol)
        np.testing.assert_allclose(likelihood.variance(outputs), probs * (1 - probs), rtol)
        np.testing.assert_allclose(
            likelihood.entropy(outputs), stats.entropy(probs, axis=-1), rtol, atol=rtol / 10
        )
        draws = likelihood.sample(jax.random.key(0), jnp.broadcast_to(outputs[:1], (5000, 4)))
        assert draws.shape == (5000,)
        assert draws.dtype == jnp.int32
        indicators = np.asarray(draws)[:, None] == np.arange(4)
        assert_within(indicators, probs[0], np.sqrt(probs[0] * (1 - probs[0])) + 1e-3)


@PRECISIONS
def test_bernoulli(x64, rtol):
    logits = np.array([[-3.0], [0.0], [0.2], [5.0]])
    labels = np.array([0, 1, 0, 1])
    probs = special.expit(logits[:, 0])
    both = np.stack([1 - probs, probs], axis=-1)
    likelihood = likelihoods.Bernoulli()
    with jax.enable_x64(x64):
        outputs, y = arrays(logits, labels)
        expected = stats.bernoulli.logpmf(labels, probs)
        for targets in (y, y[:, None], y == 1, y.astype(outputs.dtype)):
            np.testing.assert_allclose(likelihood.log_prob(outputs, targets), expected, rtol)
        np.testing.assert_allclose(likelihood.mean(outputs)[:, 0], probs, rtol)
        np.testing.assert_allclose(likelihood.variance(outputs)[:, 0], probs * (1 - probs), rtol)
        np.testing.assert_allclose(likelihood.probs(outputs), both, rtol)
        entropy = likelihood.entropy(outputs)
        np.testing.assert_allclose(entropy, stats.entropy(both, axis=-1), rtol)
        draws = likelihood.sample(jax.random.key(0), jnp.broadcast_to(outputs[2:3], (5000, 1)))
        assert draws.shape == (5000,)
        assert draws.dtype == jnp.int32
        assert_within(np.asarray(draws), probs[2], 0.5)


def test_bernoulli_with_several_labels():
    logits, labels = jnp.asarray([[-1.0, 2.0], [0.5, 0.0]]), jnp.asarray([[0, 1], [1, 1]])
    probs = special.expit(np.asarray(logits, float))
    likelihood = likelihoods.Bernoulli()
    np.testing.assert_allclose(
        likelihood.log_prob(logits, labels),
        stats.bernoulli.logpmf(np.asarray(labels), probs).sum(-1),
        rtol=1e-5,
    )
    entropy = stats.bernoulli.entropy(probs).sum(-1)
    np.testing.assert_allclose(likelihood.entropy(logits), entropy, rtol=1e-5)
    assert likelihood.sample(jax.random.key(0), logits).shape == (2, 2)
    with pytest.raises(ValueError, match=r"Bernoulli.probs needs one target; got 2. Use mean"):
        likelihood.probs(logits)


def test_two_classes_agree():
    # Bernoulli with logit l is the same as Categorical with logits (0, l).
    logits, y = jnp.asarray([[-2.0], [0.1], [30.0]]), jnp.asarray([1, 0, 0])
    pairs = jnp.concatenate([jnp.zeros_like(logits), logits], axis=-1)
    bernoulli, categorical = likelihoods.Bernoulli(), likelihoods.Categorical(2)
    for one, two in (
        (bernoulli.log_prob(logits, y), categorical.log_prob(pairs, y)),
        (bernoulli.probs(logits), categorical.probs(pairs)),
        (bernoulli.entropy(logits), categorical.entropy(pairs)),
    ):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-12)


# -- Extreme values -------------------------------------------------------------------------------


@pytest.mark.slow
def test_classes_at_saturation():
    logits = np.array([-1e30, -1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4, 1e30])
    one = jnp.asarray(logits[:, None], jnp.float32)
    pair = jnp.concatenate([jnp.zeros_like(one), one], axis=-1)
    # For a large logit, the smaller probability is about exp(-|logit|), and must not become zero because the
    # larger one rounds to one. The softmax cannot do so well: its error is the rounding error of one.
    for likelihood, outputs, atol in (
        (likelihoods.Bernoulli(), one, 1e-30),
        (likelihoods.Categorical(2), pair, 1e-8),
    ):
        entropy = likelihood.entropy(outputs)
        expected = stats.bernoulli.entropy(special.expit(-np.abs(logits)))
        np.testing.assert_allclose(entropy, expected, rtol=1e-4, atol=atol)
        slope = jax.grad(lambda f, c=likelihood: c.entropy(f).sum())(outputs)
        assert jnp.all(jnp.isfinite(slope))
        for label in (0, 1):
            y = jnp.full(logits.shape, label, jnp.int32)
            log_prob = likelihood.log_prob(outputs, y)
            expected = -np.logaddexp(0, -logits if label else logits)
            np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=atol)
            slope = jax.grad(lambda f, c=likelihood, y=y: c.log_prob(f, y).sum())(outputs)
            assert jnp.all(jnp.isfinite(slope))
        np.testing.assert_allclose(likelihood.probs(outputs).sum(-1), np.ones(9), rtol=1e-6)


def test_entropy_of_a_class_that_is_ruled_out():
    logits = jnp.asarray([[0.0, 0.0, -jnp.inf]])
    value, slope = jax.value_and_grad(lambda f: likelihoods.Categorical(3).entropy(f).sum())(logits)
    np.testing.assert_allclose(value, math.log(2), rtol=1e-6)
    assert not jnp.any(jnp.isnan(slope))


@pytest.mark.parametrize(
    "likelihood",
    [
        likelihoods.Gaussian(),
        likelihoods.StudentT(),
        likelihoods.MultivariateGaussian(COVARIANCE),
        likelihoods.Heteroscedastic(),
    ],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_regressions_at_extreme_outputs(likelihood):
    column = jnp.asarray([-1e4, -200.0, -50.0, 0.0, 50.0, 1e4], jnp.float32)
    outputs = jnp.stack([column, column], axis=-1)
    y = jnp.ones((6, 1 if isinstance(likelihood, likelihoods.Heteroscedastic) else 2))
    slope = jax.grad(lambda f: likelihood.log_prob(f, y).sum())(outputs)
    for array in (slope, likelihood.log_prob(outputs, y), likelihood.variance(outputs)):
        assert jnp.all(jnp.isfinite(array))


def test_poisson_at_extreme_outputs():
    outputs, y = np.meshgrid([-1e4, -50.0, 0.0, 50.0, 80.0], [0.0, 1.0, 1e6])
    outputs, y = (jnp.asarray(array.reshape(-1, 1), jnp.float32) for array in (outputs, y))
    assert jnp.all(jnp.isfinite(likelihoods.Poisson().log_prob(outputs, y)))
    score = jax.grad(lambda f: likelihoods.Poisson().log_prob(f, y).sum())(outputs)
    expected = np.asarray(y, float) - np.exp(np.asarray(outputs, float))
    np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-6)


def test_poisson_overflow_is_minus_infinity_not_nan():
    outputs = jnp.full((2, 1), 100.0, jnp.float32)
    value, slope = jax.value_and_grad(
        lambda f: likelihoods.Poisson().log_prob(f, jnp.asarray([0.0, 7.0])).sum()
    )(outputs)
    assert value == -jnp.inf
    assert jnp.all(slope == -jnp.inf)


# -- Learned parameters ---------------------------------------------------------------------------


@pytest.mark.matrix
@every
def test_init_and_learned_agree(likelihood):
    params = likelihood.init(2)
    assert likelihood.learned == (params is not None)
    for leaf in jax.tree.leaves(params):
        assert leaf.dtype == jnp.result_type(float)
        assert not leaf.weak_type
    assert likelihood.log_prior(params).shape == ()
    outputs, y = jnp.zeros((4, 2)), jnp.zeros((4, 2))
    if isinstance(likelihood, likelihoods.Heteroscedastic | likelihoods.Categorical):
        y = y[:, :1]
    assert likelihood.log_prob(outputs, y, params).shape == (4,)
    if likelihood.learned:
        with pytest.raises(ValueError, match=r"=None\) has learned parameters: pass params="):
            likelihood.log_prob(outputs, y)
        gradient = jax.grad(lambda p: likelihood.log_prob(outputs, y, p).sum())(params)
        assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_priors_of_learned_parameters():
    for likelihood in (
        likelihoods.Gaussian(None, priors.Normal(0.5, -1.0)),
        likelihoods.StudentT(scale=None, scale_prior=priors.Normal(0.5, -1.0)),
    ):
        log_prior = likelihood.log_prior({"log_scale": jnp.asarray([0.0, -2.0])})
        np.testing.assert_allclose(
            log_prior, stats.norm.logpdf([0.0, -2.0], -1.0, 0.5).sum(), rtol=1e-6
        )
    params = {"log_diagonal": jnp.asarray([0.1, 0.2]), "lower": jnp.asarray([0.3])}
    np.testing.assert_allclose(
        likelihoods.MultivariateGaussian().log_prior(params),
        stats.norm.logpdf([0.1, 0.2, 0.3]).sum(),
        rtol=1e-6,
    )
    assert likelihoods.Gaussian(1.0).log_prior(None) == 0


def test_learned_factor_is_row_by_row():
    likelihood = likelihoods.MultivariateGaussian()
    params = {"log_diagonal": jnp.zeros(3), "lower": jnp.asarray([1.0, 2.0, 3.0])}
    factor = np.array([[1.0, 0, 0], [1, 1, 0], [2, 3, 1]])
    outputs, y = jnp.zeros((1, 3)), jnp.asarray([[0.5, -1.0, 2.0]])
    expected = stats.multivariate_normal.logpdf(np.asarray(y), cov=factor @ factor.T)
    np.testing.assert_allclose(likelihood.log_prob(outputs, y, params)[0], expected, rtol=1e-5)


# -- Targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "likelihood, y, expected",
    [
        (likelihoods.Gaussian(), np.array([1, 2]), np.array([1.0, 2.0])),
        (likelihoods.Gaussian(), np.array([[1.5], [2.0]]), np.array([[1.5], [2.0]])),
        (likelihoods.StudentT(), np.array([True, False]), np.array([1.0, 0.0])),
        (likelihoods.Categorical(), np.array([0.0, 2.0, 1.0]), np.array([0, 2, 1])),
        (likelihoods.Categorical(), np.array([[1], [0]]), np.array([1, 0])),
        (likelihoods.Categorical(), np.array([True, False]), np.array([1, 0])),
        (likelihoods.Categorical(5), np.array([4, 4], np.uint8), np.array([4, 4])),
        (likelihoods.Bernoulli(), np.array([True, False]), np.array([1, 0])),
        (likelihoods.Bernoulli(), np.array([[0.0, 1.0]]), np.array([[0, 1]])),
        (likelihoods.Poisson(), np.array([0, 7]), np.array([0.0, 7.0])),
        (likelihoods.Poisson(), np.array([True, False]), np.array([1.0, 0.0])),
    ],
)
@pytest.mark.parametrize("x64", [True, False])
def test_check_targets(likelihood, y, expected, x64):
    with jax.enable_x64(x64):
        checked = likelihood.check_targets(y)
        whole = likelihood.task == "classification"
        assert checked.dtype == (np.int32 if whole else jnp.result_type(float))
        np.testing.assert_array_equal(checked, expected)


@pytest.mark.parametrize(
    "likelihood, y, message",
    [
        (
            likelihoods.Gaussian(),
            np.ones((2, 3, 4)),
            "(rows, targets) for Gaussian; got (2, 3, 4).",
        ),
        (likelihoods.Gaussian(), np.ones(()), "y must have shape (rows,) or (rows, targets)"),
        (likelihoods.Heteroscedastic(), np.ones((2, 0)), "for Heteroscedastic; got (2, 0)."),
        (likelihoods.Gaussian(), np.array([1.0, -1e300]), "y must fit float32: rescale it"),
        (likelihoods.Categorical(), np.ones((3, 2)), "(rows,) for Categorical; got (3, 2)."),
        (likelihoods.Categorical(), np.array([0, 2, 5]), "got labels 0, 2, 5. Relabel them"),
        (likelihoods.Categorical(), np.array([1, 2]), "got labels 1, 2."),
        (likelihoods.Categorical(), np.array([-1, 0, 1]), "got labels -1, 0, 1."),
        (likelihoods.Categorical(), np.array([0.5, 1.0]), "got labels 0.5, 1."),
        (likelihoods.Categorical(), np.array([True, True]), "got labels 1."),
        (likelihoods.Categorical(), np.arange(1, 30), "got labels 1, 2, 3, 4, 5, 6, 7, 8, ...."),
        (likelihoods.Categorical(3), np.array([0, 3]), "whole numbers from 0 to 2 for Categorical"),
        (likelihoods.Categorical(3), np.array([-1, 2]), "got labels -1, 2."),
        (likelihoods.Categorical(3), np.array([0.5, 2]), "got labels 0.5, 2."),
        (likelihoods.Bernoulli(), np.array([0, 1, 2]), "only 0 and 1 for Bernoulli(); got 2."),
        (likelihoods.Bernoulli(), np.array([0.0, 0.3]), "only 0 and 1 for Bernoulli(); got 0.3."),
        (likelihoods.Bernoulli(), np.ones((1, 1, 1)), "for Bernoulli; got (1, 1, 1)."),
        (likelihoods.Poisson(), np.array([1, -2]), "at least 0, for Poisson(); got -2."),
        (likelihoods.Poisson(), np.array([1.5]), "at least 0, for Poisson(); got 1.5."),
    ],
)
def test_check_targets_messages(likelihood, y, message):
    with jax.enable_x64(False), pytest.raises(ValueError, match=re.escape(message)):
        likelihood.check_targets(y)


def test_bind_and_num_outputs():
    flat, wide = np.zeros(4), np.zeros((4, 3))
    for likelihood in (likelihoods.Gaussian(), likelihoods.Poisson(), likelihoods.StudentT()):
        assert likelihood.bind(wide) is likelihood
        assert (likelihood.num_outputs(flat), likelihood.num_outputs(wide)) == (1, 3)
    heteroscedastic = likelihoods.Heteroscedastic()
    assert (heteroscedastic.num_outputs(flat), heteroscedastic.num_outputs(wide)) == (2, 6)
    assert likelihoods.MultivariateGaussian().bind(wide).num_outputs(wide) == 3
    labels = np.array([0, 2, 1])
    assert likelihoods.Categorical().num_outputs(labels) == 3
    bound = likelihoods.Categorical().bind(labels)
    assert bound == likelihoods.Categorical(3)
    # Once bound, new targets need not contain every class.
    np.testing.assert_array_equal(bound.check_targets(np.array([1])), [1])
    assert likelihoods.Categorical(7).bind(labels).num_outputs(labels) == 7


@pytest.mark.parametrize(
    "likelihood, y, message",
    [
        (likelihoods.Gaussian((1, 2)), np.zeros((4, 3)), "Gaussian(scale=...) must be one number"),
        (likelihoods.StudentT(scale=(1, 2)), np.zeros(4), "each of the 1 targets of y; got (1.0,"),
        (likelihoods.MultivariateGaussian(), np.zeros(4), "(rows, targets) for MultivariateG"),
        (likelihoods.MultivariateGaussian(COVARIANCE), np.zeros((4, 3)), "must be 3 by 3, for the"),
    ],
)
def test_bind_messages(likelihood, y, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        likelihood.bind(y)


# -- Settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: likelihoods.Gaussian(-1.0), ValueError, "Gaussian(scale=...) must be positive"),
        (lambda: likelihoods.Gaussian((1, 0)), ValueError, "Gaussian(scale=...) must be positive"),
        (
            lambda: likelihoods.Gaussian(()),
            ValueError,
            "must be one positive number for each target",
        ),
        (lambda: likelihoods.Gaussian("1"), TypeError, "Gaussian(scale=...) must be a positive"),
        (
            lambda: likelihoods.Gaussian(None, 1.0),
            TypeError,
            "Gaussian(scale_prior=...) must be a continuous prior",
        ),
        (
            lambda: likelihoods.StudentT(scale=None, scale_prior=priors.Discrete([0, 1])),
            TypeError,
            "StudentT(scale_prior=...) must be a continuous prior",
        ),
        (lambda: likelihoods.StudentT(2.0), ValueError, "StudentT(df=...) must be above 2"),
        (lambda: likelihoods.StudentT(scale=0), ValueError, "StudentT(scale=...) must be positive"),
        (
            lambda: likelihoods.Heteroscedastic(0),
            ValueError,
            "Heteroscedastic(min_scale=...) must be positive; got 0.",
        ),
        (
            lambda: likelihoods.MultivariateGaussian([[1, 2], [2, 1]]),
            ValueError,
            "must be a symmetric positive definite matrix; got [[1, 2], [2, 1]].",
        ),
        (lambda: likelihoods.MultivariateGaussian([[1, 0.5], [0, 1]]), ValueError, "symmetric"),
        (lambda: likelihoods.MultivariateGaussian([[1, 0]]), ValueError, "symmetric"),
        (lambda: likelihoods.MultivariateGaussian([[math.nan]]), ValueError, "symmetric"),
        (lambda: likelihoods.MultivariateGaussian(np.zeros((0, 0))), ValueError, "symmetric"),
        (lambda: likelihoods.MultivariateGaussian(2.0), ValueError, "symmetric"),
        (lambda: likelihoods.MultivariateGaussian("ab"), TypeError, "symmetric"),
        (
            lambda: likelihoods.MultivariateGaussian(factor_prior="normal"),
            TypeError,
            "MultivariateGaussian(factor_prior=...) must be a continuous prior",
        ),
        (
            lambda: likelihoods.Categorical(1),
            ValueError,
            "Categorical(num_classes=...) must be a whole number, at least 2; got 1.",
        ),
        (lambda: likelihoods.Categorical(2.5), TypeError, "Categorical(num_classes=...)"),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_what_a_task_does_not_have_is_refused():
    outputs = jnp.zeros((2, 2))
    for likelihood in EVERY:
        if likelihood.task == "classification":
            with pytest.raises(TypeError, match="has no cdf: classes have no order"):
                likelihood.cdf(outputs, 0.0)
        else:
            for method in (likelihood.probs, likelihood.entropy):
                with pytest.raises(TypeError, match="its targets are not classes"):
                    method(outputs)


def test_settings_hash_and_compare_by_value():
    for make in (
        lambda: likelihoods.Gaussian([1, 2]),
        lambda: likelihoods.Gaussian(np.array([1.0, 2.0])),
        lambda: likelihoods.Gaussian((1.0, 2.0)),
    ):
        assert make() == likelihoods.Gaussian((1, 2))
        assert hash(make()) == hash(make())
    assert likelihoods.Gaussian(1) == likelihoods.Gaussian(np.float32(1)) != likelihoods.Gaussian(2)
    one, two = (
        likelihoods.MultivariateGaussian(matrix) for matrix in (COVARIANCE, [[1, 0.6], [0.6, 2]])
    )
    assert one == two
    assert hash(one) == hash(two)
    assert len({*EVERY, *EVERY}) == len(EVERY)
    assert [likelihood.task for likelihood in EVERY[-3:]] == [
        "classification",
        "classification",
        "count",
    ]


@pytest.mark.matrix
@every
def test_likelihoods_compile_as_static_arguments(likelihood):
    # Settings that were Python or NumPy scalars must not cause weak types or a second trace.
    outputs, y = jnp.zeros((4, 2)), jnp.zeros((4, 2))
    if isinstance(likelihood, likelihoods.Heteroscedastic | likelihoods.Categorical):
        y = y[:, :1]
    compiled = jax.jit(lambda c, f, y, p: c.log_prob(f, y, p), static_argnums=0)
    result = compiled(likelihood, outputs, y, likelihood.init(2))
    assert result.shape == (4,)
    assert not result.weak_type
    draw = likelihood.sample(jax.random.key(0), outputs, likelihood.init(2))
    assert not draw.weak_type
