"""Ordinal classes against the differences of the logistic distribution function, in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import credax as cx
from credax.model.likelihoods import Ordinal

LIKELIHOOD = Ordinal(4)
PARAMS = {"first": jnp.array([-1.0]), "gaps": jnp.array([0.3, 1.2])}
THRESHOLDS = np.cumsum([-1.0, np.log1p(np.exp(0.3)), np.log1p(np.exp(1.2))])
OUTPUTS = np.array([[0.2], [-2.0], [1.7]], np.float32)


def exact(outputs, thresholds=THRESHOLDS):
    edges = np.concatenate([[-np.inf], thresholds, [np.inf]])
    return np.diff(stats.logistic.cdf(edges - np.asarray(outputs, float)), axis=-1)


def test_probabilities_are_differences_of_the_distribution_function():
    np.testing.assert_allclose(LIKELIHOOD.thresholds(PARAMS), THRESHOLDS, rtol=1e-6)
    np.testing.assert_allclose(LIKELIHOOD.probs(OUTPUTS, PARAMS), exact(OUTPUTS), rtol=1e-5)
    labels = jnp.array([0, 3, 2])
    want = np.log(exact(OUTPUTS)[np.arange(3), labels])
    np.testing.assert_allclose(LIKELIHOOD.log_prob(OUTPUTS, labels, PARAMS), want, rtol=1e-5)
    below = LIKELIHOOD.cdf(OUTPUTS, jnp.array([1.0, 1.0, 1.0]), PARAMS)[:, 0]
    np.testing.assert_allclose(below, exact(OUTPUTS)[:, :2].sum(1), rtol=1e-5)
    entropy = -(exact(OUTPUTS) * np.log(exact(OUTPUTS))).sum(1)
    np.testing.assert_allclose(LIKELIHOOD.entropy(OUTPUTS, PARAMS), entropy, rtol=1e-5)


def test_nothing_is_lost_far_from_the_thresholds():
    # The probability of the second class is exp(c_1 - f) - exp(c_0 - f) there.
    far = np.array([[60.0]], np.float32)
    want = np.log(np.expm1(THRESHOLDS[1] - THRESHOLDS[0])) + THRESHOLDS[0] - 60.0
    found = LIKELIHOOD.log_prob(far, jnp.array([1]), PARAMS)
    np.testing.assert_allclose(found, want, rtol=1e-5)
    slope = jax.grad(lambda f: LIKELIHOOD.log_prob(f, jnp.array([1]), PARAMS)[0])(far)
    np.testing.assert_allclose(slope, -1.0, rtol=1e-5)


def test_draws():
    drawn = LIKELIHOOD.sample(jax.random.key(0), jnp.repeat(OUTPUTS, 20_000, 0), PARAMS)
    share = np.stack([np.bincount(row, minlength=4) for row in np.reshape(drawn, (3, -1))]) / 20_000
    error = np.sqrt(exact(OUTPUTS) * (1 - exact(OUTPUTS)) / 20_000)
    assert np.all(np.abs(share - exact(OUTPUTS)) < 4 * error)


def test_all_classes_are_equally_probable_at_first():
    np.testing.assert_allclose(
        LIKELIHOOD.probs(jnp.zeros((1, 1)), LIKELIHOOD.init(1)), 0.25, rtol=1e-5
    )


def grades():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    latent = 1.5 * x[:, 0] - x[:, 1] + rng.logistic(size=600)
    return x, np.searchsorted([-1.0, 0.5, 2.0], latent)


def test_a_fit_reaches_the_maximum_that_scipy_finds(tmp_path):
    x, y = grades()

    def loss(w):
        probs = exact((x @ w[:2])[:, None], np.cumsum([w[2], *np.exp(w[3:])]))
        return -np.log(probs[np.arange(len(y)), y]).sum()

    best = -optimize.minimize(loss, np.array([0, 0, -1.0, 0, 0])).fun
    model = cx.Model(cx.networks.linear(), likelihood=Ordinal())
    posterior = cx.fit(model, (x, y), cx.MaximumLikelihood(num_steps=2_000), progress=False)
    predictive = posterior.predict(x)
    assert best - 0.1 < predictive.log_prob(y).sum() < best + 0.05
    assert predictive.probs.shape == (600, 4)
    assert np.mean(predictive.label == y) > 0.45
    posterior.save(tmp_path / "grades.credax")
    again = cx.load(tmp_path / "grades.credax").predict(x)
    np.testing.assert_array_equal(again.probs, predictive.probs)


@pytest.mark.parametrize(
    "method",
    [
        cx.Laplace(),
        pytest.param(cx.HMC(chains=2, num_warmup=200, num_draws=200), marks=pytest.mark.slow),
    ],
)
def test_posteriors_have_the_thresholds_too(method):
    x, y = grades()
    model = cx.Model(cx.networks.linear(), likelihood=Ordinal())
    posterior = cx.fit(model, (x, y), method, progress=False)
    drawn = posterior.sample(0, 50)["likelihood"]
    thresholds = np.cumsum(
        np.column_stack([drawn["first"], np.logaddexp(0, drawn["gaps"])]), axis=1
    )
    z = (thresholds.mean(0) - [-1.0, 0.5, 2.0]) / 0.15
    assert np.all(np.abs(z) < 4)
    assert posterior.predict(x).log_prob(y).mean() > np.log(0.25) + 0.2


@pytest.mark.parametrize(
    "y, message",
    [
        ([0, 1, 1], "three or more"),
        ([0, 1, 3], "in their order"),
        ([0.5, 1, 2], "in their order"),
    ],
)
def test_other_targets_are_refused(y, message):
    model = cx.Model(cx.networks.linear(), likelihood=Ordinal())
    with pytest.raises(ValueError, match=message):
        cx.fit(model, (np.zeros((3, 1)), np.array(y)), cx.MAP(), progress=False)


def test_two_classes_need_no_order():
    with pytest.raises(ValueError, match=r"at least 3; two classes need Bernoulli\(\)"):
        Ordinal(2)
