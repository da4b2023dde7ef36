"""Elliptical slice sampling: what is its own. Its answers are compared in ``test_answers.py``."""

import jax
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.inference.montecarlo.elliptical_slice import EllipticalSlice, _moments

X = np.random.default_rng(0).normal(size=(30, 2))
Y = X @ [1.0, -0.5] + 0.3 * np.random.default_rng(1).normal(size=30)


def model(prior=None, scale=0.3):
    prior = cx.priors.Normal(1.0) if prior is None else prior
    return cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(scale))


def fit(model, **settings):
    return cx.fit(model, (X, Y), EllipticalSlice(**settings), progress=False)


@pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")
def test_without_data_to_speak_of_it_draws_from_the_prior():
    """With a likelihood as flat as this, the ellipse alone decides: means and scales are those of the prior."""
    prior = cx.priors.Normal(scale=0.5, loc=2.0)
    posterior = fit(model(prior, scale=1e4), chains=2, num_warmup=10, num_draws=2_000, thin=2)
    draws = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(posterior.draws)])
    # Successive draws are nearly independent here: a random angle on a new ellipse.
    assert abs(draws.mean() - 2.0) < 4 * 0.5 / np.sqrt(len(draws) / 4)
    assert stats.kstest((draws[::5] - 2.0) / 0.5, "norm").pvalue > 1e-4
    assert posterior.info["num_proposals"].max() == 1


def test_every_step_moves_the_chain():
    posterior = fit(model(), chains=2, num_warmup=5, num_draws=50, thin=1)
    kernel = np.asarray(posterior.draws["layer_0"]["kernel"])
    assert np.all(np.any(np.diff(kernel, axis=1) != 0, axis=(2, 3)))


def test_moments_are_those_of_the_prior_of_each_leaf():
    prior = {"*/bias": cx.priors.Normal(0.1, loc=3.0), "*": cx.priors.FanInNormal()}
    bound = model(prior).bind((X, Y))
    position = cx.inference.montecarlo.chain.Flat.of(bound.init(jax.random.key(0)))
    mean, variance = _moments(bound, position)
    np.testing.assert_allclose(mean, [3.0, 0.0, 0.0])
    np.testing.assert_allclose(variance, [0.01, 0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("prior", [cx.priors.Laplace(1.0), cx.priors.StudentT(5.0)])
def test_other_priors_are_refused(prior):
    with pytest.raises(ValueError, match="EllipticalSlice needs a Gaussian prior"):
        fit(model(prior))
