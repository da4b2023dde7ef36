"""Stacked posteriors: the weights against a search, the mixture against its parts."""

import numpy as np
import pytest
from scipy import optimize
from scipy.special import logsumexp, softmax

import credax as cx
from credax.posterior import stacking_weights

X = np.random.default_rng(0).uniform(-2, 2, size=(60, 1))
Y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=60)
METHOD = cx.DeepEnsemble(members=2, num_steps=50)


def fitted(likelihood, y=Y, key=0):
    model = cx.Model(cx.networks.mlp([5]), likelihood=likelihood)
    return cx.fit(model, (X, y), METHOD, key=key, progress=False)


@pytest.fixture(scope="module")
def stack():
    parts = fitted(cx.likelihoods.Gaussian(0.1)), fitted(cx.likelihoods.StudentT(4.0, 0.5), key=1)
    return cx.StackedPosterior(parts, (0.3, 0.7))


def test_weights_maximise_the_density_of_held_out_rows():
    log_probs = np.random.default_rng(0).normal(size=(3, 200))

    def loss(logits):
        return -np.mean(logsumexp(log_probs, axis=0, b=softmax(np.append(logits, 0))[:, None]))

    found = stacking_weights(log_probs)
    best = optimize.minimize(loss, np.zeros(2), tol=1e-10)
    np.testing.assert_allclose(found, softmax(np.append(best.x, 0)), atol=1e-3)
    assert found.sum() == pytest.approx(1)


def test_moments_are_those_of_the_mixture(stack):
    whole, parts = stack.predict(X), [part.predict(X) for part in stack.components]
    means = np.stack([part.mean for part in parts])
    mean = np.average(means, axis=0, weights=stack.weights)
    np.testing.assert_allclose(whole.mean, mean, rtol=1e-5)
    second = np.average([p.variance + p.mean**2 for p in parts], axis=0, weights=stack.weights)
    np.testing.assert_allclose(whole.variance, second - mean**2, rtol=1e-3)
    np.testing.assert_allclose(whole.epistemic + whole.aleatoric, whole.variance, rtol=1e-6)
    density = np.average([np.exp(p.log_prob(Y)) for p in parts], axis=0, weights=stack.weights)
    np.testing.assert_allclose(np.exp(whole.log_prob(Y)), density, rtol=1e-4)


@pytest.mark.slow
def test_quantiles_invert_the_distribution_function(stack):
    whole = stack.predict(X)
    for level in (0.05, 0.5, 0.95):
        np.testing.assert_allclose(whole.cdf(whole.quantile(level)), level, atol=1e-4)
    lower, upper = whole.interval(0.9)
    assert np.all(lower < upper)


def test_crps_by_draws(stack):
    whole = stack.predict(X[:5])
    drawn = whole.sample(0, 4_000)
    first, second = drawn[:2_000], drawn[2_000:]
    each = np.abs(first - Y[:5]) - 0.5 * np.abs(first - second)
    error = each.std(0) / np.sqrt(len(each))
    assert np.all(np.abs(whole.crps(Y[:5]) - each.mean(0)) < 4 * error)


def test_one_component_is_the_component():
    part = fitted(cx.likelihoods.Gaussian(0.1))
    whole = cx.StackedPosterior((part,), (1.0,)).predict(X)
    alone = part.predict(X)
    np.testing.assert_allclose(whole.quantile([0.1, 0.9]), alone.quantile([0.1, 0.9]), rtol=1e-4)
    np.testing.assert_allclose(whole.crps(Y), alone.crps(Y), rtol=0.01)


def test_classes():
    y = (Y > 0).astype(int)
    parts = [fitted(cx.likelihoods.Categorical(2), y, key=key) for key in (0, 1)]
    whole = cx.StackedPosterior(tuple(parts), (0.25, 0.75)).predict(X)
    probs = 0.25 * parts[0].predict(X).probs + 0.75 * parts[1].predict(X).probs
    np.testing.assert_allclose(whole.probs, probs, rtol=1e-5)
    np.testing.assert_array_equal(whole.label, probs.argmax(1))
    assert np.all(whole.mutual_information >= 0)
    assert whole.sample(0, 7).shape == (7, 60)
    assert "mutual information" in repr(whole)


def test_it_is_shown_as_a_table(stack):
    assert "<td>70%</td><td>DeepEnsemble</td>" in stack._repr_html_()
    whole = stack.predict(X)
    lines = repr(whole).splitlines()
    assert lines[0] == "StackedPredictive(60 rows, 2 models)"
    assert lines[2].split()[:3] == ["0", f"{whole.mean[0]:.4g}", f"{whole.std[0]:.4g}"]
    assert lines[-1] == "... 55 more rows"
    assert f"<td>{whole.mean[4]:.4g}</td>" in whole._repr_html_()


def test_saved_and_loaded(stack, tmp_path):
    path = tmp_path / "stack.credax"
    stack.save(path)
    loaded = cx.load(path)
    assert isinstance(loaded, cx.StackedPosterior)
    assert loaded.weights == stack.weights
    np.testing.assert_array_equal(loaded.predict(X).mean, stack.predict(X).mean)
    assert type(loaded.method).__name__ == "DeepEnsemble"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(cx.StorageError, match="damaged"):
        cx.load(path)


def test_it_is_judged_and_diagnosed_as_a_whole(stack):
    scores = stack.evaluate(X, Y)
    assert float(scores.log_likelihood) == pytest.approx(stack.predict(X).log_prob(Y).mean())
    # Targets that the predictions do not explain at all: the stack is judged, not only its parts.
    found = stack.diagnose(X, 100 * Y)
    assert any(finding.kind == "predictions" for finding in found)
    assert "DeepEnsemble" in repr(stack)


def test_no_component_is_refused():
    with pytest.raises(
        ValueError, match=r"StackedPosterior\(components=...\) must be at least one"
    ):
        cx.StackedPosterior((), ())


@pytest.mark.parametrize("weights", [(0.5,), (0.5, 0.6), (1.0, 0.0)])
def test_weights_that_are_none_are_refused(stack, weights):
    with pytest.raises(
        ValueError, match=r"StackedPosterior\(weights=...\) must be 2 positive numbers"
    ):
        cx.StackedPosterior(stack.components, weights)
