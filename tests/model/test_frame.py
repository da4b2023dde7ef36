"""Columns have names, which decide their order; and scales, which a model that standardises takes out."""

import jax
import numpy as np
import pandas as pd
import polars
import pytest

import credax as cx

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * GENERATOR.normal(size=40)
NETWORK = cx.networks.mlp([4])
QUICK = cx.MAP(num_steps=30)


def fit(x, y, method=QUICK, **settings):
    settings = {"likelihood": cx.likelihoods.Gaussian(None), **settings}
    return cx.fit(cx.Model(NETWORK, **settings), (x, y), method, progress=False)


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [pd.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_columns_are_put_in_the_order_of_the_fit(frame, tmp_path):
    named = frame(dict(zip("abc", X.T, strict=True)))
    posterior = fit(named, Y)
    mean = posterior.predict(named).mean
    posterior.save(tmp_path / "it.credax")
    for found in (posterior, cx.load(tmp_path / "it.credax")):
        np.testing.assert_array_equal(found.predict(named[["c", "b", "a"]]).mean, mean)
        np.testing.assert_array_equal(found.predict(X).mean, mean)
    scores = posterior.evaluate(named[["b", "a", "c"]], Y)
    assert scores.rmse == posterior.evaluate(X, Y).rmse


def test_other_columns_are_refused_by_name():
    named = pd.DataFrame(dict(zip("abc", X.T, strict=True)))
    posterior = fit(named, Y)
    other = named.rename(columns={"a": "A"})
    with pytest.raises(
        ValueError, match=r"columns of the fit, 'a', 'b', 'c'; got 'a' missing, 'A'"
    ):
        posterior.predict(other)
    with pytest.raises(ValueError, match="'d' unexpected"):
        posterior.predict(named.assign(d=1.0))


def test_columns_without_names_are_taken_as_they_come():
    posterior = fit(pd.DataFrame(X), Y)
    assert posterior.model.frame.x_names is None
    mean = posterior.predict(pd.DataFrame(X, columns=list("abc"))).mean
    np.testing.assert_array_equal(mean, posterior.predict(X).mean)


def test_targets_are_put_in_the_order_of_the_fit():
    y = pd.DataFrame({"first": Y, "second": 10 + 3 * Y})
    posterior = fit(X, y)
    turned = y[["second", "first"]]
    predictive = posterior.predict(X)
    np.testing.assert_array_equal(predictive.log_prob(turned), predictive.log_prob(y))
    assert posterior.evaluate(X, turned).rmse == posterior.evaluate(X, y).rmse
    with pytest.raises(ValueError, match="y must have the columns of the fit"):
        predictive.log_prob(y.rename(columns={"first": "third"}))


def test_early_stopping_keeps_the_names():
    named = pd.DataFrame(dict(zip("abc", X.T, strict=True)))
    model = cx.Model(NETWORK, likelihood=cx.likelihoods.Gaussian(0.5))
    posterior = cx.fit(model, (named, Y), QUICK, progress=False, early_stopping=True)
    assert posterior.model.frame.x_names == ("a", "b", "c")


# -- scales ---------------------------------------------------------------------------------------

CENTRE, SCALE = 1e7 + 1e6 * Y.mean(), 1e6 * Y.std()
STANDARD_X, STANDARD_Y = (X - X.mean(0)) / X.std(0), (Y - Y.mean()) / Y.std()


LAPLACE = pytest.param(cx.Laplace(num_steps=30), id="Laplace", marks=pytest.mark.slow)


@pytest.mark.parametrize("method", [pytest.param(QUICK, id="MAP"), LAPLACE])
def test_a_standardised_fit_is_the_fit_of_the_standardised_data_in_other_units(method, tmp_path):
    unit = fit(STANDARD_X, STANDARD_Y, method)
    x, y = X + 1e6, 1e6 * Y + 1e7
    posterior = fit(x, y, method, standardise=True)
    posterior.save(tmp_path / "it.credax")
    want = unit.predict(STANDARD_X)
    for found in (posterior, cx.load(tmp_path / "it.credax")):
        got = found.predict(x)
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)  # noqa: E731
        close((got.mean - CENTRE) / SCALE, want.mean)
        close(got.std / SCALE, want.std)
        close(got.epistemic / SCALE**2, want.epistemic)
        close(got.aleatoric / SCALE**2, want.aleatoric)
        close((got.quantile([0.1, 0.8]) - CENTRE) / SCALE, want.quantile([0.1, 0.8]))
        close(got.log_prob(y) + np.log(SCALE), want.log_prob(STANDARD_Y))
        close(got.log_probs(y) + np.log(SCALE), want.log_probs(STANDARD_Y))
        close(got.cdf(y), want.cdf(STANDARD_Y))
        close(got.crps(y) / SCALE, want.crps(STANDARD_Y))
        close((got.sample(1, 5) - CENTRE) / SCALE, want.sample(1, 5))
        close((got.means - CENTRE) / SCALE, want.means)
    if posterior.log_evidence is not None:
        shift = len(Y) * np.log(SCALE)
        assert posterior.log_evidence.value + shift == pytest.approx(
            unit.log_evidence.value, abs=1e-2
        )


def test_what_is_built_on_predictions_is_in_the_units_of_y():
    x, y = X + 1e6, 1e6 * Y + 1e7
    posterior = fit(x, y, cx.MAP(num_steps=300), standardise=True)
    assert posterior.evaluate(x, y).rmse < 0.3 * y.std()
    assert 0.7 < posterior.evaluate(x, y).coverage <= 1
    lower, upper = posterior.calibrate(x, y).predict(x).interval(0.8)
    assert 0.7 < np.mean((lower <= y) & (y <= upper)) < 0.95
    assert not any("targets" in finding.what for finding in posterior.diagnose(x, y))


@pytest.mark.slow
def test_chains_are_judged_in_the_units_of_y():
    chains = cx.HMC(chains=2, num_warmup=20, num_draws=20, step_size=0.01)
    found = fit(X, 1e6 * Y + 1e7, chains, standardise=True).convergence(X)
    np.testing.assert_allclose(found.predictions.mean, 1e7, rtol=1)


def prepared(x, y, likelihood, standardise):
    model = cx.Model(NETWORK, likelihood=likelihood, standardise=standardise)
    return jax.device_get(model.prepare((x, y))[1])


@pytest.mark.parametrize("likelihood", [cx.likelihoods.Bernoulli(), cx.likelihoods.Poisson()])
def test_classes_and_counts_are_not_standardised(likelihood):
    y = np.arange(40) % 2
    data = prepared(1e6 * X + 3, y, likelihood, True)
    np.testing.assert_allclose(data.x, STANDARD_X, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(data.y, y)
    with pytest.raises(ValueError, match=r"Model\(standardise=...\) must be True, False or 'x'"):
        prepared(X, y, likelihood, "y")


@pytest.mark.parametrize("standardise", [True, "x", "y"])
def test_one_of_x_and_y_is_standardised_alone(standardise):
    data = prepared(X, Y, cx.likelihoods.Gaussian(), standardise)
    np.testing.assert_allclose(
        data.x, X if standardise == "y" else STANDARD_X, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        data.y, Y if standardise == "x" else STANDARD_Y, rtol=1e-5, atol=1e-5
    )


def test_images_have_one_scale():
    images = GENERATOR.uniform(0, 255, (12, 8, 8))
    likelihood = cx.likelihoods.Bernoulli()
    model = cx.Model(cx.networks.cnn([2], [3]), likelihood=likelihood, standardise=True)
    bound, data = model.prepare((images, np.arange(12) % 2))
    assert np.shape(bound.frame.x_scaling.centre) == (1,)
    np.testing.assert_allclose(np.asarray(data.x).mean(), 0, atol=1e-5)
    np.testing.assert_allclose(np.asarray(data.x).std(), 1, rtol=1e-5)


def test_a_second_fit_to_data_of_another_scale_compiles_nothing(compilations):
    fit(X, Y, standardise=True).predict(X).mean  # noqa: B018
    with compilations() as count:
        fit(1e3 * X, 1e3 * Y, standardise=True).predict(1e3 * X).mean  # noqa: B018
    assert count() == 0
