"""Distances between predictive distributions, compared with their closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from known_predictions import posterior
from scipy import special, stats

import credax as cx
from credax.diagnostics.fidelity import compare_posteriors
from credax.model import likelihoods


def normal(mean, sd, rows=3):
    return posterior(likelihoods.Gaussian(sd), np.zeros(rows), np.full((1, rows, 1), float(mean)))


def test_the_same_posterior_is_at_no_distance():
    outputs = np.random.default_rng(0).normal(size=(4, 10, 1))
    found, x = posterior(likelihoods.Gaussian(0.5), np.zeros(10), outputs)
    same = compare_posteriors(found, found, x)
    assert same.total_variation == same.wasserstein == same.relative_wasserstein == 0
    assert same.agreement is None
    assert same.total_variation.standard_error == 0


@pytest.mark.parametrize("shift", [0.01, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("sd", [0.1, 2.0])
def test_a_shifted_normal(shift, sd):
    a, x = normal(shift * sd, sd)
    b, _ = normal(0.0, sd)
    found = compare_posteriors(a, b, x)
    exact = 2 * stats.norm.cdf(shift / 2) - 1
    assert found.total_variation == pytest.approx(exact, abs=2e-4)
    assert found.wasserstein == pytest.approx(shift * sd, rel=2e-4)
    assert found.relative_wasserstein == pytest.approx(shift, rel=2e-4)


def test_a_wider_normal():
    a, x = normal(0.0, 2.0)
    b, _ = normal(0.0, 1.0)
    found = compare_posteriors(a, b, x)
    t = np.linspace(-30, 30, 600_001)
    difference = np.abs(stats.norm(0, 2).pdf(t) - stats.norm(0, 1).pdf(t))
    assert found.total_variation == pytest.approx(0.5 * difference.sum() * (t[1] - t[0]), abs=1e-3)
    assert found.wasserstein == pytest.approx(np.sqrt(2 / np.pi), rel=0.01)


def test_counts():
    y = np.zeros(2)
    a, x = posterior(likelihoods.Poisson(), y, np.full((1, 2, 1), np.log(3.0)))
    b, _ = posterior(likelihoods.Poisson(), y, np.full((1, 2, 1), np.log(4.0)))
    k = np.arange(60)
    exact = 0.5 * np.abs(stats.poisson.pmf(k, 3) - stats.poisson.pmf(k, 4)).sum()
    found = compare_posteriors(a, b, x)
    assert found.total_variation == pytest.approx(exact, abs=2e-3)
    assert found.wasserstein == pytest.approx(1.0, abs=0.02)


def test_mixtures_with_several_targets():
    rng = np.random.default_rng(1)
    a, x = posterior(likelihoods.Gaussian(0.3), np.zeros((6, 2)), rng.normal(size=(5, 6, 2)))
    b, _ = posterior(likelihoods.Gaussian(0.3), np.zeros((6, 2)), rng.normal(size=(5, 6, 2)))
    found = compare_posteriors(a, b, x)
    t = np.linspace(-6, 6, 24_001)

    def density(posterior):
        outputs = posterior.predict(x).outputs
        return stats.norm(outputs[..., None], 0.3).pdf(t).mean(0)

    def below(posterior):
        return stats.norm(posterior.predict(x).outputs[..., None], 0.3).cdf(t).mean(0)

    step = t[1] - t[0]
    variation = 0.5 * np.abs(density(a) - density(b)).sum(-1) * step
    np.testing.assert_allclose(found.each["total_variation"], variation.mean(1), atol=2e-3)
    distance = np.abs(below(a) - below(b)).sum(-1) * step
    np.testing.assert_allclose(found.each["wasserstein"], distance.mean(1), rtol=0.01)
    error = np.std(variation.mean(1), ddof=1) / np.sqrt(6)
    assert found.total_variation.standard_error == pytest.approx(error, rel=0.05)


def test_classes_by_hand():
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    q = np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    y = np.array([0, 1])
    a, x = posterior(likelihoods.Categorical(3), y, np.log(p)[None])
    b, _ = posterior(likelihoods.Categorical(3), y, np.log(q)[None])
    found = compare_posteriors(a, b, x)
    np.testing.assert_allclose(found.each["total_variation"], [0.2, 0.5], rtol=1e-5)
    assert found.total_variation == pytest.approx(0.35)
    assert found.agreement == 0.5
    assert found.wasserstein is None
    assert str(found).splitlines()[0].split() == ["total", "variation", "0.35", "±", "0.15"]
    assert repr(found) == "Fidelity(total_variation=0.35 ± 0.15, agreement=0.5 ± 0.5)"
    assert "<td>total variation</td><td>0.35 ± 0.15</td>" in found._repr_html_()


def test_labels_are_averaged():
    logits = np.random.default_rng(2).normal(size=(2, 1, 8, 3))
    y = np.zeros((8, 3), int)
    (a, x), (b, _) = (posterior(likelihoods.Bernoulli(), y, part) for part in logits)
    found = compare_posteriors(a, b, x)
    p, q = special.expit(logits[:, 0])
    np.testing.assert_allclose(found.each["total_variation"], np.abs(p - q).mean(1), rtol=1e-5)
    assert found.agreement == pytest.approx(((p > 0.5) == (q > 0.5)).mean())


def test_what_cannot_be_compared_is_refused():
    a, x = normal(0.0, 1.0)
    y = np.array([0, 1, 0])
    b, _ = posterior(likelihoods.Categorical(2), y, np.zeros((1, 3, 2)))
    with pytest.raises(ValueError, match="the same kind of y; got numbers and classes"):
        compare_posteriors(a, b, x)
    c, _ = posterior(likelihoods.Gaussian(1.0), np.zeros((3, 2)), np.zeros((1, 3, 2)))
    with pytest.raises(ValueError, match=r"the same shape; got \(3,\) and \(3, 2\)"):
        compare_posteriors(a, c, x)
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(TypeError, match="needs posteriors of a Model; one is of a LogDensity"):
        compare_posteriors(a, cx.Posterior(density, a.approximation), x)
