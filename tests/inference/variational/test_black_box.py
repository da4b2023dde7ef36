"""Black-box variational inference: unbiased gradients, and discrete weights against enumeration."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_expit, logsumexp, xlogy

import credax as cx
from credax.core import random
from credax.inference.variational.gradient_variance import gradient_variance
from credax.inference.variational.objective import make_family
from credax.posterior.approximations.families import Categorical, FullRank, LowRank

DRAWS, SAMPLES = 12_500, 8  # a hundred thousand draws of the weights
NOISE = 0.7
QUICK = {"xla_backend_optimization_level": 0}
"""For programs that take seconds to compile and moments to run."""


def fit(model, data, method, **arguments):
    return cx.fit(model, data, method, progress=False, **arguments)


# -- unbiased ----------------------------------------------------------------------------------------


def rows(count=6):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 2))
    return x, x @ [1.0, -0.5] + 0.3 + NOISE * generator.normal(size=count)


def line():
    return cx.Model(
        cx.networks.linear(), cx.priors.Normal(0.8), cx.likelihoods.Gaussian(scale=NOISE)
    )


def phi(family):
    """A q away from the optimum whose parameters all differ."""
    model, _ = line().prepare(rows())
    start = make_family(
        cx.BlackBoxVI(family=family, rank=2, initial_scale=0.5), random.key(0), model
    )
    noise = random.normal_like(random.key(1), start)
    return jax.tree.map(lambda leaf, n: leaf + 0.2 * n, start, noise)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


@cache
def measured(family="mean_field", control_variate=None, rao_blackwell=False, antithetic=False):
    method = cx.BlackBoxVI(
        samples=SAMPLES,
        family=family,
        rank=2,
        control_variate=control_variate,
        rao_blackwell=rao_blackwell,
        antithetic=antithetic,
    )
    found = gradient_variance(line(), rows(), method, 3, family=phi(family), draws=DRAWS)
    return flat(found.mean), flat(found.variance)


@cache
def exact_gradient(family):
    """The gradient of the lower bound in closed form; the log likelihood of a line is quadratic."""
    x, y = (jnp.asarray(a, float) for a in rows())
    design = jnp.concatenate([jnp.ones((len(x), 1)), x], 1)

    def bound(q):
        def order(tree):
            return jnp.concatenate([tree["layer_0"]["bias"], tree["layer_0"]["kernel"][:, 0]])

        mean = order(q.mean)
        if isinstance(q, FullRank):
            covariance = q.covariance()
        else:
            covariance = jnp.diag(order(q.sigma) ** 2)
            if isinstance(q, LowRank):
                factors = jax.vmap(order)(q.factors)
                covariance = covariance + factors.T @ factors
        spread = jnp.sum((design @ covariance) * design)
        likelihood = -0.5 * (jnp.sum((y - design @ mean) ** 2) + spread) / NOISE**2
        prior = -0.5 * (mean @ mean + jnp.trace(covariance)) / 0.8**2
        return likelihood + prior + 0.5 * jnp.linalg.slogdet(covariance)[1]

    return flat(jax.grad(bound)(phi(family)))


def assert_unbiased(mean, variance, want, draws=DRAWS):
    error = np.sqrt(variance / draws)
    moving = error > 0
    np.testing.assert_allclose(mean[~moving], want[~moving], atol=1e-6)
    assert np.max(np.abs(mean - want)[moving] / error[moving]) < 4


QUICKLY = {
    (None, False, True),
    (None, True, False),
    ("leave_one_out", False, False),
    ("leave_one_out", True, True),
    ("optimal", False, False),
    ("optimal", True, True),
}
COMBINATIONS = [
    pytest.param(*each, marks=() if each in QUICKLY else pytest.mark.slow)
    for each in itertools.product((None, "leave_one_out", "optimal"), (False, True), (False, True))
]


@pytest.mark.matrix
@pytest.mark.parametrize("control_variate, rao_blackwell, antithetic", COMBINATIONS)
def test_every_reduction_of_the_variance_is_unbiased(control_variate, rao_blackwell, antithetic):
    found = measured("mean_field", control_variate, rao_blackwell, antithetic)
    assert_unbiased(*found, exact_gradient("mean_field"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["low_rank", "full_rank"])
@pytest.mark.parametrize("control_variate", ["leave_one_out", "optimal"])
def test_other_families_are_unbiased(family, control_variate):
    found = measured(family, control_variate, antithetic=True)
    assert_unbiased(*found, exact_gradient(family))


def test_the_reparameterised_gradient_has_the_same_mean():
    method = cx.BayesByBackprop()
    found = gradient_variance(
        line(), rows(), method, 3, family=phi("mean_field"), draws=SAMPLES * DRAWS
    )
    mean, variance = flat(found.mean), flat(found.variance)
    assert_unbiased(mean, variance, exact_gradient("mean_field"), SAMPLES * DRAWS)
    score, score_variance = measured(control_variate="leave_one_out")
    error = np.sqrt(variance / (SAMPLES * DRAWS) + score_variance / DRAWS)
    assert np.max(np.abs(mean - score) / error) < 4
    assert variance.sum() / SAMPLES < score_variance.sum(), "it must also vary less"


@pytest.mark.parametrize(
    "settings",
    [
        {"control_variate": "leave_one_out"},
        {"control_variate": "optimal"},
        {"rao_blackwell": True},
        {"antithetic": True},
    ],
    ids=lambda settings: next(iter(settings)) + " " + str(next(iter(settings.values()))),
)
def test_every_reduction_lowers_the_variance(settings):
    none, reduced = measured()[1], measured(**settings)[1]
    if "antithetic" in settings:
        # Antithetic draws have opposite scores for the mean, but equal scores for the standard deviation.
        half = len(none) // 2
        assert reduced[:half].sum() < 0.9 * none[:half].sum()
    else:
        # Prior and q contribute little to the variance here; the same draws make the small difference visible.
        assert reduced.sum() < (0.95 if "rao_blackwell" in settings else 0.9) * none.sum()


@pytest.mark.slow
def test_minibatches_are_unbiased(x64):
    """The estimate is linear in the log likelihood, so with equal draws its mean over an epoch is exact."""
    model, data = line().prepare(rows(12))
    family = phi("mean_field")
    family = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), family)
    steps = jnp.arange(4, dtype=jnp.int32)

    def over_an_epoch(method, size):
        def of_step(step):
            batch = data.batch(random.key(5), step, size)
            return method.gradient(random.key(0), family, model, batch)

        run = jax.jit(lambda steps: jax.lax.map(of_step, steps), compiler_options=QUICK)
        return jax.tree.leaves(run(steps))

    for control_variate in ("leave_one_out", "optimal"):
        method = cx.BlackBoxVI(samples=4, batch_size=3, control_variate=control_variate)
        for got, want in zip(over_an_epoch(method, 3), over_an_epoch(method, None), strict=True):
            assert np.ptp(got, axis=0).max() > 1e-3, "the batches must differ"
            np.testing.assert_allclose(got.mean(0), want[0], rtol=1e-9, atol=1e-9)


# -- discrete weights: a perceptron small enough to enumerate ----------------------------------------

WEIGHTS = 10
EVERY = np.array(list(itertools.product((-1.0, 1.0), repeat=WEIGHTS)))


def zeros(key):
    return {"w": jnp.zeros((WEIGHTS, 1))}


def apply(params, x):
    return x @ params["w"]


def binary(probs=None):
    network = cx.networks.from_function(zeros, apply)
    return cx.Model(network, cx.priors.Discrete((-1, 1), probs), cx.likelihoods.Bernoulli())


def labelled(count=25):
    generator = np.random.default_rng(3)
    x = 0.5 * generator.normal(size=(count, WEIGHTS))
    truth = generator.choice([-1.0, 1.0], WEIGHTS)
    return x, (generator.uniform(size=count) < 1 / (1 + np.exp(-x @ truth))).astype(int)


@cache
def enumerated():
    """log p(D, w) of every configuration."""
    x, y = labelled()
    logits = EVERY @ x.T
    return log_expit(np.where(y == 1, logits, -logits)).sum(1) - WEIGHTS * np.log(2)


def factorised_bound(up):
    """The exact lower bound for the q whose weights are +1 with probabilities ``up``."""
    up = np.asarray(up)
    q = np.prod(np.where(EVERY > 0, up, 1 - up), axis=1)
    return q @ enumerated() - np.sum(xlogy(up, up) + xlogy(1 - up, 1 - up))


def best_factorised():
    """The best lower bound and its q, by exact coordinate ascent from several starting points."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(5):
        up = generator.uniform(0.05, 0.95, WEIGHTS)
        for _ in range(50):
            for i in range(WEIGHTS):
                fields = []
                for value in (-1.0, 1.0):
                    at = EVERY[:, i] == value
                    others = np.delete(np.where(EVERY > 0, up, 1 - up), i, axis=1)[at]
                    fields.append(np.prod(others, axis=1) @ enumerated()[at])
                up[i] = 1 / (1 + np.exp(fields[0] - fields[1]))
        found.append((factorised_bound(up), tuple(up)))
    return max(found)


@cache
def binary_fit():
    method = cx.BlackBoxVI(num_steps=1_500, learning_rate=0.05, samples=16)
    return fit(binary(), labelled(), method)


@pytest.mark.slow
def test_the_binary_perceptron_reaches_the_best_factorised_posterior():
    posterior = binary_fit()
    family = posterior.approximation
    assert isinstance(family, Categorical)
    up = np.asarray(family.probs()["w"][1, :, 0], np.float64)
    bound = factorised_bound(up)
    log_evidence = logsumexp(enumerated())
    best, marginals = best_factorised()
    assert best < log_evidence
    assert best - 0.02 < bound <= best + 1e-6
    np.testing.assert_allclose(up, marginals, atol=0.05)
    value, error = posterior.elbo
    assert abs(value - bound) < 4 * error
    assert value < log_evidence + 4 * error
    assert set(np.unique(posterior.sample(0, 50)["w"])) == {-1.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("control_variate", ["leave_one_out", "optimal"])
def test_gradients_of_discrete_weights_are_unbiased(control_variate):
    logits = random.normal(random.key(0), (2, WEIGHTS, 1))
    family = Categorical({"w": logits}, ((-1.0, 1.0),))
    method = cx.BlackBoxVI(samples=8, control_variate=control_variate)
    found = gradient_variance(binary(), labelled(), method, 0, family=family, draws=DRAWS)

    def bound(logits):
        log_probs = jax.nn.log_softmax(logits[..., 0], axis=0)
        log_q = jnp.sum(jnp.where(jnp.asarray(EVERY) > 0, log_probs[1], log_probs[0]), axis=1)
        return jnp.sum(jnp.exp(log_q) * (jnp.asarray(enumerated(), logits.dtype) - log_q))

    want = flat(jax.grad(bound)(logits))
    assert_unbiased(flat(found.mean), flat(found.variance), want)


# -- without a gradient ------------------------------------------------------------------------------


def origin(key):
    return {"a": jnp.zeros(()), "b": jnp.zeros(2)}


def steps_down(params):
    """A log density like a staircase around (1, 2, 2), constant almost everywhere."""
    square = (params["a"] - 1) ** 2 + jnp.sum((params["b"] - 2) ** 2)
    return -0.5 * jnp.floor(4 * square) / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["mean_field", pytest.param("full_rank", marks=pytest.mark.slow)]
)
def test_a_density_without_a_gradient(family):
    density = cx.LogDensity(origin, steps_down)
    assert all(np.all(g == 0) for g in jax.tree.leaves(jax.grad(steps_down)(origin(None))))
    method = cx.BlackBoxVI(
        num_steps=2_000,
        learning_rate=0.05,
        family=family,
        rao_blackwell=family == "mean_field",
        samples=32,
        initial_scale=1.0,
    )
    posterior = fit(density, None, method)
    mean, variance = posterior.approximation.moments()
    np.testing.assert_allclose(flat(mean), [1.0, 2.0, 2.0], atol=0.1)
    np.testing.assert_allclose(flat(variance), 1.0, atol=0.2)


@pytest.mark.slow
def test_temperature_multiplies_the_kl(x64):
    model, data = line().prepare(rows())
    family = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), phi("mean_field"))
    batch = data.everything()

    def bound(temperature):
        method = cx.BlackBoxVI(temperature=temperature, samples=2)
        run = jax.jit(
            lambda key: method.gradient(key, family, model, batch), compiler_options=QUICK
        )
        return run(random.key(0))

    one, three = bound(1.0), bound(3.0)
    draws = jax.vmap(family.draw)(jax.random.split(random.key(0), 2))
    kl = jax.vmap(lambda w: family.log_prob(w) - model.log_prior(w))(draws)
    np.testing.assert_allclose(three[0], one[0] - 2 * kl.mean(), rtol=1e-8)
    assert np.all(np.abs(flat(three[1]) - flat(one[1])) > 1e-6)


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, name, message",
    [
        ({"control_variate": "best"}, "control_variate", "one of None, 'leave_one_out', 'optimal'"),
        ({"family": "categorical"}, "family", "one of 'mean_field', 'low_rank', 'full_rank'; got"),
        ({"temperature": -1.0}, "temperature", "positive; got -1.0"),
        ({"initial_scale": 0.0}, "initial_scale", "positive; got 0.0"),
        ({"samples": 5, "antithetic": True}, "samples", "even for antithetic pairs; got 5"),
        ({"samples": 1}, "samples", "at least 2 for this control variate; got 1"),
        (
            {"samples": 2, "antithetic": True},
            "samples",
            "at least 4 for this control variate; got 2",
        ),
        ({"samples": 3, "control_variate": "optimal"}, "samples", "at least 4 for this control"),
        (
            {"samples": 6, "control_variate": "optimal", "antithetic": True},
            "samples",
            "at least 8 for this control variate; got 6",
        ),
        ({"rank": 0}, "rank", "a whole number, at least 1; got 0"),
    ],
)
def test_settings_are_refused(settings, name, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        cx.BlackBoxVI(**settings)
    assert f"BlackBoxVI({name}=...) must be " in str(refusal.value)
    assert message in str(refusal.value)
    assert cx.BlackBoxVI(samples=1, control_variate=None).samples == 1


def test_models_are_refused_before_anything_compiles(compilations):
    def refuse(model, data, message, **settings):
        _, _, _, _ = jax.random.split(random.key(0), 4)  # `fit` makes keys before its checks
        model.prepare(data)  # and moves the data to the device before the last of them
        with compilations() as count, pytest.raises(ValueError, match=message):
            fit(model, data, cx.BlackBoxVI(num_steps=2, **settings))
        assert count() == 0

    antithetic = r"BlackBoxVI\(antithetic=...\) must be False for discrete weights; got True"
    refuse(binary(), labelled(), antithetic, antithetic=True)
    independent = r"\(rao_blackwell=...\) must be False for family=\"full_rank\".*; got True"
    refuse(line(), rows(), independent, family="full_rank")
    refuse(line(), rows(), r"\(batch_size=...\) must be at most .*6; got 7", batch_size=7)
    density = cx.LogDensity(origin, steps_down)
    refuse(density, None, r"\(batch_size=...\) must be None where.*; got 3", batch_size=3)
    wide = cx.Model(cx.networks.mlp([5_000]), likelihood=cx.likelihoods.Gaussian(0.1))
    size = r"full_rank.*20,001 x 20,001 weights, 1\.5 GiB.*limit is 1 GiB"
    refuse(wide, rows(), size, family="full_rank", rao_blackwell=False)
    mixed = cx.Model(
        cx.networks.linear(), cx.priors.Discrete((-1, 1)), cx.likelihoods.Gaussian(None)
    )
    refuse(mixed, rows(), r"BlackBoxVI takes weights that are all discrete.*Gaussian\(scale=0\.1\)")
