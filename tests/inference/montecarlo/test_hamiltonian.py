"""HMC and NUTS: their draws against known moments, their adaptation, and how they fail."""

import warnings
from dataclasses import replace
from functools import cache

import blackjax.mcmc.hmc
import blackjax.mcmc.proposal
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import (
    LIMIT,
    banana,
    caught,
    check,
    correlated,
    ess_mean,
    exact_predictive,
    funnel,
    ill_conditioned,
    isotropic,
    linear_regression,
    logistic_regression,
    mcse_mean,
    mcse_sd,
    rhat,
    z_mean,
)
from scipy import stats

import credax as cx
from credax.core import random
from credax.core.errors import PosteriorWarning
from credax.inference.method import Layout
from credax.inference.montecarlo.adaptation import Warmup, schedule
from credax.inference.montecarlo.hamiltonian import HMC, LARGEST_DENSE, NUTS, jitter

TARGETS = {
    function.__name__: function
    for function in (isotropic, ill_conditioned, correlated, linear_regression, logistic_regression)
}
CHAINS = 16
METHODS = {
    "HMC": HMC(CHAINS, num_warmup=500, num_draws=1_250, num_leapfrog=4),
    "NUTS": NUTS(CHAINS, num_warmup=500, num_draws=2_000),
}

slow = pytest.mark.slow
# Most of the time goes to compilation, especially of NUTS.
QUICK = {
    "HMC": {"correlated", "linear_regression"},
    "NUTS": {"logistic_regression"},
}
every_run = pytest.mark.parametrize(
    "method, target",
    [
        pytest.param(method, target, marks=() if target in QUICK[method] else slow)
        for method in METHODS
        for target in TARGETS
    ],
)
both = pytest.mark.parametrize("method", ["HMC", pytest.param("NUTS", marks=slow)])


def fit(target, method, key=0, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)
        return cx.fit(target.model, target.data, method, key=key, progress=False, **arguments)


@cache
def fitted(method, target):
    return fit(TARGETS[target](), METHODS[method])


def after_warmup(posterior, name):
    return posterior.info[name][:, posterior.method.num_warmup :]


# -- the right distribution --------------------------------------------------------------------------


@pytest.mark.slow
@every_run
def test_means_and_standard_deviations_are_exact(method, target):
    """Each chain is an independent estimate, whose spread is the error.

    The usual estimate of the error of a standard deviation is too small for NUTS: over 12 keys on
    ``correlated``, deviations in units of it had a root mean square of 1.6.
    """
    exact = TARGETS[target]()
    values = exact.values(fitted(method, target))
    squares = (values - exact.mean) ** 2
    limit = stats.t.isf(stats.norm.sf(LIMIT), CHAINS - 1)
    for found, truth in ((values, exact.mean), (squares, np.square(exact.sd))):
        each = found.mean(axis=1)
        error = each.std(axis=0, ddof=1) / np.sqrt(CHAINS)
        assert np.abs((each.mean(axis=0) - truth) / error).max() < limit
    # A standard deviation that is off by a tenth would be noticed.
    assert (limit * error < 0.2 * np.square(exact.sd)).all()


@slow
def test_neck_of_a_funnel():
    target = funnel(width=4, scale=1.0)
    method = NUTS(num_warmup=500, num_draws=4_000, target_accept=0.95)
    check(fit(target, method), target, sd_error=0.1)


@pytest.mark.slow
def test_dense_mass_is_exact():
    target = correlated()
    method = HMC(num_warmup=500, num_draws=5_000, num_leapfrog=3, mass="dense")
    check(fit(target, method), target)


@pytest.mark.slow
def test_low_rank_mass_and_persistent_momenta_are_exact():
    """On a target with a narrow direction; and with steps so long that many trajectories are rejected."""
    settings = {"mass": "low_rank", "persistence": 0.8}
    method = HMC(num_warmup=500, num_draws=20_000, num_leapfrog=3, **settings)
    check(fit(correlated(), method), correlated())
    long = replace(coarse("HMC", 20_000), persistence=0.8)
    posterior = fit(isotropic(), long)
    assert posterior.info["acceptance_rate"].mean() < 0.9
    check(posterior, isotropic())


@pytest.mark.slow
def test_low_rank_mass_of_nuts_is_exact():
    check(fit(correlated(), NUTS(num_warmup=500, num_draws=5_000, mass="low_rank")), correlated())


def test_one_batch_of_chains_is_exact(monkeypatch):
    monkeypatch.setattr(HMC, "layout", Layout.TOGETHER)
    target = correlated()
    # Settings that no other test uses, since compiled programs are shared by equal settings.
    method = HMC(chains=5, num_warmup=500, num_draws=4_000, num_leapfrog=4)
    check(fit(target, method), target)


def test_predictions_are_exact():
    target = linear_regression()
    x = np.random.default_rng(0).normal(size=(20, 3))
    mean, variance = exact_predictive(target, x)
    predictive = fitted("HMC", "linear_regression").predict(x)
    np.testing.assert_allclose(predictive.mean, mean, atol=0.01)
    np.testing.assert_allclose(predictive.epistemic, variance, rtol=0.1)


WRONG = {
    "HMC accepts always": (blackjax.mcmc.hmc, lambda before, after: jnp.zeros_like(after)),
    "HMC accepts by the root": (blackjax.mcmc.hmc, lambda before, after: 0.5 * (before - after)),
    "NUTS weighs by the root": (
        blackjax.mcmc.proposal,
        lambda before, after: 0.5 * (before - after),
    ),
}


def coarse(name, num_draws):
    """A method with steps so long that the result depends on the acceptance probability."""
    settings = {"num_warmup": 7, "num_draws": num_draws, "step_size": 1.2, "mass": "unit"}
    return HMC(num_leapfrog=2, **settings) if "HMC" in name else NUTS(**settings)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "always" in name else slow) for name in WRONG]
)
def test_a_wrong_acceptance_ratio_would_be_caught(monkeypatch, name):
    module, wrong = WRONG[name]
    monkeypatch.setattr(module, "safe_energy_diff", wrong)
    # A number of draws that no other test uses, so that none reuses the wrong compiled program.
    method = coarse(name, 5_000 + 1 + list(WRONG).index(name))
    assert caught(fit(isotropic(), method), isotropic())


@slow
@both
def test_the_right_acceptance_ratio_passes_where_the_wrong_is_caught(method):
    check(fit(isotropic(), coarse(method, 5_000)), isotropic())


# -- a network ---------------------------------------------------------------------------------------


@cache
def wave():
    """A small network with known noise, its data, and fifty inputs at which to compare predictions."""
    generator = np.random.default_rng(2)
    x = np.sort(generator.uniform(-2, 2, size=(30, 1)), axis=0)
    y = np.sin(2 * x[:, 0]) + 0.2 * generator.normal(size=30)
    network = cx.networks.mlp([8], activation="tanh")
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(scale=0.2))
    return model, (x, y), np.linspace(-2.5, 2.5, 50)[:, None]


def functions(posterior, x):
    """The output of the network for each draw at some inputs, ``(chain, draw, input)``."""
    network, x = posterior.model.network, jnp.asarray(x, jnp.result_type(float))
    apply = jax.jit(jax.vmap(jax.vmap(lambda params: network.apply(params, x)[:, 0])))
    return np.asarray(apply(posterior.draws), np.float64)


@slow
def test_hmc_and_nuts_agree_on_a_network():
    model, data, x = wave()
    methods = (
        HMC(num_draws=10_000, num_leapfrog=32),
        NUTS(num_draws=6_000, target_accept=0.95),  # with 0.8, about 1 % of the steps diverge
    )
    draws = []
    for method in methods:
        posterior = cx.fit(model, data, method, key=1, progress=False)
        draws.append(functions(posterior, x))
        assert rhat(draws[-1]).max() < 1.01
    hmc, nuts = draws
    for statistic, error in ((np.mean, mcse_mean), (np.std, mcse_sd)):
        difference = statistic(hmc, axis=(0, 1)) - statistic(nuts, axis=(0, 1))
        z = difference / np.hypot(error(hmc), error(nuts))
        assert np.abs(z).max() < LIMIT, statistic


# -- warm-up -----------------------------------------------------------------------------------------


@pytest.mark.slow
@every_run
def test_acceptance_rate_is_the_target(method, target):
    rate = after_warmup(fitted(method, target), "acceptance_rate").mean(axis=1)
    assert np.abs(rate.mean() - METHODS[method].target_accept) < 0.06
    assert np.abs(rate - rate.mean()).max() < 0.1


@slow
@both
def test_other_targets_are_reached_too(method):
    settings = {"num_leapfrog": 4} if method == "HMC" else {}
    for wanted in (0.6, 0.95):
        cls = type(METHODS[method])
        posterior = fit(isotropic(), cls(16, num_warmup=500, target_accept=wanted, **settings))
        rate = after_warmup(posterior, "acceptance_rate").mean(axis=1)
        # Each chain finds its own step size. BlackJAX's window adaptation gives 0.77 for a target of 0.6.
        error = rate.std(ddof=1) / np.sqrt(len(rate))
        assert abs(rate.mean() - wanted) < 0.01 + LIMIT * error
        assert error < 0.012


HARD = {"banana": banana, "funnel": lambda: funnel(4, 1.5), "ill_conditioned": ill_conditioned}


@slow
@pytest.mark.parametrize("name", HARD)
def test_acceptance_rate_is_not_below_the_target_where_it_varies(name):
    target = HARD[name]()
    runs = [fit(target, NUTS(num_draws=1_000), key=key) for key in range(10)]
    rates = np.array([after_warmup(run, "acceptance_rate").mean() for run in runs])
    assert rates.mean() > NUTS().target_accept - 0.03
    assert rates.mean() < NUTS().target_accept + 0.06


@slow
def test_heavy_tails_of_a_banana():
    target = banana()
    runs = [fit(target, NUTS(num_draws=4_000), key=key) for key in range(16)]
    values = np.concatenate([target.values(run) for run in runs])
    outside = np.abs(values) > stats.t.ppf(0.95, df=5)
    # Each chain is an independent estimate. Few draws decide the variances, so these are far from normal, and
    # so is their error: the mean of the absolute values has a variance that does not depend on so few draws.
    absolute = 2 * stats.t.expect(lambda t: t, args=(5,), lb=0)
    for found, exact, largest in ((np.abs(values), absolute, 0.05), (outside, 0.1, 0.005)):
        each = found.mean(axis=1)
        error = each.std(axis=0, ddof=1) / np.sqrt(len(each))
        assert np.abs((each.mean(axis=0) - exact) / error).max() < LIMIT
        assert (error < largest).all()


@every_run
def test_step_size_stays_after_warm_up(method, target):
    sizes = fitted(method, target).info["step_size"]
    warmup = METHODS[method].num_warmup
    assert (sizes[:, warmup:] == sizes[:, warmup : warmup + 1]).all()
    assert len(np.unique(sizes[0, :warmup])) > warmup / 2
    assert len(np.unique(sizes[:, -1])) == len(sizes), "each chain has its own"


@slow
def test_scales_cost_nothing_once_learned():
    length = {
        target: after_warmup(fitted("NUTS", target), "num_leapfrog").mean()
        for target in ("isotropic", "ill_conditioned")
    }
    assert length["ill_conditioned"] < 1.2 * length["isotropic"]


def learned(mass, covariance, num_warmup=1_000):
    """What a warm-up learns from independent draws of a normal distribution."""
    size = len(covariance)
    warmup = Warmup(num_warmup, mass, 0.8)
    root = np.linalg.cholesky(covariance)
    draws = np.random.default_rng(0).normal(size=(num_warmup, size)) @ root.T
    gradients = -draws @ np.linalg.inv(covariance)
    draws, gradients = (jnp.asarray(array, jnp.float32) for array in (draws, gradients))

    def step(known, row):
        number, draw, gradient = row
        return warmup.update(known, number, draw, gradient, jnp.float32(0.8)), known.inverse_mass

    with jax.numpy_dtype_promotion("standard"):
        start = warmup.init(jnp.float32(0.1), draws[0])
        rows = (jnp.arange(num_warmup, dtype=jnp.int32), draws, gradients)
        return jax.jit(lambda: jax.lax.scan(step, start, rows))()


def test_diagonal_mass_is_the_variance_of_independent_weights():
    variance = np.logspace(-6, 6, 7)
    known, path = learned("diagonal", np.diag(variance))
    # For independent normals, any draws with their gradients give the exact variance.
    np.testing.assert_allclose(known.inverse_mass, variance, rtol=1e-3)
    np.testing.assert_allclose(known.root, np.sqrt(variance), rtol=1e-3)
    changes = np.flatnonzero(np.any(np.diff(path, axis=0) != 0, axis=1)) + 1
    assert tuple(changes) == schedule(1_000)[1]


def test_diagonal_mass_lies_between_variance_and_precision():
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    known, _ = learned("diagonal", covariance)
    np.testing.assert_allclose(known.inverse_mass, np.sqrt(1 - 0.9**2), rtol=0.1)


def test_dense_mass_is_the_covariance():
    covariance = correlated().covariance
    known, _ = learned("dense", covariance)
    np.testing.assert_allclose(known.inverse_mass, covariance, rtol=0.15)
    np.testing.assert_allclose(known.root @ known.root.T, known.inverse_mass, rtol=1e-4)


def test_unit_mass_is_left_alone():
    known, _ = learned("unit", np.diag([4.0, 9.0]))
    np.testing.assert_array_equal(known.inverse_mass, 1.0)


def test_step_size_follows_the_mass():
    known, _ = learned("diagonal", np.diag([1e-4, 1e-4]))
    np.testing.assert_allclose(known.step_size, 0.1 / 1e-2, rtol=1e-3)


def test_windows():
    for num_warmup in range(3_000):
        first, ends = schedule(num_warmup)
        assert 0 <= first <= num_warmup
        if num_warmup < 20:
            assert ends == ()
        else:
            lengths = np.diff([first, *ends])
            assert lengths.min() >= 10
            assert (np.diff(lengths) > 0).all()
            assert 0 < num_warmup - ends[-1] <= 0.3 * num_warmup + 1


def test_jitter_fills_its_range_evenly():
    for width in (0.0, 0.3, 0.9):
        factors = np.array(jitter(jnp.arange(1_000), width))
        if width:  # every fourth is four times smaller
            factors[3::4] *= 4
        assert (np.abs(factors - 1) <= width + 1e-6).all()
        even = 1 - width + 2 * width * (np.arange(1_000) + 0.5) / 1_000
        np.testing.assert_allclose(np.sort(factors), even, atol=0.01 * width + 1e-6)


@slow
def test_jitter_keeps_a_trajectory_from_coming_back_to_its_start():
    """Half a period maps a normal weight to its negative, so without jitter its absolute value never
    changes."""
    settings = {"num_warmup": 0, "num_draws": 2_000, "step_size": np.pi / 16, "mass": "unit"}
    squares = [
        ess_mean(
            isotropic().values(fit(isotropic(), HMC(num_leapfrog=16, jitter=width, **settings)))
            ** 2
        )
        for width in (0.0, 0.5)
    ]
    assert squares[1].min() > 10 * squares[0].max()


# -- persistence of the momentum -----------------------------------------------------------------------

STEADY = {"chains": 2, "num_warmup": 0, "mass": "unit", "num_leapfrog": 4, "jitter": 0.0}


def moved(method, state, step=1):
    model, key = isotropic().model, random.key(3)
    with jax.numpy_dtype_promotion("standard"):
        return jax.jit(lambda state: method.step(key, state, model, None, jnp.int32(step)))(state)


def started(method):
    state = method.init(random.key(4), isotropic().model, None)
    noise = random.normal(random.key(5), state.position.vector.shape)
    return state._replace(momentum=jax.tree.map(lambda _: noise, state.momentum))


def test_an_accepted_trajectory_keeps_its_direction():
    """With nearly all of the momentum kept, a trajectory is undone by one from its end, with its momentum
    reversed."""
    method = HMC(num_draws=1, step_size=0.1, persistence=1 - 1e-7, **STEADY)
    before = started(method)
    after, _ = moved(method, before)
    assert np.abs(after.position.vector - before.position.vector).max() > 0.1
    back = after._replace(momentum=jax.tree.map(jnp.negative, after.momentum))
    again, _ = moved(method, back)
    np.testing.assert_allclose(again.position.vector, before.position.vector, atol=0.01)
    np.testing.assert_allclose(again.momentum.vector, -before.momentum.vector, atol=0.01)


def test_a_rejected_trajectory_reverses_the_momentum():
    method = HMC(num_draws=1, step_size=100.0, persistence=1 - 1e-7, **STEADY)
    before = started(method)
    after, info = moved(method, before)
    assert info.acceptance_rate == 0
    np.testing.assert_array_equal(after.position.vector, before.position.vector)
    np.testing.assert_allclose(after.momentum.vector, -before.momentum.vector, atol=0.01)


def test_the_momentum_is_new_where_the_mass_is():
    method = HMC(chains=2, num_warmup=100, num_draws=1, num_leapfrog=4, persistence=0.8)
    changes = [0, *schedule(100)[1]]
    assert [step for step in range(101) if method.warmup.renewed(jnp.int32(step))] == changes
    ends = {}
    for sign in (1.0, -1.0):
        state = started(method)
        state = state._replace(momentum=jax.tree.map(lambda m: sign * m, state.momentum))  # noqa: B023
        ends[sign] = [moved(method, state, step)[0].position.vector for step in (0, 1)]
    same, other = ([a[i] for a in ends.values()] for i in (0, 1))
    np.testing.assert_array_equal(*same)
    assert np.abs(other[0] - other[1]).max() > 0.1


@slow
def test_persistent_momenta_cross_a_long_valley_faster():
    """Along a direction that is much longer than a trajectory, a chain with new momenta walks at random. If the
    velocities of successive trajectories have the correlation a, its variance grows (1 + a) / (1 - a) times as
    fast: nine times for a = 0.8, if no trajectory is rejected. A third of that is asked for."""
    long = jnp.array([1.0, 60.0])
    model = cx.LogDensity(
        lambda key: long * random.normal(key, (2,)), lambda w: -jnp.sum((w / long) ** 2) / 2
    )
    settings = {
        "num_warmup": 0,
        "num_draws": 20_000,
        "step_size": 0.4,
        "mass": "unit",
        "num_leapfrog": 4,
    }
    found = []
    for persistence in (0.0, 0.8):
        method = HMC(persistence=persistence, **settings)
        draws = np.asarray(cx.fit(model, None, method, key=1, progress=False).draws, np.float64)
        found.append(ess_mean(draws)[1])
    assert found[1] > 3 * found[0]


def test_batched_chains_branch_as_one():
    """All chains share the number of the step, so under ``vmap`` the branches of warm-up stay branches."""
    method, model = SHORT["HMC"], isotropic().model
    states = jax.vmap(lambda key: method.init(key, model, None))(jax.random.split(random.key(0), 3))
    step = jax.vmap(
        lambda key, state, step: method.step(key, state, model, None, step), in_axes=(0, 0, None)
    )
    keys = jax.random.split(random.key(1), 3)
    program = str(jax.make_jaxpr(step)(keys, states, jnp.int32(0)))
    assert program.count("cond[") >= 3


# -- runs --------------------------------------------------------------------------------------------

SHORT = {
    "HMC": HMC(chains=2, num_warmup=30, num_draws=20, num_leapfrog=4),
    "NUTS": NUTS(chains=2, num_warmup=30, num_draws=20),
    "dense": HMC(chains=2, num_warmup=30, num_draws=20, num_leapfrog=4, mass="dense"),
    "low rank": HMC(
        chains=2, num_warmup=30, num_draws=20, num_leapfrog=4, mass="low_rank", persistence=0.8
    ),
}


every_short = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "HMC" else slow) for name in SHORT]
)


@pytest.mark.slow
@every_short
def test_bits_do_not_depend_on_the_cuts(name, compilations):
    runs = [fit(linear_regression(), SHORT[name])]
    with compilations() as count:
        runs += [fit(linear_regression(), SHORT[name], chunk_steps=steps) for steps in (1, 7)]
    assert count() == 0
    for run in runs[1:]:
        jax.tree.map(np.testing.assert_array_equal, run.draws, runs[0].draws)
        for field in ("step_size", "energy", "acceptance_rate"):
            np.testing.assert_array_equal(run.info[field], runs[0].info[field])


@pytest.mark.slow
@every_short
def test_double_precision(name, x64):
    target = linear_regression()
    posterior = fit(target, SHORT[name])
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(posterior.draws))
    for field in ("log_joint", "energy", "acceptance_rate", "step_size"):
        assert posterior.info[field].dtype == np.float64
    # Energies have more correct digits than float32 can hold.
    model, data = target.model.prepare(target.data)
    last = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, -1]), posterior.draws)
    value = model.log_joint(last, data.everything())
    np.testing.assert_allclose(posterior.info["log_joint"][0, -1], value, rtol=1e-12)


@slow
def test_exact_in_double_precision(x64):
    method = HMC(num_warmup=500, num_draws=4_000, num_leapfrog=4)
    check(fit(correlated(), method), correlated())


@slow
@both
def test_single_precision_weights_in_a_double_precision_session(method, x64):
    model = cx.LogDensity(
        lambda key: jnp.zeros(2, jnp.float32), lambda w: -jnp.sum(w.astype(jnp.float64) ** 2)
    )
    posterior = cx.fit(model, None, SHORT[method], progress=False)
    assert posterior.draws.dtype == np.float32


@both
def test_the_start_of_another_posterior(method):
    target = linear_regression()
    start = cx.fit(target.model, target.data, cx.MAP(num_steps=200), progress=False)
    settings = {"num_leapfrog": 1} if method == "HMC" else {"max_depth": 1}
    tiny = type(METHODS[method])(num_warmup=0, num_draws=1, step_size=1e-6, **settings)
    posterior = fit(target, tiny, start=start)
    mode = np.tile(target.values(start), (4, 1, 1))
    np.testing.assert_allclose(target.values(posterior), mode, atol=1e-4)


def test_a_given_step_size_is_kept():
    method = HMC(num_warmup=50, num_draws=10, num_leapfrog=2, step_size=0.25)
    np.testing.assert_array_equal(fit(isotropic(), method).info["step_size"], 0.25)


def test_info_says_what_happened():
    target = logistic_regression()
    for method in METHODS:
        posterior = fitted(method, "logistic_regression")
        info = posterior.info
        assert all(np.isfinite(info[name]).all() for name in info if np.ndim(info[name]) == 2)
        assert ((info["acceptance_rate"] >= 0) & (info["acceptance_rate"] <= 1)).all()
        # The kinetic energy is half a chi-squared variable with one degree of freedom per weight.
        kinetic = after_warmup(posterior, "energy") + after_warmup(posterior, "log_joint")
        assert (kinetic >= 0).all()
        z = z_mean(kinetic[..., None], len(target.mean) / 2)
        assert abs(z[0]) < LIMIT
    lengths = fitted("NUTS", "logistic_regression").info["num_leapfrog"]
    assert set(np.unique(lengths)) <= set(range(1, 2**10))
    assert (fitted("HMC", "logistic_regression").info["num_leapfrog"] == 4).all()


# -- failures ----------------------------------------------------------------------------------------


@both
def test_a_chain_that_cannot_move_says_so(method):
    """The density is NaN everywhere except at the start."""
    nowhere = cx.LogDensity(
        lambda key: jnp.zeros(2), lambda w: jnp.where(jnp.all(w == 0), 1.0, jnp.nan)
    )
    settings = {"num_leapfrog": 3} if method == "HMC" else {}
    sampler = type(METHODS[method])(num_warmup=0, num_draws=20, step_size=0.1, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)
        posterior = cx.fit(nowhere, None, sampler, progress=False)
    assert (posterior.info["diverging"] == 1).all()
    assert (posterior.info["acceptance_rate"] == 0).all()
    assert np.isfinite(posterior.info["energy"]).all()
    assert (posterior.draws == 0).all()


@both
def test_divergences_are_counted_and_energies_finite(method):
    settings = {"num_leapfrog": 8} if method == "HMC" else {}
    sampler = type(METHODS[method])(num_warmup=200, num_draws=1_000, **settings)
    info = fit(funnel(), sampler).info
    assert set(np.unique(info["diverging"])) == {0.0, 1.0}
    assert np.isfinite(info["energy"]).all()


def test_a_window_without_movement_leaves_the_mass():
    warmup = Warmup(100, "diagonal", 0.8)
    with jax.numpy_dtype_promotion("standard"):
        known = warmup.init(jnp.float32(0.1), jnp.zeros(3))
        update = jax.jit(warmup.update)
        for step in range(100):
            known = update(known, jnp.int32(step), jnp.ones(3), jnp.ones(3), jnp.float32(0.0))
    np.testing.assert_array_equal(known.inverse_mass, 1.0)
    assert 0 < known.step_size < 0.1


@pytest.mark.parametrize(
    "cls, settings, message",
    [
        (HMC, {"step_size": 0.0}, r"HMC\(step_size=...\) must be positive; got 0.0."),
        (NUTS, {"step_size": -1}, r"NUTS\(step_size=...\) must be positive; got -1."),
        (HMC, {"num_warmup": 0}, r"HMC\(step_size=...\) must be a number where num_warmup is 0"),
        (HMC, {"num_draws": 0}, r"HMC\(num_draws=...\) must be a whole number, at least 1; got 0."),
        (NUTS, {"target_accept": 1.0}, r"NUTS\(target_accept=...\) must be between 0 and 1"),
        (
            HMC,
            {"mass": "full"},
            r"HMC\(mass=...\) must be one of 'diagonal', 'low_rank', 'dense', 'unit'",
        ),
        (HMC, {"num_leapfrog": 0}, r"HMC\(num_leapfrog=...\) must be a whole number, at least 1"),
        (HMC, {"jitter": 1.0}, r"HMC\(jitter=...\) must be at least 0 and below 1; got 1.0."),
        (HMC, {"persistence": 1}, r"HMC\(persistence=...\) must be at least 0 and below 1; got 1."),
        (NUTS, {"max_depth": 0}, r"NUTS\(max_depth=...\) must be a whole number, at least 1"),
        (NUTS, {"chains": 0}, r"NUTS\(chains=...\) must be a whole number, at least 1"),
    ],
)
def test_bad_settings(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


def test_a_dense_mass_of_many_weights_is_refused():
    model = cx.LogDensity(lambda key: jnp.zeros(LARGEST_DENSE + 1), lambda w: -jnp.sum(w**2))
    message = r"HMC\(mass=...\) must be 'diagonal', 'low_rank' or 'unit' .* 2,001, and a dense mass 4,004,001"
    with pytest.raises(ValueError, match=message):
        cx.fit(model, None, HMC(mass="dense"), progress=False)


def test_discrete_weights_are_refused():
    target = linear_regression()
    model = cx.Model(
        target.model.network, cx.priors.Discrete([-1.0, 1.0]), cx.likelihoods.Gaussian(0.5)
    )
    with pytest.raises(ValueError, match="HMC needs gradients"):
        cx.fit(model, target.data, HMC(), progress=False)
