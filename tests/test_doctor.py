"""Each finding where it belongs, and nowhere else."""

import numpy as np
import optax
import pytest

import credax as cx
from credax.approximations import Draws
from credax.diagnostics.doctor import Diagnosis, Finding, diagnose

DENSITY = cx.LogDensity(lambda key: np.zeros(2), lambda params: 0.0)


def posterior(params=None, **info):
    """One replica with one draw, unless told otherwise; nothing is wrong with it."""
    params = np.zeros((1, 1, 2)) if params is None else np.asarray(params)
    return cx.Posterior(DENSITY, Draws(params), info={"ended": "complete", "steps": 1000, **info})


def settled(replicas=1, steps=1000, level=-50.0, noise=1.0):
    return level + noise * np.random.default_rng(0).normal(size=(replicas, steps))


def rising(replicas=1, steps=1000, level=-50.0, slope=0.01):
    return settled(replicas, steps, level) + slope * np.arange(steps)


def test_a_sound_run_has_no_finding():
    found = posterior(log_joint=settled()).diagnose()
    assert isinstance(found, Diagnosis)
    assert found == ()
    assert str(found) == repr(found) == "No problem found."


def test_a_posterior_without_a_run_has_no_finding():
    assert cx.Posterior(DENSITY, Draws(np.zeros((1, 1, 2)))).diagnose() == ()


# -- interrupted -----------------------------------------------------------------------------------


def test_an_interrupted_run_is_told():
    (found,) = posterior(ended="interrupt", steps=123).diagnose()
    assert found.what == "The run was interrupted after 123 steps."
    assert found.value == 123
    assert "checkpoint=" in found.advice


@pytest.mark.parametrize("ended", ["complete", "callback", "early stopping"])
def test_a_run_that_was_meant_to_end_is_not(ended):
    assert posterior(ended=ended).diagnose() == ()


# -- not settled -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log_joint", "log_likelihood", "elbo"])
def test_a_run_that_still_rises_is_told(name):
    (found,) = posterior(**{name: rising()}).diagnose()
    history = rising()
    last, before = history[0, -100:].mean(), history[0, -200:-100].mean()
    assert found.value == pytest.approx((last - before) / (abs(last) + 1))
    assert f"The {name.replace('_', ' ')} still rose by {100 * found.value:.1f} %" in found.what
    assert "in 1 of 1 replicas" in found.what
    assert found.advice == "Raise num_steps."


def test_replicas_that_rise_are_counted():
    history = np.concatenate([settled(2), rising(3)])
    (found,) = posterior(
        np.random.default_rng(1).normal(size=(5, 1, 2)), log_joint=history
    ).diagnose()
    assert "in 3 of 5 replicas" in found.what


@pytest.mark.parametrize(
    "history",
    [
        settled(4),
        rising(slope=-0.01),  # falling
        rising(slope=1e-4),  # less than one part in a hundred
        rising(level=1e6, slope=1.0),  # likewise, however many standard errors
        settled(level=0.0, noise=100.0),  # within its own noise, one way
        -settled(level=0.0, noise=100.0),  # and the other
        rising(steps=90),  # too short to tell
        np.full((2, 1000), -3.0),  # exactly still
    ],
)
def test_a_run_that_settled_is_not(history):
    params = np.random.default_rng(1).normal(size=(len(history), 1, 2))
    assert posterior(params, log_joint=history).diagnose() == ()


def test_a_rise_that_ended_is_no_finding():
    history = settled()
    history[:, :800] -= np.linspace(500, 0, 800)
    assert posterior(log_joint=history).diagnose() == ()


def test_other_figures_may_rise():
    assert posterior(learning_rate=rising(), step_size=rising()).diagnose() == ()


def test_a_chain_is_meant_to_move():
    params = np.random.default_rng(1).normal(size=(1, 1000, 2))
    assert posterior(params, log_joint=rising(), kept=np.arange(1000)).diagnose() == ()
    assert len(posterior(log_joint=rising(), kept=np.arange(0)).diagnose()) == 1


# -- members that agree ----------------------------------------------------------------------------


def members(spread, count=3):
    noise = np.random.default_rng(2).normal(size=(count, 1, 40))
    return np.linspace(1, 2, 40) + spread * noise


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-4])
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
        members(0.01),
        members(0.0, count=1),  # one point is not an ensemble
        np.ones((3, 4, 5)),  # chains, whose draws tell by themselves
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


# -- together --------------------------------------------------------------------------------------


def test_all_findings_are_listed():
    found = posterior(members(0.0), log_joint=rising(3), ended="interrupt").diagnose()
    assert len(found) == 3
    assert all(isinstance(finding, Finding) for finding in found)
    lines = str(found).splitlines()
    assert len(lines) == 3
    for line, finding in zip(lines, found, strict=True):
        assert line == f"- {finding.what} {finding.advice}"


def test_a_convex_problem_is_found_by_a_real_run():
    x = np.linspace(-1, 1, 40)[:, None]
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    ensemble = cx.DeepEnsemble(members=2, num_steps=3000, learning_rate=0.05)
    posterior = cx.fit(model, (x, 2 * x[:, 0]), ensemble, progress=False)
    assert "members ended at the same weights" in str(posterior.diagnose())
    slow = cx.MAP(num_steps=100, learning_rate=optax.constant_schedule(0.01))
    short = cx.fit(model, (x, 2 * x[:, 0]), slow, progress=False)
    assert "still rose" in str(short.diagnose())
