"""Every method with a network whose weights are in bfloat16."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.inference import METHODS

# So few steps make bad posteriors, and some methods say so.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

TINY = {
    "num_steps": 23,
    "num_warmup": 11,
    "num_draws": 7,
    "members": 3,
    "chains": 2,
    "particles": 8,
}
QUICK = {"ivon", "map"}
X = np.random.default_rng(0).normal(size=(24, 2))
Y = np.sin(X[:, 0])


def weights(key):
    first, last = jax.random.split(key)
    return {
        "first": jax.random.normal(first, (2, 3), jnp.bfloat16),
        "last": jax.random.normal(last, (3, 1), jnp.bfloat16),
    }


def apply(params, x):
    return jnp.tanh(x.astype(jnp.bfloat16) @ params["first"]) @ params["last"]


NETWORK = cx.networks.from_function(weights, apply)


def fit(method, likelihood):
    """A fit under the first prior that the method takes."""
    refusals = []
    for prior in (cx.priors.Normal(1.0), cx.priors.Discrete([-1.0, 1.0])):
        model = cx.Model(NETWORK, prior, likelihood)
        try:
            method.check(*model.prepare((X, Y)))
        except ValueError as error:
            refusals.append(str(error))
        else:
            return cx.fit(model, (X, Y), method, progress=False)
    return pytest.skip(f"not for this method: {refusals}")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS],
)
@pytest.mark.parametrize("scale", [0.3, pytest.param(None, marks=pytest.mark.slow)])
def test_weights_stay_in_half_precision_and_predictions_are_in_single(name, scale):
    cls = METHODS[name]
    fields = {field.name for field in dataclasses.fields(cls)}
    method = cls(**{key: value for key, value in TINY.items() if key in fields})
    posterior = fit(method, cx.likelihoods.Gaussian(scale))
    network, _ = posterior.model.split(posterior.sample(0, 2))
    assert {leaf.dtype for leaf in jax.tree.leaves(network)} == {np.dtype(jnp.bfloat16)}
    predictive = posterior.predict(X[:3])
    assert predictive.mean.dtype == np.float32
    assert np.isfinite(predictive.mean).all()
    assert (predictive.std > 0).all()
    if posterior.log_evidence is not None:
        assert np.isfinite(posterior.log_evidence[0])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mean_field", "low_rank", "full_rank"])
@pytest.mark.parametrize("cls", [cx.BayesByBackprop, cx.BlackBoxVI])
def test_every_family(cls, family):
    settings = {"rao_blackwell": family == "mean_field"} if cls is cx.BlackBoxVI else {}
    method = cls(num_steps=5, family=family, **settings)
    assert np.isfinite(fit(method, cx.likelihoods.Gaussian(0.3)).elbo[0])


@pytest.mark.slow
def test_ivon_finds_the_posterior_of_single_precision():
    """A linear model whose posterior is known: the weights' standard deviations within the eight bits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = x @ [1.0, -0.5, 0.25] + 0.3 * rng.normal(size=200)
    network = cx.networks.from_function(
        lambda key: {"w": jnp.zeros((3, 1), jnp.bfloat16)},
        lambda params, x: x.astype(jnp.bfloat16) @ params["w"],
    )
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3))
    posterior = cx.fit(model, (x, y), cx.IVON(num_steps=5_000), key=0, progress=False)
    precision = x.T @ x / 0.3**2 + np.eye(3)
    mean = np.linalg.solve(precision, x.T @ y / 0.3**2)
    family = posterior.approximation
    sd = np.asarray(family.sigma["w"], np.float64)[:, 0]
    # The variational optimum has the inverse of the diagonal of the precision.
    np.testing.assert_allclose(sd, np.diag(precision) ** -0.5, rtol=0.1)
    found = np.asarray(family.mean["w"], np.float64)[:, 0]
    assert np.abs(found - mean).max() < 0.5 * sd.max()
