"""Importance sampling against closed forms, sums by hand and its own repeated runs."""

import itertools
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import (
    correlated,
    exact_predictive,
    gaussian,
    linear_regression,
    logistic_regression,
)
from scipy import stats
from scipy.special import logsumexp

import credax as cx
from credax.core import random
from credax.core.trees import Flat
from credax.inference.montecarlo.importance import (
    AroundMode,
    ImportanceSampling,
    around_mode,
    expectation,
    log_mean,
    smooth_tail,
)
from credax.model.networks.network import AbstractNetwork
from credax.posterior.approximations import Approximation, Draws
from credax.posterior.approximations.families import Categorical, FullRank, MeanField
from credax.storage.describe import describe_or_name

# Small runs and bad proposals are what these tests are about: the warning is checked where it belongs.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

LIMIT = 4.0


def fit(target, method, **arguments):
    arguments = {"progress": False, **arguments}
    return cx.fit(target.model, target.data, method, **arguments)


def line():
    """Few rows, so that even the prior is a fair proposal."""
    return linear_regression(rows=4, features=1)


def vector(params):
    """The weights of the linear targets as one vector: the bias, then the slopes."""
    return jnp.concatenate([params["bias"], params["slope"][:, 0]])


@cache
def variational(dtype):
    """A posterior with a density: a normal distribution of the truth's mean and of 1.3 times its width."""
    target = line()
    mean = jnp.asarray(target.mean)
    params = {"bias": mean[:1], "slope": mean[1:, None]}
    lower = jnp.asarray(1.3 * np.linalg.cholesky(target.covariance))
    diagonal = jnp.log(jnp.expm1(jnp.diagonal(lower)))
    family = FullRank(params, jnp.tril(lower, -1) + jnp.diag(diagonal))
    return cx.Posterior(target.model.bind(target.data), family)


def proposal(name):
    return variational(jnp.result_type(float)) if name == "variational" else name


@cache
def cached_fit(name, dtype, **settings):
    draws = 60_000 if name == "prior" else 20_000
    return fit(line(), ImportanceSampling(draws, proposal(name), smooth=False, **settings))


def fitted(name, **settings):
    return cached_fit(name, jnp.result_type(float), **settings)


# -- conjugate regression ---------------------------------------------------------------------------


def check_moments(posterior, target):
    """Mean, covariance and evidence within their standard errors, which are small enough to tell."""
    mean, error = expectation(posterior, vector)
    assert np.all(error < 0.04 * target.sd)
    assert np.all(np.abs(mean - target.mean) < LIMIT * error)
    truth = jnp.asarray(target.mean)
    product = lambda w: jnp.outer(vector(w) - truth, vector(w) - truth)  # noqa: E731
    covariance, error = expectation(posterior, product)
    assert np.all(np.diag(error) < 0.08 * target.sd**2)
    assert np.all(np.abs(covariance - target.covariance) < LIMIT * error)


@pytest.mark.parametrize(
    "name", ["prior", pytest.param("map", marks=pytest.mark.slow), "variational"]
)
def test_linear_regression(name):
    posterior, target = fitted(name), line()
    check_moments(posterior, target)
    value, error = posterior.log_evidence
    assert 0 < error < 0.04
    assert abs(value - target.log_evidence) < LIMIT * error
    x = np.array([[-1.0], [0.0], [2.0]])
    mean, epistemic = exact_predictive(target, x)
    predictive = posterior.predict(x)
    size = posterior.info["effective_sample_size"]
    assert np.all(np.abs(predictive.mean - mean) < 4 * np.sqrt(epistemic / size))
    # Of a normal variable the squared deviation has the relative variance 2.
    np.testing.assert_allclose(predictive.epistemic, epistemic, rtol=4 * math.sqrt(2 / size))
    assert posterior.info["pareto_k"] < (4 if name == "prior" else 0.5)
    assert posterior.draws["slope"].shape == (*posterior.log_weights.shape, 1, 1)


def test_a_posterior_that_is_not_normal():
    target = logistic_regression()
    posterior = fit(target, ImportanceSampling())
    mean, error = expectation(posterior, vector)
    assert np.all(np.abs(mean - target.mean) < LIMIT * error)
    value, error = posterior.log_evidence
    assert error < 0.02
    assert abs(value - target.log_evidence) < LIMIT * error
    assert posterior.info["effective_sample_size"] > 5_000


@pytest.mark.slow
def test_double_precision(x64):
    """A normal distribution of the right mean and width is the posterior: all weights are the evidence."""
    posterior, target = fitted("map", df=None), line()
    check_moments(posterior, target)
    np.testing.assert_allclose(posterior.log_weights, target.log_evidence, atol=1e-9)
    assert posterior.log_evidence == pytest.approx((target.log_evidence, 0), abs=1e-9)
    assert {leaf.dtype for leaf in jax.tree.leaves(posterior.draws)} == {np.dtype(np.float64)}
    assert posterior.info["log_joint"].dtype == np.float64


def test_the_weights_are_the_ratio_of_joint_and_proposal():
    """By hand from the draws, for each proposal."""
    target, (x, y) = line(), line().data
    for name in ("prior", "map", "variational"):
        posterior = fitted(name)
        draws = target.quantities(posterior.draws)[0].astype(np.float64)
        outputs = draws[:, :1] + draws[:, 1:] @ x.T
        log_joint = stats.norm(outputs, 0.5).logpdf(y).sum(1) + stats.norm(0, 1.5).logpdf(
            draws
        ).sum(1)
        mean, covariance = target.mean, target.covariance
        log_proposal = {
            "prior": stats.norm(0, 1.5).logpdf(draws).sum(1),
            "map": stats.multivariate_t(mean, covariance, 5).logpdf(draws),
            "variational": stats.multivariate_normal(mean, 1.69 * covariance).logpdf(draws),
        }[name]
        ratio = log_joint - log_proposal
        np.testing.assert_allclose(posterior.log_weights[0], ratio, atol=2e-4, rtol=1e-5)


# -- plain and self-normalised ----------------------------------------------------------------------


def by_hand(weights, values, self_normalised):
    log_weights = np.log(np.asarray(weights, np.float64))
    draws = Draws({"w": np.asarray(values, np.float32)[None]}, (), log_weights[None])
    density = cx.LogDensity(lambda key: {"w": jnp.zeros(2)}, lambda params: jnp.sum(params["w"]))
    return cx.Posterior(density, draws, info={"self_normalised": self_normalised})


def test_both_formulas_on_given_draws():
    weights = [0.5, 2.0, 1.0, 0.25]
    values = [[1.0, 0.0], [3.0, -1.0], [2.0, 5.0], [-4.0, 2.0]]
    first = lambda params: params["w"] ** 2  # noqa: E731
    plain, plain_error = expectation(by_hand(weights, values, False), first)
    terms = np.array([[0.5, 0.0], [18.0, 2.0], [4.0, 25.0], [4.0, 1.0]])
    np.testing.assert_allclose(plain, terms.sum(0) / 4)
    np.testing.assert_allclose(plain_error, terms.std(0, ddof=1) / 2)
    mean, error = expectation(by_hand(weights, values, True), first)
    np.testing.assert_allclose(mean, terms.sum(0) / 3.75)
    shares = np.array(weights)[:, None] / 3.75
    np.testing.assert_allclose(
        error, np.sqrt(np.sum((shares * (np.square(values) - mean)) ** 2, axis=0))
    )
    number, _ = expectation(by_hand(weights, values, True), lambda params: 7)
    assert number == pytest.approx(7)


def test_a_normalised_density_allows_the_plain_estimate():
    target = correlated()
    # Narrower than the density, so that the largest weights would be smoothed.
    method = ImportanceSampling(20_000, self_normalised=False, df=None, inflation=0.9)
    posterior = fit(target, method)
    value, error = posterior.log_evidence
    assert abs(value) < LIMIT * error
    total, error = expectation(posterior, lambda w: jnp.ones(()))
    assert error > 0  # plain weights do not add up to one, but for chance
    assert total == pytest.approx(np.exp(value))
    mean, error = expectation(posterior, lambda w: w)
    assert np.all(np.abs(mean - target.mean) < LIMIT * error)
    weights = np.exp(posterior.log_weights[0])
    np.testing.assert_allclose(mean, (weights[:, None] * posterior.draws[0]).mean(0), rtol=1e-5)
    # Not a weight is changed, for that would bias the mean.
    draws = posterior.draws[0].astype(np.float64)
    density = stats.multivariate_normal(target.mean, target.covariance).logpdf(draws)
    proposal = stats.multivariate_normal(target.mean, 0.81 * target.covariance).logpdf(draws)
    np.testing.assert_allclose(posterior.log_weights[0], density - proposal, atol=1e-4)
    assert np.abs(smooth_tail(density - proposal)[0] - (density - proposal)).max() > 0.01


def test_expectation_is_for_weighted_draws():
    point = cx.Posterior(line().model, Draws({"w": np.zeros((1, 3, 2))}))
    with pytest.raises(TypeError, match=r"expectation\(posterior=...\) must be a posterior by Imp"):
        expectation(point, lambda params: 0.0)


# -- the evidence and its standard error ------------------------------------------------------------


def test_log_mean():
    log_weights = np.log([1.0, 2.0, 3.0, 6.0]) - 1000
    value, error = log_mean(log_weights)
    assert value == pytest.approx(math.log(3) - 1000)
    assert error == pytest.approx(np.std([1, 2, 3, 6], ddof=1) / 2 / 3)
    assert log_mean(np.array([0.0, -np.inf]))[0] == pytest.approx(-math.log(2))
    assert log_mean(np.zeros(1)) is None
    with pytest.raises(
        ValueError, match=r"missed the posterior: its density is zero at all 3 draws"
    ):
        log_mean(np.full(3, -np.inf))


def check_calibrated(values, errors, truth):
    """The errors have the size that they claim: chi square on as many runs."""
    runs = len(values)
    z = (np.asarray(values) - truth) / errors
    assert abs(z.mean()) < LIMIT / math.sqrt(runs)
    assert 1e-4 < stats.chi2.sf(np.sum((z - z.mean()) ** 2), runs - 1) < 1 - 1e-4


def test_the_standard_error_is_calibrated():
    """On log-normal weights, whose mean is known."""
    generator = np.random.default_rng(0)
    runs = [log_mean(generator.normal(-0.125, 0.5, size=1_000)) for _ in range(500)]
    check_calibrated(*np.transpose(runs), 0.0)


@pytest.mark.slow
def test_the_standard_error_is_calibrated_over_runs():
    method = ImportanceSampling(1_000, "prior")
    runs = [fit(line(), method, key=key).log_evidence for key in range(60)]
    check_calibrated(*np.transpose(runs), line().log_evidence)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prior", "map", "variational"])
def test_the_standard_error_is_calibrated_over_many_runs(name):
    method = ImportanceSampling(2_000, proposal(name), num_warmup=100)
    runs = [fit(line(), method, key=key) for key in range(200)]
    check_calibrated(*np.transpose([run.log_evidence for run in runs]), line().log_evidence)
    means, errors = zip(*(expectation(run, vector) for run in runs), strict=True)
    for i in range(2):
        check_calibrated(np.array(means)[:, i], np.array(errors)[:, i], line().mean[i])


# -- a proposal that misses -------------------------------------------------------------------------


def narrow(target, location, scale):
    """A proposal of one width around one place, for all weights."""
    bound = target.model.bind(target.data)
    params = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, location, leaf.dtype),
        jax.eval_shape(bound.init, jax.random.key(0)),
    )
    return cx.Posterior(bound, MeanField.around(params, scale))


@pytest.mark.parametrize(
    "location, scale", [(0.3, 0.02), pytest.param(4.0, 0.3, marks=pytest.mark.slow)]
)
def test_a_proposal_that_misses_is_told(location, scale):
    """Elsewhere, or too narrow: the evidence is off by many of its errors, and the weights show why."""
    target = line()
    posterior = fit(target, ImportanceSampling(proposal=narrow(target, location, scale)))
    value, error = posterior.log_evidence
    assert value < target.log_evidence - 4 * error
    assert posterior.info["pareto_k"] > 0.7
    assert posterior.info["effective_sample_size"] < 500


@pytest.mark.slow
def test_a_prior_far_from_the_posterior_is_told():
    target = linear_regression(rows=30, features=3)
    posterior = fit(target, ImportanceSampling(2_000, "prior"))
    assert posterior.info["pareto_k"] > 0.7
    assert posterior.info["effective_sample_size"] < 50


def test_draws_outside_the_support_weigh_nothing():
    """A quarter normal distribution, whose log density is -inf elsewhere."""

    def log_joint(w):
        inside = jnp.all(w > 0)
        return jnp.where(inside, -0.5 * jnp.sum(w**2), -jnp.inf)

    density = cx.LogDensity(lambda key: jnp.ones(2), log_joint)
    family = MeanField.around(jnp.zeros(2), 1.5)
    method = ImportanceSampling(20_000, cx.Posterior(density, family))
    posterior = cx.fit(density, None, method, progress=False)
    value, error = posterior.log_evidence
    assert abs(value - math.log(2 * math.pi / 4)) < LIMIT * error
    outside = ~np.all(posterior.draws[0] > 0, axis=1)
    assert np.all(posterior.log_weights[0, outside] == -np.inf)
    assert 0.7 < outside.mean() < 0.8
    mean, error = expectation(posterior, lambda w: w)
    assert np.all(np.abs(mean - math.sqrt(2 / math.pi)) < LIMIT * error)
    assert np.all(np.isfinite(posterior.info["log_joint"]))


@pytest.mark.slow
def test_a_proposal_wholly_outside_is_refused():
    density = cx.LogDensity(lambda key: jnp.ones(1), lambda w: jnp.where(w[0] > 0, -w[0], -jnp.inf))
    far = cx.Posterior(density, MeanField.around(jnp.full(1, -50.0), 0.1))
    with pytest.raises(ValueError, match="missed the posterior"):
        cx.fit(density, None, ImportanceSampling(200, far), progress=False)


# -- the tail of the weights ------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9, 1.5])
def test_k_of_pareto_weights(k):
    uniform = np.random.default_rng(0).uniform(size=100_000)
    log_weights = -k * np.log(uniform)
    assert smooth_tail(log_weights)[1] == pytest.approx(k, abs=0.12)
    assert smooth_tail(log_weights - 5_000)[1] == pytest.approx(k, abs=0.12)


def test_smoothing_puts_quantiles_in_place_of_the_largest():
    log_weights = -0.6 * np.log(np.random.default_rng(1).uniform(size=10_000)) + 7
    smoothed, _ = smooth_tail(log_weights)
    order = np.argsort(log_weights)
    tail = 300
    np.testing.assert_array_equal(smoothed[order[:-tail]], log_weights[order[:-tail]])
    assert np.all(np.diff(smoothed[order]) >= 0)
    assert np.all(smoothed <= log_weights.max())
    # Quantiles of the true tail, above the largest of the others.
    levels = (np.arange(tail) + 0.5) / tail
    truth = log_weights[order[-tail - 1]] - 0.6 * np.log(1 - levels)
    np.testing.assert_allclose(smoothed[order[-tail:]][: tail // 2], truth[: tail // 2], atol=0.05)
    np.testing.assert_allclose(smoothed[order[-tail:-5]], truth[:-5], atol=0.8)


def test_smoothing_lowers_the_error_of_the_mean():
    """With k = 0.6 the variance is infinite: over runs, smoothed means lie closer to the truth."""
    generator = np.random.default_rng(2)
    errors = []
    for _ in range(300):
        log_weights = -0.6 * np.log(generator.uniform(size=500))
        estimates = [np.exp(lw).mean() for lw in (log_weights, smooth_tail(log_weights)[0])]
        errors.append(np.abs(np.array(estimates) - 2.5))
    plain, smoothed = np.sqrt(np.mean(np.square(errors), axis=0))
    assert smoothed < plain


@pytest.mark.parametrize(
    "log_weights, k",
    [
        (np.zeros(1_000), 0.0),
        (np.repeat([-3.0, 0.0], [500, 500]), 0.0),
        (np.repeat([-1.0, 0.0], [950, 50]), 50 / 94),  # Hill: ties make a fit impossible
        (np.linspace(-1e5, 0.0, 1_000), 29.8),
        (np.concatenate([np.full(999, -np.inf), [3.0]]), 700 / 94),
    ],
)
def test_tails_that_no_pareto_distribution_fits(log_weights, k):
    smoothed, got = smooth_tail(log_weights)
    assert got == pytest.approx(k, rel=0.05)
    assert math.isfinite(got)
    np.testing.assert_array_equal(smoothed, log_weights)


@pytest.mark.parametrize("count, known", [(1, False), (24, False), (25, True)])
def test_few_draws_have_no_tail(count, known):
    log_weights = np.random.default_rng(0).normal(size=count)
    smoothed, k = smooth_tail(log_weights)
    assert (k is not None) == known
    if not known:
        np.testing.assert_array_equal(smoothed, log_weights)


# -- the proposal around a mode ---------------------------------------------------------------------

CENTRE = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.2]])


def around(df, inflation=1.0, start=(0.0, 0.0, 0.0)) -> AroundMode:
    """Of a normal density, whose mode one Newton step finds from anywhere."""
    target = gaussian(CENTRE, COVARIANCE)
    point = Flat.of({"a": jnp.asarray(start[:1]), "b": jnp.asarray(start[1:])})
    log_joint = lambda flat: target.model.log_joint(flat.vector)  # noqa: E731
    return around_mode(log_joint, point, (), df, inflation, width=2)


@pytest.mark.parametrize("df", [None, 4])
def test_density_of_the_proposal(df, x64):
    proposal = around(df, inflation=1.5)
    np.testing.assert_allclose(proposal.mode.vector, CENTRE, atol=1e-9)
    points = np.random.default_rng(0).normal(size=(20, 3)) * 3
    got = [proposal.log_prob({"a": jnp.asarray(w[:1]), "b": jnp.asarray(w[1:])}) for w in points]
    shape = 2.25 * COVARIANCE
    exact = (
        stats.multivariate_normal(CENTRE, shape)
        if df is None
        else stats.multivariate_t(CENTRE, shape, df)
    )
    np.testing.assert_allclose(got, exact.logpdf(points), rtol=1e-9)


@pytest.mark.parametrize("df", [None, 12])
def test_draws_of_the_proposal(df):
    count = 40_000
    draw = around(df).sample(random.key(0), count)
    vectors = np.concatenate([draw.params["a"], draw.params["b"]], axis=1).astype(np.float64)
    whitened = np.linalg.solve(np.linalg.cholesky(COVARIANCE), (vectors - CENTRE).T)
    marginal = stats.norm() if df is None else stats.t(df)
    for row in whitened:
        assert stats.kstest(row, marginal.cdf).pvalue > 1e-4
    # One divisor for all weights of a draw: their squares are correlated in a Student t.
    square = np.sum(whitened**2, axis=0)
    radial = stats.chi2(3) if df is None else stats.f(3, df, scale=3)
    assert stats.kstest(square, radial.cdf).pvalue > 1e-4


def test_a_direction_that_is_not_concave_gets_a_width():
    """Two wells with the start on the saddle between them, where the curvature has the wrong sign."""

    def log_joint(w):
        return -2 * (w[0] ** 2 - 1) ** 2 - 0.5 * w[1] ** 2

    density = cx.LogDensity(lambda key: jnp.zeros(2), log_joint)
    method = ImportanceSampling(20_000, num_warmup=0, inflation=2.0)
    posterior = cx.fit(density, None, method, progress=False)
    assert posterior.info["effective_sample_size"] > 5_000
    grid = np.linspace(-4, 4, 4001)
    mass = np.exp(-2 * (grid**2 - 1) ** 2)
    (square, other), (error, other_error) = expectation(posterior, lambda w: w**2)
    assert abs(square - (mass @ grid**2) / mass.sum()) < LIMIT * error
    assert abs(other - 1) < LIMIT * other_error
    evidence = np.log(mass.sum() * (grid[1] - grid[0])) + 0.5 * math.log(2 * math.pi)
    value, error = posterior.log_evidence
    assert abs(value - evidence) < LIMIT * error


@pytest.mark.slow
def test_a_start_takes_the_place_of_the_warm_up():
    target = logistic_regression()
    mean = target.mean.astype(np.float32)
    near = {"bias": mean[None, None, :1], "slope": mean[None, None, 1:, None]}
    mode = cx.Posterior(target.model.bind(target.data), Draws(near))
    posterior = fit(target, ImportanceSampling(2_000, num_warmup=0), start=mode)
    assert posterior.info["steps"] == 100
    assert posterior.info["effective_sample_size"] > 1_000
    value, error = posterior.log_evidence
    assert abs(value - target.log_evidence) < LIMIT * error


# -- discrete weights -------------------------------------------------------------------------------

DISCRETE_X = np.random.default_rng(0).normal(size=(8, 3))
DISCRETE_Y = DISCRETE_X @ [1.0, -1.0, 1.0] + np.random.default_rng(1).normal(size=8)


@cache
def discrete():
    prior = cx.priors.Discrete([-1, 1], [0.3, 0.7])
    model = cx.Model(cx.networks.mlp([]), prior, cx.likelihoods.Gaussian(2.0))
    return model, (DISCRETE_X, DISCRETE_Y)


def test_discrete_weights_against_the_exact_sum():
    model, data = discrete()
    states = np.array(list(itertools.product([-1.0, 1.0], repeat=4)))  # the bias, then the slopes
    outputs = states[:, :1] + states[:, 1:] @ DISCRETE_X.T
    log_joint = stats.norm(outputs, 2.0).logpdf(DISCRETE_Y).sum(1)
    log_joint += np.where(states > 0, math.log(0.7), math.log(0.3)).sum(1)
    evidence = logsumexp(log_joint)
    weights = np.exp(log_joint - evidence)
    mean = weights @ outputs
    epistemic = weights @ (outputs - mean) ** 2
    bound = model.bind(data)
    params = bound.init(random.key(0))
    family = Categorical.of_priors(params, bound.leaf_priors(params))
    flat = Categorical(jax.tree.map(lambda logits: 0.5 * logits, family.logits), family.values)
    for proposal in ("prior", cx.Posterior(bound, flat)):
        posterior = cx.fit(model, data, ImportanceSampling(proposal=proposal), progress=False)
        value, error = posterior.log_evidence
        assert abs(value - evidence) < LIMIT * error
        assert error < 0.02
        size = posterior.info["effective_sample_size"]
        got = posterior.predict(DISCRETE_X).mean
        assert np.all(np.abs(got - mean) < LIMIT * np.sqrt(epistemic / size))


# -- the run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_draws, steps", [(1, 1), (250, 84)])
def test_as_many_draws_as_asked(num_draws, steps):
    """250 draws are 84 blocks of 3, of which the last has one to spare."""
    posterior = fit(line(), ImportanceSampling(num_draws, "prior"))
    assert posterior.info["steps"] == steps
    assert posterior.log_weights.shape == (1, num_draws)
    assert posterior.draws["bias"].shape == (1, num_draws, 1)
    assert np.all(np.isfinite(posterior.log_weights))
    assert (posterior.log_evidence is None) == (num_draws == 1)
    assert ("pareto_k" in posterior.info) == (num_draws > 1)
    assert len(np.unique(posterior.draws["bias"])) == num_draws
    effective = posterior.info["effective_draws"][0, -1]
    raw = weights_by_hand(posterior)
    smoothed, k = smooth_tail(raw)
    np.testing.assert_allclose(posterior.log_weights[0], smoothed, rtol=1e-3)
    if num_draws > 1:
        assert posterior.info["pareto_k"] == pytest.approx(k, rel=1e-3)
        assert np.abs(smoothed - raw).max() > 0.01
    assert effective == pytest.approx(np.exp(raw).sum() ** 2 / np.exp(2 * raw).sum(), rel=1e-3)


def weights_by_hand(posterior):
    """The log likelihood of each draw, which is its weight under the prior as proposal."""
    draws = line().quantities(posterior.draws)[0].astype(np.float64)
    x, y = line().data
    return stats.norm(draws[:, :1] + draws[:, 1:] @ x.T, 0.5).logpdf(y).sum(1)


@pytest.mark.slow
def test_bits_depend_on_the_key_alone():
    method = ImportanceSampling(300, num_warmup=20)
    runs = [fit(line(), method, chunk_steps=steps) for steps in (None, 1, 7)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.log_weights, runs[0].log_weights)
        np.testing.assert_array_equal(run.draws["slope"], runs[0].draws["slope"])
    other = fit(line(), method, key=1)
    assert not np.any(other.draws["slope"] == runs[0].draws["slope"])


def test_no_two_draws_share_their_noise(x64):
    """Whitened, the draws of all blocks are independent standard normals."""
    posterior = fitted("map", df=None)
    draws = line().quantities(posterior.draws)[0].astype(np.float64)
    white = np.linalg.solve(np.linalg.cholesky(line().covariance), (draws - line().mean).T)
    assert len(np.unique(white[0])) > 19_990
    for row in white:
        assert stats.kstest(row, "norm").pvalue > 1e-4
    lag = 200  # draws a block
    assert abs(np.corrcoef(white[0, lag:], white[0, :-lag])[0, 1]) < 4 / math.sqrt(20_000)
    assert abs(np.corrcoef(white)[0, 1]) < 4 / math.sqrt(20_000)


def test_a_second_fit_compiles_nothing(compilations):
    method = ImportanceSampling(300, num_warmup=20)
    x, y = line().data
    fit(line(), method)
    with compilations() as count:
        cx.fit(line().model, (x[::-1], y), method, key=5, progress=False)
    assert count() == 0


def test_a_run_that_ends_early():
    method = ImportanceSampling(300, num_warmup=20)
    stop = lambda step: [lambda event: event.step == step]  # noqa: E731
    posterior = fit(line(), method, callbacks=stop(30), chunk_steps=1)
    whole = fit(line(), method)
    assert posterior.log_weights.shape == (1, 30)
    np.testing.assert_array_equal(posterior.draws["slope"], whole.draws["slope"][:, :30])
    with pytest.raises(ValueError, match="no draws: the run ended in its warm-up, of 20 steps"):
        fit(line(), method, callbacks=stop(20), chunk_steps=1)


def test_info():
    posterior = fit(line(), ImportanceSampling(300, num_warmup=20))
    info = posterior.info
    assert info["log_joint"].shape == info["effective_draws"].shape == (1, 120)
    assert np.all(np.isfinite(info["log_joint"]))
    assert np.all(info["effective_draws"][0, :20] == 0)
    assert np.all(np.diff(info["effective_draws"][0, 20:]) > 0)
    assert info["effective_draws"][0, -1] > 200
    assert isinstance(info["pareto_k"], float)
    assert isinstance(info["effective_sample_size"], float)


def test_saved_and_loaded(tmp_path):
    for name in ("map", "variational"):
        posterior = fitted(name)
        posterior.save(tmp_path / "posterior.credax")
        loaded = cx.load(tmp_path / "posterior.credax", line().model.network)
        np.testing.assert_array_equal(loaded.log_weights, posterior.log_weights)
        assert loaded.log_evidence == posterior.log_evidence
        scalars = {k: v for k, v in posterior.info.items() if np.ndim(v) == 0}
        assert {k: v for k, v in loaded.info.items() if np.ndim(v) == 0} == scalars
        assert {"pareto_k", "effective_sample_size"} <= set(scalars)
        assert loaded.method == describe_or_name(posterior.method)
        np.testing.assert_array_equal(
            expectation(loaded, vector)[0], expectation(posterior, vector)[0]
        )
    described = loaded.method["proposal"]
    assert described["type"] == "Posterior"
    assert described["approximation"]["type"] == "FullRank"


@pytest.mark.slow
def test_resumed_from_a_checkpoint_it_ends_with_the_same_bits(tmp_path):
    for name in ("map", "variational"):
        method = ImportanceSampling(300, proposal(name), num_warmup=20)
        whole = fit(line(), method)
        stop = method.num_steps - 50
        fit(
            line(),
            method,
            checkpoint=tmp_path / name,
            chunk_steps=5,
            callbacks=[lambda event, stop=stop: event.step >= stop],
        )
        resumed = fit(line(), method, checkpoint=tmp_path / name)
        np.testing.assert_array_equal(resumed.log_weights, whole.log_weights)
        np.testing.assert_array_equal(resumed.draws["slope"], whole.draws["slope"])


def test_a_method_with_a_posterior_is_a_value():
    one, other = proposal("variational"), narrow(line(), 0.0, 1.0)
    assert ImportanceSampling(10, one) == ImportanceSampling(10, one)
    assert hash(ImportanceSampling(10, one)) == hash(ImportanceSampling(10, one))
    assert ImportanceSampling(10, one) != ImportanceSampling(10, other)


@pytest.mark.slow
def test_a_posterior_by_variational_inference_is_a_proposal():
    target = logistic_regression()
    family = fit(target, cx.BayesByBackprop(num_steps=500, family="full_rank", learning_rate=0.03))
    posterior = fit(target, ImportanceSampling(5_000, family))
    value, error = posterior.log_evidence
    assert abs(value - target.log_evidence) < LIMIT * error
    assert value > family.elbo[0]
    assert posterior.info["effective_sample_size"] > 1_000


class Centred(AbstractNetwork):
    """A line through the mean of the inputs, which training finds and keeps as state."""

    def init(self, key):
        return {"bias": jnp.zeros(1), "slope": jnp.zeros((1, 1))}

    def init_state(self):
        return {"mean": jnp.zeros(1)}

    def call(self, params, x, *, state, key, train):
        state = {"mean": jnp.mean(x, axis=0)} if train else state
        return (x - state["mean"]) @ params["slope"] + params["bias"], state


@pytest.mark.slow
@pytest.mark.parametrize("name", ["map", "prior"])
def test_a_network_that_carries_state(name):
    """The draws are weighed, and predict, with the state that they came with."""
    x, y = line().data
    model = cx.Model(Centred(), cx.priors.Normal(1.5), cx.likelihoods.Gaussian(0.5))
    method = ImportanceSampling(30_000, name, num_warmup=100)
    posterior = cx.fit(model, (x, y), method, progress=False)
    centre = x.mean() if name == "map" else 0.0
    assert posterior.approximation.state["mean"].shape == (1, 30_000, 1)
    np.testing.assert_allclose(posterior.approximation.state["mean"], centre, rtol=1e-5)
    design = np.column_stack([np.ones(len(x)), x - centre])
    marginal = stats.multivariate_normal(np.zeros(4), 0.25 * np.eye(4) + 2.25 * design @ design.T)
    value, error = posterior.log_evidence
    assert abs(value - marginal.logpdf(y)) < LIMIT * error
    covariance = np.linalg.inv(design.T @ design / 0.25 + np.eye(2) / 2.25)
    mean = design @ covariance @ design.T @ y / 0.25
    np.testing.assert_allclose(posterior.predict(x).mean, mean, atol=0.05)


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"num_draws": 0}, ValueError, "a whole number, at least 1; got 0"),
        ({"num_draws": 1.5}, TypeError, "a whole number, at least 1"),
        ({"num_warmup": -1}, ValueError, "a whole number, at least 0; got -1"),
        ({"proposal": "posterior"}, ValueError, '"map", "prior" or a posterior whose density'),
        ({"proposal": 3}, TypeError, '"map", "prior" or a posterior whose density'),
        ({"self_normalised": 1}, TypeError, "True or False; got 1"),
        ({"smooth": "yes"}, TypeError, "True or False; got 'yes'"),
        ({"df": 0}, ValueError, "a whole number, at least 1; got 0"),
        ({"df": 2.5}, TypeError, "a whole number, at least 1; got 2.5"),
        ({"inflation": -1.0}, ValueError, "positive; got -1.0"),
        ({"learning_rate": 0.0}, ValueError, "positive; got 0.0"),
    ],
)
def test_bad_settings(settings, error, message):
    (name,) = settings
    with pytest.raises(error, match=rf"ImportanceSampling\({name}=\.\.\.\) must be .*{message}"):
        ImportanceSampling(**settings)


def test_draws_have_no_density():
    draws = cx.Posterior(line().model, Draws({"w": np.zeros((1, 3, 2))}))
    with pytest.raises(TypeError, match=r"BlackBoxVI or IVON\. This one consists of Draws"):
        ImportanceSampling(proposal=draws)

    class Elsewhere(Approximation):
        """Has a density, but its arrays are nowhere to be seen."""

        def samples(self, key, count): ...

        def sample(self, key, count): ...

        def log_prob(self, params): ...

    with pytest.raises(TypeError, match="This one consists of Elsewhere"):
        ImportanceSampling(proposal=cx.Posterior(line().model, Elsewhere()))


def refused(model, data, method, message):
    with pytest.raises(ValueError, match=message):
        cx.fit(model, data, method, progress=False)


def test_proposals_that_do_not_fit_the_model():
    target, density = line(), correlated()
    refused(
        density.model, None, ImportanceSampling(proposal="prior"), "LogDensity, which has no pr"
    )
    refused(*discrete(), ImportanceSampling(), '"prior" or a posterior for discrete weights')
    message = r"must be over discrete weights, like the model; got one over continuous ones"
    refused(*discrete(), ImportanceSampling(proposal=proposal("variational")), message)
    other = narrow(logistic_regression(), 0.0, 1.0)
    ImportanceSampling(proposal=other).check(*target.model.prepare(target.data))  # the same shapes
    wide = linear_regression(rows=4, features=2)
    message = r"must have the parameters of the model, .*'slope': \(\(2, 1\).*got .*\(\(1, 1\)"
    refused(wide.model, wide.data, ImportanceSampling(proposal=other), message)
    plain = ImportanceSampling(self_normalised=False)
    refused(target.model, target.data, plain, "True for a Model, whose posterior is known only up")


def test_too_many_weights_for_their_curvature():
    x = np.zeros((3, 2_000))
    model = cx.Model(cx.networks.mlp([]), cx.priors.Normal(), cx.likelihoods.Gaussian(1.0))
    message = r"at most 2,000 weights.*got 2,001\. Give it a posterior, .* or use HMC or SMC"
    refused(model, (x, np.zeros(3)), ImportanceSampling(), message)


def test_settings_are_documented_and_values():
    assert ImportanceSampling(np.int64(8), inflation=np.float32(2.0)) == ImportanceSampling(
        8, inflation=2.0
    )
    assert ImportanceSampling(df=None) != ImportanceSampling(df=np.int32(5)) == ImportanceSampling()
