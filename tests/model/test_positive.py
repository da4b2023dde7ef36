"""Log-normal targets against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.model.likelihoods import LogNormal

OUTPUTS = np.array([[0.5], [-1.0], [2.0]], np.float32)
LIKELIHOOD = LogNormal(scale=0.4, centre=1.5, width=0.8)
SCIPY = stats.lognorm(s=0.8 * 0.4, scale=np.exp(1.5 + 0.8 * OUTPUTS[:, 0].astype(float)))


@pytest.mark.parametrize("value", [0.01, 1.0, 9.0, 300.0])
def test_density_and_distribution_function(value):
    y = jnp.full(3, value)
    np.testing.assert_allclose(LIKELIHOOD.log_prob(OUTPUTS, y), SCIPY.logpdf(value), rtol=1e-4)
    found = LIKELIHOOD.cdf(OUTPUTS, y)[:, 0]
    np.testing.assert_allclose(found, SCIPY.cdf(value), rtol=1e-4, atol=1e-6)


def test_nothing_lies_below_zero():
    assert np.all(LIKELIHOOD.cdf(OUTPUTS, jnp.array([0.0, -1.0, -1e9])) == 0)


def test_moments_and_draws():
    np.testing.assert_allclose(LIKELIHOOD.mean(OUTPUTS)[:, 0], SCIPY.mean(), rtol=1e-5)
    np.testing.assert_allclose(LIKELIHOOD.variance(OUTPUTS)[:, 0], SCIPY.var(), rtol=1e-5)
    drawn = LIKELIHOOD.sample(jax.random.key(0), jnp.repeat(jnp.asarray(OUTPUTS), 20_000, 0))
    drawn = np.asarray(drawn).reshape(3, -1)
    error = SCIPY.std() / np.sqrt(drawn.shape[1])
    assert np.all(np.abs(drawn.mean(1) - SCIPY.mean()) < 4 * error)


def prices(rows=400):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return x, np.exp(10 + 0.7 * x[:, 0] - 0.3 * x[:, 1] + 0.2 * rng.normal(size=rows))


def test_a_fit_finds_the_regression_of_the_logarithm_in_any_unit():
    x, y = prices()
    for unit in (1.0, 1e-6):
        model = cx.Model(cx.networks.linear(), cx.priors.Normal(10.0), LogNormal())
        posterior = cx.fit(
            model, (x, unit * y), cx.MaximumLikelihood(num_steps=2_000), progress=False
        )
        design = np.column_stack([np.ones(len(x)), x])
        weights = np.linalg.lstsq(design, np.log(unit * y), rcond=None)[0]
        sd = np.std(np.log(unit * y) - design @ weights)
        exact = stats.lognorm(s=sd, scale=np.exp(design @ weights))
        predictive = posterior.predict(x)
        np.testing.assert_allclose(predictive.mean, exact.mean(), rtol=5e-3)
        np.testing.assert_allclose(predictive.quantile(0.05), exact.ppf(0.05), rtol=5e-3)
        np.testing.assert_allclose(predictive.log_prob(unit * y), exact.logpdf(unit * y), atol=0.05)
        assert np.all(predictive.interval(0.99)[0] > 0)


def test_the_model_standardises_the_inputs_only(tmp_path):
    x, y = prices(60)
    model = cx.Model(cx.networks.linear(), likelihood=LogNormal(), standardise=True)
    posterior = cx.fit(model, (100 * x, y), cx.MAP(num_steps=200), progress=False)
    assert posterior.model.frame.y_scaling is None
    posterior.save(tmp_path / "prices.credax")
    again = cx.load(tmp_path / "prices.credax").predict(100 * x)
    np.testing.assert_array_equal(again.mean, posterior.predict(100 * x).mean)


@pytest.mark.parametrize("wrong", [0.0, -3.0])
def test_other_targets_are_refused(wrong):
    model = cx.Model(cx.networks.linear(), likelihood=LogNormal())
    with pytest.raises(ValueError, match=rf"y must be positive for LogNormal\(\); got {wrong:g}"):
        cx.fit(model, (np.zeros((2, 1)), np.array([1.0, wrong])), cx.MAP(), progress=False)


def test_centres_for_other_targets_are_refused():
    model = cx.Model(cx.networks.linear(), likelihood=LogNormal(centre=[1.0, 2.0]))
    with pytest.raises(ValueError, match=r"centre=\.\.\.\) must be one number, or one for each"):
        cx.fit(model, (np.ones((3, 1)), np.ones((3, 3))), cx.MAP(), progress=False)
