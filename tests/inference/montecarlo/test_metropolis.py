"""Metropolis against known moments and enumeration, and the properties of its proposals."""

import itertools
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import (
    LIMIT,
    caught,
    check,
    correlated,
    gaussian,
    ill_conditioned,
    isotropic,
    linear_regression,
    logistic_regression,
    z_mean,
    z_sd,
)
from scipy.special import log_expit, softmax

import credax as cx
from credax.core import random
from credax.core.trees import Flat
from credax.inference.montecarlo import metropolis
from credax.inference.montecarlo.metropolis import Flips, Metropolis, sweep, window_ends
from credax.model.priors import Discrete, PerLayer


def fit(target, method, key=0):
    return cx.fit(target.model, target.data, method, key=key, progress=False)


# -- continuous weights ------------------------------------------------------------------------------


def rotated():
    """A normal target with scales 1, 30 and 1000 along directions that are not those of the weights."""
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    return gaussian([1.0, 0.0, -1.0], turn @ np.diag([1.0, 30.0, 1000.0]) ** 2 @ turn.T)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "target, covariance",
    [
        (isotropic, "unit"),
        (ill_conditioned, "diagonal"),
        (correlated, "dense"),
        (linear_regression, "dense"),
        (logistic_regression, "diagonal"),
        pytest.param(partial(isotropic, 1), "dense", marks=pytest.mark.slow),
        pytest.param(correlated, "diagonal", marks=pytest.mark.slow),
        pytest.param(linear_regression, "unit", marks=pytest.mark.slow),
        pytest.param(partial(isotropic, 30), "dense", marks=pytest.mark.slow),
    ],
)
def test_moments_are_exact(target, covariance):
    draws = 30_000 if (target, covariance) == (correlated, "diagonal") else 5_000
    check(fit(target(), Metropolis(num_draws=draws, covariance=covariance)), target())


def test_dense_steps_find_a_narrow_oblique_ridge(x64):
    """The variances differ by a factor of a million, too much for the log density in float32."""
    target = rotated()
    method = Metropolis(num_draws=5_000, covariance="dense")
    check(fit(target, method), target)


def test_a_wrong_acceptance_ratio_is_caught(monkeypatch):
    """Ratios raised to the power 1 / 1.1 make the standard deviations 5 % too large."""
    monkeypatch.setattr(metropolis, "sweep", partial(sweep, temperature=1.1))
    target = gaussian(np.zeros(3), np.eye(3))  # a new one, for which nothing is compiled yet
    assert caught(fit(target, Metropolis(num_draws=5_000)), target)


def test_a_density_that_is_zero_or_nan_is_not_entered():
    """A half-normal density that is zero, or NaN, on the other half."""

    def log_joint(x):
        nowhere = jnp.where(x < -1, jnp.nan, -jnp.inf)
        return jnp.sum(jnp.where(x > 0, -0.5 * x**2, nowhere))

    model = cx.LogDensity(lambda key: jnp.ones(2), log_joint)
    posterior = cx.fit(model, None, Metropolis(num_draws=3_000), progress=False)
    for name in ("log_joint", "acceptance_rate", "step_size"):
        assert np.all(np.isfinite(posterior.info[name]))
    assert np.all(posterior.draws > 0)
    mean = np.sqrt(2 / np.pi)
    assert np.all(np.abs(z_mean(posterior.draws, mean)) < LIMIT)
    assert np.all(np.abs(z_sd(posterior.draws, np.sqrt(1 - mean**2))) < LIMIT)


def test_a_start_without_density_is_refused():
    model = cx.LogDensity(lambda key: -jnp.ones(2), lambda x: jnp.sum(jnp.log(x)))
    with pytest.raises(
        ValueError, match=r"Metropolis cannot start: the log density of every chain"
    ):
        cx.fit(model, None, Metropolis(), progress=False)


# -- a rejected proposal repeats the state -----------------------------------------------------------


@cache
def one_by_one():
    """A run with one proposal per step, so that every rejection is visible."""
    method = Metropolis(num_draws=5_000, proposals_per_step=1)
    return fit(isotropic(), method)


def test_rejected_proposals_repeat_the_state():
    posterior = one_by_one()
    draws, log_joint = posterior.draws, posterior.info["log_joint"][:, 1_000:]
    same = np.all(draws[:, 1:] == draws[:, :-1], axis=-1)
    np.testing.assert_array_equal(same, log_joint[:, 1:] == log_joint[:, :-1])
    assert not np.any(np.any(draws[:, 1:] == draws[:, :-1], axis=-1) & ~same)
    # The number of acceptances agrees with the acceptance probabilities, within binomial errors.
    probability = posterior.info["acceptance_rate"][:, 1_001:]
    error = np.sqrt(np.sum(probability * (1 - probability)))
    assert abs(np.sum(~same) - np.sum(probability)) < LIMIT * error


def test_without_the_repeats_the_moments_are_wrong():
    target, draws = isotropic(), one_by_one().draws
    moved = [chain[1:][np.any(chain[1:] != chain[:-1], axis=-1)] for chain in draws]
    shortest = min(map(len, moved))
    moved = np.stack([chain[:shortest] for chain in moved])
    assert np.max(np.abs(z_sd(draws, target.sd))) < LIMIT
    assert np.max(np.abs(z_sd(moved, target.sd))) > LIMIT


# -- adaptation --------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("dimension, target_accept, expected", [(1, None, 0.44), (5, 0.6, 0.6)])
def test_the_acceptance_rate_reaches_its_target(dimension, target_accept, expected):
    method = Metropolis(num_draws=500, target_accept=target_accept)
    posterior = fit(isotropic(dimension), method)
    rates = posterior.info["acceptance_rate"][:, method.num_warmup :].mean(1)
    assert rates.mean() == pytest.approx(expected, abs=0.04)


def test_the_scale_is_fixed_after_warmup():
    sizes = one_by_one().info["step_size"]
    assert np.ptp(sizes[:, :1_000], axis=1).min() > 0
    np.testing.assert_array_equal(sizes[:, 1_000:], np.repeat(sizes[:, [-1]], 5_000, axis=1))
    assert len(set(sizes[:, -1])) == 4, "each chain learns for itself"


@pytest.mark.matrix
@pytest.mark.parametrize("covariance", metropolis.COVARIANCES)
def test_nothing_is_learned_after_warmup(covariance):
    method = Metropolis(num_warmup=45, covariance=covariance)
    model = correlated().model
    state = method.init(random.key(0), model, None)
    step = jax.jit(lambda key, state, step: method.step(key, state, model, None, step)[0])
    walks = []
    for number in range(60):
        state = step(jax.random.fold_in(random.key(1), number), state, number)
        walks.append(jax.tree.map(np.asarray, state.walk))
    learned = np.array([not _equal(a, b) for a, b in itertools.pairwise(walks)])
    assert learned[:44].all()
    assert not learned[44:].any()
    # The covariance changes only at the ends of windows.
    shapes = [not np.array_equal(a.factor, b.factor) for a, b in itertools.pairwise(walks)]
    ends = [] if covariance == "unit" else window_ends(45)
    assert [at + 2 for at in np.flatnonzero(shapes)] == ends


def _equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_windows_end_before_warmup_does():
    assert window_ends(1_000) == [23, 35, 53, 79, 119, 178, 267, 400, 600, 900]
    assert window_ends(45) == [27, 40]
    assert window_ends(20) == []
    assert window_ends(0) == []


def test_a_window_gives_its_covariance():
    """The factor after a window is the root of the covariance of its states, computed here with NumPy."""
    method = Metropolis(num_warmup=34, covariance="dense")  # windows end at 20 and 31
    model = correlated().model
    state = method.init(random.key(0), model, None)
    step = jax.jit(lambda key, state, step: method.step(key, state, model, None, step)[0])
    visited = []
    for number in range(31):
        state = step(jax.random.fold_in(random.key(1), number), state, number)
        visited.append(np.asarray(state.position.vector, np.float64))
    covariance = np.cov(np.array(visited[20:]), rowvar=False)
    share = 9 / (9 + 11**2)
    want = (1 - share) * covariance + share * np.diag(np.diag(covariance))
    factor = np.asarray(state.walk.factor, np.float64)
    np.testing.assert_allclose(factor @ factor.T, want, rtol=1e-3)
    assert float(state.walk.log_scale) == pytest.approx(np.log(2.38 / np.sqrt(3)))


def test_a_given_step_size_stays():
    method = Metropolis(num_warmup=0, num_draws=50, step_size=0.25, covariance="unit")
    posterior = fit(isotropic(), method)
    assert set(posterior.info["step_size"].ravel()) == {np.float32(0.25)}


def test_normal_steps_have_the_covariance_of_their_factor():
    factor = jnp.asarray([[1.0, 0.0], [0.8, 0.3]])
    keys = jax.random.split(random.key(0), 100_000)
    steps = jax.vmap(lambda key: metropolis.stepped(key, jnp.ones(2), jnp.asarray(2.0), factor))(
        keys
    )
    steps = np.asarray(steps, np.float64) - 1
    want = 4 * np.asarray(factor @ factor.T)
    error = np.sqrt((np.outer(np.diag(want), np.diag(want)) + want**2) / len(keys))
    assert np.all(np.abs(np.cov(steps.T) - want) < LIMIT * error)
    assert np.all(np.abs(steps.mean(0)) < LIMIT * np.sqrt(np.diag(want) / len(keys)))


# -- discrete weights, against enumeration -----------------------------------------------------------


def perceptron(prior, sizes):
    """A logistic regression whose weights are in leaves of the given sizes."""

    def init(key):
        return {name: jnp.zeros(size) for name, size in sizes.items()}

    def apply(params, x):
        return x @ jnp.concatenate([params[name] for name in sizes])[:, None]

    return cx.Model(cx.networks.from_function(init, apply), prior, cx.likelihoods.Bernoulli())


def labelled(features, rows=12, strength=0.6):
    generator = np.random.default_rng(8)
    x = strength * generator.normal(size=(rows, features))
    return x, generator.integers(0, 2, rows)


def features_of(states):
    """All weights, and the products of all pairs of weights."""
    pairs = [
        states[..., i] * states[..., j]
        for i, j in itertools.combinations(range(states.shape[-1]), 2)
    ]
    return np.concatenate([states, np.stack(pairs, -1)], -1)


def enumerated(priors, x, y):
    """The expectations of the features, by a sum over all states."""
    states = np.array(list(itertools.product(*(prior.values for prior in priors))))
    log_joint = log_expit((2 * y - 1) * (states @ x.T)).sum(1)
    for i, prior in enumerate(priors):
        log_joint += np.log(prior.probs)[np.searchsorted(prior.values, states[:, i])]
    return softmax(log_joint) @ features_of(states)


BINARY, TERNARY = Discrete([-1.0, 1.0]), Discrete([-1.0, 0.0, 1.5], [0.2, 0.5, 0.3])
FIXED = Discrete([0.5])
PROBLEMS = {
    "binary": (BINARY, {"w": 10}, [BINARY] * 10),
    "ternary": (TERNARY, {"w": 6}, [TERNARY] * 6),
    "per layer": (
        PerLayer({"a": BINARY, "b": FIXED, "c": TERNARY}),
        {"a": 4, "b": 2, "c": 3},
        [BINARY] * 4 + [FIXED] * 2 + [TERNARY] * 3,
    ),
}


@cache
def discrete_fit(problem, **settings):
    prior, sizes, priors = PROBLEMS[problem]
    x, y = labelled(len(priors))
    posterior = cx.fit(perceptron(prior, sizes), (x, y), Metropolis(**settings), progress=False)
    states = np.concatenate([posterior.draws[name] for name in sizes], -1)
    return posterior, states.astype(np.float64), enumerated(priors, x, y)


def z_of(states, want):
    values = features_of(states)
    moves = values.std(axis=(0, 1)) > 0
    np.testing.assert_allclose(values[..., ~moves].mean((0, 1)), want[~moves], rtol=1e-6)
    return z_mean(values[..., moves], want[moves])


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem, settings",
    [
        ("binary", {"num_draws": 10_000}),
        pytest.param(
            "binary",
            {"num_draws": 20_000, "max_flips": 3, "proposals_per_step": 4},
            marks=pytest.mark.slow,
        ),
        ("ternary", {"num_draws": 10_000}),
        ("per layer", {"num_draws": 10_000}),
        pytest.param(
            "binary", {"num_draws": 100_000, "proposals_per_step": 1}, marks=pytest.mark.slow
        ),
        pytest.param("ternary", {"num_draws": 10_000, "max_flips": 6}, marks=pytest.mark.slow),
        pytest.param("per layer", {"num_draws": 10_000, "max_flips": 2}, marks=pytest.mark.slow),
    ],
)
def test_means_and_pair_products_are_those_of_enumeration(problem, settings):
    posterior, states, want = discrete_fit(problem, **settings)
    z = z_of(states, want)
    assert np.max(np.abs(z)) < LIMIT
    # An error of a twentieth of a standard deviation would be detected.
    values = features_of(states)
    values = values[..., values.std(axis=(0, 1)) > 0]
    spread = values.std(axis=(0, 1))
    assert np.min(np.abs(z_mean(values, values.mean((0, 1)) + 0.05 * spread))) > LIMIT
    assert set(posterior.info) >= {"log_joint", "acceptance_rate"}
    assert "step_size" not in posterior.info


@pytest.mark.slow
def test_a_wrong_ratio_of_discrete_states_is_caught(monkeypatch):
    monkeypatch.setattr(metropolis, "sweep", partial(sweep, temperature=1.1))
    _, states, want = discrete_fit("binary", num_draws=20_000)
    assert np.max(np.abs(z_of(states, want))) > LIMIT


def test_log_joint_is_that_of_the_state():
    posterior, states, _ = discrete_fit("binary", num_draws=10_000)
    x, y = labelled(10)
    want = log_expit((2 * y - 1) * (states @ x.T)).sum(-1) - 10 * np.log(2)
    np.testing.assert_allclose(posterior.info["log_joint"][:, 1_000:], want, rtol=2e-5)


def test_flips_that_are_all_accepted_still_reach_every_state():
    """For a flat likelihood, flips without pauses would leave the product of the weights the same forever."""
    x, y = np.zeros((1, 4)), np.array([0])
    method = Metropolis(num_draws=4_000)
    posterior = cx.fit(perceptron(BINARY, {"w": 4}), (x, y), method, progress=False)
    np.testing.assert_allclose(posterior.info["acceptance_rate"], 1.0)
    codes = (posterior.draws["w"] > 0) @ [1, 2, 4, 8]
    shares = (codes[..., None] == np.arange(16)).astype(float)
    assert np.max(np.abs(z_mean(shares, 1 / 16))) < LIMIT


def proposed(problem, most, count=200_000):
    """A state and many proposals from it."""
    prior, sizes, priors = PROBLEMS[problem]
    model, _ = perceptron(prior, sizes).prepare(labelled(len(priors)))
    position = Flat.of(model.init(random.key(3)))
    propose = Flips(model, position, most)
    keys = jax.random.split(random.key(4), count)
    many = jax.jit(jax.vmap(lambda key: propose(key, position.vector)))(keys)
    return np.asarray(position.vector), np.asarray(many), priors


@pytest.mark.slow
def test_a_flip_takes_each_other_value_of_each_weight_alike():
    before, after, priors = proposed("per layer", 1)
    changed = after != before
    assert changed.sum(1).max() == 1
    rest, moving = np.mean(~changed.any(1)), 7
    error = np.sqrt(0.25 / len(after))
    assert abs(rest - 1 / (moving + 1)) < LIMIT * error
    for i, prior in enumerate(priors):
        others = [value for value in prior.values if value != before[i]]
        for value in others:
            share = np.mean(after[:, i] == value)
            assert abs(share - 1 / (moving + 1) / len(others)) < LIMIT * error
        assert set(after[:, i]) <= set(np.float32(prior.values))


@pytest.mark.slow
def test_a_proposal_of_several_flips_is_as_likely_back():
    """The table of transition counts between all states of four weights is symmetric."""
    model, _ = perceptron(PerLayer({"a": BINARY, "c": TERNARY}), {"a": 2, "c": 2}).prepare(
        labelled(4)
    )
    states = np.array(
        list(itertools.product([-1, 1], [-1, 1], [-1, 0, 1.5], [-1, 0, 1.5])), np.float32
    )
    position = Flat.of(model.init(random.key(0)))
    propose = Flips(model, position, 3)
    count = 20_000
    keys = jax.random.split(random.key(1), (len(states), count))
    many = jax.jit(jax.vmap(jax.vmap(propose, (0, None))))(keys, jnp.asarray(states))
    codes = np.asarray(np.sum((np.asarray(many) + 1) * 2 * [1, 3, 9, 54], -1), int)
    own = np.asarray(np.sum((states + 1) * 2 * [1, 3, 9, 54], -1), int)
    table = np.stack([[np.mean(row == code) for code in own] for row in codes])
    np.testing.assert_allclose(table.sum(1), 1)
    error = np.sqrt((table + table.T) / count)
    off = np.abs(table - table.T) / np.where(error > 0, error, 1)
    assert off.max() < 5  # the maximum of 1,260 z-scores
    assert np.all((table > 0) == (table.T > 0))


def test_values_are_compared_in_the_digits_of_their_leaf():
    """0.1 in bfloat16 is not 0.1 in float32."""
    values = (0.1, -0.3)

    def init(key):
        return {"coarse": jnp.zeros(3, jnp.bfloat16), "fine": jnp.zeros(3, jnp.float32)}

    def apply(params, x):
        weights = [params[name].astype(x.dtype) for name in ("coarse", "fine")]
        return x @ jnp.concatenate(weights)[:, None]

    model = cx.Model(
        cx.networks.from_function(init, apply), Discrete(values), cx.likelihoods.Bernoulli()
    )
    posterior = cx.fit(model, labelled(6), Metropolis(num_warmup=10, num_draws=50), progress=False)
    for leaf in posterior.draws.values():
        assert set(np.unique(leaf)) == set(np.asarray(values).astype(leaf.dtype))
    assert posterior.draws["coarse"].dtype == jnp.bfloat16


# -- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"covariance": "full"},
            "(covariance=...) must be one of 'unit', 'diagonal', 'dense'; got",
        ),
        ({"step_size": 0}, "(step_size=...) must be positive; got 0."),
        ({"step_size": np.inf}, "(step_size=...) must be a positive number; got inf."),
        ({"target_accept": 1.0}, "(target_accept=...) must be between 0 and 1, both excluded; got"),
        (
            {"proposals_per_step": 0},
            "(proposals_per_step=...) must be a whole number, at least 1; got",
        ),
        ({"max_flips": 0}, "(max_flips=...) must be a whole number, at least 1; got 0."),
        ({"chains": 0}, "(chains=...) must be a whole number, at least 1; got 0."),
        ({"initial": "zero"}, "(initial=...) must be one of 'network', 'prior'; got 'zero'."),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(f"Metropolis{message}")):
        Metropolis(**settings)


def test_settings_that_do_not_fit_the_model_are_refused():
    with pytest.raises(
        ValueError, match=r"step_size=\.\.\.\) must be a number where num_warmup is 0"
    ):
        fit(isotropic(), Metropolis(num_warmup=0))
    wide = cx.LogDensity(lambda key: jnp.zeros(3_000), lambda x: -jnp.sum(x**2))
    with pytest.raises(
        ValueError, match=r"covariance=\.\.\.\) must be 'diagonal' or 'unit' for more"
    ):
        cx.fit(wide, None, Metropolis(covariance="dense"), progress=False)
    with pytest.raises(ValueError, match=r"needs weights that can move; every weight .* one value"):
        cx.fit(perceptron(FIXED, {"w": 3}), labelled(3), Metropolis(), progress=False)
