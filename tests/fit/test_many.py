"""Many fits in one program: each has its own data, its own keys and the posterior that it should have."""

import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.fit.many import fit_each

NOISE = 0.5
X = np.linspace(-1.0, 1.0, 8)[:, None]
DESIGN = np.column_stack([np.ones(8), X])
MODEL = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(NOISE))
COVARIANCE = np.linalg.inv(DESIGN.T @ DESIGN / NOISE**2 + np.eye(2))


def simulated(count, seed=0):
    """Targets of lines that are drawn from the prior."""
    rng = np.random.default_rng(seed)
    lines = rng.normal(size=(count, 2)) @ DESIGN.T
    return lines + NOISE * rng.normal(size=(count, 8))


def weights(params):
    """Bias and slope, ``(..., 2)``."""
    layer = params["layer_0"]
    return np.concatenate([layer["bias"], layer["kernel"][..., 0]], -1)


def test_each_fit_finds_the_answer_of_its_own_data():
    ys = simulated(5)
    posteriors = fit_each(MODEL, (X, ys), cx.MAP(num_steps=800, learning_rate=0.05), progress=False)
    found = np.stack([weights(posterior.draws)[0, 0] for posterior in posteriors])
    np.testing.assert_allclose(found, ys @ DESIGN @ COVARIANCE / NOISE**2, atol=1e-3)
    assert all(posterior.info["steps"] == 800 for posterior in posteriors)
    assert posteriors[0].info["log_joint"].shape == (1, 800)
    np.testing.assert_allclose(posteriors[2].predict(X).mean, DESIGN @ found[2], atol=1e-4)


@pytest.mark.slow
def test_runs_end_when_all_have_finished():
    """The evidence of a linear regression is known; an easy data set waits for the hardest one."""
    ys = simulated(6, seed=1) * np.array([0.1, 1, 1, 1, 1, 4])[:, None]
    smc = cx.SMC(particles=64, num_leapfrog=4)
    posteriors = fit_each(MODEL, (X, ys), smc, key=3, progress=False)
    exact = stats.multivariate_normal(np.zeros(8), DESIGN @ DESIGN.T + NOISE**2 * np.eye(8))
    found = [posterior.log_evidence for posterior in posteriors]
    for (value, error), y in zip(found, ys, strict=True):
        assert abs(value - exact.logpdf(y)) < 4 * error
    assert len({posterior.info["steps"] for posterior in posteriors}) == 1
    assert posteriors[0].info["steps"] < smc.num_steps


def test_fits_have_keys_of_their_own():
    y = simulated(1)[0]
    method = cx.Metropolis(chains=2, num_warmup=5, num_draws=5)
    one, two = fit_each(MODEL, (X, np.stack([y, y])), method, key=1, progress=False)
    again, _ = fit_each(MODEL, (X, np.stack([y, y])), method, key=1, progress=False)
    other, _ = fit_each(MODEL, (X, np.stack([y, y])), method, key=2, progress=False)
    draws = [weights(posterior.draws) for posterior in (one, two, again, other)]
    assert draws[0].shape == (2, 5, 2)
    np.testing.assert_array_equal(draws[0], draws[2])
    assert not np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[3])
    assert not np.array_equal(draws[0][0], draws[0][1])


def test_divergence_and_bad_targets_are_refused():
    ys = simulated(3)
    with pytest.raises(cx.DivergedError, match="MAP met log_joint"):
        fit_each(MODEL, (X, ys), cx.MAP(num_steps=60, learning_rate=1e30), progress=False)
    ys[1, 2] = np.nan
    with pytest.raises(ValueError, match="y must hold finite numbers"):
        fit_each(MODEL, (X, ys), cx.MAP(num_steps=1), progress=False)
    with pytest.raises(ValueError, match="must have the same number of rows; got 8 and 7"):
        fit_each(MODEL, (X, ys[:, :7]), cx.MAP(num_steps=1), progress=False)
