"""MCLMC: its draws against known moments, its bias, its steps against BlackJAX, and how it fails."""

import dataclasses
import math
import warnings
from functools import cache, partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc import adjusted_mclmc_dynamic, integrators, proposal
from exact_targets import (
    LIMIT,
    caught,
    check,
    correlated,
    ess_mean,
    exact_predictive,
    funnel,
    isotropic,
    linear_regression,
    mcse_mean,
    mcse_sd,
    rhat,
)
from mclmc_runs import METHODS, TARGETS, energy_variance, fit, fitted

import credax as cx
from credax.core import random
from credax.core.errors import PosteriorWarning
from credax.core.trees import Flat
from credax.inference.method import Layout
from credax.inference.montecarlo import mclmc
from credax.inference.montecarlo.mclmc import (
    MCLMC,
    num_leapfrogs,
    turn,
)

slow = pytest.mark.slow

# Most of the time goes to compilation.
QUICK = {
    "unadjusted": {"ill_conditioned"},
    "adjusted": {"correlated"},
}
every_run = pytest.mark.parametrize(
    "method, target",
    [
        pytest.param(method, target, marks=() if target in QUICK[method] else slow)
        for method in METHODS
        for target in TARGETS
    ],
)
both = pytest.mark.parametrize("adjusted", [False, True])


# -- the right distribution --------------------------------------------------------------------------


@every_run
def test_means_and_standard_deviations_are_right(method, target):
    check(fitted(method, target), TARGETS[target]())


@slow
def test_neck_of_a_funnel():
    target = funnel(width=4, scale=1.0)
    method = MCLMC(adjusted=True, num_warmup=1_000, num_draws=10_000, thin=2, target_accept=0.95)
    check(fit(target, method), target, sd_error=0.1)


@both
@slow
def test_one_batch_of_chains_is_right(monkeypatch, adjusted):
    monkeypatch.setattr(MCLMC, "layout", Layout.TOGETHER)
    # Settings that no other test uses, since compiled programs are shared by equal settings.
    method = dataclasses.replace(METHODS["adjusted" if adjusted else "unadjusted"], chains=5)
    check(fit(correlated(), method), correlated())


@slow
def test_unit_mass_is_right():
    method = dataclasses.replace(METHODS["unadjusted"], mass="unit", num_draws=4_000)
    check(fit(correlated(), method), correlated())


@slow
@both
def test_units_of_inputs_are_right(adjusted):
    method = METHODS["adjusted" if adjusted else "unadjusted"]
    target = linear_regression()
    check(fit(target, dataclasses.replace(method, mass="inputs")), target)


@pytest.mark.slow
def test_nothing_need_be_tuned():
    target = isotropic(10)
    method = MCLMC(num_warmup=0, num_draws=2_000, step_size=1.5, length=3.0, chains=2)
    posterior = fit(target, method)
    assert np.all(posterior.info["step_size"] == np.float32(1.5))
    values = target.values(posterior)[:, 50:]
    np.testing.assert_allclose(values.mean((0, 1)), target.mean, atol=0.12)
    np.testing.assert_allclose(values.std((0, 1)), target.sd, rtol=0.08)


@slow
def test_predictions_are_right():
    target = linear_regression()
    x = np.random.default_rng(0).normal(size=(20, 3))
    mean, variance = exact_predictive(target, x)
    predictive = fitted("unadjusted", "linear_regression").predict(x)
    np.testing.assert_allclose(predictive.mean, mean, atol=0.01)
    np.testing.assert_allclose(predictive.epistemic, variance, rtol=0.1)


ROWS, NOISE = 40, 0.3


def sine_rows():
    generator = np.random.default_rng(0)
    x = generator.uniform(-2.0, 2.0, size=(ROWS, 1))
    return x, np.sin(2 * x[:, 0]) + NOISE * generator.normal(size=ROWS)


def outputs(params, x):
    """The outputs of a tanh network with one hidden layer, for draws with any leading axes."""
    hidden = np.tanh(x @ params["layer_0"]["kernel"] + params["layer_0"]["bias"][..., None, :])
    return (hidden @ params["layer_1"]["kernel"])[..., 0] + params["layer_1"]["bias"]


def nuts_draws(model, data, chains=8, num_warmup=1_500, num_draws=8_000):
    """Draws by NUTS of BlackJAX, without any code of credax's samplers."""
    bound, rows = model.prepare(data)
    log_density = partial(bound.log_joint, batch=rows.everything())
    warmup = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=0.9)

    @jax.jit
    @jax.vmap
    def run(key):
        init_key, warmup_key, key = jax.random.split(key, 3)
        (state, tuned), _ = warmup.run(warmup_key, bound.init(init_key), num_warmup)
        nuts = blackjax.nuts(log_density, **tuned)

        def one(state, key):
            state, _ = nuts.step(key, state)
            return state, state.position

        return jax.lax.scan(one, state, jax.random.split(key, num_draws))[1]

    return jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(0), chains)))


@slow
def test_predictions_of_a_network_agree_with_nuts(standard_promotion):
    network = cx.networks.mlp([8], activation="tanh")
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(NOISE))
    x = np.linspace(-3.0, 3.0, 50)[:, None]
    known = outputs(nuts_draws(model, sine_rows()), x).astype(np.float64)
    method = MCLMC(chains=8, num_draws=8_000)
    posterior = cx.fit(model, sine_rows(), method, progress=False)
    got = outputs(jax.tree.map(np.asarray, posterior.draws), x).astype(np.float64)
    for values in (known, got):
        assert rhat(values).max() < 1.02
        assert ess_mean(values).min() > 1_000
    difference = got.mean((0, 1)) - known.mean((0, 1))
    assert np.all(np.abs(difference) < LIMIT * np.hypot(mcse_mean(got), mcse_mean(known)))
    difference = got.std((0, 1)) - known.std((0, 1))
    error = np.hypot(mcse_sd(got), mcse_sd(known))
    assert np.all(np.abs(difference) < LIMIT * error)
    assert np.all(0.05 * known.std((0, 1)) > 2 * error), "too few draws to see an error of 5 %"


# -- the step itself ---------------------------------------------------------------------------------


def density(scale=1.0):
    """A strongly curved density, on which a wrong step has a visible effect."""

    def log_joint(x):
        return -0.25 * jnp.sum((x / scale) ** 4) - 0.5 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2)

    return cx.LogDensity(lambda key: jax.random.normal(key, (6,)), log_joint)


def some_state(method, mass=None):
    state = method.init(random.key(3), density(), None)
    if mass is None:
        return state
    tuning = state.tuning.tree._replace(inverse_mass=jnp.asarray(mass))
    return state._replace(tuning=Flat.of(tuning))


def integrator_state(state):
    momentum, gradient = state.momentum.vector, state.gradient.vector
    return integrators.IntegratorState(state.position.vector, momentum, state.log_density, gradient)


@pytest.mark.slow
def test_a_step_is_that_of_blackjax(x64, standard_promotion):
    method = MCLMC(num_warmup=0, step_size=0.3, length=1.7)
    mass = np.linspace(0.5, 2.0, 6)
    state, key = some_state(method, mass), random.key(5)
    after, info = method.step(key, state, density(), None, jnp.int32(0))
    log_density = density().log_joint
    step = integrators.with_isokinetic_maruyama(
        integrators.isokinetic_mclachlan(log_density, jnp.asarray(mass))
    )
    before = integrator_state(state)
    want, kinetic = step(before, 0.3, 1.7, key)
    np.testing.assert_allclose(after.position.vector, want.position, rtol=1e-12)
    np.testing.assert_allclose(after.momentum.vector, want.momentum, rtol=1e-12)
    np.testing.assert_allclose(after.gradient.vector, want.logdensity_grad, rtol=1e-12)
    np.testing.assert_allclose(after.log_density, want.logdensity, rtol=1e-12)
    change = kinetic - want.logdensity + before.logdensity
    np.testing.assert_allclose(info.energy_change, change, rtol=1e-9)


@slow
def test_a_trajectory_is_that_of_blackjax(x64, standard_promotion):
    method = MCLMC(num_warmup=0, step_size=2.0, length=8.5, adjusted=True)
    mass = np.linspace(0.5, 2.0, 6)
    state = some_state(method, mass)
    kernel = adjusted_mclmc_dynamic.build_kernel(
        num_leapfrogs, next_random_arg_fn=lambda step: step
    )
    step = jax.jit(lambda key: method.step(key, state, density(), None, jnp.int32(0)))
    accepted = set()
    for seed in range(20):
        after, info = step(random.key(seed))
        before = adjusted_mclmc_dynamic.DynamicHMCState(
            state.position.vector, state.log_density, state.gradient.vector, jnp.int32(0)
        )
        want, theirs = kernel(
            random.key(seed),
            before,
            density().log_joint,
            2.0,
            inverse_mass_matrix=jnp.asarray(mass),
            integration_steps_params=(8.5 / 2.0,),
        )
        np.testing.assert_allclose(after.position.vector, want.position, rtol=1e-12)
        np.testing.assert_allclose(info.acceptance_rate, theirs.acceptance_rate, rtol=1e-9)
        np.testing.assert_allclose(
            info.acceptance_rate, min(1, math.exp(-info.energy_change)), rtol=1e-9
        )
        assert info.num_leapfrog == theirs.num_integration_steps
        accepted.add(bool(theirs.is_accepted))
    assert accepted == {False, True}


def test_a_direction_is_forgotten_over_the_length():
    """After noise for a time t, the mean cosine of the angle to the first direction is exp(-t / L)."""
    momentum = Flat.of(jnp.eye(40)[0])
    keys = jax.random.split(random.key(0), 4_000)
    for time, length in ((0.2, 1.0), (1.0, 3.0)):
        turned = jax.vmap(lambda key: turn(key, momentum, time, length).vector)(keys)  # noqa: B023
        np.testing.assert_allclose(jnp.sum(turned**2, axis=1), 1, rtol=1e-5)
        assert np.mean(turned[:, 0]) == pytest.approx(math.exp(-time / length), rel=0.02)


@pytest.mark.slow
def test_trajectory_lengths_are_spread_around_their_mean():
    for mean in (1.0, 1.3, 4.0, 17.5):
        steps = [int(num_leapfrogs(jnp.int32(step), jnp.float32(mean))) for step in range(1024)]
        assert np.mean(steps) == pytest.approx(mean, rel=0.01)
        assert min(steps) == 1
        assert max(steps) <= math.ceil(2 * mean)


# -- the bias, and wrong kernels ----------------------------------------------------------------------


@cache
def coarse(step_size):
    """The bias of the variance of a standard normal for unadjusted chains, its error, and the energy variance.

    Args:
      step_size: the step size as a multiple of the square root of the dimension.
    """
    step_size, target = step_size * math.sqrt(50), isotropic(50)
    method = MCLMC(chains=16, num_warmup=0, num_draws=400, step_size=step_size, length=50**0.5)
    posterior = fit(target, method)
    values = target.values(posterior)[:, 20:]
    each = ((values - target.mean) ** 2).mean((1, 2))
    return each.mean() - 1, each.std(ddof=1) / math.sqrt(16), energy_variance(posterior).mean()


@pytest.mark.slow
def test_the_bias_falls_with_the_square_of_the_step_size():
    (large, large_error, large_energy), (small, small_error, small_energy) = (
        coarse(1.8),
        coarse(0.9),
    )
    assert large < -LIMIT * large_error, "the variances are too small"
    assert abs(small - large / 4) < LIMIT * math.hypot(small_error, large_error / 4) + 0.002
    assert 32 < large_energy / small_energy < 128  # 2^6 is 64


def steeper(flow):
    """An integrator for the density raised to the power 1.2."""

    def integrator(log_density, mass):
        return flow(lambda position: 1.2 * log_density(position), mass)

    return integrator


def one_sided(key, momentum, time, length):
    """Noise with a preferred direction."""
    turned = turn(key, momentum, time, length).vector + 0.05
    return dataclasses.replace(momentum, vector=turned / jnp.linalg.norm(turned))


def always(key, log_probability, old, new):
    return new, (True, jnp.ones_like(log_probability), jnp.zeros_like(log_probability))


def by_half(key, log_probability, old, new):
    return proposal.static_binomial_sampling(key, log_probability / 4, old, new)[0], (
        True,
        jnp.ones_like(log_probability),
        jnp.zeros_like(log_probability),
    )


LONG = {"num_warmup": 0, "step_size": 9.0, "length": 18.0, "adjusted": True, "thin": 1}
WRONG = {
    "a steeper density": (integrators, "isokinetic_mclachlan", steeper, {"thin": 5}),
    "noise with a preference": (mclmc, "turn", lambda _: one_sided, {"thin": 5}),
    "accepts always": (mclmc, "_accept", lambda _: always, LONG),
    "accepts by a root": (mclmc, "_accept", lambda _: by_half, LONG),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "accepts" not in name else slow) for name in WRONG]
)
def test_a_wrong_kernel_would_be_caught(monkeypatch, name):
    module, attribute, wrong, settings = WRONG[name]
    target = isotropic(5)
    # A number of draws that no other test uses, so that none reuses the wrong compiled program.
    settings = {"num_warmup": 1_000, "num_draws": 4_001 + list(WRONG).index(name), **settings}
    monkeypatch.setattr(module, attribute, wrong(getattr(module, attribute)))
    assert caught(fit(target, MCLMC(**settings)), target)


@slow
def test_the_same_steps_with_the_right_acceptance_are_right():
    target = isotropic(5)
    assert not caught(fit(target, MCLMC(num_draws=8_000, **LONG)), target)


# -- failures -----------------------------------------------------------------------------------------


def half_line(gradient_only):
    """A gamma variable and normal ones; for x < 0 the density, or only its gradient, is NaN."""

    def log_joint(params):
        x, y = params["x"], params["y"]
        if gradient_only:  # the value is finite below zero, but the gradient of the root is NaN
            root = jnp.sqrt(x)
            return jnp.where(x > 0, 4 * jnp.log(root), -1e2) - jnp.abs(x) - jnp.sum(y**2) / 2
        return 2 * jnp.log(x) - x - jnp.sum(y**2) / 2

    def init(key):
        return {"x": jnp.ones(()), "y": jax.random.normal(key, (3,))}

    return cx.LogDensity(init, log_joint)


@pytest.mark.parametrize("gradient_only", [pytest.param(False, marks=slow), True])
@pytest.mark.parametrize("adjusted", [False, pytest.param(True, marks=slow)])
def test_steps_to_where_the_density_is_not_a_number_are_undone(gradient_only, adjusted):
    method = MCLMC(
        num_warmup=1_000, num_draws=4_000, thin=5, adjusted=adjusted, desired_energy_variance=5e-4
    )
    with pytest.warns(PosteriorWarning) if False else warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)
        posterior = cx.fit(half_line(gradient_only), None, method, progress=False)
    x = np.asarray(posterior.draws["x"], np.float64)
    assert x.min() > 0
    for values in posterior.info.values():
        assert np.all(np.isfinite(values)) if np.ndim(values) == 2 else True
    assert x.mean() == pytest.approx(3.0, abs=0.15)
    assert x.std() == pytest.approx(math.sqrt(3.0), rel=0.08)


def test_a_step_far_too_long_is_undone_and_counted():
    method = MCLMC(num_warmup=0, num_draws=50, step_size=1e4, length=1.0, chains=2)
    with pytest.warns(PosteriorWarning, match="diverged|moved"):
        posterior = cx.fit(isotropic().model, None, method, progress=False)
    assert np.all(posterior.info["diverging"] == 1)
    assert np.all(posterior.info["energy_change"] == 0)
    assert np.ptp(posterior.draws, axis=1).max() == 0


def started_at(distance):
    model = cx.LogDensity(
        lambda key: distance * jax.random.normal(key, (5,)), isotropic().model.log_joint_function
    )
    return dataclasses.replace(isotropic(), model=model)


@pytest.mark.slow
def test_a_far_start_is_left():
    target = started_at(10)
    check(fit(target, METHODS["unadjusted"]), target)


@slow
def test_a_start_too_far_away_is_told():
    """At constant speed, a chain takes all of the warm-up to reach the typical set from far away."""
    assert "R-hat of the log joint" in str(fit(started_at(100), METHODS["unadjusted"]).diagnose())


@pytest.mark.slow
def test_rounding_does_not_stop_the_search_for_a_step_size():
    """A log joint of ten million is rounded to a whole number, which is far more than the desired error."""

    def log_joint(x):
        return -0.5 * jnp.sum(x**2) - 1e7

    model = cx.LogDensity(lambda key: jax.random.normal(key, (5,)), log_joint)
    method = MCLMC(num_warmup=2_000, num_draws=1_000, chains=2)
    posterior = cx.fit(model, None, method, progress=False)
    assert np.all(posterior.info["step_size"][:, -1] > 0.5)
    np.testing.assert_allclose(np.std(posterior.draws, axis=(0, 1)), 1, rtol=0.15)


def test_one_weight_is_refused():
    model = cx.LogDensity(lambda key: jnp.zeros(1), lambda x: -0.5 * jnp.sum(x**2))
    with pytest.raises(ValueError, match=r"MCLMC needs at least two weights.*Use HMC"):
        cx.fit(model, None, MCLMC(), progress=False)


def test_a_start_without_a_gradient_is_refused():
    model = cx.LogDensity(lambda key: jnp.zeros(2), lambda x: -jnp.sum(jnp.sqrt(x)))
    with pytest.raises(ValueError, match=r"gradient of the log density of chain 0 .* not finite"):
        cx.fit(model, None, MCLMC(num_warmup=100), progress=False)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"step_size": 0.0}, r"MCLMC\(step_size=...\) must be positive; got 0.0"),
        ({"length": -1.0}, r"MCLMC\(length=...\) must be positive; got -1.0"),
        (
            {"num_warmup": 0},
            r"MCLMC\(step_size=...\) must be a number where num_warmup is 0.*got None",
        ),
        (
            {"num_warmup": 0, "step_size": 1.0},
            r"MCLMC\(length=...\) must be a number where num_warmup",
        ),
        ({"desired_energy_variance": 0}, r"MCLMC\(desired_energy_variance=...\) must be positive"),
        ({"heat": 0}, r"MCLMC\(heat=...\) must be positive"),
        ({"heat": 10.0, "adjusted": True}, r"MCLMC\(heat=...\) must be 1 where adjusted; got 10"),
        ({"target_accept": 1.0}, r"MCLMC\(target_accept=...\) must be between 0 and 1"),
        (
            {"mass": "dense"},
            r"MCLMC\(mass=...\) must be one of 'diagonal', 'unit', 'inputs'; got 'dense'",
        ),
        ({"adjusted": "yes"}, r"MCLMC\(adjusted=...\) must be True or False; got 'yes'"),
        ({"thin": 0}, r"MCLMC\(thin=...\) must be a whole number, at least 1; got 0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MCLMC(**settings)


def test_defaults_follow_the_kind_of_step():
    assert (MCLMC().num_warmup, MCLMC().thin) == (10_000, 20)
    assert (MCLMC(adjusted=True).num_warmup, MCLMC(adjusted=True).thin) == (1_000, 1)
    assert MCLMC(thin=3, num_warmup=5).num_steps == 5 + 3 * 1_000


# -- runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjusted", [False, pytest.param(True, marks=slow)])
def test_bits_do_not_depend_on_chunks(adjusted):
    method = MCLMC(num_warmup=120, num_draws=10, thin=3, adjusted=adjusted, chains=2)
    runs = [fit(correlated(), method, chunk_steps=steps) for steps in (None, 1, 37)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.draws, runs[0].draws)
        for name in ("log_joint", "step_size", "energy_change"):
            np.testing.assert_array_equal(run.info[name], runs[0].info[name])
    other = fit(correlated(), method, key=1)
    assert not np.any(np.asarray(other.draws) == np.asarray(runs[0].draws))


@pytest.mark.matrix
@pytest.mark.parametrize("adjusted", [False, pytest.param(True, marks=slow)])
def test_float64(x64, adjusted):
    target = correlated()
    method = MCLMC(num_warmup=120, num_draws=10, thin=3, adjusted=adjusted, chains=2)
    posterior = fit(target, method)
    assert posterior.draws.dtype == np.float64
    assert np.any(posterior.draws != np.asarray(posterior.draws, np.float32))
    for name in ("log_joint", "step_size", "energy_change"):
        assert posterior.info[name].dtype == np.float64
