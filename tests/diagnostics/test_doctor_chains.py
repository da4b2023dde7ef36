"""The doctor judges chains: whether they moved, accepted, kept their energy and mixed."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doctor_cases import (
    DENSITY,
    STEPS,
    changed,
    members,
    network_run,
    posterior,
    rising,
    run,
    slow,
    stopped,
)

import credax as cx
from credax.core.trees import Flat
from credax.diagnostics.convergence import figures_of, figures_of_each
from credax.diagnostics.doctor import alarms
from credax.diagnostics.doctor import chains as chain_checks
from credax.diagnostics.doctor.findings import Case
from credax.inference.montecarlo.chain import Chains
from credax.posterior.approximations import Draws

# -- cycles ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
@pytest.mark.parametrize(
    "method, told",
    [
        (cx.SGLD(cycles=10, num_draws=200), True),
        (cx.SGHMC(cycles=10, num_draws=50), True),
        (cx.SGHMC(cycles=2, num_draws=1_000), False),
        (cx.SGHMC(num_draws=50), False),
    ],
)
def test_cycles_in_which_draws_cannot_spread_are_told(method, told):
    """Columns that are nearly equal leave directions in which draws spread slowly."""
    rng = np.random.default_rng(0)
    x = 0.99**0.5 * rng.normal(size=(100, 1)) + 0.1 * rng.normal(size=(100, 8))
    y = x @ rng.normal(size=8) + 0.3 * rng.normal(size=100)
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.3))
    posterior = cx.fit(model, (x, y), method, progress=False)
    found = list(chain_checks.short_cycles(Case(posterior)))
    assert bool(found) is told
    if told:
        new = rng.normal(size=(50, 8))
        design, other = (np.concatenate([np.ones((len(each), 1)), each], 1) for each in (x, new))
        covariance = np.linalg.inv(np.eye(9) + design.T @ design / 0.09)
        exact = np.sqrt(np.einsum("ij,jk,ik->i", other, covariance, other))
        assert np.median(np.sqrt(posterior.predict(new).epistemic) / exact) < 0.7
        assert found[0].errs == "too sure"
        assert found[0].value < 0.6 * 0.5 * 9


@pytest.mark.parametrize("below, told", [(0.4, True), (0.7, False)])
def test_draws_near_the_place_that_a_cycle_has_found_are_told(below, told):
    method = cx.SGLD(cycles=5, num_draws=100, num_warmup=50)
    params = np.random.default_rng(1).normal(size=(2, 100, 40))
    kept = np.concatenate([50 + 400 * i + 200 + np.arange(9, 200, 10) for i in range(5)])
    history = np.full((2, method.num_steps), -100.0)
    history[:, kept] -= below * 20
    history[1] -= 5.0  # another mode, which is not as good
    chain = replace(posterior(params, log_joint=history, kept=kept), method=method)
    found = list(chain_checks.short_cycles(Case(chain)))
    assert bool(found) is told
    if told:
        assert found[0].value == pytest.approx(below * 20 + 2.5)
        assert found[0].what.endswith("about 20. The posterior is too sure.")


# -- chains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chains", [1, 2, 4, 40])
def test_healthy_chains_have_no_finding(chains):
    assert run(chains=chains).diagnose() == ()
    assert alarms(run(chains=chains)) == ()


# Chains that do not move.


@pytest.mark.parametrize(
    "which, words",
    [
        ([2], "Chain 2 never moved in 999 steps."),
        ([0, 3], "Chains 0 and 3 never moved"),
        ([0, 1, 3], "Chains 0, 1 and 3 never moved"),
        ([0, 1, 2, 3], "No chain moved in 999 steps."),
    ],
)
def test_chains_that_never_moved_are_an_alarm(which, words):
    found = run(params=stopped(*which))
    (alarm,) = alarms(found)
    assert alarm.what.startswith(words)
    assert alarm.value == len(which)
    assert alarm.grave
    assert alarm in found.diagnose()


def test_one_leaf_that_moves_is_enough():
    moving = np.array(run().draws)
    still = np.ones_like(moving)
    assert alarms(run(params={"a": still, "b": moving})) == ()
    once = still.copy()
    once[:, 500:510] = 2.0  # and back again
    assert "never moved" not in str(alarms(run(params=once)))


def test_a_few_steps_without_a_move_are_told_but_no_alarm():
    short = run(params=stopped(1)[:, :50], kept=200 + np.arange(50))
    assert "Chain 1 never moved in 49 steps." in str(short.diagnose())
    assert alarms(short) == ()
    thinned = run(params=stopped(1)[:, :50], kept=203 + 4 * np.arange(50))
    assert len(alarms(thinned)) == 1


def test_many_chains_are_counted():
    found = run(params=stopped(*range(7), chains=40), chains=40)
    assert alarms(found)[0].what.startswith("7 of 40 chains never moved")


def test_discrete_weights_may_have_one_state_only():
    x = np.linspace(-1, 1, 10)[:, None]
    model = cx.Model(
        cx.networks.linear(), cx.priors.Discrete([-1.0, 1.0]), cx.likelihoods.Gaussian(0.1)
    ).bind((x, x[:, 0]))
    assert model.discrete
    agreeing = np.ones((4, STEPS, 2))
    params = {"bias": agreeing[..., :1], "kernel": agreeing[..., :1, None]}
    low = np.full((4, 200 + STEPS), 1e-4)
    assert run(model, params, acceptance_rate=low).diagnose() == ()
    params["bias"] = params["bias"] * np.array([1, 1, -1, 1])[:, None, None]
    (found,) = alarms(run(model, params, acceptance_rate=low))
    assert found.what.startswith("No chain moved")


def test_a_chain_that_stood_still_is_told():
    params = np.array(run().draws)
    params[1, 300:450] = params[1, 300]
    (found,) = run(params=params).diagnose()
    assert found.what == "Chain 1 stood still for up to 150 consecutive draws of 1000."
    assert found.value == 150
    assert alarms(run(params=params)) == (found,)
    params = np.array(run().draws)
    params[:, 300:390] = params[:, 300:301]
    assert "stood still" not in str(run(params=params).diagnose())


def test_a_stay_at_either_end_is_found():
    params = np.array(run().draws)
    params[0, :101] = params[0, 0]
    params[3, -120:] = params[3, -1]
    found = [f for f in run(params=params).diagnose() if "stood still" in f.what]
    assert found[0].what == "Chains 0 and 3 stood still for up to 120 consecutive draws of 1000."


# Steps that are rejected, or diverge.


def test_a_chain_that_hardly_accepts_is_told():
    def change(rates):
        rates[2] = 0.05

    (found,) = changed("acceptance_rate", change).diagnose()
    assert found.what.startswith("Chain 2 accepted hardly any proposals after warm-up")
    assert "(as few as 5 %)" in found.what
    assert found.value == pytest.approx(0.05)
    assert not found.grave


def test_a_chain_that_accepts_nothing_is_an_alarm():
    def change(rates):
        rates[1:3] = 0.002

    (found,) = alarms(changed("acceptance_rate", change))
    assert found.what.startswith("Chains 1 and 2 accepted hardly any")
    short = run(
        params=np.array(run().draws)[:, :50],
        acceptance_rate=np.full((4, 250), 1e-3),
        kept=200 + np.arange(50),
    )
    assert alarms(short) == ()  # a few steps may be unlucky


def test_a_chain_that_never_moved_is_told_once():
    def change(rates):
        rates[2] = 0

    posterior = changed("acceptance_rate", change, params=stopped(2))
    (found,) = alarms(posterior)
    assert found.what.startswith("Chain 2 never moved")


@pytest.mark.parametrize("rate", [0.15, 0.5, 1.0])
def test_other_rates_are_fine(rate):
    def change(rates):
        rates[:] = rate

    assert changed("acceptance_rate", change).diagnose() == ()


@pytest.mark.parametrize("count, grave", [(1, False), (40, False), (41, True), (400, True)])
def test_divergences_are_told_and_many_are_an_alarm(count, grave):
    def change(diverging):
        diverging[0, :count] = 1

    posterior = changed("diverging", change)
    (found,) = posterior.diagnose()
    assert found.what.startswith(f"{count} of 4000 steps after warm-up diverged (")
    assert found.value == pytest.approx(count / 4000)
    assert f"({100 * count / 4000:.2g} %)" in found.what
    assert found.grave == grave
    assert alarms(posterior) == ((found,) if grave else ())


@pytest.mark.parametrize("symptom", ["energy", "still"])
def test_few_divergences_are_an_alarm_with_another_symptom(symptom):
    diverging = np.zeros((4, 1200))
    diverging[2, 1000:1004] = 1
    params, energy = np.array(run().draws), np.array(run().info["energy"])
    assert alarms(run(diverging=diverging)) == ()
    if symptom == "energy":
        energy[2, -STEPS:] = slow(0.95)[2]
    else:
        params[2, 300:518] = params[2, 300]
    found = alarms(run(params=params, energy=energy, diverging=diverging))
    assert "4 of 4000 steps" in str(found)
    assert ("stood still for up to 218" in str(found)) == (symptom == "still")
    diverging[2, 1001:] = 0  # a single one may be an accident
    lone = alarms(run(params=params, energy=energy, diverging=diverging))
    assert "diverged" not in str(lone)


def test_few_divergences_of_a_short_run_are_no_alarm():
    params = np.array(run().draws)[:, :20]
    for count, grave in ((9, False), (10, True)):
        diverging = np.zeros((4, 220))
        diverging[1, -count:] = 1
        short = run(params=params, diverging=diverging, kept=200 + np.arange(20))
        assert (len(alarms(short)) == 1) == grave


def test_divergences_between_kept_steps_count():
    diverging = np.zeros((4, 1200))
    diverging[:, 1000:1003] = 1  # every fourth step is kept: 203, 207, ..., 1199
    thinned = run(
        params=np.array(run().draws)[:, :250], diverging=diverging, kept=203 + 4 * np.arange(250)
    )
    assert "12 of 4000 steps after warm-up diverged" in str(thinned.diagnose())


def test_a_slow_energy_is_told():
    def change(energy):
        energy[3] = slow(0.95)[3]

    posterior = changed("energy", change)
    (found,) = posterior.diagnose()
    assert found.what.startswith("The energy of chain 3 mixes slowly (BFMI 0.")
    assert found.value == posterior.convergence().bfmi[3] < 0.3
    assert alarms(posterior) == ()

    def less(energy):
        energy[:] = slow(0.7)  # BFMI 0.6

    assert changed("energy", less).diagnose() == ()


# Chains that disagree.


def test_a_log_joint_on_which_chains_disagree_is_told():
    def change(log_joint):
        log_joint[1] += 2

    posterior = changed("log_joint", change)
    found = posterior.diagnose()
    assert found[0].what.startswith("R-hat of the log joint is 1.")
    assert found[0].what.endswith("(above 1.01): the chains disagree.")
    assert found[0].value == posterior.convergence().log_joint.r_hat
    assert "num_warmup" in found[0].advice
    assert not any(finding.grave for finding in found)


def independent(chains, draws, seed, shift=0.0):
    """Independent draws; half of the chains are shifted."""
    values = np.random.default_rng(seed).normal(size=(chains, draws, 3))
    values[: chains // 2] += shift
    kept = np.arange(draws)
    return cx.Posterior(
        DENSITY, Draws(values[..., 1:]), info={"log_joint": values[..., 0], "kept": kept}
    )


def test_few_independent_draws_are_no_finding():
    """At most 1 in 100 for the log joint and 1 in 100 for the parameters: four of 60 have probability 3 %."""
    found = [independent(4, 100, seed).diagnose() for seed in range(60)]
    assert sum(len(diagnosis) > 0 for diagnosis in found) <= 4


@pytest.mark.parametrize("chains, draws", [(1, 100), (4, 20), (4, 100), (4, 300)])
def test_r_hat_exceeds_its_limit_once_in_a_hundred_times(chains, draws):
    values = np.random.default_rng(1).normal(size=(chains, draws, 4000))
    limit = chain_checks.r_hat_limit(chains, draws, 1)
    if limit > chain_checks.R_HAT:
        # Four standard errors of a frequency of 0.01 over 4000 quantities are 0.0063.
        share = np.mean(figures_of(values).r_hat > limit)
        assert share == pytest.approx(0.01, abs=0.0063)
    many = figures_of(values[..., :1000].reshape(chains, draws, 20, 50)).r_hat.max(1)
    assert (
        np.mean(many > chain_checks.r_hat_limit(chains, draws, 50)) < 0.01 + 4 * (0.01 / 20) ** 0.5
    )


def test_r_hat_of_separate_chains_exceeds_its_limit_as_rarely():
    values = np.random.default_rng(2).normal(size=(4, 100, 2000))
    limit = chain_checks.r_hat_limit(4, 100, 1, each=True)
    share = np.mean(figures_of_each(values).r_hat > limit)
    assert share == pytest.approx(0.01, abs=4 * (0.0099 / 2000) ** 0.5)


@pytest.mark.parametrize("chains, draws", [(4, 100), (4, 1000), (10, 50)])
def test_chains_that_are_a_standard_deviation_apart_are_found(chains, draws):
    for seed in range(20):
        apart = independent(chains, draws, seed, shift=1.0)
        assert "the chains disagree" in str(apart.diagnose())


def test_one_chain_disagrees_with_itself():
    def change(log_joint):
        log_joint[:, 500:] += 2

    found = changed("log_joint", change, chains=1).diagnose()
    assert "the two halves of the chain disagree" in found[0].what


def test_the_warm_up_is_not_judged():
    assert run(log_joint=run().info["log_joint"]).diagnose() == ()
    assert len(run(log_joint=run().info["log_joint"], kept=np.arange(1000)).diagnose()) > 0


@pytest.mark.parametrize("chains, enough", [(1, 100), (2, 200), (4, 400)])
def test_few_independent_draws_are_told(chains, enough):
    def change(log_joint):
        log_joint[:] = slow(0.99, chains)

    posterior = changed("log_joint", change, chains=chains)
    (found,) = [f for f in posterior.diagnose() if "effective sample size" in f.what]
    least = posterior.convergence().log_joint.least_ess
    assert found.what == (
        f"The effective sample size of the log joint is {least:.0f} for {chains * 1000} draws (below "
        f"{enough})."
    )
    assert found.value == least < enough
    assert found.advice == "Raise num_draws."


# The effective sample size of 1,000 draws is 1,000 (1 - r) / (1 + r): 176 for r = 0.7, and 26 for r = 0.95.
@pytest.mark.parametrize("chains, correlation", [(1, 0.7), (2, 0.7), (4, 0.7), (40, 0.95)])
def test_enough_independent_draws_are_no_finding(chains, correlation):
    def change(log_joint):
        log_joint[:] = slow(correlation, chains)

    found = changed("log_joint", change, chains=chains).diagnose()
    assert "effective sample size" not in str(found)


def test_short_steps_are_named_as_the_cause():
    history = np.array(run().info["log_joint"])
    history[:, -STEPS:] = slow(0.99)
    rates = np.full((4, 1200), 0.999)
    found = run(log_joint=history, acceptance_rate=rates).diagnose()[-1]
    assert found.advice.endswith("The acceptance rate of 0.999 allows a larger step size.")


def test_two_modes_of_a_density_are_told_by_its_parameters():
    """Both modes have the same height, so the log joint does not reveal them."""
    params = np.array(run().draws)
    params[:2] += 20
    posterior = run(params=params)
    assert posterior.convergence().log_joint.r_hat < 1.01
    found = posterior.diagnose()
    assert found[0].what.startswith("R-hat of the parameters reaches 1.")
    assert "(above 1.01 for 2 of 2): the chains disagree." in found[0].what


def test_predictions_on_which_chains_disagree_are_told():
    healthy, x = network_run()
    assert healthy.diagnose(x) == ()
    posterior, x = network_run(shift=3.0)
    assert posterior.diagnose() == ()  # the weights are not judged, since they are not identified
    found = posterior.diagnose(x)
    assert found[0].what.startswith("R-hat of the predictions reaches 1.")
    assert "(above 1.01 for 25 of 25)" in found[0].what
    assert found[0].value == posterior.convergence(x).predictions.worst_r_hat


def test_inputs_are_checked_whatever_the_posterior():
    posterior, _ = network_run()
    with pytest.raises(ValueError, match="x must have shape"):
        posterior.diagnose(np.zeros((3, 2)))
    point = cx.Posterior(posterior.model, Draws(np.zeros((1, 1, 2))))
    with pytest.raises(ValueError, match="x must have shape"):
        point.diagnose(np.zeros((3, 2)))
    with pytest.raises(TypeError, match="LogDensity, which predicts nothing"):
        run().diagnose(np.zeros((3, 1)))


def test_inputs_do_no_harm_to_a_point():
    x = np.linspace(-1, 1, 40)[:, None]
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    point = cx.fit(model, (x, x[:, 0]), cx.MAP(num_steps=1000), progress=False)
    assert str(point.diagnose(x)) == str(point.diagnose())


def test_three_draws_are_not_judged():
    short = run(params=np.array(run().draws)[:, :3], kept=200 + np.arange(3))
    assert short.diagnose() == ()


def test_every_number_is_finite():
    apart = np.broadcast_to(np.arange(4.0)[:, None, None], (4, STEPS, 2))
    for finding in run(params=apart).diagnose():
        assert np.isfinite(finding.value)


# -- alarms ----------------------------------------------------------------------------------------


def test_what_is_told_of_any_run_is_no_alarm():
    assert alarms(posterior(members(0.0), log_joint=rising(3), ended="interrupt")) == ()


def test_alarms_cost_little():
    rng = np.random.default_rng(0)
    large = run(params=rng.normal(size=(4, STEPS, 2000)).astype(np.float32))

    def seconds():
        begin = time.process_time()
        assert alarms(large) == ()
        return time.process_time() - begin

    assert min(seconds() for _ in range(5)) < 0.01


class WalkState(NamedTuple):
    position: Flat
    log_density: jax.Array
    network: tuple


class WalkInfo(NamedTuple):
    log_joint: jax.Array
    acceptance_rate: jax.Array


@dataclass(frozen=True)
class Walk(Chains):
    """A minimal random-walk Metropolis sampler."""

    scale: float = 1.0

    needs = frozenset()

    def init(self, key, model, data):
        position = Flat.of(model.init(key))
        return WalkState(position, model.log_joint(position.tree), ())

    def step(self, key, state, model, batch, step):
        move_key, accept_key = jax.random.split(key)
        noise = jax.random.normal(move_key, state.position.vector.shape)
        there = replace(state.position, vector=state.position.vector + self.scale * noise)
        value = model.log_joint(there.tree)
        rate = jnp.minimum(1, jnp.exp(value - state.log_density))
        ahead = WalkState(there, value, ())
        accepted = jax.random.uniform(accept_key) < rate
        state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), ahead, state)
        return state, WalkInfo(state.log_density, rate)


NORMAL = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -0.5 * jnp.sum(w**2))


def test_a_run_that_goes_well_says_nothing():
    found = cx.fit(NORMAL, None, Walk(num_draws=6000, scale=1.7), progress=False)
    assert found.diagnose() == ()
    figures = found.convergence().parameters["parameters"]
    assert np.all(np.abs(figures.mean) < 4 * figures.mcse_mean)
    assert np.all(np.abs(figures.sd - 1) < 4 * figures.mcse_sd)


def test_fit_warns_of_an_alarm():
    with pytest.warns(
        cx.PosteriorWarning, match=r"No chain moved in 999 steps\. Use a smaller step size"
    ):
        stuck = cx.fit(NORMAL, None, Walk(scale=1e6), progress=False)
    assert [finding.what for finding in stuck.diagnose()] == ["No chain moved in 999 steps."]


def test_fit_does_not_warn_of_what_a_diagnosis_may_say():
    slow = cx.fit(NORMAL, None, Walk(scale=0.02, num_draws=300), progress=False)
    assert "R-hat of the" in str(slow.diagnose())
