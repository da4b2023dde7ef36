"""MILE: training as by MAP, sampling as by MCLMC, draws from the posterior, and independent members."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.core import random
from credax.fit import pace
from credax.inference.montecarlo.microcanonical_ensemble import (
    FIRST_STEP,
    NORMS,
    MicrocanonicalEnsemble,
)
from credax.inference.montecarlo.whitening import Layers
from credax.posterior.approximations import Draws

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")
slow = pytest.mark.slow

TINY = {"members": 3, "num_warmup": 60, "num_draws": 5, "thin": 2, "training_steps": 40}


def waves(rows=30, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, size=(rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.3 * generator.normal(size=rows)


NETWORK = cx.Model(
    cx.networks.mlp([8], activation="tanh"), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3)
)


def fit(model, data, method, key=0, **arguments):
    return cx.fit(model, data, method, key=key, progress=False, **arguments)


@cache
def tiny(members=3):
    return fit(NETWORK, waves(), MicrocanonicalEnsemble(**{**TINY, "members": members}))


# -- two methods, one after the other -----------------------------------------------------------------


@slow
def test_training_is_that_of_a_point():
    method = MicrocanonicalEnsemble(**{**TINY, "members": 1})
    point = fit(NETWORK, waves(), method.member)
    history = tiny(members=1).info["log_joint"]
    np.testing.assert_allclose(history[:, :40], point.info["log_joint"], rtol=1e-4)
    assert np.all(history[:, 39] > history[:, 0])


@pytest.mark.slow
def test_a_chain_starts_at_the_trained_weights():
    method = MicrocanonicalEnsemble(**TINY, collapse=False)
    model, data = NETWORK.prepare(waves())
    batch, keys = data.everything(), jax.random.split(random.key(3), 42)
    step = jax.jit(lambda key, state, step: method.step(key, state, model, batch, step))
    state = method.init(random.key(0), model, data)
    point = method.member.init(random.key(0), model, data)
    climb = jax.jit(lambda key, state, step: method.member.step(key, state, model, batch, step)[0])
    for number, key in enumerate(keys[:40]):
        state, info = step(key, state, number)
        point = climb(key, point, number)
        assert info.step_size == info.diverging == info.energy_change == 0
    for a, b in zip(jax.tree.leaves(state.training), jax.tree.leaves(point), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    trained = np.concatenate([np.ravel(w) for w in jax.tree.leaves(state.training.params)])
    # The first step of the chain only evaluates the density.
    seen, info = step(keys[40], state, 40)
    assert info.step_size == info.diverging == info.energy_change == 0
    np.testing.assert_array_equal(seen.chain.position.vector, trained)
    whole = lambda params: model.log_joint(params, batch)  # noqa: E731
    value, gradient = jax.value_and_grad(whole)(state.training.params)
    assert info.log_joint == pytest.approx(float(value), rel=1e-5)
    # In coordinates that whiten the inputs of each layer.
    layers = Layers(model, data.x)
    units = layers.units(state.training.params, batch, ())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), seen.chain.units, units)
    _, pull_back = jax.vjp(partial(layers.weights, units), layers.origin(gradient))
    (expected,) = pull_back(gradient)
    np.testing.assert_allclose(seen.chain.gradient.vector, expected.vector, rtol=1e-3, atol=1e-3)
    after, info = step(keys[41], seen, 41)
    length = NORMS * np.linalg.norm(trained)
    assert info.step_size == pytest.approx(FIRST_STEP * length, rel=1e-5)
    assert after.chain.tuning.tree.length == pytest.approx(length, rel=1e-5)
    way = jax.tree.map(jnp.subtract, after.chain.position, seen.chain.position)
    moved = np.linalg.norm(layers.coordinates(units, way.tree).vector)
    assert moved == pytest.approx(FIRST_STEP * length, rel=0.05)
    jax.tree.map(np.testing.assert_array_equal, after.training, state.training)


@pytest.mark.slow
def test_a_linear_model_with_learned_noise():
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(None))
    posterior = fit(model, waves(), MicrocanonicalEnsemble(**TINY))
    assert np.isfinite(posterior.predict(waves()[0]).mean).all()


@pytest.mark.slow
def test_weights_of_few_bits():
    def init(key):
        first, last = jax.random.split(key)
        return [
            jax.random.normal(first, (1, 4), jnp.bfloat16),
            jax.random.normal(last, (4, 1), jnp.bfloat16),
        ]

    def apply(params, x):
        return jnp.tanh(x.astype(jnp.bfloat16) @ params[0]) @ params[1]

    model = cx.Model(
        cx.networks.from_function(init, apply), likelihood=cx.likelihoods.Gaussian(0.3)
    )
    posterior = fit(model, waves(), MicrocanonicalEnsemble(**TINY))
    assert all(leaf.dtype == jnp.bfloat16 for leaf in posterior.draws)
    assert np.isfinite(posterior.predict(waves()[0]).mean).all()


@slow
def test_a_member_is_the_same_whoever_is_beside_it():
    method = MicrocanonicalEnsemble(**TINY)
    key = jax.random.split(random.key(0), 4)[0]
    keys = jax.random.split(key, 3)
    model, data = NETWORK.prepare(waves())

    @jax.jit
    def alone(key):
        _, step_key = jax.random.split(key)

        def one(state, step):
            key = jax.random.fold_in(step_key, step)
            return method.step(key, state, model, data.everything(), step)

        start = method.init(key, model, data)
        return jax.lax.scan(one, start, jnp.arange(50, dtype=jnp.int32))[1].log_joint

    for member in range(3):
        history = tiny().info["log_joint"][member, :50]
        np.testing.assert_allclose(alone(keys[member]), history, rtol=1e-3)
    ends = [np.ravel(leaf[:, -1].std(0)) for leaf in jax.tree.leaves(tiny().draws)]
    assert np.all(np.concatenate(ends) > 0)


@slow
def test_training_alone_can_be_left_out():
    # Without collapsing, the log joint of the chain is that of all weights, as for MAP.
    method = MicrocanonicalEnsemble(**{**TINY, "training_steps": 0, "collapse": False})
    point = fit(NETWORK, waves(), cx.MAP(num_steps=200))
    posterior = fit(NETWORK, waves(), method, start=point)
    first, best = posterior.info["log_joint"][:, 0], point.info["log_joint"][0, -1]
    np.testing.assert_allclose(first, best, rtol=1e-2)
    assert np.all(posterior.info["step_size"][:, 1:] > 0)


@slow
def test_training_on_some_rows():
    method = MicrocanonicalEnsemble(**TINY, training_batch_size=7)
    posterior = fit(NETWORK, waves(), method)
    assert not np.allclose(posterior.info["log_joint"][:, :40], tiny().info["log_joint"][:, :40])
    assert np.all(np.isfinite(posterior.info["log_joint"]))


@pytest.mark.slow
def test_a_start_with_a_tiny_scale_does_not_spoil_a_member():
    """The first gradients are a million times too long, and would stay in Adam's memory for thousands of
    steps."""
    init = lambda key: {"w": jax.random.normal(key, (1, 2)), "b": jnp.array([0.0, -8.0])}  # noqa: E731
    network = cx.networks.from_function(init, lambda params, x: x @ params["w"] + params["b"])
    model = cx.Model(network, cx.priors.Normal(10.0), cx.likelihoods.Heteroscedastic())
    method = MicrocanonicalEnsemble(
        members=2, num_warmup=1_001, training_steps=1_000, num_draws=1, thin=1
    )
    x, _ = waves(100)
    noise = np.random.default_rng(1).normal(size=100)
    history = fit(model, (x, x[:, 0] + 0.5 * noise), method).info["log_joint"]
    assert np.all(history[:, 0] < -1e5)
    # The log likelihood at the true weights, plus their log prior.
    truth = stats.norm.logpdf(0.5 * noise, scale=0.5).sum() + 4 * stats.norm.logpdf(0, scale=10)
    assert np.all(history[:, 999] > truth - 2)


def gaussian(least, size):
    """Independent normals with scales from ``least`` to one."""
    scales = np.geomspace(least, 1, size).astype(np.float32)
    return cx.LogDensity(
        lambda key: scales * jax.random.normal(key, scales.shape),
        lambda w: -0.5 * jnp.sum((w / scales) ** 2),
    ), scales


@pytest.mark.slow
def test_the_tuning_begins_with_long_steps_and_ends_with_those_of_the_draws():
    model, scales = gaussian(0.25, 50)
    method = MicrocanonicalEnsemble(
        members=4,
        num_warmup=2_100,
        training_steps=100,
        num_draws=100,
        thin=10,
        length=float(np.linalg.norm(scales)),
    )
    wanted = [
        float(method.chain.warmup.energy_variance(np.int32(step)))
        for step in (0, 800, 1_600, 1_999)
    ]
    np.testing.assert_allclose(wanted, [0.3, 0.03, 0.003, 0.003], rtol=1e-5)
    squares = np.square(fit(model, None, method).info["energy_change"]) / len(scales)
    asked = float(method.chain.warmup.energy_variance(np.int32(700)))
    assert 0.7 * asked < squares[:, 700:900].mean() < 1.5 * asked
    assert np.all(squares[:, 2_100:].mean(1) > 0.0015)
    assert np.all(squares[:, 2_100:].mean(1) < 0.006)


# -- the right distribution -----------------------------------------------------------------------------


def z_scores(values, truth, error=0.0):
    """The error of the mean over members, in standard errors from the spread between members."""
    own = values.std(0, ddof=1) / np.sqrt(len(values))
    return (values.mean(0) - truth) / np.hypot(own, error)


@pytest.mark.slow
def test_moments_of_a_linear_model_are_exact():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3)) * [1.0, 2.0, 0.5]
    y = x @ [1.0, -1.0, 0.5] + 0.5 + 0.7 * generator.normal(size=40)
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.7))
    method = MicrocanonicalEnsemble(
        members=16,
        num_warmup=1_500,
        training_steps=500,
        num_draws=1_000,
        thin=10,
        desired_energy_variance=2e-5,
    )
    draws = fit(model, (x, y), method).draws["layer_0"]
    weights = np.concatenate([draws["kernel"][..., 0], draws["bias"]], -1).astype(np.float64)
    design = np.column_stack([x, np.ones(40)])
    covariance = np.linalg.inv(design.T @ design / 0.7**2 + np.eye(4))
    mean = covariance @ design.T @ y / 0.7**2
    sd = np.sqrt(np.diag(covariance))
    spread = np.sqrt(((weights - mean) ** 2).mean(1))
    for values, truth in ((weights.mean(1), mean), (spread, sd)):
        assert np.all(np.abs(z_scores(values, truth)) < 4)
        # Four standard errors are at most a fifth of a standard deviation.
        assert np.all(values.std(0, ddof=1) / 4 < 0.05 * sd)


@slow
def test_the_bias_of_the_steps_is_a_tenth_in_the_stiffest_directions():
    model, scales = gaussian(1 / 16, 400)
    method = cx.MCLMC(
        num_warmup=4_000,
        num_draws=4_000,
        thin=10,
        mass="unit",
        length=float(np.linalg.norm(scales)),
        desired_energy_variance=MicrocanonicalEnsemble().desired_energy_variance,
    )
    draws = np.asarray(fit(model, None, method).draws, np.float64).reshape(-1, len(scales))
    error = draws.std(0) / scales - 1
    assert -0.03 < error.mean() < 0
    assert -0.12 < error[:40].mean() < -0.05


def compare_with_hmc(method, reference):
    """Assert that means and variances of the function at some inputs agree with those of HMC."""
    at = np.linspace(-3, 3, 7)[:, None]
    network = NETWORK.bind(waves()).network
    each = jax.jit(jax.vmap(jax.vmap(lambda params: network.apply(params, at)[:, 0])))

    def figures(method):
        outputs = np.asarray(each(fit(NETWORK, waves(), method).draws), np.float64)
        return outputs.mean(1), outputs

    (means, outputs), (hmc_means, hmc_outputs) = figures(method), figures(reference)
    within = hmc_means.std(0, ddof=1)
    assert np.all(within < 0.5 * hmc_outputs.std((0, 1))), "HMC's own chains do not agree"
    error = within / np.sqrt(len(hmc_means))
    assert np.all(np.abs(z_scores(means, hmc_means.mean(0), error)) < 4)
    centre = hmc_means.mean(0)
    spread, hmc_spread = (((o - centre) ** 2).mean(1) for o in (outputs, hmc_outputs))
    error = hmc_spread.std(0, ddof=1) / np.sqrt(len(hmc_spread))
    assert np.all(np.abs(z_scores(spread, hmc_spread.mean(0), error)) < 4)


@slow
def test_predictions_are_those_of_hmc():
    compare_with_hmc(
        MicrocanonicalEnsemble(members=8, num_warmup=4_000, num_draws=200, thin=20),
        cx.HMC(chains=4, num_warmup=500, num_draws=500),
    )


@slow
def test_predictions_are_those_of_a_long_run_of_hmc():
    # With the default steps, the variance at the ends is 3 % too small, which this many draws begin to show.
    compare_with_hmc(
        MicrocanonicalEnsemble(members=16, num_draws=500, thin=100, desired_energy_variance=1e-4),
        cx.HMC(chains=8, num_warmup=1_000, num_draws=4_000),
    )


@slow
def test_classes():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(120, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    model = cx.Model(
        cx.networks.mlp([8], activation="tanh"), likelihood=cx.likelihoods.Categorical()
    )
    method = MicrocanonicalEnsemble(members=3, num_warmup=800, num_draws=20, thin=10)
    predictive = fit(model, (x, y), method).predict(x)
    assert np.mean(predictive.label == y) > 0.9
    np.testing.assert_allclose(predictive.probs.sum(1), 1, rtol=1e-5)


# -- runs ------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("at", [17, 40, 63])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path, monkeypatch, at):
    """Killed during training, at its end, and during the draws."""
    monkeypatch.setattr(pace, "SHARE", 1e9)  # a checkpoint after every chunk

    def kill(event):
        if event.step >= at:
            raise Killed

    method = MicrocanonicalEnsemble(**TINY)
    with pytest.raises(Killed):
        fit(NETWORK, waves(), method, checkpoint=tmp_path, callbacks=[kill], chunk_steps=1)
    steps = []
    again = fit(
        NETWORK, waves(), method, checkpoint=tmp_path, callbacks=[lambda e: steps.append(e.step)]
    )
    assert steps[0] > at - 2
    jax.tree.map(np.testing.assert_array_equal, again.draws, tiny().draws)
    np.testing.assert_array_equal(again.info["log_joint"], tiny().info["log_joint"])


@pytest.mark.slow
def test_a_second_fit_compiles_nothing(compilations):
    tiny()
    with compilations() as count:
        fit(NETWORK, waves(seed=1), MicrocanonicalEnsemble(**TINY), key=1)
        assert count() == 0


@slow
def test_float64(x64):
    posterior = fit(NETWORK, waves(), MicrocanonicalEnsemble(**TINY))
    for leaf in jax.tree.leaves(posterior.draws):
        assert leaf.dtype == np.float64
        assert np.any(leaf != leaf.astype(np.float32))
    for name in ("log_joint", "energy_change", "diverging", "step_size"):
        assert posterior.info[name].dtype == np.float64


@pytest.mark.slow
def test_batched_members_branch_as_one():
    """Under ``vmap`` the stages stay branches, so that no step computes both."""
    method = MicrocanonicalEnsemble(**TINY)
    model, data = NETWORK.prepare(waves())
    states = jax.vmap(lambda key: method.init(key, model, data))(jax.random.split(random.key(0), 3))
    step = jax.vmap(
        lambda key, state, step: method.step(key, state, model, data.everything(), step),
        in_axes=(0, 0, None),
    )
    keys = jax.random.split(random.key(1), 3)
    program = str(jax.make_jaxpr(step)(keys, states, jnp.int32(0)))
    assert program.count("cond[") >= 3


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"members": 0}, r"MicrocanonicalEnsemble\(members=...\) must be .* at least 1; got 0"),
        ({"num_warmup": 0}, r"\(num_warmup=...\) must be a whole number, at least 1; got 0"),
        (
            {"num_warmup": 10, "training_steps": 10},
            r"\(training_steps=...\) must be below num_warmup, 10, .*; got 10",
        ),
        ({"training_batch_size": 0}, r"\(training_batch_size=...\) must be .* at least 1; got 0"),
        ({"learning_rate": 0.0}, r"\(learning_rate=...\) must be positive; got 0.0"),
        ({"length": -1.0}, r"\(length=...\) must be positive; got -1.0"),
        (
            {"desired_energy_variance": 0},
            r"\(desired_energy_variance=...\) must be positive; got 0",
        ),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        MicrocanonicalEnsemble(**settings)


def test_more_rows_than_there_are_is_refused():
    with pytest.raises(
        ValueError, match=r"\(training_batch_size=...\) must be at most 30, all rows"
    ):
        fit(NETWORK, waves(), MicrocanonicalEnsemble(**TINY, training_batch_size=31))
    density = cx.LogDensity(lambda key: jnp.ones(2), lambda x: -0.5 * jnp.sum(x**2))
    with pytest.raises(ValueError, match=r"must be None where there is no data; got 5"):
        fit(density, None, MicrocanonicalEnsemble(**TINY, training_batch_size=5))


@pytest.mark.matrix
@pytest.mark.parametrize("num_warmup", [pytest.param(n, marks=slow) for n in (1, 2, 11)])
def test_short_warmups(num_warmup):
    method = MicrocanonicalEnsemble(members=2, num_warmup=num_warmup, num_draws=2, thin=1)
    assert method.num_steps == num_warmup + 2
    for leaf in jax.tree.leaves(fit(NETWORK, waves(), method).draws):
        assert np.all(np.isfinite(leaf))


# -- the diagnosis -------------------------------------------------------------------------------------------


def judged(log_joint):
    members, count = log_joint.shape
    density = cx.LogDensity(lambda key: np.zeros(1), lambda params: 0.0)
    info = {"kept": np.arange(count), "log_joint": log_joint, "modes": members}
    return cx.Posterior(density, Draws(log_joint[..., None]), info=info)


def test_members_in_different_modes_are_no_finding():
    values = np.random.default_rng(0).normal(size=(10, 200)) + 50 * np.arange(10)[:, None]
    assert judged(values).diagnose() == ()
    figures = judged(values).convergence().log_joint
    assert figures.r_hat == pytest.approx(1, abs=0.01)
    assert figures.ess_bulk == pytest.approx(2_000, rel=0.3)
    assert figures.mcse_mean == pytest.approx(1 / np.sqrt(2_000), rel=0.3)


def test_a_member_that_still_drifts_is_a_finding():
    values = np.random.default_rng(0).normal(size=(10, 200)) + 50 * np.arange(10)[:, None]
    values[3] += np.linspace(0, 5, 200)
    assert "the two halves of each member's chain disagree" in str(judged(values).diagnose())


def test_the_run_says_that_its_members_are_modes():
    assert tiny().info["modes"] == 3
