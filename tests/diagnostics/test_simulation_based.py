"""Simulation-based calibration: correct posteriors pass, wrong ones fail, and the samplers pass."""

import re
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.core.typing import Draw
from credax.diagnostics.ranks import LEVEL, Ranks
from credax.diagnostics.simulation_based import _correlation, simulation_based_calibration
from credax.inference.method import Method
from credax.inference.montecarlo.hamiltonian import HMC, NUTS
from credax.inference.montecarlo.metropolis import Metropolis
from credax.inference.montecarlo.tempered import SMC
from credax.posterior import Posterior
from credax.posterior.approximations import Draws

NOISE = 0.5
X = np.linspace(-1.0, 1.0, 8)[:, None]
LINE = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(NOISE))
TWO_UNITS = cx.Model(
    cx.networks.mlp([2], activation="tanh"), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(NOISE)
)

calibrate = partial(simulation_based_calibration, progress=False)


class Step(NamedTuple):
    done: Any


@dataclass(frozen=True)
class Exact(Method):
    """The closed-form posterior of a linear regression, or one that is wrong in a known way."""

    num_draws: int = 99
    spread: float = 1.0
    shift: float = 0.0
    each: int = 1
    data: bool = True
    warns: bool = False

    num_steps = 1
    kind = "exact"

    def init(self, key, model, data):
        return jnp.zeros((), jnp.int32)

    def step(self, key, state, model, batch, step):
        return state, Step(jnp.ones((), jnp.result_type(float)))

    def posterior(self, model, trace):
        x, y = (np.asarray(a, np.float64) for a in (trace.data.x, trace.data.y))
        design = np.column_stack([np.ones(len(x)), x]) * self.data
        covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(2))
        mean = covariance @ design.T @ y.reshape(-1) / NOISE**2
        seed = np.asarray(jax.random.key_data(trace.key))
        normal = np.random.default_rng(seed).normal(size=(self.num_draws, 2))
        normal = np.repeat(self.spread * normal + self.shift, self.each, 0)[: self.num_draws]
        bias, slope = (mean + normal @ np.linalg.cholesky(covariance).T).T.astype(x.dtype)
        params = {"layer_0": {"bias": bias[None, :, None], "kernel": slope[None, :, None, None]}}
        return Posterior(model, Draws(params))

    def finish(self, posterior, trace):
        if self.warns:
            warnings.warn("It has not converged.", cx.PosteriorWarning, stacklevel=2)
        return posterior


class Walker(NamedTuple):
    params: Any


@dataclass(frozen=True)
class Langevin(Method):
    """A Langevin chain; unless ``adjusted`` it accepts every proposal, which makes it biased."""

    step_size: float
    adjusted: bool
    num_steps: int = 900
    num_warmup: int = 100
    thin: int = 20

    kind = "exact"

    def init(self, key, model, data):
        return Walker(model.sample_prior(key))

    def step(self, key, state, model, batch, step):
        flat, back = jax.flatten_util.ravel_pytree(state.params)
        evaluate = jax.value_and_grad(lambda w: model.log_joint(back(w), batch))
        noise_key, accept_key = jax.random.split(key)
        drift = lambda w, gradient: w + self.step_size**2 / 2 * gradient  # noqa: E731
        value, gradient = evaluate(flat)
        noise = jax.random.normal(noise_key, flat.shape, flat.dtype)
        proposal = drift(flat, gradient) + self.step_size * noise
        new_value, new_gradient = evaluate(proposal)
        backward = jnp.sum((flat - drift(proposal, new_gradient)) ** 2) / self.step_size**2
        log_ratio = new_value - value - backward / 2 + jnp.sum(noise**2) / 2
        accepted = jnp.log(jax.random.uniform(accept_key, (), flat.dtype)) < log_ratio
        flat = jnp.where(accepted | (not self.adjusted), proposal, flat)
        return Walker(back(flat)), Step(value)

    def keep(self, state):
        return Draw(state.params)

    def posterior(self, model, trace):
        return Posterior(model, Draws(trace.draws.params))


def line(method, num_simulations=300, key=1, **arguments):
    settings = {"num_simulations": num_simulations, "key": key, **arguments}
    return calibrate(LINE, (X, X[:, 0]), method, **settings)


# -- correct posteriors pass, wrong ones fail --------------------------------------------------------


@pytest.mark.slow
def test_the_exact_posterior_passes():
    found = line(Exact(), 600)
    assert found.names == (
        *("output 0 at row 0", "output 0 at row 4", "output 0 at row 7"),
        *("log prior", "log likelihood"),
    )
    assert found.ranks.shape == (600, 5)
    assert found.ranks.min() >= 0
    assert found.ranks.max() <= 99
    assert found.p_value > LEVEL
    assert np.abs(found.correlation).max() < 0.1
    assert "even, as they should be" in str(found)
    assert repr(found) == str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"spread": 0.7}, "too narrow"),
        pytest.param({"spread": 1.4}, "too wide", marks=pytest.mark.slow),
        ({"shift": 0.4}, "too high"),
        pytest.param({"shift": -0.4}, "too low", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_posterior_is_found(wrong, words):
    found = line(Exact(**wrong))
    assert found.p_value < 1e-4
    text = str(found)
    assert "draws: uneven (p = " in text
    assert f"the draws are {words}" in text


@pytest.mark.slow
def test_the_prior_in_place_of_the_posterior_is_found():
    """The ranks are uniform for every quantity that depends on the weights alone."""
    found = line(Exact(data=False))
    p = found.p_values
    assert all(p[name] > LEVEL for name in found.names[:4])
    assert p["log likelihood"] < 1e-6
    assert found.p_value < 1e-4


@pytest.mark.slow
def test_draws_that_repeat_each_other_are_said():
    found = line(Exact(each=9), num_draws=99)
    assert found.correlation.min() > 0.7
    assert "Neighbouring draws are correlated (0.8" in str(found)
    assert found.p_value < LEVEL


@pytest.mark.slow
def test_correlated_draws_are_thinned_unless_their_number_is_given():
    found = line(Exact(each=9))
    assert found.num_draws == 11
    assert found.correlation.max() < 0.05
    assert found.p_value > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("adjusted", [True, False])
def test_a_chain_that_accepts_everything_is_found(adjusted):
    found = line(Langevin(0.3, adjusted), num_draws=39)
    assert (found.p_value < 1e-4) != adjusted
    assert ("the draws are too wide" in str(found)) != adjusted


def test_equal_draws_are_not_correlated():
    """Their mean is rounded, so each of them seems to lie on the same side of it."""
    values = np.random.default_rng(0).normal(size=(50, 1, 1)).astype(np.float32)
    assert _correlation(np.repeat(values, 99, 1)).tolist() == [0.0]
    steps = np.cumsum(np.random.default_rng(1).normal(size=(50, 99, 1)), 1).astype(np.float32)
    assert _correlation(steps)[0] > 0.7


# -- ranks and p-values ------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_are_those_of_the_chosen_quantities():
    quantities = {
        "slope": lambda params, x, y: params["layer_0"]["kernel"][0, 0],
        "negative": lambda params, x, y: -params["layer_0"]["kernel"][0, 0],
        "coin": lambda params, x, y: jnp.zeros(()),
        "residual": lambda params, x, y: jnp.sum(y) - params["layer_0"]["bias"][0],
    }
    found = line(Exact(), quantities=quantities)
    assert found.names == tuple(quantities)
    np.testing.assert_array_equal(found.ranks[:, 0], 99 - found.ranks[:, 1])
    # Ties are broken at random: equal values have uniform ranks.
    assert found.p_values["coin"] > LEVEL
    assert len(set(found.ranks[:, 2])) > 80
    assert found.p_value > LEVEL


@pytest.mark.slow
def test_evenly_spaced_draws():
    """Every tenth of 990 draws is used: neighbouring draws are repeated nine times, these are not."""
    found = line(Exact(num_draws=990, each=9), num_draws=99)
    assert found.p_value > LEVEL
    assert np.abs(found.correlation).max() < 0.1


@pytest.mark.parametrize("num_draws, bins", [(99, 10), (100, 10), (7, 8), (1, 2)])
def test_p_values(num_draws, bins):
    ranks = np.random.default_rng(0).integers(0, num_draws + 1, size=(400, 2))
    ranks[:, 1] = np.minimum(ranks[:, 1], num_draws // 2)
    found = Ranks(("even", "uneven"), ranks, num_draws, np.zeros(2))
    histogram = found.histogram
    assert histogram.shape == (bins, 2)
    assert histogram.sum(0).tolist() == [400, 400]
    assert found.expected.sum() == pytest.approx(400)
    assert found.expected.min() > 5
    by_hand = stats.chi2(bins - 1).sf(((histogram.T - found.expected) ** 2 / found.expected).sum(1))
    np.testing.assert_allclose(list(found.p_values.values()), by_hand, rtol=1e-9, atol=1e-300)
    assert found.p_values["even"] > LEVEL
    assert found.p_value == pytest.approx(2 * found.p_values["uneven"])
    assert found.p_value < 1e-6


def test_p_values_of_uniform_ranks_are_uniform():
    ranks = np.random.default_rng(1).integers(0, 100, size=(200, 500))
    names = tuple(map(str, range(500)))
    found = Ranks(names, ranks, 99, np.zeros(500))
    p = list(found.p_values.values())
    assert stats.kstest(p, "uniform").pvalue > LEVEL
    assert min(1, 500 * min(p)) == found.p_value


@pytest.mark.slow
def test_the_same_key_gives_the_same_ranks():
    one, same, other = (line(Exact(), 20, key=key) for key in (3, jax.random.key(3), 4))
    np.testing.assert_array_equal(one.ranks, same.ranks)
    assert not np.array_equal(one.ranks, other.ranks)


def test_fits_share_their_program(compilations):
    line(Exact(), 12)
    with compilations() as count:
        line(Exact(), 12, key=2)
    assert count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood, y",
    [
        (cx.likelihoods.Gaussian(scale=None), X),
        (cx.likelihoods.Categorical(), np.arange(8) % 3),
        (cx.likelihoods.Gaussian((0.1, 0.2)), np.hstack([X, X])),
        pytest.param(cx.likelihoods.Heteroscedastic(), X[:, 0], marks=pytest.mark.slow),
        pytest.param(cx.likelihoods.Bernoulli(), np.arange(8) % 2, marks=pytest.mark.slow),
        pytest.param(cx.likelihoods.Poisson(), np.arange(8) % 4, marks=pytest.mark.slow),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_targets(likelihood, y):
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(0.5), likelihood)
    method = cx.DeepEnsemble(members=4, num_steps=3)
    found = calibrate(model, (X, y), method, num_simulations=10, num_draws=4)
    assert found.ranks.shape == (10, 5)


def test_warnings_of_the_fits_are_counted():
    found = line(Exact(warns=True), 12)
    assert found.warned == ("It has not converged.",) * 12
    assert "The fits gave 12 warnings, the first: It has not converged." in str(found)


def test_progress(capsys):
    line(Exact(), 10, progress=True)
    shown = capsys.readouterr().err
    assert "Exact" in shown
    assert "1/1" in shown


DENSITY = cx.LogDensity(lambda key: jnp.zeros(1), jnp.sum)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (
            {"num_simulations": 9},
            ValueError,
            "num_simulations=...) must be a whole number, at least 10",
        ),
        ({"num_draws": 0}, ValueError, "num_draws=...) must be a whole number, at least 1; got 0."),
        (
            {"num_draws": 100},
            ValueError,
            "num_draws=...) must be at most the number of draws that the method",
        ),
        ({"quantities": {}}, TypeError, "quantities=...) must be a mapping of names to functions"),
        (
            {"quantities": {"a": lambda *_: jnp.nan}},
            ValueError,
            "quantities=...) must be finite; 'a'",
        ),
        ({"model": DENSITY}, TypeError, "model=...) must be a cx.Model"),
    ],
)
def test_refusals(change, error, message):
    arguments = {"model": LINE, "data": (X, X[:, 0]), "method": Exact(), "num_simulations": 10}
    with pytest.raises(error, match=re.escape(f"simulation_based_calibration({message}")):
        calibrate(**{**arguments, **change})


# -- the samplers ------------------------------------------------------------------------------------

SAMPLERS = {
    "HMC": HMC(chains=2, num_warmup=300, num_draws=100, thin=5, num_leapfrog=8),
    "NUTS": NUTS(chains=2, num_warmup=300, num_draws=100, thin=3),
    "Metropolis": Metropolis(chains=2, num_warmup=1_000, num_draws=100, thin=40),
    "SMC": SMC(particles=200, num_leapfrog=8),
}


@pytest.mark.slow
@pytest.mark.parametrize("model", [LINE, TWO_UNITS], ids=["line", "two units"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name, model):
    y = X[:, 0]
    found = calibrate(model, (X, y), SAMPLERS[name], key=11, num_simulations=320, num_draws=39)
    print(found)
    assert found.p_value > LEVEL
    assert found.correlation.max() < 0.2
