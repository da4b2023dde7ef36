"""The doctor judges a run by its end: interrupted, not settled, off its target."""

import numpy as np
import optax
import pytest
from doctor_cases import DENSITY, members, posterior, rising, settled, weighted

import credax as cx
from credax.diagnostics.doctor import Diagnosis, Finding, alarms
from credax.posterior.approximations import Draws


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
        rising(level=1e6, slope=1.0),  # less than one part in a hundred, but many standard errors
        settled(level=0.0, noise=100.0),  # a difference within the noise, of one sign
        -settled(level=0.0, noise=100.0),  # and of the other sign
        rising(steps=90),  # too short to be judged
        np.full((2, 1000), -3.0),  # constant
    ],
)
def test_a_run_that_settled_is_not(history):
    params = np.random.default_rng(1).normal(size=(len(history), 1, 2))
    assert posterior(params, log_joint=history).diagnose() == ()


def test_a_rise_that_ended_is_no_finding():
    history = settled()
    history[:, :800] -= np.linspace(500, 0, 800)
    assert posterior(log_joint=history).diagnose() == ()


@pytest.mark.parametrize("rows, told", [(80, False), (30, True)])
def test_a_rise_that_does_not_show_in_predictions_is_no_finding(rows, told):
    """A tenth of a bound near zero is two nats, which are much for 30 rows and little for 80."""
    many = np.zeros((1, 1, 2_702))
    history = rising(level=-27.0, slope=0.02)
    found = posterior(many, elbo=history - 10.0, num_rows=rows).diagnose()
    assert ("still rose" in str(found)) is told


def test_other_figures_may_rise():
    assert posterior(learning_rate=rising(), step_size=rising()).diagnose() == ()


def test_a_chain_is_meant_to_move():
    params = np.random.default_rng(1).normal(size=(1, 1000, 2))
    chain = posterior(params, log_joint=rising(), kept=np.arange(1000))
    assert "still rose" not in str(chain.diagnose())
    assert len(posterior(log_joint=rising(), kept=np.arange(0)).diagnose()) == 1


# -- weighted draws and temperatures ---------------------------------------------------------------


@pytest.mark.parametrize("pareto_k", [0.71, 1.5, np.inf])
def test_a_proposal_that_misses_is_an_alarm(pareto_k):
    posterior = weighted(pareto_k=pareto_k, effective_sample_size=300.0)
    (found,) = alarms(posterior)
    assert found.what.startswith("The proposal does not cover the posterior")
    assert f"Pareto k {pareto_k:.2f}, above 0.7" in found.what
    assert np.isfinite(found.value)
    assert posterior.diagnose() == (found,)


@pytest.mark.parametrize("pareto_k", [-0.3, 0.2, 0.7, np.nan])
def test_a_proposal_that_serves_is_none(pareto_k):
    assert weighted(pareto_k=pareto_k, effective_sample_size=100.0).diagnose() == ()


def test_few_effective_draws_are_told():
    (found,) = weighted(pareto_k=0.2, effective_sample_size=7.34).diagnose()
    assert found.what == "The effective sample size of the 500 weighted draws is 7.3 (below 100)."
    assert found.value == 7.34
    assert alarms(weighted(effective_sample_size=7.34)) == ()


def test_uneven_weights_alone_are_no_fault():
    """The weights of an enumeration are exact, even if they are uneven."""
    weights = np.full((1, 500), -np.inf)
    weights[0, 3] = 0.0
    draws = Draws(np.zeros((1, 500, 2)), (), weights)
    assert cx.Posterior(DENSITY, draws, info={"kept": np.arange(0)}).diagnose() == ()


def test_a_temperature_below_one_is_an_alarm():
    rising = np.stack([np.linspace(0.1, 0.4, 20), np.linspace(0.1, 1.0, 20)])
    (found,) = alarms(weighted(temperature=rising))
    assert found.what.startswith("Tempering ended at temperature 0.4; only at 1")
    assert found.value == pytest.approx(0.4)
    assert len(alarms(weighted(temperature=np.full((1, 1), 0.01)))) == 1
    assert alarms(weighted(temperature=rising[1:])) == ()


def test_states_that_were_not_counted_are_an_alarm():
    part = weighted(states=1024, counted=256, effective_sample_size=3.0)
    (found,) = alarms(part)
    assert found.what.startswith("Only 256 of 1,024 states of the weights were counted")
    assert found.value == 0.25
    assert part.diagnose() == (found,)
    assert weighted(states=1024, counted=1024).diagnose() == ()


def test_a_temperature_that_falls_seeks_a_mode():
    falling = np.geomspace(10, 0.001, 200)[None]
    assert weighted(temperature=falling).diagnose() == ()


def test_a_log_joint_that_rises_with_the_temperature_is_no_finding():
    temperature = np.linspace(0.005, 1, 1000)[None]
    assert weighted(temperature=temperature, log_joint=rising()).diagnose() == ()
    assert "still rose" in str(weighted(log_joint=rising()).diagnose())


def test_restarts_that_agree_on_a_mode_are_no_ensemble():
    draws = Draws(np.ones((3, 1, 2)), (), np.array([[0.0], [-np.inf], [-np.inf]]))
    assert cx.Posterior(DENSITY, draws).diagnose() == ()


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
    assert "The log joint has not reached its maximum" in str(short.diagnose())
