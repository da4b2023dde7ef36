"""Bayes by Backprop, against the exact posterior of linear regression and closed forms."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from regression import NOISE, PRIOR, fit, flat, line, rows
from scipy import stats

import credax as cx
from credax.core import random
from credax.inference.variational.bayes_by_backprop import FEW_ROWS
from credax.inference.variational.gradient_variance import gradient_variance
from credax.inference.variational.objective import FULL_RANK_LIMIT, negative_kl
from credax.posterior.approximations.families import FullRank, LowRank, MeanField

QUICK = {"xla_backend_optimization_level": 0}
"""For programs that take seconds to compile and moments to run."""


# -- linear regression, whose posterior is known -----------------------------------------------------


class Exact:
    """The normal posterior over (bias, kernel), which is the order of the parameters, and the evidence."""

    def __init__(self, x, y, temperature=1.0):
        design = np.hstack([np.ones((len(x), 1)), x])
        self.design, self.y, self.temperature = design, y, temperature
        prior = np.eye(design.shape[1]) / PRIOR**2
        self.precision = (design.T @ design / NOISE**2) / temperature + prior
        self.covariance = np.linalg.inv(self.precision)
        self.mean = self.covariance @ design.T @ y / NOISE**2 / temperature
        evidence = NOISE**2 * np.eye(len(y)) + PRIOR**2 * design @ design.T
        self.log_evidence = stats.multivariate_normal(np.zeros(len(y)), evidence).logpdf(y)

    def elbo(self, mean, covariance):
        """log p(D) - KL(q || posterior)."""
        size, off = len(mean), mean - self.mean
        log_det = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(self.precision)[1]
        trace = np.trace(self.precision @ covariance)
        return self.log_evidence - 0.5 * (trace - size + off @ self.precision @ off - log_det)


def dense(family):
    if isinstance(family, FullRank):
        return np.asarray(family.covariance())
    matrix = np.diag(flat(family.sigma) ** 2)
    if isinstance(family, LowRank):
        factors = np.asarray(jax.vmap(lambda f: ravel_pytree(f)[0])(family.factors))
        matrix = matrix + factors.T @ factors
    return matrix


@cache
def linear_fit(family, rank=1):
    """A fit in double precision with antithetic draws, whose gradient for the mean of a quadratic is exact."""
    assert jax.config.jax_enable_x64
    method = cx.BayesByBackprop(
        num_steps=3_000,
        learning_rate=0.05,
        family=family,
        rank=rank,
        samples=32,
        antithetic=True,
        initial_scale=0.2,
    )
    return fit(line(), rows(), method)


def check_elbo(posterior, exact):
    """Compare the reported lower bound with that of q in closed form; return the latter."""
    family = posterior.approximation
    bound = exact.elbo(flat(family.mean), dense(family))
    value, error = posterior.elbo
    assert error > 0
    assert abs(value - bound) < 4 * error
    assert posterior.log_evidence is None
    return bound


@pytest.mark.slow
def test_full_rank_reaches_the_exact_posterior(x64):
    posterior, exact = linear_fit("full_rank"), Exact(*rows())
    family = posterior.approximation
    sd = np.sqrt(np.diagonal(exact.covariance))
    np.testing.assert_allclose((flat(family.mean) - exact.mean) / sd, 0, atol=0.01)
    difference = (dense(family) - exact.covariance) / np.outer(sd, sd)
    np.testing.assert_allclose(difference, 0, atol=0.03)
    # The bound equals the evidence if q is the posterior, and errors of q change it in second order only.
    bound = check_elbo(posterior, exact)
    assert exact.log_evidence - 3e-3 < bound <= exact.log_evidence
    value, error = posterior.elbo
    assert abs(value - exact.log_evidence) < 4 * error


@pytest.mark.slow
def test_mean_field_reaches_the_best_factorised_posterior(x64):
    """q has the exact mean; its standard deviations are those of each weight given all others."""
    posterior, exact = linear_fit("mean_field"), Exact(*rows())
    family = posterior.approximation
    want = np.diagonal(exact.precision) ** -0.5
    np.testing.assert_allclose((flat(family.mean) - exact.mean) / want, 0, atol=0.01)
    np.testing.assert_allclose(flat(family.sigma), want, rtol=0.03)
    best = exact.elbo(exact.mean, np.diag(want**2))
    assert best < exact.log_evidence - 0.2, "otherwise the test would show nothing"
    bound = check_elbo(posterior, exact)
    assert best - 2e-3 < bound <= best + 1e-9


@pytest.mark.slow
def test_low_rank_with_as_many_directions_as_weights_is_full_rank(x64):
    exact = Exact(*rows())
    bound = check_elbo(linear_fit("low_rank", 4), exact)
    assert exact.log_evidence - 0.01 < bound <= exact.log_evidence


@pytest.mark.slow
def test_one_direction_lies_between_none_and_all(x64):
    exact = Exact(*rows())
    none, one, all_ = (
        check_elbo(linear_fit(*arguments), exact)
        for arguments in (("mean_field",), ("low_rank", 1), ("low_rank", 4))
    )
    assert none + 0.1 < one < exact.log_evidence
    assert one < all_ + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_every_estimator_reaches_the_same_optimum_in_minibatches(estimator):
    posterior, exact = (
        fit(
            line(),
            rows(96),
            cx.BayesByBackprop(
                num_steps=6_000, batch_size=32, estimator=estimator, samples=2, initial_scale=0.1
            ),
        ),
        Exact(*rows(96)),
    )
    want = np.diagonal(exact.precision) ** -0.5
    family = posterior.approximation
    np.testing.assert_allclose((flat(family.mean) - exact.mean) / want, 0, atol=0.4)
    np.testing.assert_allclose(flat(family.sigma), want, rtol=0.15)
    check_elbo(posterior, exact)


@pytest.mark.slow
def test_a_cold_posterior(x64):
    """A KL multiplied by T has the same optimum as a likelihood to the power 1 / T."""
    method = cx.BayesByBackprop(
        num_steps=1_000, learning_rate=0.05, samples=16, antithetic=True, temperature=0.25
    )
    family = fit(line(), rows(), method).approximation
    exact = Exact(*rows(), temperature=0.25)
    want = np.diagonal(exact.precision) ** -0.5
    np.testing.assert_allclose((flat(family.mean) - exact.mean) / want, 0, atol=0.03)
    np.testing.assert_allclose(flat(family.sigma), want, rtol=0.04)


# -- a prior whose scales are learned --------------------------------------------------------------


def learned_optimum(x, y):
    """Mean and standard deviation of the mean-field optimum with one learned prior scale for each weight.

    The optimum for given scales is known, and so are the best scales for a given q; iterated to convergence.
    """
    design = np.hstack([np.ones((len(x), 1)), x])
    gram, target = design.T @ design / NOISE**2, design.T @ y / NOISE**2
    precision = np.ones(design.shape[1])
    for _ in range(2_000):
        mean = np.linalg.solve(gram + np.diag(precision), target)
        variance = 1 / (np.diagonal(gram) + precision)
        precision = 1 / (mean**2 + variance)
    return mean, np.sqrt(variance)


@pytest.mark.slow
def test_learned_scales_reach_their_optimum_in_linear_regression():
    x, y = rows(200)
    model = cx.Model(
        cx.networks.linear(), cx.priors.LearnedNormal(), cx.likelihoods.Gaussian(scale=NOISE)
    )
    family = fit(model, (x, y), cx.BayesByBackprop(num_steps=3_000)).approximation
    mean, sd = learned_optimum(x, y)
    np.testing.assert_allclose((flat(family.mean) - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(flat(family.sigma), sd, rtol=0.1)


@pytest.mark.slow
def test_an_input_without_influence_is_switched_off():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = 2 * x[:, 0] + 0.1 * rng.normal(size=300)
    model = cx.Model(cx.networks.mlp([5], activation="tanh"), cx.priors.LearnedNormal())
    posterior = fit(model, (x, y), cx.BayesByBackprop(num_steps=1_500, estimator="local"))
    kernel = posterior.approximation.moments()[0]["network"]["layer_0"]["kernel"]
    length = np.sqrt(np.sum(np.asarray(kernel) ** 2, axis=1))
    assert np.all(length[1:] < 0.1 * length[0]), length


@pytest.mark.slow
@pytest.mark.parametrize("key", [0, 1, 2, 3])
def test_units_stay_in_use_on_few_rows(key):
    """Fifty rows of a sine. Steps that are too long while the KL rises would switch off all units (key 1)."""
    rng = np.random.default_rng(key)
    x, x_new = rng.uniform(-2, 2, size=(50, 1)), rng.uniform(-2, 2, size=(2_000, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=50)
    model = cx.Model(
        cx.networks.mlp([50, 50]), cx.priors.LearnedNormal(), cx.likelihoods.Gaussian(scale=None)
    )
    predictive = fit(model, (x, y), cx.BayesByBackprop(), key=key).predict(x_new)
    f = np.sin(2 * x_new[:, 0])
    assert np.mean((predictive.mean - f) ** 2) < 0.1 * np.var(f)


@pytest.mark.slow
def test_the_named_optimiser_gets_its_decay_rate():
    x, y = rows(20)
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(NOISE))

    def found(**settings):
        method = cx.BayesByBackprop(num_steps=20, **settings)
        return flat(fit(model, (x, y), method).approximation.mean)

    def adam(b2):
        return optax.adam(optax.cosine_decay_schedule(1e-2, 20), b2=b2)

    usual, other = found(), found(beta2=0.9)
    np.testing.assert_array_equal(usual, found(optimiser=adam(0.99)))
    np.testing.assert_array_equal(other, found(optimiser=adam(0.9)))
    assert not np.array_equal(usual, other)
    np.testing.assert_array_equal(found(optimiser="sgd"), found(optimiser="sgd", beta2=0.9))
    with pytest.raises(ValueError, match=r"BayesByBackprop\(beta2=...\) must be between 0 and 1"):
        cx.BayesByBackprop(beta2=1.0)


# -- the settings ------------------------------------------------------------------------------------


def measured(**settings):
    model = cx.Model(
        cx.networks.mlp([3], activation="tanh"), likelihood=cx.likelihoods.Gaussian(NOISE)
    )
    method = cx.BayesByBackprop(initial_scale=0.3, **settings)
    return gradient_variance(model, rows(), method, 0, draws=4_000)


@pytest.mark.slow
def test_more_samples_vary_less():
    one, eight = measured(), measured(samples=8)
    # 4,000 draws estimate the variance to within a few per cent.
    assert 8 * 0.85 < one.total / eight.total < 8 * 1.15
    for first, second, a, b in zip(
        *map(jax.tree.leaves, (one.mean, eight.mean, one.variance, eight.variance)), strict=True
    ):
        assert np.max(np.abs(first - second) / np.sqrt((a + b) / 4_000)) < 4.2


def test_antithetic_pairs_cancel_exactly_for_a_linear_density(x64):
    slopes = jnp.asarray([1.0, -2.0, 0.5])
    density = cx.LogDensity(lambda key: jnp.ones(3), lambda w: slopes @ w)
    family = MeanField.around(jnp.ones(3), 0.7)
    method = cx.BayesByBackprop(samples=4, antithetic=True)
    run = jax.jit(lambda key, method: method.gradient(key, family, density, None), static_argnums=1)
    value, _, gradient = run(random.key(0), method)
    np.testing.assert_allclose(value, slopes.sum(), rtol=1e-12)
    np.testing.assert_allclose(gradient.mean, slopes, rtol=1e-12)
    entropy = jax.grad(lambda q: q.entropy())(family)
    np.testing.assert_allclose(gradient.rho, entropy.rho, rtol=1e-12)
    plain = run(random.key(0), cx.BayesByBackprop(samples=4))[-1]
    assert np.all(np.abs(plain.rho - entropy.rho) > 1e-3), (
        "without antithetic draws they do not cancel"
    )


@pytest.mark.slow
def test_temperature_and_annealing_weight_the_kl(x64):
    model, data = line().prepare(rows())
    family = MeanField.around(model.init(random.key(0)), 0.3)
    kl = flat(jax.grad(lambda q: negative_kl(model, q, q.mean))(family))

    def gradient(step=None, **settings):
        method = cx.BayesByBackprop(**settings)
        step = None if step is None else jnp.asarray(step, jnp.int32)
        batch = data.everything()
        run = jax.jit(
            lambda key: method.gradient(key, family, model, batch, (), step), compiler_options=QUICK
        )
        return flat(run(random.key(0))[-1])

    plain = gradient()
    close = lambda got, weight: np.testing.assert_allclose(  # noqa: E731
        got, plain + (weight - 1) * kl, rtol=1e-10, atol=1e-10
    )
    close(gradient(temperature=0.25), 0.25)
    close(gradient(0, kl_annealing=10), 0.1)
    close(gradient(10_000, kl_annealing=10), 1.0)
    close(gradient(4, kl_annealing=10, temperature=0.5), 0.25)
    close(gradient(3, num_steps=20), 0.5)  # by default, over two fifths of the steps
    close(gradient(4, num_steps=20, kl_annealing=0), 1.0)


def doubled():
    """A linear network of two functions, of which nothing is known."""
    init = lambda key: jax.random.normal(key, (2, 1)) * 0.1  # noqa: E731
    return cx.networks.from_function(init, lambda w, x: x @ w)


def mlp(**options):
    return cx.networks.mlp([2], **options)


@pytest.mark.parametrize(
    "same, network, count, settings",
    [
        ("local", mlp, FEW_ROWS, {}),
        ("local", mlp, 10, {"samples": 2}),
        ("local", cx.networks.linear, 10, {"kl_annealing": 0}),
        ("weight", mlp, FEW_ROWS + 1, {}),
        ("weight", mlp, 10, {"batch_size": 10}),
        ("weight", mlp, 10, {"family": "low_rank"}),
        ("weight", mlp, 10, {"antithetic": True, "samples": 2}),
        ("weight", partial(mlp, dropout=0.1), 10, {}),
        ("weight", partial(mlp, batch_norm=True), 10, {}),
        ("weight", doubled, 10, {}),
    ],
)
def test_the_default_estimator_suits_the_network_and_the_rows(same, network, count, settings):
    x = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    model, data = cx.Model(network()).prepare((x, x.sum(1)))

    def program(**more):
        method = cx.BayesByBackprop(num_steps=2, **settings, **more)
        state = method.init(random.key(0), model, data)
        batch = method.batch(random.key(0), model, data, jnp.zeros((), jnp.int32))
        gradient = lambda key: method.gradient(key, state.family, model, batch, state.network)  # noqa: E731
        return str(jax.make_jaxpr(gradient)(random.key(0)))

    assert program() == program(estimator=same)
    if same == "local":
        assert program() != program(estimator="weight")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [50, 80, 500])
@pytest.mark.parametrize("key", range(3))
def test_the_noise_of_a_sine_is_found_on_few_rows(rows, key):
    """One draw for all rows ends with a noise of 0.22 and more for 80 rows, where 0.1 is right."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(rows, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=rows)
    noise = cx.likelihoods.Gaussian(scale=None)
    model = cx.Model(cx.networks.mlp([50, 50]), cx.priors.LearnedNormal(), noise)
    predictive = fit(model, (x, y), cx.BayesByBackprop(), key=key).predict(x)
    assert 0.08 < np.sqrt(np.median(predictive.aleatoric)) < {50: 0.3, 80: 0.16, 500: 0.12}[rows]
    truth = np.sin(2 * x[:, 0])
    assert np.mean((predictive.mean - truth) ** 2) < 0.05 * np.var(truth)


def still(**settings):
    """A method with a learning rate of zero, which stays at its starting point."""
    return cx.BayesByBackprop(learning_rate=optax.constant_schedule(0.0), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 6])
def test_the_bound_that_a_run_shows_is_that_of_its_q(batch_size):
    method = still(num_steps=4_000, batch_size=batch_size, initial_scale=0.1)
    posterior = fit(line(), rows(), method)
    family, exact = posterior.approximation, Exact(*rows())
    bound = check_elbo(posterior, exact)
    shown = posterior.info["elbo"][0].astype(np.float64)
    assert abs(shown.mean() - bound) < 4 * shown.std() / np.sqrt(len(shown))
    kl = -negative_kl(posterior.model, family, family.mean)
    np.testing.assert_allclose(posterior.info["kl"][0], kl, rtol=1e-5)


def test_start_and_schedule():
    """With a learning rate of zero, q stays at the given start."""
    point = fit(line(), rows(), cx.MAP(num_steps=50))
    begin = jax.tree.map(lambda leaf: leaf[0, 0], point.draws)
    posterior = fit(line(), rows(), still(num_steps=3, initial_scale=0.3), start=point)
    jax.tree.map(np.testing.assert_array_equal, posterior.approximation.mean, begin)
    np.testing.assert_allclose(flat(posterior.approximation.sigma), 0.3, rtol=1e-5)


@pytest.mark.slow
def test_steps_follow_the_schedule_and_the_average_follows_the_steps(x64):
    rates = jnp.asarray([0.02, 0.01, 0.0, 0.03])
    method = cx.BayesByBackprop(
        num_steps=4, learning_rate=lambda step: rates[step], optimiser="sgd", averaging=0.5
    )
    model, data = line().prepare(rows())

    @partial(jax.jit, compiler_options=QUICK)
    def run(key):
        def advance(state, key_and_step):
            key, step = key_and_step
            gradient_key = jax.random.split(key)[0]
            gradient = method.gradient(
                gradient_key, state.family, model, data.everything(), (), step
            )[-1]
            after, _ = method.step(key, state, model, data.everything(), step)
            return after, (state.family, gradient, after.family, after.average)

        start = method.init(key, model, data)
        steps = jnp.arange(4, dtype=jnp.int32)
        return jax.lax.scan(advance, start, (jax.random.split(key, 4), steps))[1]

    before, gradient, after, average = (
        np.stack([flat(jax.tree.map(lambda leaf, i=i: leaf[i], part)) for i in range(4)])
        for part in run(random.key(0))
    )
    # The gradient is divided by the number of rows, so the learning rate does not depend on the data size.
    want = before + np.asarray(rates)[:, None] * gradient / 24
    np.testing.assert_allclose(after, want, rtol=1e-10)
    running = before[0]
    for now, got in zip(after, average, strict=True):
        running = 0.5 * running + 0.5 * now
        np.testing.assert_allclose(got, running, rtol=1e-10)


@pytest.mark.slow
def test_a_scale_mixture_prefers_few_weights():
    generator = np.random.default_rng(4)
    x = generator.normal(size=(60, 20))
    y = x[:, :3] @ [2.0, -1.5, 1.0] + 0.5 * generator.normal(size=60)
    means = {}
    for prior in (cx.priors.Normal(1.0), cx.priors.ScaleMixture(0.25, 1.0, 0.01)):
        model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(0.5))
        method = cx.BayesByBackprop(num_steps=1_500, learning_rate=0.02, samples=4)
        posterior = fit(model, (x, y), method)
        means[type(prior).__name__] = np.asarray(posterior.approximation.mean["layer_0"]["kernel"])
        assert np.isfinite(posterior.elbo).all()
    normal, mixture = means["Normal"][:, 0], means["ScaleMixture"][:, 0]
    np.testing.assert_allclose(mixture[:3], [2.0, -1.5, 1.0], atol=0.3)
    assert np.mean(np.abs(mixture[3:]) < 0.02) > 0.6 > 0.4 > np.mean(np.abs(normal[3:]) < 0.02)


def curve(count=100):
    """The data of Blundell et al. (2015), section 5.2."""
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 0.5, count)
    e = 0.02 * generator.normal(size=count)
    y = x + 0.3 * np.sin(2 * np.pi * (x + e)) + 0.3 * np.sin(4 * np.pi * (x + e)) + e
    return x[:, None], y


def check_curve(posterior):
    """Predictions at both points far from the data are less certain than at any data point."""
    data = curve()
    inside = posterior.predict(data[0])
    assert np.sqrt(np.mean((inside.mean - data[1]) ** 2)) < 0.15
    outside = posterior.predict(np.array([[-0.6], [1.2]]))
    assert np.all(outside.std > np.max(inside.std))
    assert np.all(outside.epistemic > np.max(inside.epistemic))


@pytest.mark.slow
def test_a_regression_curve_is_unsure_away_from_the_data():
    model = cx.Model(
        cx.networks.mlp([20]), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(scale=0.1)
    )
    method = cx.BayesByBackprop(num_steps=1_500, learning_rate=0.02, samples=4)
    check_curve(fit(model, curve(), method))


@pytest.mark.slow
def test_the_regression_curve_of_the_paper():
    prior = cx.priors.ScaleMixture(0.5, 1.0, float(np.exp(-6)))
    model = cx.Model(cx.networks.mlp([50, 50]), prior, cx.likelihoods.Gaussian(scale=0.05))
    method = cx.BayesByBackprop(num_steps=6_000, batch_size=50, learning_rate=5e-3)
    check_curve(fit(model, curve(), method))


# -- what is refused ---------------------------------------------------------------------------------

SETTINGS = {
    "estimator": ({"estimator": "exact"}, "one of 'weight', 'local', 'flipout'; got 'exact'"),
    "family": ({"family": "normal"}, "one of 'mean_field', 'low_rank', 'full_rank'; got 'normal'"),
    "temperature": ({"temperature": 0.0}, "positive; got 0.0"),
    "initial_scale": ({"initial_scale": -1}, "positive; got -1"),
    "rank": ({"rank": 0}, "a whole number, at least 1; got 0"),
    "samples": ({"samples": 0}, "a whole number, at least 1; got 0"),
    "kl_annealing": ({"kl_annealing": -1}, "a whole number, at least 0; got -1"),
    "averaging": ({"averaging": 1.0}, "between 0 and 1, both excluded; got 1.0"),
    "learning_rate": ({"learning_rate": 0}, "positive; got 0"),
}
MORE_SETTINGS = [
    ({"temperature": -2.0}, "temperature", "positive; got -2.0"),
    ({"samples": 3, "antithetic": True}, "samples", "even for antithetic pairs; got 3"),
    ({"antithetic": True}, "samples", "even for antithetic pairs; got 1"),
    ({"kl_weights": "half"}, "kl_weights", "one of 'uniform', 'blundell'; got 'half'"),
    ({"kl_weights": (0.5, 0.4)}, "kl_weights", "numbers that add up to one; got (0.5, 0.4)"),
    ({"kl_weights": (1.5, -0.5)}, "kl_weights", "non-negative numbers that add up to one; got"),
    ({"kl_weights": ()}, "kl_weights", "numbers that add up to one; got ()"),
    (
        {"estimator": "local", "family": "low_rank"},
        "family",
        '"mean_field" for estimator="local"; got \'low_rank\'',
    ),
    (
        {"estimator": "flipout", "antithetic": True, "samples": 2},
        "antithetic",
        'False for estimator="flipout"; got True',
    ),
]


@pytest.mark.parametrize(
    "settings, name, message",
    [*((s, name, m) for name, (s, m) in SETTINGS.items()), *MORE_SETTINGS],
)
def test_settings_are_refused(settings, name, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        cx.BayesByBackprop(**settings)
    assert f"BayesByBackprop({name}=...) must be " in str(refusal.value)
    assert message in str(refusal.value)


def refuse(model, data, method, message, compilations):
    _, _, _, _ = jax.random.split(random.key(0), 4)  # `fit` makes keys before its checks
    model.prepare(data)  # and moves the data to the device before the last of them
    with compilations() as count, pytest.raises((TypeError, ValueError), match=message):
        fit(model, data, method)
    assert count() == 0


def test_models_are_refused_before_anything_compiles(compilations):
    x, y = rows(12)
    refuse_with = lambda model, data, message, **settings: refuse(  # noqa: E731
        model, data, cx.BayesByBackprop(num_steps=2, **settings), message, compilations
    )
    discrete = cx.Model(cx.networks.linear(), cx.priors.Discrete((-1, 1)))
    refuse_with(discrete, (x, y), "BayesByBackprop needs gradients.*discrete weights")
    bare = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    refuse_with(
        bare, None, r"estimator=\.\.\.\) must be \"weight\" for a LogDensity", estimator="local"
    )
    refuse_with(bare, None, r"batch_size=\.\.\.\) must be None where.*got 5", batch_size=5)
    refuse_with(line(), (x, y), r"batch_size=\.\.\.\) must be at most.*12; got 13", batch_size=13)
    shares = r"kl_weights=\.\.\.\) must be one number for each of the 3 batches.*; got \(0.5, 0.5\)"
    refuse_with(line(), (x, y), shares, kl_weights=(0.5, 0.5), batch_size=4)
    refuse_with(line(), (x, y), "each of the 1 batches", kl_weights=(0.5, 0.5))
    wide = cx.Model(cx.networks.mlp([4_000]), likelihood=cx.likelihoods.Gaussian(0.1))
    size = 4_000 * 5 + 1
    message = rf"full_rank.*{size:,} x {size:,} weights, 1\.5 GiB.*limit is 1 GiB.*low_rank"
    assert 4 * size**2 > FULL_RANK_LIMIT
    refuse_with(wide, (x, y), message, family="full_rank")
