"""The prior of a posterior, with the scales that the fit has learned."""

import numpy as np
import pytest

import credax as cx

X = np.linspace(-1, 1, 20)[:, None] * np.array([1.0, 0.5])
Y = X[:, 0]


def fit(prior, method=None):
    model = cx.Model(cx.networks.mlp([3]), prior, cx.likelihoods.Gaussian(scale=None))
    method = cx.BayesByBackprop(num_steps=20) if method is None else method
    return cx.fit(model, (X, Y), method, progress=False)


def test_a_given_prior_is_that_of_the_model():
    prior = cx.priors.Normal(0.5)
    assert fit(prior).prior == prior


def test_a_log_density_has_none():
    density = cx.LogDensity(lambda key: np.zeros(1), lambda w: -0.5 * (w**2).sum())
    assert cx.fit(density, None, cx.MAP(num_steps=5), progress=False).prior is None


def test_learned_scales_are_those_of_the_moments(tmp_path):
    """A weight's scale is the root mean square, under q, of the weights that leave the same unit."""
    posterior = fit(cx.priors.LearnedNormal())
    mean, variance = (tree["network"] for tree in posterior.approximation.moments())
    for layer, leaves in mean.items():
        squares = {name: leaf**2 + variance[layer][name] for name, leaf in leaves.items()}
        scale, loc = (held.tree[layer] for held in (posterior.prior.scale, posterior.prior.weights))
        want = np.sqrt(np.mean(squares["kernel"], axis=1, keepdims=True))
        np.testing.assert_allclose(
            scale["kernel"], np.broadcast_to(want, leaves["kernel"].shape), rtol=1e-5
        )
        np.testing.assert_allclose(scale["bias"], np.sqrt(np.mean(squares["bias"])), rtol=1e-5)
        assert not np.any(loc["kernel"])
    posterior.save(tmp_path / "posterior.credax")
    assert cx.load(tmp_path / "posterior.credax").prior == posterior.prior


def test_only_the_parts_that_were_learned_change():
    posterior = fit({"layer_0/*": cx.priors.LearnedNormal(), "*": cx.priors.Normal(0.3, loc=0.2)})
    scale, loc = posterior.prior.scale.tree, posterior.prior.weights.tree
    np.testing.assert_allclose(scale["layer_1"]["kernel"], 0.3, rtol=1e-6)
    np.testing.assert_allclose(loc["layer_1"]["kernel"], 0.2, rtol=1e-6)
    assert not np.allclose(scale["layer_0"]["kernel"], 0.3, rtol=0.01)


def test_other_methods_can_be_fitted_under_it():
    posterior = fit(cx.priors.LearnedNormal())
    chains = cx.HMC(num_warmup=5, num_draws=5, chains=2)
    found = cx.fit(
        posterior.model, (X, Y), chains, prior=posterior.prior, start=posterior, progress=False
    )
    assert found.prior == posterior.prior


def test_a_part_that_is_not_normal_leaves_the_scales_to_be_learned():
    parts = {"layer_0/*": cx.priors.LearnedNormal(), "*": cx.priors.Laplace(0.3)}
    posterior = fit(parts)
    assert posterior.prior == posterior.model.prior
    with pytest.raises(ValueError, match="cannot learn the scales of the prior LearnedNormal"):
        fit(posterior.prior, cx.HMC())
