"""Importance sampling against closed forms, exact sums and repeated runs."""

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
    linear_regression,
    logistic_regression,
)
from scipy import stats
from scipy.special import logsumexp

import credax as cx
from credax.core import random
from credax.inference.montecarlo.importance import (
    ImportanceSampling,
    expectation,
    log_mean,
    smooth_tail,
)
from credax.model.networks.network import AbstractNetwork
from credax.posterior.approximations import Approximation, Draws
from credax.posterior.approximations.families import Categorical, FullRank, MeanField
from credax.storage.describe import describe_or_name

# Many tests here are about small runs and bad proposals, of which the diagnosis warns.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

LIMIT = 4.0


def fit(target, method, **arguments):
    arguments = {"progress": False, **arguments}
    return cx.fit(target.model, target.data, method, **arguments)


def line():
    """A linear regression on so few rows that even the prior is an acceptable proposal."""
    return linear_regression(rows=4, features=1)


def vector(params):
    """The weights of the linear targets as one vector: the bias, then the slopes."""
    return jnp.concatenate([params["bias"], params["slope"][:, 0]])


@cache
def variational(dtype):
    """A posterior with a known density: normal, with the true mean and 1.3 times the true width."""
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
    """Assert that mean and covariance are right within their standard errors, and that these are small."""
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
    # The squared deviation of a normal variable has relative variance 2.
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
    """A normal proposal with the right mean and width is the posterior, so all weights equal the evidence."""
    posterior, target = fitted("map", df=None), line()
    check_moments(posterior, target)
    np.testing.assert_allclose(posterior.log_weights, target.log_evidence, atol=1e-9)
    assert posterior.log_evidence == pytest.approx((target.log_evidence, 0), abs=1e-9)
    assert {leaf.dtype for leaf in jax.tree.leaves(posterior.draws)} == {np.dtype(np.float64)}
    assert posterior.info["log_joint"].dtype == np.float64


def test_the_weights_are_the_ratio_of_joint_and_proposal():
    """The weights of each proposal are recomputed here from the draws."""
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
    """Assert that standard errors have the right size, by a chi-squared test over independent runs."""
    runs = len(values)
    z = (np.asarray(values) - truth) / errors
    assert abs(z.mean()) < LIMIT / math.sqrt(runs)
    assert 1e-4 < stats.chi2.sf(np.sum((z - z.mean()) ** 2), runs - 1) < 1 - 1e-4


def test_the_standard_error_is_calibrated():
    """For log-normal weights, whose mean is known."""
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
    """A normal proposal with the same location and scale for all weights."""
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
    """For a shifted or narrow proposal the evidence is off by many standard errors, and pareto_k tells."""
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
    """A normal density restricted to a quadrant, whose log density is -inf elsewhere."""

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


# -- discrete weights -------------------------------------------------------------------------------

DISCRETE_X = np.random.default_rng(0).normal(size=(8, 3))
DISCRETE_Y = DISCRETE_X @ [1.0, -1.0, 1.0] + np.random.default_rng(1).normal(size=8)


@cache
def discrete():
    prior = cx.priors.Discrete([-1, 1], [0.3, 0.7])
    model = cx.Model(cx.networks.mlp([]), prior, cx.likelihoods.Gaussian(2.0))
    return model, (DISCRETE_X, DISCRETE_Y)


@pytest.mark.slow
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
    """250 draws are made in 84 blocks of 3; the last block has two draws too many."""
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
    """The log likelihood of each draw, which is its log weight if the prior is the proposal."""
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


@pytest.mark.slow
def test_no_two_draws_share_their_noise(x64):
    """After whitening, the draws of all blocks are independent standard normals."""
    posterior = fitted("map", df=None)
    draws = line().quantities(posterior.draws)[0].astype(np.float64)
    white = np.linalg.solve(np.linalg.cholesky(line().covariance), (draws - line().mean).T)
    assert len(np.unique(white[0])) > 19_990
    for row in white:
        assert stats.kstest(row, "norm").pvalue > 1e-4
    lag = 200  # draws per block
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
        assert describe_or_name(loaded.method) == describe_or_name(posterior.method)
        np.testing.assert_array_equal(
            expectation(loaded, vector)[0], expectation(posterior, vector)[0]
        )
    described = describe_or_name(loaded.method)["proposal"]
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
def test_a_network_that_carries_state():
    """Each draw is weighted, and predicts, with the network state that belongs to it."""
    x, y = line().data
    model = cx.Model(Centred(), cx.priors.Normal(1.5), cx.likelihoods.Gaussian(0.5))
    with pytest.raises(ValueError, match=r"proposal=.* a network with batch statistics"):
        cx.fit(model, (x, y), ImportanceSampling(30_000, "prior"), progress=False)
    method = ImportanceSampling(30_000, "map", num_warmup=100)
    posterior = cx.fit(model, (x, y), method, progress=False)
    centre = x.mean()
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
        """Has a density, but is not a pytree of arrays."""

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
