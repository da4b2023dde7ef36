"""IVON, against the best factorised posterior of linear regression."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import NOISE, fit, flat, rows
from scipy.special import softmax

import credax as cx
from credax.core import random
from credax.posterior.approximations.families import MeanField


def optimum(x, y, loc, scale, temperature=1.0):
    """Mean and standard deviations of the best factorised q over (bias, kernel), in closed form."""
    design = np.hstack([np.ones((len(x), 1)), x])
    prior = np.broadcast_to(np.asarray(scale, float) ** -2, 4)
    precision = design.T @ design / NOISE**2 / temperature + np.diag(prior)
    right = design.T @ y / NOISE**2 / temperature + prior * loc
    return np.linalg.solve(precision, right), np.diagonal(precision) ** -0.5


PRIORS = {
    "normal": (cx.priors.Normal(0.5, loc=0.3), 0.3, 0.5),
    "fan-in": (cx.priors.FanInNormal(0.6), 0.0, [0.6, *[0.6 / np.sqrt(3)] * 3]),
    "per layer": (
        {"*/bias": cx.priors.Normal(0.2, loc=-1.0), "*": cx.priors.Normal(0.7)},
        [-1.0, 0, 0, 0],
        [0.2, 0.7, 0.7, 0.7],
    ),
}
THOROUGH = {"num_steps": 4_000, "samples": 8, "learning_rate": 0.1, "beta2": 0.995}


def check(posterior, mean, sd, tolerance=0.05):
    family = posterior.approximation
    assert isinstance(family, MeanField)
    np.testing.assert_allclose((flat(family.mean) - mean) / sd, 0, atol=tolerance)
    np.testing.assert_allclose(flat(family.sigma), sd, rtol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["per layer", *(pytest.param(n, marks=pytest.mark.slow) for n in ("normal", "fan-in"))]
)
def test_it_reaches_the_best_factorised_posterior(name):
    prior, loc, scale = PRIORS[name]
    model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(NOISE))
    posterior = fit(model, rows(), cx.IVON(**THOROUGH))
    mean, sd = optimum(*rows(), loc, scale)
    check(posterior, mean, sd)
    value, error = posterior.elbo
    assert error > 0
    shown = posterior.info["elbo"][0, -1_000:]
    spread = np.hypot(error, shown.std() / np.sqrt(1_000))
    assert abs(shown.mean() - value) < 4 * spread


@pytest.mark.parametrize("temperature", [0.25, pytest.param(4.0, marks=pytest.mark.slow)])
def test_temperature_multiplies_the_kl(temperature):
    model = cx.Model(
        cx.networks.linear(), cx.priors.Normal(0.5, loc=0.3), cx.likelihoods.Gaussian(NOISE)
    )
    posterior = fit(model, rows(), cx.IVON(temperature=temperature, **THOROUGH))
    check(posterior, *optimum(*rows(), 0.3, 0.5, temperature))


@pytest.mark.slow
def test_minibatches_reach_the_same():
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(), cx.likelihoods.Gaussian(NOISE))
    data = rows(120)
    method = cx.IVON(num_steps=6_000, batch_size=30, samples=4, learning_rate=0.1, beta2=0.9995)
    check(fit(model, data, method), *optimum(*data, 0.0, 1.0), tolerance=0.25)


def pair(key):
    return jnp.zeros((3, 1)), jnp.zeros(1)


@pytest.mark.slow
def test_parameters_in_a_tuple():
    """A tuple of two weights must not be mistaken for a prior's mean and standard deviation."""
    network = cx.networks.from_function(pair, lambda params, x: x @ params[0] + params[1])
    model = cx.Model(network, cx.priors.Normal(0.5, loc=0.3), cx.likelihoods.Gaussian(NOISE))
    posterior = fit(model, rows(), cx.IVON(**THOROUGH))
    mean, sd = optimum(*rows(), 0.3, 0.5)
    check(posterior, np.roll(mean, -1), np.roll(sd, -1))


def test_the_curvature_stays_positive():
    """Even if the loss is not convex, and few draws and a small ``beta2`` give a noisy curvature."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(12, 2))
    y = np.sin(3 * x[:, 0])
    model, data = cx.Model(
        cx.networks.mlp([6], activation="sin"), likelihood=cx.likelihoods.Gaussian(0.2)
    ).prepare((x, y))
    method = cx.IVON(num_steps=300, beta2=0.6, hessian_init=0.01, learning_rate=0.3)

    @jax.jit
    def run(key):
        def advance(state, key_and_step):
            key, step = key_and_step
            state, _ = method.step(key, state, model, data.everything(), step)
            least = jax.tree.map(jnp.min, state.hessian)
            return state, jax.tree.reduce(jnp.minimum, least)

        state = method.init(key, model, data)
        steps = jnp.arange(300, dtype=jnp.int32)
        return jax.lax.scan(advance, state, (jax.random.split(key, 300), steps))[1]

    least = np.asarray(run(random.key(0)))
    delta = 1 / 12
    assert np.all(least + delta > 0), "so that sigma is real"


@pytest.mark.slow
def test_classes():
    generator = np.random.default_rng(2)
    y = np.arange(90) % 3
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    x = centres[y] + 0.5 * generator.normal(size=(90, 2))
    model = cx.Model(cx.networks.mlp([8]), likelihood=cx.likelihoods.Categorical())
    method = cx.IVON(num_steps=600, batch_size=30, learning_rate=0.1, hessian_init=0.1)
    posterior = fit(model, (x, y), method)
    apply = jax.jit(jax.vmap(posterior.model.network.apply, in_axes=(0, None)))
    outputs = np.asarray(apply(posterior.sample(0, 50), jnp.asarray(x, float)))
    probs = softmax(outputs, axis=-1).mean(0)
    assert np.mean(probs.argmax(1) == y) > 0.95
    assert np.mean(np.log(probs[np.arange(90), y])) > -0.3


@pytest.mark.slow
def test_a_schedule_is_used_as_it_is():
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(NOISE))
    point = fit(model, rows(), cx.MAP(num_steps=20))
    still = cx.IVON(num_steps=5, learning_rate=optax.constant_schedule(0.0))
    posterior = fit(model, rows(), still, start=point)
    begin = flat(jax.tree.map(lambda leaf: leaf[0, 0], point.draws))
    np.testing.assert_array_equal(flat(posterior.approximation.mean), begin)


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"temperature": 0}, r"IVON\(temperature=...\) must be positive; got 0"),
        ({"hessian_init": -1.0}, r"IVON\(hessian_init=...\) must be positive; got -1.0"),
        ({"beta1": 1.0}, r"IVON\(beta1=...\) must be between 0 and 1, both excluded; got 1.0"),
        ({"beta2": 0.0}, r"IVON\(beta2=...\) must be between 0 and 1, both excluded; got 0.0"),
        ({"samples": 0}, r"IVON\(samples=...\) must be a whole number, at least 1; got 0"),
        ({"learning_rate": -1}, r"IVON\(learning_rate=...\) must be positive; got -1"),
    ],
)
def test_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        cx.IVON(**settings)


@pytest.mark.parametrize(
    "prior, message",
    [
        (cx.priors.Laplace(), r"IVON needs a Gaussian prior .*; got Laplace\(scale=1.0"),
        (cx.priors.ScaleMixture(), r"IVON needs a Gaussian prior .*; got ScaleMixture\("),
        (cx.priors.StudentT(), r"IVON needs a Gaussian prior .*; got StudentT\(.*BayesByBackprop"),
        (
            {"*/bias": cx.priors.Laplace(), "*": cx.priors.Normal()},
            r"IVON needs a Gaussian prior .*; got Laplace\(",
        ),
        (cx.priors.Discrete((-1, 1)), "IVON needs gradients.*discrete weights"),
    ],
    ids=["laplace", "mixture", "student", "per layer", "discrete"],
)
def test_priors_are_refused_before_anything_compiles(prior, message, compilations):
    model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(NOISE))
    _, _, _, _ = jax.random.split(random.key(0), 4)  # `fit` makes keys before its checks
    model.prepare(rows())  # and moves the data to the device before the last of them
    with compilations() as count, pytest.raises(ValueError, match=message):
        fit(model, rows(), cx.IVON(num_steps=2))
    assert count() == 0


def test_a_density_and_large_batches_are_refused():
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(TypeError, match="IVON needs a Model with a likelihood; got a LogDensity"):
        fit(density, None, cx.IVON(num_steps=2))
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(NOISE))
    with pytest.raises(ValueError, match=r"batch_size=...\) must be at most .*24; got 25"):
        fit(model, rows(), cx.IVON(num_steps=2, batch_size=25))


def test_the_curvature_is_slow_where_there_are_many_weights_per_row():
    """With four weights per row, a thousandth of the curvature is new; with more, a hundredth of that."""
    x = np.random.default_rng(0).normal(size=(10, 3))
    y = x[:, 0]

    def first_change(network, **settings):
        model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(1.0))
        bound, data = model.prepare((x, y))
        method = cx.IVON(num_steps=10, **settings)
        state = method.init(jax.random.key(0), bound, data)
        batch = method.batch(jax.random.key(1), bound, data, jnp.int32(0))
        after, _ = method.step(jax.random.key(2), state, bound, batch, jnp.int32(0))
        return float(max(np.max(np.abs(h - 1)) for h in jax.tree.leaves(after.hessian)))

    for network, beta2 in ((cx.networks.linear(), 0.999), (cx.networks.mlp([9]), 0.99999)):
        explicit = first_change(network, beta2=beta2)
        assert first_change(network) == pytest.approx(explicit, rel=1e-3)
        assert first_change(network, beta2=0.99) > 5 * explicit


@pytest.mark.parametrize(
    "network, batch_size, rate",
    [
        (cx.networks.mlp([9]), None, 0.1),
        (cx.networks.mlp([9]), 5, 0.3),
        (cx.networks.linear(), 5, 0.1),
    ],
)
def test_the_rate_is_larger_in_minibatches_where_there_are_many_weights_per_row(
    network, batch_size, rate
):
    x = np.random.default_rng(0).normal(size=(10, 3))
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(1.0))

    def mean(**settings):
        method = cx.IVON(num_steps=10, batch_size=batch_size, **settings)
        return flat(fit(model, (x, x[:, 0]), method).approximation.mean)

    found = mean()
    np.testing.assert_array_equal(found, mean(learning_rate=rate))
    assert np.any(found != mean(learning_rate=0.4 - rate))


@pytest.mark.slow
def test_no_fit_to_few_rows_switches_off_all_units():
    """With a rate of 0.3 the fit of this key explained nothing."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(500, 8))
    truth = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    y = truth + 0.1 * rng.normal(size=500)
    model = cx.Model(
        cx.networks.mlp([50, 50]), cx.priors.FanInNormal(), cx.likelihoods.Gaussian(None)
    )
    posterior = cx.fit(model, (x, y), cx.IVON(), key=5, progress=False)
    residual = truth - posterior.predict(x).mean.ravel()
    assert np.var(residual) < 0.1 * np.var(truth)
