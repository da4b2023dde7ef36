"""SGLD and SGHMC against the stationary covariances of their linear recursions, in standard errors."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from langevin_targets import (
    CHAINS,
    LOCATION,
    QUICK,
    REGRESSION,
    ROWS,
    assert_moments,
    coefficients,
    correlated,
    exact,
    fit,
    gradient_noise,
    rows,
    sgld_covariance,
    z_scores,
)
from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov

import credax as cx
from credax.core import random
from credax.inference.montecarlo.langevin import SGHMC, SGLD
from credax.inference.montecarlo.schedules import sgd_step_size
from credax.model.networks.network import AbstractNetwork
from credax.storage.describe import describe, rebuild

# -- SGLD ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_size", [0.1, pytest.param(0.3, marks=pytest.mark.slow)])
def test_the_bias_of_sgld_is_that_of_its_step_size(step_size):
    x, y = rows()
    mean, precision = exact(y)
    relative = step_size / ROWS * precision
    # The closed form of unadjusted Langevin dynamics.
    variance = 1 / (precision * (1 - relative / 4))
    np.testing.assert_allclose(np.diag(sgld_covariance(precision, step_size / ROWS)), variance)
    assert variance[2] * precision[2] > 1.2, "the bias is large enough to be detected"
    posterior = fit(LOCATION, (x, y), SGLD(step_size=step_size, **QUICK))
    assert posterior.log_weights is None
    assert posterior.draws.shape == (CHAINS, 200, 3)
    assert_moments(posterior.draws, mean, np.diag(variance))
    excess = np.mean(variance * precision) - 1
    estimates = posterior.info["inflation"][:, posterior.info["kept"]].mean(1)
    assert abs(z_scores(estimates, excess)) < 4
    told = any("too unsure" in finding.what for finding in posterior.diagnose())
    assert told == (excess > 0.1)


@pytest.mark.slow
def test_minibatches_and_temperature_of_sgld():
    """A batch of more than half of the rows is a whole epoch, so that batches are independent."""
    x, y = rows()
    mean, precision = exact(y)
    step_size, temperature, batch = 0.2, 0.25, 7
    noise = gradient_noise(y, batch)
    covariance = sgld_covariance(precision, step_size / ROWS, noise, temperature)
    plain = sgld_covariance(precision, step_size / ROWS, 0.0, temperature)
    assert covariance[2, 2] > 1.2 * plain[2, 2], (
        "the noise of the batches is large enough to be detected"
    )
    settings = {**QUICK, "step_size": step_size, "temperature": temperature, "batch_size": batch}
    assert_moments(fit(LOCATION, (x, y), SGLD(**settings)).draws, mean, covariance)


@pytest.mark.slow
def test_the_noise_of_an_epoch_adds_up_to_zero():
    """Shuffled epochs therefore add far less variance than independent batches of the same size."""
    x, y = rows()
    mean, precision = exact(y)
    batch, metric = 3, 0.2 / ROWS
    count, noise = ROWS // batch, gradient_noise(y, batch)
    # The batches of an epoch have equal correlations, and their sum has variance zero.
    correlation = np.where(np.eye(count, dtype=bool), 1.0, -1 / (count - 1))
    decay = 1 - metric * precision / 2

    def added(steps):
        """The covariance that the first ``steps`` steps of an epoch add."""
        powers = decay[:, None] ** np.arange(steps - 1, -1, -1)
        of_batches = np.einsum("dm,mn,en->de", powers, correlation[:steps, :steps], powers)
        return metric**2 / 4 * noise * of_batches + metric * np.diag(np.sum(powers**2, 1))

    factor = np.outer(decay, decay)
    first = added(count) / (1 - factor**count)
    covariance = np.mean([factor**m * first + added(m) for m in range(count)], 0)
    independent = sgld_covariance(precision, metric, noise)
    exact_gradient = sgld_covariance(precision, metric)
    excess = np.diag(covariance - exact_gradient) / np.diag(independent - exact_gradient)
    assert excess[0] < 0.1, excess
    settings = {**QUICK, "thin": 5, "num_draws": 400, "step_size": 0.2, "batch_size": batch}
    assert_moments(fit(LOCATION, (x, y), SGLD(**settings)).draws, mean, covariance)


# -- SGHMC ---------------------------------------------------------------------------------------------


def sghmc_covariance(precision, metric, friction, noise=0.0, temperature=1.0, estimate=0.0):
    """The stationary covariance of (position, momentum), from the linear map of one step."""
    size = len(precision)
    one, none, s = np.eye(size), np.zeros((size, size)), np.sqrt(metric)
    kick = np.block([[one, none], [-s * precision, one]])
    drift = np.block([[one, s / 2 * one], [none, one]])
    damp = np.block([[one, none], [none, (1 - friction) * one]])
    of_friction = drift @ np.vstack([none, one])
    of_batches = drift @ damp @ drift @ np.vstack([none, s * one])
    injected = temperature * (2 - friction) * (friction - estimate)
    added = (
        injected * of_friction @ of_friction.T
        + of_batches @ (noise * one if np.ndim(noise) == 0 else noise) @ of_batches.T
    )
    return solve_discrete_lyapunov(drift @ damp @ drift @ kick, added)


@pytest.mark.parametrize(
    "step_size, friction", [(0.3, 0.2), pytest.param(0.05, 1.0, marks=pytest.mark.slow)]
)
def test_sghmc_has_no_bias_on_a_gaussian(step_size, friction):
    data, _, mean, precision = correlated()
    covariance = np.linalg.inv(precision)
    found = sghmc_covariance(precision, step_size / 24, friction)[:3, :3]
    np.testing.assert_allclose(found, covariance, rtol=1e-9, atol=1e-12)
    stiffest = np.linalg.eigvalsh(precision)[-1] * step_size / 24
    assert stiffest > (1.5 if friction < 1 else 0.3), "SGLD would be biased"
    method = SGHMC(step_size=step_size, friction=friction, **QUICK)
    assert_moments(coefficients(fit(REGRESSION, data, method)), mean, covariance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimate, temperature", [(0.08, 0.25), pytest.param(0.0, 1.0, marks=pytest.mark.slow)]
)
def test_minibatches_and_temperature_of_sghmc(estimate, temperature):
    x, y = rows()
    mean, precision = exact(y)
    step_size, friction, batch = 0.1, 0.3, 7
    noise = gradient_noise(y, batch)
    arguments = (step_size / ROWS, friction, noise, temperature, estimate)
    covariance = sghmc_covariance(np.diag(precision), *arguments)[:3, :3]
    relative = np.diag(covariance) * precision / temperature
    assert np.abs(relative - 1).max() > 0.15, "the effect is large enough to be detected"
    settings = {"step_size": step_size, "friction": friction, "noise_estimate": estimate}
    method = SGHMC(**settings, temperature=temperature, batch_size=batch, **QUICK)
    assert_moments(fit(LOCATION, (x, y), method).draws, mean, covariance)


def test_the_momentum_starts_at_its_temperature():
    model, data = LOCATION.prepare(rows())
    keys = jax.random.split(random.key(0), 100_000)
    states = jax.vmap(lambda key: SGHMC(temperature=4.0).init(key, model, data))(keys)
    momentum = np.asarray(states.momentum, np.float64)
    assert np.abs(z_scores(momentum**2, 4.0)).max() < 4


# -- the preconditioner --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method_class", [SGLD, pytest.param(SGHMC, marks=pytest.mark.slow)])
def test_rmsprop_levels_an_ill_conditioned_gaussian(method_class):
    scales = np.array([10.0, 0.3, 0.03])
    model = dataclasses.replace(LOCATION, likelihood=cx.likelihoods.Gaussian(tuple(scales)))
    x, y = rows()
    precision = ROWS / scales**2 + 1
    mean = y.sum(0) / scales**2 / precision
    step_size = 0.04
    # The metric depends on the mean square of the gradients, which in turn depends on the metric.
    metric, variance = 0.0, 1 / precision
    for _ in range(200):
        metric = step_size / np.sqrt(ROWS * (1 + precision**2 * variance))
        if method_class is SGLD:
            variance = np.diag(sgld_covariance(precision, metric))
    assert precision.max() / precision.min() > 10_000
    assert np.max(metric * precision) / np.min(metric * precision) < 200, (
        "SGD would have the 10,000"
    )
    method = method_class(
        chains=CHAINS, step_size=step_size, num_warmup=4_000, num_draws=400, thin=20
    )
    draws = fit(model, (x, y), method).draws
    assert_moments(draws, mean, np.diag(variance))
    if method_class is SGLD:
        # The autocorrelation of the draws shows that the metric is the expected one.
        centred = np.asarray(draws, np.float64) - mean
        lag = np.mean(centred[:, 1:] * centred[:, :-1], 1)
        z = z_scores(lag, variance * (1 - metric * precision / 2) ** 20)
        assert np.abs(z).max() < 4, z


# -- SGD as a sampler ----------------------------------------------------------------------------------


def sgd_covariance(design, y, mean, precision, rate, batch):
    """The exact stationary covariance of SGD on linear regression, by its recursion of second moments.

    Gradients of rows drawn without replacement, a row's curvature included: the noise grows with the distance.
    """
    count = len(design)
    finite = (1 / batch - 1 / count) * count / (count - 1)
    curvatures = np.einsum("ni,nj->nij", design, design) / 0.25
    whole = precision / count
    offsets = curvatures - curvatures.mean(0)
    products = finite * np.mean([np.kron(o, o) for o in offsets], 0)
    step = np.eye(3) - rate * whole
    transition = np.kron(step, step) + rate**2 * products
    gradients = design * (y - design @ mean)[:, None] / 0.25
    noise = rate**2 * finite * np.cov(gradients.T, bias=True) * 1.0
    return np.linalg.solve(np.eye(9) - transition, noise.ravel()).reshape(3, 3), np.cov(
        gradients.T, bias=True
    )


@pytest.mark.slow
def test_constant_rate_sgd_samples_the_solution_of_the_lyapunov_equation():
    (x, y), design, mean, precision = correlated()
    batch, finite = 4, (24 - 4) / (24 - 1)
    arguments = (design, y, mean, precision)
    slow, of_rows = sgd_covariance(*arguments, 1e-5, batch)
    limit = solve_continuous_lyapunov(precision / 24, 1e-5 / batch * finite * of_rows)
    np.testing.assert_allclose(slow, limit, rtol=1e-3)
    covariance, _ = sgd_covariance(*arguments, 0.03, batch)
    assert not np.allclose(covariance, 3_000 * limit, rtol=0.05), "a finite rate has an effect"
    settings = {**QUICK, "num_warmup": 1_000, "thin": 20}
    posterior = fit(REGRESSION, (x, y), SGLD(sgd_batch_size=batch, step_size=0.06, **settings))
    assert_moments(coefficients(posterior), mean, covariance)


def point(mean):
    """A posterior with a single draw at ``mean``."""
    model = REGRESSION.bind(correlated()[0])
    template = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten(template)
    parts = np.split(np.asarray(mean, np.float32), [1])
    leaves = [part.reshape(1, 1, *leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return cx.Posterior(model, cx.approximations.Draws(jax.tree.unflatten(structure, leaves)))


def test_the_best_rate_of_sgd_has_the_least_divergence():
    (x, y), design, mean, precision = correlated()
    batch = 4
    best = sgd_step_size(point(mean), (x, y), batch)
    gradients = design * (y - design @ mean)[:, None] / 0.25
    of_rows = np.cov(gradients.T, bias=True)
    finite = (24 - batch) / (24 - 1)
    # 2 S D / (N tr C) by Mandt et al., whose learning rate is half of the step size.
    assert best == pytest.approx(2 * 2 * batch * 3 / (24 * np.trace(of_rows) * finite), rel=1e-4)

    def divergence(step_size):
        found = solve_continuous_lyapunov(precision / 24, step_size / 2 / batch * finite * of_rows)
        return np.trace(precision @ found) - np.linalg.slogdet(precision @ found)[1] - 3

    assert divergence(best) < min(divergence(0.95 * best), divergence(1.05 * best))


# -- chunks, starting points and network states ---------------------------------------------------------

SMALL = {"chains": 2, "num_warmup": 6, "num_draws": 12, "thin": 2}


@pytest.mark.parametrize(
    "method",
    [
        SGLD(**SMALL, batch_size=5, cycles=3),
        pytest.param(SGHMC(**SMALL, batch_size=5), marks=pytest.mark.slow),
        pytest.param(SGLD(**SMALL, sgd_batch_size=5), marks=pytest.mark.slow),
    ],
    ids=["sgld", "sghmc", "sgd"],
)
def test_the_bits_do_not_depend_on_the_cuts(method):
    runs = [fit(LOCATION, rows(), method, chunk_steps=steps) for steps in (None, 1, 7)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.draws, runs[0].draws)
        np.testing.assert_array_equal(run.info["log_joint"], runs[0].info["log_joint"])
    assert not np.array_equal(fit(LOCATION, rows(), method, key=1).draws, runs[0].draws)


@pytest.mark.slow
def test_thinning_leaves_out_states():
    settings = {"chains": 3, "num_warmup": 5, "batch_size": 5}
    all_states = fit(LOCATION, rows(), SGHMC(num_draws=20, thin=1, **settings)).draws
    thinned = fit(LOCATION, rows(), SGHMC(num_draws=5, thin=4, **settings)).draws
    np.testing.assert_array_equal(thinned, all_states[:, 3::4])


def test_chains_start_where_they_are_told():
    settings = {"chains": 3, "num_warmup": 0, "num_draws": 1, "thin": 1, "step_size": 1e-12}
    method = SGLD(**settings, initial="prior")
    model = dataclasses.replace(LOCATION, prior=cx.priors.Normal(0.01, loc=7.0))
    drawn = fit(model, rows(), method).draws
    assert np.all(np.abs(drawn - 7) < 0.05)
    assert np.all(np.std(drawn, axis=0) > 0)
    optimum = np.array([0.1, -0.2, 0.3], np.float32)
    given = cx.Posterior(LOCATION.bind(rows()), cx.approximations.Draws(optimum[None, None]))
    started = fit(LOCATION, rows(), method, start=given)
    np.testing.assert_allclose(started.draws, np.tile(optimum, (3, 1, 1)), atol=1e-5)


@pytest.mark.slow
def test_float64(x64):
    x, y = rows()
    posterior = fit(
        LOCATION, (x, y), SGHMC(chains=2, num_warmup=20, num_draws=4, batch_size=5, decay=0.5)
    )
    assert posterior.draws.dtype == posterior.log_weights.dtype == np.float64
    assert posterior.info["log_joint"].dtype == posterior.info["step_size"].dtype == np.float64
    assert np.any(posterior.draws != posterior.draws.astype(np.float32))


@dataclasses.dataclass(frozen=True)
class Centred(AbstractNetwork):
    """A slope times the input minus its running mean, which is the network's state."""

    def init(self, key):
        return {"slope": jnp.ones(1)}

    def init_state(self):
        return {"mean": jnp.zeros((1,), jnp.result_type(float))}

    def call(self, params, x, *, state, key, train):
        mean = jnp.mean(x, 0) if train else state["mean"]
        following = {"mean": 0.9 * state["mean"] + 0.1 * mean} if train else state
        return (x - mean) * params["slope"], following


def test_the_state_of_the_network_stays_with_the_draws():
    x = np.random.default_rng(0).normal(size=(40, 1)) + 3
    model = cx.Model(Centred(), likelihood=cx.likelihoods.Gaussian(0.1))
    method = SGLD(chains=2, num_warmup=100, num_draws=10, batch_size=20)
    posterior = fit(model, (x, 2 * (x[:, 0] - x.mean())), method)
    means = posterior.approximation.state["mean"]
    assert means.shape == (2, 10, 1)
    assert np.all(np.abs(means - x.mean()) < 0.3)
    assert np.unique(means).size == means.size, "each draw has its own"
    np.testing.assert_allclose(posterior.predict(x[:3]).mean, 2 * (x[:3, 0] - x.mean()), atol=0.5)


def narrow(key):
    return {"slope": jnp.zeros((1,), jnp.float32)}


def narrow_apply(params, x):
    return x * params["slope"].astype(x.dtype)


@pytest.mark.slow
def test_weights_of_fewer_digits(x64, standard_promotion):
    x = np.linspace(-1, 1, 20)[:, None]
    network = cx.networks.from_function(narrow, narrow_apply)
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.3))
    posterior = fit(model, (x, x[:, 0]), SGHMC(chains=2, num_warmup=200, num_draws=50))
    assert posterior.draws["slope"].dtype == jnp.float32
    assert abs(np.mean(posterior.draws["slope"]) - 1) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("method_class", [SGLD, SGHMC])
@pytest.mark.parametrize(
    "likelihood",
    [cx.likelihoods.Gaussian(scale=None), cx.likelihoods.Gaussian(0.05)],
    ids=["learned", "sharp"],
)
@pytest.mark.parametrize("batch_size", [None, 32])
def test_the_defaults_hold_on_a_network(method_class, likelihood, batch_size):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(300, 4))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.2 * generator.normal(size=300)
    y = (y - y.mean()) / y.std()
    model = cx.Model(cx.networks.mlp([50, 50]), likelihood=likelihood)
    method = method_class(chains=2, num_warmup=1_500, num_draws=50, batch_size=batch_size)
    posterior = fit(model, (x[:200], y[:200]), method)
    error = posterior.predict(x[200:]).mean - y[200:]
    assert np.sqrt(np.mean(error**2)) < 0.9


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls, settings, message",
    [
        (SGLD, {"step_size": 0}, r"SGLD\(step_size=...\) must be positive; got 0"),
        (SGHMC, {"step_size": -1.0}, r"SGHMC\(step_size=...\) must be positive; got -1.0"),
        (
            SGLD,
            {"step_size": "long"},
            r"SGLD\(step_size=...\) must be a positive number; got 'long'",
        ),
        (SGLD, {"decay": 0.0}, r"SGLD\(decay=...\) must be above 0 and at most 1; got 0.0"),
        (SGLD, {"decay": 1.5}, r"SGLD\(decay=...\) must be above 0 and at most 1; got 1.5"),
        (SGLD, {"cycles": 7}, r"SGLD\(cycles=...\) must be a divisor of num_draws, 1000; got 7"),
        (SGLD, {"cycles": 0}, r"SGLD\(cycles=...\) must be a whole number, at least 1; got 0"),
        (
            SGLD,
            {"cycles": 5, "exploration": 1.0},
            r"SGLD\(exploration=...\) must be between 0 and 1",
        ),
        (SGLD, {"cycles": 5, "decay": 0.5}, "SGLD takes one schedule.*; got decay and cycles"),
        (
            SGLD,
            {"step_size": optax.constant_schedule(0.1), "cycles": 5},
            "got a function as step_size and cycles",
        ),
        (
            SGHMC,
            {"preconditioner": "adam"},
            r"preconditioner=...\) must be one of None, 'rmsprop'; got 'adam'",
        ),
        (SGLD, {"temperature": 0}, r"SGLD\(temperature=...\) must be positive; got 0"),
        (SGHMC, {"friction": 0.0}, r"SGHMC\(friction=...\) must be above 0 and at most 1; got 0.0"),
        (SGHMC, {"friction": 1.1}, r"SGHMC\(friction=...\) must be above 0 and at most 1; got 1.1"),
        (
            SGHMC,
            {"noise_estimate": 0.1},
            r"noise_estimate=...\) must be at least 0 and below friction, 0.1; got",
        ),
        (
            SGHMC,
            {"noise_estimate": -0.1},
            r"noise_estimate=...\) must be at least 0 and below friction",
        ),
        (
            SGLD,
            {"sgd_batch_size": 0},
            r"sgd_batch_size=...\) must be a whole number, at least 1; got 0",
        ),
        (
            SGLD,
            {"sgd_batch_size": 8, "batch_size": 8},
            r"SGLD\(batch_size=...\) must be None with sgd_batch_size",
        ),
        (
            SGLD,
            {"sgd_batch_size": 8, "temperature": 0.5},
            r"SGLD\(temperature=...\) must be 1 with sgd_batch_size",
        ),
        (
            SGLD,
            {"sgd_batch_size": 8, "decay": 0.5},
            r"SGLD\(sgd_batch_size=...\) must be None where decay",
        ),
        (
            SGLD,
            {"initial": "zero"},
            r"SGLD\(initial=...\) must be one of 'network', 'prior'; got 'zero'",
        ),
    ],
)
def test_settings_are_refused(cls, settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cls(**settings)


def test_settings_are_values():
    assert SGLD(step_size=np.float32(0.25), cycles=np.int64(5)) == SGLD(step_size=0.25, cycles=5)
    schedule = optax.cosine_decay_schedule(0.1, 100)
    assert hash(SGLD(step_size=schedule)) == hash(SGLD(step_size=schedule))
    for method in (SGLD(cycles=5, sgd_batch_size=None), SGHMC(decay=0.3, friction=1)):
        text = json.dumps(describe(method))
        assert rebuild(json.loads(text), {type(method).__name__: type(method)}) == method


@pytest.mark.parametrize("method_class", [SGLD, SGHMC])
def test_a_density_is_refused(method_class):
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(
        TypeError, match=r"needs a Model and its data.*got a LogDensity\. Use HMC, NUTS or MCLMC"
    ):
        fit(density, None, method_class())


def test_batches_that_the_rows_do_not_fill_are_refused():
    with pytest.raises(ValueError, match=r"SGLD\(batch_size=...\) must be at most .*12; got 13"):
        fit(LOCATION, rows(), SGLD(batch_size=13))
    with pytest.raises(
        ValueError, match=r"sgd_batch_size=...\) must be below the number of rows, 12; got 12"
    ):
        fit(LOCATION, rows(), SGLD(sgd_batch_size=12))
    posterior = point(np.zeros(3))
    with pytest.raises(
        ValueError, match=r"sgd_step_size\(batch_size=...\) must be below .*24; got 24"
    ):
        sgd_step_size(posterior, correlated()[0], 24)
    density = cx.Posterior(cx.LogDensity(lambda key: jnp.ones(1), jnp.sum), posterior.approximation)
    with pytest.raises(TypeError, match=r"sgd_step_size\(posterior=...\) must be of a Model"):
        sgd_step_size(density, correlated()[0], 4)


def test_steps_too_long_are_told_so():
    method = SGLD(step_size=3.0, preconditioner=None, num_warmup=500, num_draws=1, chains=1)
    with pytest.raises(cx.DivergedError, match=r"SGLD met .* at step \d+; .* Lower step_size"):
        fit(LOCATION, rows(), method)


# -- steep densities -----------------------------------------------------------------------------------


def uneven(count, columns, seed):
    """A table whose noise depends on the third column, with y scaled to unit variance."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, columns))
    noise = np.exp(-1.5 + x[:, 2]) * generator.normal(size=count)
    y = x[:, 0] + np.sin(2 * x[:, 1]) + noise
    return x, (y - y.mean()) / y.std()


UNEVEN = cx.Model(cx.networks.mlp([50]), likelihood=cx.likelihoods.Heteroscedastic())


@pytest.mark.slow
@pytest.mark.parametrize("count, columns", [(60, 3), (201, 10)])
@pytest.mark.parametrize("cls", [SGHMC, SGLD])
def test_draws_stay_on_the_scale_of_the_data(cls, count, columns):
    """With steps of 0.02, draws of SGHMC were off by 4, 2 and 7 standard deviations of y on these tables."""
    x, y = uneven(count, columns, count)
    posterior = fit(UNEVEN, (x, y), cls())
    errors = np.sqrt(np.mean((posterior.predict(x).means[..., 0] - y) ** 2, axis=1))
    assert errors.max() < 2
    assert not any("left the places" in finding.what for finding in posterior.diagnose())
    sizes = posterior.info["step_size"]
    assert (sizes > 1e-4).all()
    assert (np.diff(sizes) <= 0).all(), "they are only ever halved"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")
def test_a_chain_that_left_the_data_is_a_grave_finding():
    """With two keys in three, one of the chains leaves; with which, the last digits of a machine decide."""
    for key in range(6):
        posterior = fit(UNEVEN, uneven(60, 3, 60), SGHMC(step_size=0.02), key=key)
        found = [finding for finding in posterior.diagnose() if "left the places" in finding.what]
        if found:
            break
    assert len(found) == 1
    assert found[0].grave
    assert "step_size=None" in found[0].advice


def test_a_default_step_size_is_the_given_one_where_nothing_is_steep():
    x, y = rows()
    runs = [
        fit(LOCATION, (x, y), SGHMC(chains=2, num_warmup=50, num_draws=20, step_size=size))
        for size in (None, 0.02)
    ]
    np.testing.assert_array_equal(*(run.draws for run in runs))


def test_a_density_that_is_nowhere_finite_is_still_an_error():
    """The gradient at the start leads to NaN, from wherever the chain returns."""
    network = cx.networks.from_function(
        lambda key: jnp.zeros(3),
        lambda params, x: jnp.where(jnp.all(params == 0), params, jnp.nan) + jnp.zeros((len(x), 1)),
    )
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian((1.0, 1.0, 1.0)))
    with pytest.raises(cx.DivergedError, match=r"SGHMC met .*Lower step_size"):
        fit(model, rows(), SGHMC(chains=1, num_warmup=100, num_draws=1))
