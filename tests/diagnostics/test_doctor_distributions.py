"""The doctor judges the distribution over the weights: collapsed, fallen back, members that agree."""

import jax.numpy as jnp
import numpy as np
import pytest
from doctor_cases import DENSITY, line, members, posterior

import credax as cx
from credax.diagnostics.doctor import diagnose
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import MeanField

# -- members that agree ----------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3])
def test_members_at_one_place_are_told(spread):
    (found,) = posterior(members(spread)).diagnose()
    assert found.what.startswith("The 3 members ended at the same weights")
    params = members(spread)
    expected = params.var(0).sum() / (params**2).mean(0).sum()
    assert found.value == pytest.approx(expected, abs=1e-20)
    assert "samples around it" in found.advice


@pytest.mark.parametrize(
    "params",
    [
        members(0.05),
        members(0.0, count=1),  # a single point is not an ensemble
        np.ones((3, 4, 5)),  # chains, which have findings of their own
    ],
)
def test_other_posteriors_are_not(params):
    assert posterior(params).diagnose() == ()


def test_members_at_zero_agree_too():
    assert len(posterior(np.zeros((2, 1, 3))).diagnose()) == 1


def test_all_leaves_count():
    same, different = members(0.0), members(0.5)
    tree = cx.Posterior(DENSITY, Draws({"a": same, "b": different}))
    assert diagnose(tree) == ()


# -- distributions over the weights ----------------------------------------------------------------


@pytest.mark.slow
def test_a_network_that_was_switched_off_is_told():
    """The KL of 50 units under this prior costs more than 20 rows of a sine can give back."""
    x = np.linspace(-2, 2, 20)[:, None]
    y = np.sin(3 * x[:, 0]) + 0.3 * np.random.default_rng(0).normal(size=20)
    model = cx.Model(cx.networks.mlp([50]), cx.priors.FanInNormal())
    method = cx.BayesByBackprop(num_steps=1000, kl_annealing=0, estimator="local")
    fitted = cx.fit(model, (x, y), method, progress=False)
    (found,) = (f for f in fitted.diagnose() if "no better than a constant" in f.what)
    assert found.value == fitted.info["gain"] < 3
    assert np.var(np.asarray(fitted.predict(x).mean)) < 0.2 * np.var(y)
    assert "LearnedNormal" in found.advice


@pytest.mark.slow
def test_a_network_that_explains_its_targets_is_not():
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    x, y = line()
    method = cx.BayesByBackprop(num_steps=800, learning_rate=0.05)
    fitted = cx.fit(model, (x, y), method, progress=False)
    # The gain of a line with slope 2 over its mean, in units of the noise; the noise of q costs little.
    assert fitted.info["gain"] == pytest.approx(0.5 * len(y) * np.var(y) / 0.1**2, rel=0.05)
    assert "constant" not in str(fitted.diagnose())


@pytest.mark.matrix
@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_predictions_wider_than_the_residuals_are_told(noise):
    x, y = line(100)
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(noise))
    method = cx.BayesByBackprop(num_steps=800, learning_rate=0.05)
    fitted = cx.fit(model, (x, y), method, progress=False)
    design = np.hstack([np.ones_like(x), x])
    residual = y - design @ np.linalg.lstsq(design, y)[0]
    # Two weights add 2 % to the variance; 80 draws estimate these 2 % to within a sixth.
    want = np.mean(residual**2) / (1.02 * noise**2)
    assert fitted.info["residual_ratio"] == pytest.approx(want, rel=0.02)
    found = [f for f in fitted.diagnose() if "too unsure" in f.what]
    assert len(found) == (noise > 0.3)
    if found:
        assert f"is {fitted.info['residual_ratio'] ** -0.5:.2g} times" in found[0].what


@pytest.mark.slow
def test_a_posterior_that_fell_back_to_the_prior_is_told():
    """The noise is so wide that the data carry no information."""
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(1000.0))
    method = cx.BayesByBackprop(num_steps=1500, initial_scale=0.5)
    fitted = cx.fit(model, line(), method, progress=False)
    (found,) = (f for f in fitted.diagnose() if "fallen back" in f.what)
    assert found.value == float(fitted.info["kl"][0, -1]) < 0.1
    assert "the KL divergence between them is" in found.what
    assert "times the ELBO" in found.what
    assert "LearnedNormal" in found.advice
    sound = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    assert "fallen back" not in str(cx.fit(sound, line(), method, progress=False).diagnose())


@pytest.mark.slow
def test_most_weights_at_a_prior_that_is_too_narrow_are_told():
    """Three columns of twelve matter, but the prior is so narrow that their weights hardly leave it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 12))
    y = 0.5 * x[:, :3].sum(1) + rng.normal(size=400)
    method = cx.BayesByBackprop(num_steps=1000, learning_rate=0.01, initial_scale=0.01)

    def fallen(scale):
        likelihood = cx.likelihoods.Gaussian(1.0)
        model = cx.Model(cx.networks.linear(), cx.priors.Normal(scale), likelihood)
        fitted = cx.fit(model, (x, y), method, progress=False)
        return [f for f in fitted.diagnose() if "distributed as under the prior" in f.what]

    (found,) = fallen(0.01)
    assert 9 / 13 <= found.value <= 10 / 13
    assert "LearnedNormal" in found.advice
    assert fallen(0.3) == []


def normal_posterior(sd):
    """A mean-field posterior with standard deviation ``sd``."""
    mean = {"w": np.linspace(1, 2, 30)}
    rho = {"w": np.full(30, np.log(np.expm1(sd)))}
    model = cx.LogDensity(lambda key: {"w": jnp.zeros(30)}, lambda params: 0.0)
    return cx.Posterior(model, MeanField(mean, rho))


@pytest.mark.parametrize("sd", [1e-5, 1e-7])
def test_a_distribution_that_collapsed_is_told(sd):
    (found,) = normal_posterior(sd).diagnose()
    assert found.what.startswith("The posterior has collapsed to a point")
    assert found.value == pytest.approx(sd**2 / np.mean(np.linspace(1, 2, 30) ** 2), rel=0.3)


@pytest.mark.parametrize("sd", [1e-3, 1.0])
def test_a_narrow_distribution_is_no_finding(sd):
    assert normal_posterior(sd).diagnose() == ()
