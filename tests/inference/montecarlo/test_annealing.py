"""Simulated annealing against optima found by enumeration, and its schedules against their formulas."""

import itertools
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import LIMIT, linear_regression, z_mean, z_sd
from scipy.special import softmax

import credax as cx
from credax.core import random
from credax.core.typing import Draw
from credax.inference.montecarlo.annealing import COOLINGS, SPAN, SimulatedAnnealing
from credax.posterior.approximations import Draws

WEIGHTS, NOISE = 16, 0.5


def fit(model, data, key=0, **settings):
    return cx.fit(model, data, SimulatedAnnealing(**settings), key=key, progress=False)


# -- a rugged landscape of 65,536 states -------------------------------------------------------------


@cache
def rugged():
    """A model whose data is pure noise, with the data, all states, and the log joint of each state."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(WEIGHTS, WEIGHTS))
    y = generator.normal(size=WEIGHTS) * np.sqrt(WEIGHTS)
    network = cx.networks.from_function(
        lambda key: {"w": jnp.zeros((WEIGHTS, 1))}, lambda params, x: x @ params["w"]
    )
    model = cx.Model(network, cx.priors.Discrete([-1.0, 1.0]), cx.likelihoods.Gaussian(NOISE))
    states = np.array(list(itertools.product([-1.0, 1.0], repeat=WEIGHTS)))
    return model, (x, y), states, log_joint(x, y, states)


def log_joint(x, y, states):
    squares = np.sum((y - states @ x.T) ** 2, axis=-1) / NOISE**2
    constant = WEIGHTS * np.log(NOISE * np.sqrt(2 * np.pi)) + WEIGHTS * np.log(2)
    return -0.5 * squares - constant


@cache
def run(cooling):
    model, data, *_ = rugged()
    return fit(model, data, restarts=256, num_steps=300, cooling=cooling)


def successes(posterior):
    """Which restarts have visited the global optimum."""
    best = rugged()[-1].max()
    return posterior.info["best_log_joint"][:, -1] > best - 1e-3 * abs(best)


def test_there_are_many_optima():
    _, _, states, values = rugged()
    code = (states > 0) @ 2 ** np.arange(WEIGHTS)[::-1]
    np.testing.assert_array_equal(code, np.arange(len(states)))
    neighbours = code[:, None] ^ 2 ** np.arange(WEIGHTS)
    optima = np.sum(np.all(values[:, None] > values[neighbours], axis=1))
    assert optima >= 20
    assert np.diff(np.sort(values))[-1] > 1, "the best state is the only one"


@pytest.mark.slow
@pytest.mark.parametrize(
    "cooling",
    [pytest.param(c, marks=() if c == "geometric" else pytest.mark.slow) for c in COOLINGS],
)
def test_the_best_of_all_states_is_found(cooling):
    _, _, states, values = rugged()
    posterior = run(cooling)
    (weight,) = np.flatnonzero(posterior.log_weights.ravel() == 0)
    np.testing.assert_array_equal(posterior.draws["w"][weight, 0, :, 0], states[values.argmax()])


@cache
def quenched():
    """Without annealing: the final temperature from the first step on."""
    model, data, *_ = rugged()
    cold = {"initial_temperature": 1e-3, "final_temperature": 1e-4}
    return fit(model, data, restarts=256, num_steps=300, **cold)


@pytest.mark.slow
@pytest.mark.parametrize("cooling", COOLINGS)
def test_slow_cooling_finds_it_more_often_than_a_quench(cooling):
    annealed, cold = successes(run(cooling)), successes(quenched())
    error = np.sqrt(annealed.var() / len(annealed) + cold.var() / len(cold))
    assert annealed.mean() - cold.mean() > LIMIT * error


@pytest.mark.slow
def test_every_restart_stays_on_the_values_and_at_its_best():
    _, (x, y), *_ = rugged()
    for cooling in COOLINGS:
        posterior = run(cooling)
        path, best = posterior.info["log_joint"], posterior.info["best_log_joint"]
        draws = posterior.draws["w"][:, 0, :, 0]
        assert set(np.unique(draws)) == {-1.0, 1.0}
        np.testing.assert_allclose(best[:, -1], log_joint(x, y, draws), rtol=1e-5)
        assert np.all(np.diff(best, axis=1) >= 0)
        assert np.all(best >= path)


# -- the posterior -----------------------------------------------------------------------------------


@cache
def short_run():
    model, data, *_ = rugged()
    return fit(model, data, restarts=5, num_steps=20, key=3)


def test_the_best_restart_alone_predicts(tmp_path):
    model, (x, _), *_ = rugged()
    posterior = short_run()
    best = posterior.info["best_log_joint"][:, -1]
    assert len(set(best)) > 1
    assert isinstance(posterior.approximation, Draws)
    np.testing.assert_array_equal(posterior.log_weights.ravel() == 0, best == best.max())
    np.testing.assert_array_equal(np.exp(posterior.log_weights).sum(), 1)
    state = posterior.draws["w"][best.argmax(), 0, :, 0]
    predictive = posterior.predict(x)
    np.testing.assert_allclose(predictive.mean, x @ state, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(predictive.epistemic, 0)
    np.testing.assert_array_equal(posterior.sample(0, 7)["w"][..., 0], np.tile(state, (7, 1)))
    posterior.save(tmp_path / "best.credax")
    loaded = cx.load(tmp_path / "best.credax", model=model)
    np.testing.assert_array_equal(loaded.predict(x).mean, predictive.mean)


def test_it_goes_on_from_a_start():
    model, data, *_ = rugged()
    first, method = short_run(), SimulatedAnnealing(restarts=2, num_steps=1)
    again = cx.fit(model, data, method, key=4, start=first, progress=False)
    best = first.info["best_log_joint"][:, -1].max()
    assert np.all(again.info["best_log_joint"] >= best), "the start counts among the best"
    assert again.info["temperature"].shape == (2, 1)


# -- temperature -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [3.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_at_one_temperature_it_is_metropolis(temperature):
    """The states follow the density to the power 1 / T: mean and spread of the log joint along the path."""
    model, data, states, values = rugged()
    model = cx.Model(model.network, model.prior, cx.likelihoods.Gaussian(5.0))
    values = -0.5 * np.sum((data[1] - states @ data[0].T) ** 2, axis=-1) / 25
    values -= WEIGHTS * (np.log(5.0 * np.sqrt(2 * np.pi)) + np.log(2))
    same = {"initial_temperature": temperature, "final_temperature": temperature}
    posterior = fit(model, data, num_steps=10_000, cooling="geometric", **same)
    np.testing.assert_array_equal(posterior.info["temperature"], temperature)
    path = posterior.info["log_joint"][:, 500:, None].astype(np.float64)
    weights = softmax(values / temperature)
    mean = weights @ values
    assert abs(z_mean(path, mean)[0]) < LIMIT
    assert abs(z_sd(path, np.sqrt(weights @ (values - mean) ** 2))[0]) < LIMIT
    # The mean at a temperature that is off by 5 % could be told apart.
    other = softmax(values / temperature / 1.05) @ values
    assert abs(z_mean(path, other)[0]) > LIMIT


def test_geometric_cooling_follows_its_formula():
    found = run("geometric").info["temperature"]
    np.testing.assert_allclose(found, found[:, :1] * SPAN ** (np.arange(300) / 299), rtol=1e-4)
    model, data, *_ = rugged()
    ends = {"initial_temperature": 50.0, "final_temperature": 0.5}
    found = fit(model, data, restarts=1, num_steps=11, **ends).info["temperature"]
    np.testing.assert_allclose(found, [50 * 0.01 ** (np.arange(11) / 10)], rtol=1e-5)


@pytest.mark.slow
def test_logarithmic_cooling_follows_its_formula():
    found = run("logarithmic").info["temperature"]
    np.testing.assert_allclose(
        found, found[:, :1] * np.log(2) / np.log(np.arange(300) + 2), rtol=1e-5
    )


@pytest.mark.slow
def test_adaptive_cooling_uses_its_steps():
    found = run("adaptive").info["temperature"]
    assert np.all(np.diff(found, axis=1) < 0)
    assert np.all(found[:, -1] < 2 * SPAN * found[:, 0] * 300**0.1)
    assert np.all(found[:, -1] > 0.99 * SPAN * found[:, 0])


def test_adaptive_cooling_is_slow_where_the_log_joint_fluctuates():
    """The cooling rate is proportional to T / sigma; here for several sigma at the same temperature."""
    method = SimulatedAnnealing(cooling="adaptive", num_steps=1_000)
    model, data = rugged()[0].prepare(rugged()[1])
    state = jax.jit(lambda key: method.init(key, model, data))(random.key(0))
    state = state._replace(temperature=0.01 * state.first_temperature)
    total = jnp.asarray(np.log(100.0), jnp.float32)  # as if sigma had equalled T so far
    logs = []
    for factor in (1.0, 2.0, 100.0):
        variance = (factor * state.temperature) ** 2 / 0.95
        heat = state.heat._replace(mean=state.log_density, variance=variance, total=total)
        after = method._cooled(state._replace(heat=heat), jnp.int32(500))
        logs.append(float(jnp.log(state.temperature / after.temperature)))
    np.testing.assert_allclose(logs, np.log(100) / 500 * np.array([1, 1 / 2, 1 / 5]), rtol=1e-3)


def test_the_first_temperature_is_the_median_change_by_a_flip():
    model, (x, y), states, _ = rugged()
    bound, data = model.prepare((x, y))
    state = states[12_345]
    started = bound.starting_at(Draw({"w": jnp.asarray(state[:, None], jnp.float32)}))
    begin = jax.jit(lambda key: SimulatedAnnealing().init(key, started, data).temperature)
    found = jax.lax.map(begin, jax.random.split(random.key(0), 32))
    flipped = state * (1 - 2 * np.eye(WEIGHTS))
    changes = np.sort(np.abs(log_joint(x, y, flipped) - log_joint(x, y, state)))
    # Each is the median of a hundred draws from sixteen values.
    assert np.all((found >= changes[4] * 0.999) & (found <= changes[11] * 1.001))
    assert np.median(changes) == pytest.approx(np.median(found), rel=0.2)


def test_a_flat_density_begins_at_one():
    flat = cx.LogDensity(lambda key: jnp.ones(2), lambda x: 0.0 * jnp.sum(x))
    posterior = fit(flat, None, num_steps=3, cooling="adaptive")
    np.testing.assert_array_equal(posterior.info["temperature"][:, 0], 1.0)
    assert np.all(np.isfinite(posterior.info["temperature"]))


# -- continuous weights ------------------------------------------------------------------------------


def rastrigin(params):
    """A bowl with a local optimum in every unit square; the global optimum is at the origin."""
    x = params["x"]
    return -jnp.sum(x**2 + 10 * (1 - jnp.cos(2 * jnp.pi * x)))


@cache
def dimples():
    return cx.LogDensity(
        lambda key: {"x": jax.random.uniform(key, (2,), minval=-5.0, maxval=5.0)}, rastrigin
    )


@pytest.mark.parametrize("cooling", COOLINGS)
def test_the_deepest_of_many_dimples_is_found(cooling):
    posterior = fit(dimples(), None, restarts=8, cooling=cooling)
    best = posterior.info["best_log_joint"][:, -1]
    assert best.max() > -0.05
    assert np.mean(best > -0.5) >= 0.5, "and by most restarts"
    np.testing.assert_allclose(posterior.sample(0, 1)["x"], 0, atol=0.02)


def test_the_mode_of_a_regression_is_found():
    """A target with different scales and correlated weights."""
    target = linear_regression()
    posterior = fit(target.model, target.data)
    draws = target.quantities(posterior.draws)[:, 0]
    away = (draws - target.mean) / target.sd
    assert np.max(np.abs(away)) < 0.2


@cache
def curve():
    """A network of 16 weights and its data."""
    generator = np.random.default_rng(2)
    x = generator.uniform(-2, 2, size=(40, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * generator.normal(size=40)
    network = cx.networks.mlp([5], activation="tanh")
    return cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.1)), (x, y)


@pytest.mark.slow
def test_the_mode_of_a_network_is_found():
    """The defaults find an optimum within two nats of the one found with gradients."""
    model, data = curve()
    bound, rows = model.prepare(data)
    best = fit(model, data).info["best_log_joint"][:, -1].max()
    point = cx.fit(model, data, cx.MAP(num_steps=2_000), key=0, progress=False).draws
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), point)
    assert best > float(bound.log_joint(params, rows.everything())) - 2


def test_a_model_begins_at_its_posterior():
    def first(model, data, **settings):
        method, (model, data) = SimulatedAnnealing(**settings), model.prepare(data)
        return jax.jit(lambda key: method.init(key, model, data).temperature)(random.key(0))

    assert first(*curve()) == 1
    assert first(*curve(), final_temperature=2.0) == 2
    assert first(dimples(), None) > 2, "a log density begins at its own scale"


def test_a_run_that_still_climbs_is_an_alarm():
    endless = cx.LogDensity(lambda key: jnp.zeros(3), jnp.sum)
    with pytest.warns(cx.PosteriorWarning, match="The best log joint still rose by"):
        posterior = fit(endless, None, num_steps=100)
    (found,) = posterior.diagnose()
    best = posterior.info["best_log_joint"]
    path = best[best[:, -1].argmax()]
    assert found.value == pytest.approx(path[-1] - path[-11])
    assert found.grave


def test_double_precision_all_the_way(x64):
    posterior = fit(dimples(), None, restarts=2, num_steps=500, cooling="adaptive")
    for name in ("log_joint", "best_log_joint", "temperature", "acceptance_rate"):
        assert posterior.info[name].dtype == np.float64
    assert posterior.draws["x"].dtype == np.float64


def test_where_the_density_is_zero_or_nan_it_does_not_go():
    def log_joint(x):
        nowhere = jnp.where(x < -1, jnp.nan, -jnp.inf)
        return jnp.sum(jnp.where(x > 0.5, -(x**2), nowhere))

    model = cx.LogDensity(lambda key: jnp.full(2, 3.0), log_joint)
    posterior = fit(model, None)
    assert np.all(posterior.draws > 0.5)
    np.testing.assert_allclose(posterior.draws, 0.5, atol=0.01)
    for name in ("log_joint", "best_log_joint", "temperature", "acceptance_rate"):
        assert np.all(np.isfinite(posterior.info[name]))


def test_a_start_without_density_is_refused():
    model = cx.LogDensity(lambda key: -jnp.ones(2), lambda x: jnp.sum(jnp.log(x)))
    with pytest.raises(
        ValueError, match=r"SimulatedAnnealing cannot start: the log density of every"
    ):
        fit(model, None)


# -- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"restarts": 0}, "(restarts=...) must be a whole number, at least 1; got 0."),
        ({"num_steps": 0}, "(num_steps=...) must be a whole number, at least 1; got 0."),
        (
            {"cooling": "fast"},
            "(cooling=...) must be one of 'geometric', 'logarithmic', 'adaptive'; got",
        ),
        ({"initial_temperature": 0.0}, "(initial_temperature=...) must be positive; got 0.0."),
        ({"final_temperature": -1.0}, "(final_temperature=...) must be positive; got -1.0."),
        ({"initial_step_size": 0}, "(initial_step_size=...) must be positive; got 0."),
        (
            {"proposals_per_step": 0},
            "(proposals_per_step=...) must be a whole number, at least 1; got",
        ),
        ({"max_flips": 0}, "(max_flips=...) must be a whole number, at least 1; got 0."),
        (
            {"initial_temperature": 1.0, "final_temperature": 2.0},
            "(final_temperature=...) must be at most initial_temperature, 1.0; got 2.0.",
        ),
        (
            {"cooling": "logarithmic", "final_temperature": 1.0},
            "(final_temperature=...) must be None for logarithmic cooling",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(f"SimulatedAnnealing{message}")):
        SimulatedAnnealing(**settings)


def test_weights_that_cannot_move_are_refused():
    model, data, *_ = rugged()
    model = cx.Model(model.network, cx.priors.Discrete([1.0]), model.likelihood)
    with pytest.raises(ValueError, match=r"needs weights that can move; every weight .* one value"):
        fit(model, data)
