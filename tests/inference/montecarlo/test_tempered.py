"""Tempered sequential Monte Carlo, against closed forms and quadrature."""

import re
import warnings
from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import linear_regression, logistic_regression
from scipy import stats
from scipy.special import logsumexp

import credax as cx
from credax.core import random
from credax.diagnostics.doctor import runs
from credax.inference.montecarlo import tempered
from credax.inference.montecarlo.tempered import SMC
from credax.model.networks.network import AbstractNetwork

LIMIT = 4.0
QUICK = SMC(particles=200, num_leapfrog=8)
MANY = replace(QUICK, repeats=100)
"""The number of independent populations, whose spread gives all standard errors."""
SLOPPY = replace(MANY, num_moves=1, num_leapfrog=1)


def fit(target, method, key=0, **arguments):
    return cx.fit(target.model, target.data, method, key=key, progress=False, **arguments)


@cache
def cached_fit(target, method, dtype):
    assert dtype == jnp.result_type(float), "the dtype is part of what a fit depends on"
    seen, whole = [], tempered.mean_evidence
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempered, "mean_evidence", lambda *each: seen.append(each) or whole(*each))
        posterior = fit(target(), method)
    return posterior, np.asarray(seen[0], np.float64)


def fitted(target, method=MANY):
    """The posterior, and the log evidence of each population with its estimated variance."""
    return cached_fit(target, method, jnp.result_type(float))


def check_mean(each, truth):
    """Assert that independent estimates of shape ``(repeat, ...)`` are right on average."""
    error = each.std(0, ddof=1) / np.sqrt(len(each))
    z = (each.mean(0) - truth) / error
    assert np.abs(z).max() < LIMIT, z
    return error


def check_evidence(posterior, truth, largest=0.1):
    estimate, error = posterior.log_evidence
    assert 0 < error < largest
    assert abs(estimate - truth) < LIMIT * error


def check_moments(posterior, target, visible=0.05):
    values = target.values(posterior)
    error = check_mean(values.mean(1), target.mean)
    assert np.all(error < visible * target.sd), "the test is too blunt"
    away = values - target.mean
    products = np.einsum("rni,rnj->rij", away, away) / values.shape[1]
    error = check_mean(products, target.covariance)
    # An error of 10 % in the standard deviation would exceed four standard errors of the variance.
    assert np.all(LIMIT * np.diag(error) < 0.2 * target.sd**2), "the test is too blunt"
    check_evidence(posterior, target.log_evidence)


# -- against known answers --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("target", [linear_regression, logistic_regression])
def test_moments_and_evidence(target):
    check_moments(fitted(target)[0], target())


@pytest.mark.slow
def test_float64(x64):
    posterior, _ = fitted(linear_regression)
    check_moments(posterior, linear_regression())
    assert {leaf.dtype for leaf in jax.tree.leaves(posterior.draws)} == {np.dtype(np.float64)}
    figures = [v for v in posterior.info.values() if np.ndim(v) == 2]
    assert {values.dtype for values in figures} == {np.dtype(np.float64)}


@dataclass(frozen=True, eq=False)
class Plane:
    """A model with one or two weights, and its posterior by quadrature."""

    model: cx.Model
    data: tuple
    weights: np.ndarray  # (point, weight)
    mass: np.ndarray
    log_evidence: float

    @staticmethod
    def of(model, data, grid, log_joint, dimension):
        points = np.stack(np.meshgrid(*[grid] * dimension), -1).reshape(-1, dimension)
        values = log_joint(points)
        total = logsumexp(values)
        evidence = total + dimension * np.log(grid[1] - grid[0])
        return Plane(model, data, points, np.exp(values - total), float(evidence))


def start(key):
    return random.normal(key, (2,))


def product(params, x):
    return params[0] * params[1] * x


@cache
def two_modes():
    """y = w_1 w_2 x: the modes (+, +) and (-, -) are far apart, and the prior favours the first."""
    x = np.linspace(0.5, 1.5, 6)[:, None]
    y = 1.5 * x[:, 0] + 0.1 * np.array([1, -1, 1, -1, 1, -1])
    model = cx.Model(
        cx.networks.from_function(start, product),
        cx.priors.Normal(1.0, loc=0.2),
        cx.likelihoods.Gaussian(0.3),
    )

    def log_joint(w):
        prior = stats.norm(0.2, 1.0).logpdf(w).sum(-1)
        outputs = (w[:, 0] * w[:, 1])[:, None] * x[:, 0]
        return prior + stats.norm(outputs, 0.3).logpdf(y).sum(-1)

    return Plane.of(model, (x, y), np.linspace(-6, 6, 1201), log_joint, 2)


@pytest.mark.slow
def test_both_modes_have_their_weight():
    target = two_modes()
    posterior = fit(target, MANY)
    first = target.mass[(target.weights > 0).all(1)].sum()
    second = target.mass[(target.weights < 0).all(1)].sum()
    assert first + second > 0.999
    assert first > 0.6
    draws = np.asarray(posterior.draws, np.float64)
    error = check_mean((draws > 0).all(-1).mean(1), first)
    assert error < 0.01
    check_mean((draws < 0).all(-1).mean(1), second)
    check_mean(np.abs(draws).mean(1), target.mass @ np.abs(target.weights))
    check_evidence(posterior, target.log_evidence)
    # Also with weights: each population is weighted by its evidence.
    samples = posterior.approximation.samples(random.key(0), None)
    positive = (np.asarray(samples.take(0, samples.count).params) > 0).all(-1)
    assert abs(np.exp(samples.log_weights) @ positive - first) < LIMIT * 2 * error


def one_weight(key):
    return random.normal(key, (1,))


def logarithm(params, x):
    return jnp.log(params) * x


@pytest.mark.slow
def test_draws_of_no_likelihood_are_left_behind():
    """The network returns NaN for negative weights, which are half of the prior."""
    x = np.ones((4, 1))
    y = np.array([0.1, -0.2, 0.3, 0.0])
    model = cx.Model(
        cx.networks.from_function(one_weight, logarithm),
        cx.priors.Normal(1.0, loc=-0.5),
        cx.likelihoods.Gaussian(0.5),
    )

    def log_joint(w):
        prior = stats.norm(-0.5, 1.0).logpdf(w[:, 0])
        return prior + stats.norm(np.log(w), 0.5).logpdf(y).sum(-1)

    target = Plane.of(model, (x, y), np.linspace(1e-3, 8, 4001), log_joint, 1)
    posterior = fit(target, MANY)
    draws = np.asarray(posterior.draws, np.float64)[..., 0]
    assert draws.min() > 0
    check_mean(draws.mean(1), target.mass @ target.weights[:, 0])
    check_evidence(posterior, target.log_evidence)


def test_a_prior_that_explains_nothing_is_refused():
    model = cx.Model(
        cx.networks.from_function(one_weight, logarithm),
        cx.priors.Normal(0.1, loc=-5.0),
        cx.likelihoods.Gaussian(0.5),
    )
    with pytest.raises(ValueError, match="SMC cannot start: of 8 draws of the prior, 0 give"):
        cx.fit(model, (np.ones((4, 1)), np.zeros(4)), SMC(particles=8), progress=False)


# -- the error of the evidence ----------------------------------------------------------------------

CASES = {
    "good moves": (MANY, pytest.mark.slow),
    "more temperatures": (replace(MANY, target_ess=0.8), pytest.mark.slow),
    "bad moves": (SLOPPY, pytest.mark.slow),
    "bad moves, more temperatures": (replace(SLOPPY, target_ess=0.8), pytest.mark.slow),
}


@pytest.mark.parametrize("case", [pytest.param(name, marks=CASES[name][1]) for name in CASES])
def test_the_error_of_one_population_is_that_of_many(case):
    """Moves that mix badly increase the error, so an estimate from the weights alone would be too small."""
    method = CASES[case][0]
    posterior, (estimates, variances) = fitted(linear_regression, method)
    count = len(estimates)
    spread = estimates.var(ddof=1)
    low, high = stats.chi2(count - 1).ppf([1e-3, 1 - 1e-3]) / (count - 1)
    assert low < spread / variances.mean() < high
    assert variances.std() < 0.5 * variances.mean(), "an error that varies so much is none"
    # The mean of a logarithm is below the logarithm of the mean, by half the variance.
    z = (estimates + variances / 2 - linear_regression().log_evidence) / np.sqrt(variances)
    assert abs(z.mean()) < LIMIT / np.sqrt(count)
    last = np.argmax(posterior.info["temperature"] == 1, axis=1)
    ess = [row[: end + 1] for row, end in zip(posterior.info["ess"], last, strict=True)]
    ideal = np.mean([np.sum(1 / row - 1 / method.particles) for row in ess])
    assert (spread > 1.5 * ideal) == ("bad" in case)


@pytest.mark.slow
def test_the_error_under_perfect_moves():
    r"""Fresh log normal weights at each step: :math:`E[\hat p^2] = \prod_t (1 + (e^{s^2} - 1) / N)`, exactly.

    In many small steps resampling does most to make particles of one ancestor: left uncorrected, a third.
    """
    count, steps, sigma, rise = 200, 30, 0.4, 2.0**-6
    zero = jnp.zeros(())
    first = tempered.State(
        **{name: zero for name in tempered.State._fields if name not in ("ancestor", "by_chance")},
        ancestor=jnp.arange(count, dtype=jnp.int32),
        by_chance=jnp.log1p(-1 / count),
    )._replace(info=tempered.Info(*[zero] * len(tempered.Info._fields)))

    def step(state, key):
        likelihood_key, resample_key = jax.random.split(key)
        log_likelihood = sigma / rise * jax.random.normal(likelihood_key, (count,))
        state, weights = tempered._reweighted(
            state._replace(log_likelihood=log_likelihood), rise * jnp.ones(())
        )
        chosen = tempered._systematic(resample_key, weights)
        return state._replace(ancestor=state.ancestor[chosen], log_likelihood=zero), None

    def run(key):
        return jax.lax.scan(step, first, jax.random.split(key, steps))[0]

    states = jax.jit(jax.vmap(run))(jax.random.split(random.key(0), 2_000))
    truth = steps * np.log1p(np.expm1(sigma**2) / count)
    assert np.asarray(states.error).mean() == pytest.approx(truth, rel=0.03)
    assert np.asarray(states.log_evidence).var() == pytest.approx(truth, rel=0.15)


@pytest.mark.slow
def test_one_population_reports_its_error():
    posterior = fit(linear_regression(), QUICK)
    check_evidence(posterior, linear_regression().log_evidence, largest=0.4)
    assert posterior.log_weights is None
    assert posterior.draws["bias"].shape == (1, QUICK.particles, 1)
    assert posterior.log_evidence[0] == pytest.approx(posterior.info["log_evidence"][0, -1])


def test_mean_evidence():
    estimate, error = tempered.mean_evidence(np.log([1.0, 2.0, 6.0]), np.full(3, 1e-6))
    assert estimate == pytest.approx(np.log(3))
    assert error == pytest.approx(np.std([1, 2, 6], ddof=1) / np.sqrt(3) / 3)
    # The error of populations that agree by chance is not below the one that each of them reports.
    estimate, error = tempered.mean_evidence(np.array([-5e3, -5e3]), np.array([0.09, 0.07]))
    assert estimate == pytest.approx(-5e3)
    assert error == pytest.approx(np.sqrt(0.04))
    assert tempered.mean_evidence(np.array([-7.0]), np.array([0.25])) == (-7.0, 0.5)


@pytest.mark.slow
def test_populations_weigh_as_much_as_their_evidence():
    posterior, (estimates, variances) = fitted(linear_regression)
    np.testing.assert_array_equal(estimates, posterior.info["log_evidence"][:, -1])
    assert posterior.log_evidence == tempered.mean_evidence(estimates, variances)
    weights = posterior.log_weights
    assert weights.shape == (MANY.repeats, MANY.particles)
    np.testing.assert_allclose(weights - weights[:, :1], 0, atol=1e-5)
    np.testing.assert_allclose(weights[:, 0] - weights[0, 0], estimates - estimates[0], atol=1e-4)


# -- the temperatures -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("target_ess", [0.5, pytest.param(0.9, marks=pytest.mark.slow)])
def test_temperatures_rise_to_one_by_the_effective_sample_size(target_ess):
    method = replace(QUICK, target_ess=target_ess)
    info = fit(linear_regression(), method).info
    temperature = np.concatenate([[0], info["temperature"][0]])
    assert np.all(np.diff(temperature) > 0)
    assert temperature[-1] == 1
    assert info["steps"] == len(temperature) - 1 < method.num_steps
    ess = info["ess"][0]
    np.testing.assert_allclose(ess[:-1], target_ess * method.particles, rtol=1e-3)
    assert ess[-1] >= target_ess * method.particles
    for name in tempered.Info._fields:
        assert info[name].shape == (1, info["steps"])
        assert np.all(np.isfinite(info[name]))
    assert 0.6 < info["acceptance_rate"][0, -1] < 0.9
    assert np.all(np.diff(info["ancestors"][0]) <= 0)
    assert info["ancestors"][0, -1] > 10


@pytest.mark.slow
def test_one_temperature_is_enough_for_data_that_says_little():
    target = linear_regression()
    model = replace(target.model, likelihood=cx.likelihoods.Gaussian(1e3))
    posterior = cx.fit(model, target.data, QUICK, progress=False)
    assert posterior.info["temperature"].tolist() == [[1.0]]
    assert posterior.log_evidence[1] < 1e-3


@pytest.mark.slow
def test_a_finished_population_stays_as_it_is():
    info = fitted(linear_regression)[0].info
    waiting = 0
    for population, temperature in enumerate(info["temperature"]):
        end = int(np.argmax(temperature == 1))
        waiting += info["steps"] - 1 - end
        for name in tempered.Info._fields:
            assert len(set(info[name][population, end:])) == 1, name
    assert waiting > 0, "no population had to wait for another"


@pytest.mark.slow
def test_too_few_steps_are_an_error():
    ended = r"SMC\(num_steps=2\) ended at temperature 0\..*; .*Raise num_steps"
    with pytest.raises(cx.DivergedError, match=ended):
        fit(linear_regression(), replace(QUICK, num_steps=2))


@pytest.mark.slow
def test_as_many_steps_as_temperatures_are_enough():
    steps = fit(linear_regression(), QUICK).info["steps"]
    posterior = fit(linear_regression(), replace(QUICK, num_steps=steps))
    assert posterior.info["temperature"][0, -1] == 1


def test_a_run_that_was_ended_makes_up_by_weights():
    target = linear_regression()
    ended = {"callbacks": [lambda event: event.figures["temperature"] > 0.1], "chunk_steps": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cx.PosteriorWarning)
        posterior = fit(target, QUICK, **ended)
    assert posterior.info["ended"] == "callback"
    assert 0.1 < posterior.info["temperature"][0, -1] < 1
    check_evidence(posterior, target.log_evidence, largest=0.6)
    weights = np.exp(posterior.log_weights[0] - logsumexp(posterior.log_weights[0]))
    effective = 1 / np.sum(weights**2)
    assert 10 < effective < 0.5 * QUICK.particles
    mean = weights @ target.values(posterior)[0]
    assert np.abs((mean - target.mean) / target.sd).max() < LIMIT / np.sqrt(effective)
    # Without the weights, the moments would be wrong.
    assert np.all(target.values(posterior)[0].std(0) > 1.3 * target.sd)


@pytest.mark.parametrize("chunk_steps", [1, 3])
def test_bits_do_not_depend_on_the_chunks(chunk_steps):
    whole, cut = (fit(linear_regression(), QUICK, chunk_steps=n) for n in (None, chunk_steps))
    jax.tree.map(np.testing.assert_array_equal, whole.draws, cut.draws)
    assert whole.log_evidence == cut.log_evidence


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path):
    class KilledError(Exception):
        pass

    def kill(event):
        if event.step == 3:
            raise KilledError

    with pytest.raises(KilledError):
        fit(linear_regression(), QUICK, checkpoint=tmp_path, callbacks=[kill], chunk_steps=1)
    again = fit(linear_regression(), QUICK, checkpoint=tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again.draws, fit(linear_regression(), QUICK).draws)


# -- resampling and moves ---------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("count", [7, 1_000, 30_000])
def test_systematic_resampling(count):
    generator = np.random.default_rng(count)
    weights = generator.exponential(size=count)
    weights[generator.uniform(size=count) < 0.4] = 0
    weights[[0, -1]] = 0
    weights /= weights.sum()
    resample = jax.jit(tempered._systematic)
    totals = np.zeros(count)
    for key in jax.random.split(random.key(0), 200):
        chosen = np.asarray(resample(key, jnp.asarray(weights, jnp.result_type(float))))
        assert chosen.shape == (count,)
        assert weights[chosen].min() > 0
        times = np.bincount(chosen, minlength=count)
        # The relative error of sums of thirty thousand numbers in float32 is a few parts in a million.
        assert np.abs(times - count * weights).max() < 1 + 5e-6 * count
        totals += times
    variance = (part := count * weights % 1) * (1 - part)
    z = (totals / 200 - count * weights)[variance > 0.01] / np.sqrt(variance[variance > 0.01] / 200)
    assert np.abs(z).max() < 5.5


def test_the_last_number_before_one_takes_no_dead_particle():
    weights = jnp.asarray([0.5, 0.5, 0.0], jnp.result_type(float))
    uniform = jax.random.uniform
    try:
        jax.random.uniform = lambda key, shape, dtype: jnp.asarray(1 - 2.0**-24, dtype)
        assert tempered._systematic(random.key(0), weights).tolist() == [0, 1, 1]
    finally:
        jax.random.uniform = uniform


@dataclass(frozen=True)
class Shifted(AbstractNetwork):
    """A linear network whose offset is its state."""

    def init(self, key):
        return {"slope": random.normal(key, (1,))}

    def init_state(self):
        return {"offset": jnp.full((1,), 2.0, jnp.result_type(float))}

    def call(self, params, x, *, state, key, train):
        return x * params["slope"] + state["offset"], state


@pytest.mark.slow
def test_the_state_of_the_network_stays_with_the_draws():
    x = np.linspace(-1, 1, 9)[:, None]
    model = cx.Model(Shifted(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.1))
    data = x, 2 + x[:, 0]
    start = cx.fit(model, data, cx.MAP(num_steps=1), progress=False)
    posterior = cx.fit(model, data, SMC(particles=64), start=start, progress=False)
    assert posterior.approximation.state["offset"].shape == (1, 64, 1)
    np.testing.assert_allclose(posterior.predict(x).mean, 2 + x[:, 0], atol=0.2)


def half_start(key):
    return {"slope": jnp.zeros((1,), jnp.float32)}


def half_apply(params, x):
    return x * params["slope"].astype(x.dtype)


@pytest.mark.slow
def test_weights_of_fewer_digits(x64):
    x = np.linspace(-1, 1, 9)[:, None]
    network = cx.networks.from_function(half_start, half_apply)
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.1))
    posterior = cx.fit(model, (x, x[:, 0]), SMC(particles=64), progress=False)
    assert posterior.draws["slope"].dtype == np.float32
    assert posterior.info["log_evidence"].dtype == np.float64
    assert posterior.predict(x).mean[0] == pytest.approx(-1, abs=0.2)


# -- errors and warnings ----------------------------------------------------------------------------


def test_few_ancestors_are_a_warning(monkeypatch):
    monkeypatch.setattr(runs, "FEW_ANCESTORS", 1_000)
    come_from = r"The 200 particles come from \d+ draws of the prior"
    with pytest.warns(cx.PosteriorWarning, match=come_from) as caught:
        posterior = fit(linear_regression(), QUICK)
    assert caught[0].filename == __file__
    assert f"come from {posterior.info['ancestors'][0, -1]:.0f} draws" in str(caught[0].message)
    assert str(posterior.diagnose()[0]) == str(caught[0].message)


@pytest.mark.slow
def test_one_ancestor_alone():
    method = SMC(particles=16, num_moves=1, num_leapfrog=1, target_ess=0.25)
    with pytest.warns(cx.PosteriorWarning, match=r"The 16 particles come from 1 draws"):
        posterior = fit(linear_regression(), method)
    assert np.isfinite(posterior.log_evidence).all()
    assert posterior.log_evidence[1] > 1


def test_a_density_without_a_prior_is_refused():
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(TypeError, match="SMC needs a Model with a likelihood; got a LogDensity"):
        cx.fit(density, None, QUICK, progress=False)


def test_discrete_weights_are_refused():
    model = replace(linear_regression().model, prior=cx.priors.Discrete([-1.0, 1.0]))
    with pytest.raises(ValueError, match="SMC needs gradients"):
        cx.fit(model, linear_regression().data, QUICK, progress=False)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"particles": 0}, "SMC(particles=...) must be a whole number, at least 1; got 0."),
        ({"particles": 3}, "SMC(particles=...) must be at least 4, so that two of them stay"),
        ({"particles": 19, "target_ess": 0.1}, "SMC(particles=...) must be at least 20, so that"),
        (
            {"target_ess": 0.0},
            "SMC(target_ess=...) must be between 0 and 1, both excluded; got 0.0.",
        ),
        (
            {"target_ess": 1.0},
            "SMC(target_ess=...) must be between 0 and 1, both excluded; got 1.0.",
        ),
        ({"num_moves": 0}, "SMC(num_moves=...) must be a whole number, at least 1; got 0."),
        ({"num_leapfrog": 0}, "SMC(num_leapfrog=...) must be a whole number, at least 1; got 0."),
        ({"num_steps": 0}, "SMC(num_steps=...) must be a whole number, at least 1; got 0."),
        ({"repeats": 0}, "SMC(repeats=...) must be a whole number, at least 1; got 0."),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SMC(**settings)


@pytest.mark.parametrize(
    "setting", ["particles", "num_moves", "num_leapfrog", "num_steps", "repeats"]
)
def test_settings_that_are_no_whole_numbers(setting):
    for value in (2.5, "many", None, True):
        with pytest.raises(TypeError, match=rf"SMC\({setting}=\.\.\.\) must be a whole number"):
            SMC(**{setting: value})


def test_settings_are_plain_numbers():
    method = SMC(particles=np.int64(8), target_ess=np.float32(0.5), repeats=jnp.asarray(2))
    assert method == SMC(particles=8, repeats=2)
    assert hash(method) == hash(SMC(particles=8, repeats=2))
    assert method.replicas == 2
