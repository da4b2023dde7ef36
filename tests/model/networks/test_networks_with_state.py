"""Networks with batch statistics: some methods update them, the others keep trained ones fixed."""

import dataclasses

import jax
import numpy as np
import pytest

import credax as cx
from credax.inference import METHODS
from credax.inference.ensembles.swag import SWAG

# With so few steps the posteriors are poor, and some methods warn about it.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

GENERATOR = np.random.default_rng(0)
X = 3 * GENERATOR.normal(size=(40, 2)) + 5
Y = np.sin(X[:, 0]) + 0.1 * GENERATOR.normal(size=40)
NETWORK = cx.networks.mlp([3], activation="tanh", batch_norm=True)
MODEL = cx.Model(NETWORK, likelihood=cx.likelihoods.Gaussian(0.3))
NEW = X[:5]

TRAINING = {
    "maximum-likelihood": cx.MaximumLikelihood(num_steps=80),
    "map": cx.MAP(num_steps=80, batch_size=8),
    "sgld": cx.SGLD(chains=2, num_warmup=40, num_draws=4, thin=5),
    "sghmc": cx.SGHMC(chains=2, num_warmup=40, num_draws=4, thin=5),
    "black-box-vi": cx.BlackBoxVI(num_steps=80),
    "bayes-by-backprop": cx.BayesByBackprop(num_steps=80),
    "ivon": cx.IVON(num_steps=80),
    "importance-sampling": cx.ImportanceSampling(num_draws=8, proposal="map", num_warmup=80),
    "deep-ensemble": cx.DeepEnsemble(members=2, num_steps=80, adversarial=0.01, random_prior=True),
    "swag": SWAG(num_warmup=40, num_steps=80, thin=5),
}
SHORT = {"chains": 2, "num_warmup": 20, "num_draws": 4, "particles": 8, "restarts": 2}


def short(cls):
    """A method with the settings above, as far as it has them."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in SHORT.items() if name in names})


HOLDING = {name: short(cls) for name, cls in METHODS.items() if "trained state" in short(cls).needs}


def fit(method, model=MODEL, **arguments):
    return cx.fit(model, (X, Y), method, progress=False, **arguments)


def states(posterior):
    """The statistics of every sample, ``(sample, unit)``."""
    samples = posterior.approximation.samples(cx.random.key(0), None)
    return jax.tree.map(np.asarray, samples.take(0, samples.count).state["norm_0"])


def assert_rows_alone(posterior):
    """Check that the prediction of a row does not depend on the other rows."""
    among, alone = posterior.predict(NEW), posterior.predict(NEW[2:3])
    for field in ("mean", "variance"):
        one = getattr(alone, field)
        np.testing.assert_allclose(one, getattr(among, field)[2:3], rtol=1e-5, atol=1e-6)


QUICK = ("map", "hmc")
"""The methods of the quick tests. Compiling takes most of the time, and is much the same for all methods."""


def each(methods):
    slow = pytest.mark.slow
    names = [pytest.param(name, marks=() if name in QUICK else slow) for name in methods]
    return pytest.mark.parametrize("name", names)


@each(TRAINING)
def test_training_updates_the_statistics_and_prediction_does_not(name):
    posterior = fit(TRAINING[name])
    found = states(posterior)
    assert np.all(found["variance"] > 0)
    # X is far from normalised, so its statistics are far from the initial ones.
    assert np.all(np.abs(found["mean"]).max(1) > 0.5)
    assert_rows_alone(posterior)


@pytest.fixture(scope="module")
def trained():
    return fit(cx.MAP(num_steps=200))


@pytest.mark.usefixtures("trained")  # so that the programs common to all fits are compiled already
@pytest.mark.parametrize("name", HOLDING)
def test_held_statistics_must_be_trained_before(name, compilations):
    method = HOLDING[name]
    message = rf"{type(method).__name__} holds the batch statistics.*start=cx.fit\("
    with compilations() as count, pytest.raises(ValueError, match=message):
        fit(method)
    assert count() == 0, "refused before anything compiles"


@pytest.mark.slow
@each(HOLDING)
def test_held_statistics_are_those_of_the_start(name, trained):
    posterior = fit(HOLDING[name], start=trained)
    held, wanted = states(posterior), states(trained)
    for statistic, values in held.items():
        same = np.broadcast_to(wanted[statistic], values.shape)
        np.testing.assert_array_equal(values, same)
    assert_rows_alone(posterior)


def test_chains_hold_the_statistics_and_optimisers_train_them():
    assert {"metropolis", "hmc", "mclmc", "smc", "simulated-annealing"} <= set(HOLDING)
    assert not any("trained state" in method.needs for method in TRAINING.values())


@pytest.mark.parametrize(
    "method, prior, message",
    [
        (
            cx.BayesByBackprop(estimator="local"),
            cx.priors.Normal(),
            r"\(estimator=...\) must be \"weight\" for a network with batch statistics",
        ),
        (
            cx.BayesByBackprop(estimator="flipout"),
            cx.priors.Normal(),
            r"\(estimator=...\) must be \"weight\" for a network with batch statistics",
        ),
        (
            cx.ImportanceSampling(proposal="prior"),
            cx.priors.Normal(),
            r"\(proposal=...\) must be \"map\" or a posterior for a network with batch statistics",
        ),
        (
            cx.Enumeration(),
            cx.priors.Discrete([-1.0, 1.0]),
            "Enumeration needs a network without batch statistics",
        ),
    ],
)
def test_refused(method, prior, message):
    with pytest.raises(ValueError, match=message):
        fit(method, cx.Model(NETWORK, prior, cx.likelihoods.Gaussian(0.3)))


def test_the_averaged_weights_have_statistics_of_their_own():
    """The statistics are those of all rows at the averaged weights, not those of the iterates."""
    method = SWAG(covariance="none", num_warmup=40, num_steps=80, thin=5, members=2)
    posterior = fit(method)
    found = states(posterior)
    layer = posterior.draws["layer_0"]
    for member in range(2):
        units = X @ np.float64(layer["kernel"][member, 0]) + layer["bias"][member, 0]
        np.testing.assert_allclose(found["mean"][member], units.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["variance"][member], units.var(0), rtol=1e-3)


def test_statistics_are_saved_and_resumed(tmp_path):
    posterior = fit(cx.MAP(num_steps=60))
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax")
    assert loaded.model == posterior.model
    np.testing.assert_array_equal(loaded.predict(NEW).mean, posterior.predict(NEW).mean)
    folder = tmp_path / "run"
    fit(cx.MAP(num_steps=60), checkpoint=folder, chunk_steps=13, callbacks=[lambda e: e.step > 20])
    resumed = fit(cx.MAP(num_steps=60), checkpoint=folder)
    for one, other in zip(*(jax.tree.leaves(states(p)) for p in (posterior, resumed)), strict=True):
        np.testing.assert_array_equal(one, other)
