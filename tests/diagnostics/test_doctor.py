"""The doctor reports each problem where it is present, and nowhere else."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import credax as cx
from credax.core.trees import Flat
from credax.diagnostics.doctor import Diagnosis, Finding, alarms, diagnose
from credax.inference.montecarlo.chain import Chains
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import MeanField

DENSITY = cx.LogDensity(lambda key: np.zeros(2), lambda params: 0.0)


def posterior(params=None, **info):
    """A posterior of one replica with one draw, unless ``params`` are given; nothing is wrong with it."""
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


def test_other_figures_may_rise():
    assert posterior(learning_rate=rising(), step_size=rising()).diagnose() == ()


def test_a_chain_is_meant_to_move():
    params = np.random.default_rng(1).normal(size=(1, 1000, 2))
    chain = posterior(params, log_joint=rising(), kept=np.arange(1000))
    assert "still rose" not in str(chain.diagnose())
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


def line(rows=40):
    x = np.linspace(-1, 1, rows)[:, None]
    return x, 2 * x[:, 0] + 0.1 * np.random.default_rng(0).normal(size=rows)


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
    assert "kl_annealing" in found.advice
    sound = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    assert "fallen back" not in str(cx.fit(sound, line(), method, progress=False).diagnose())


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


def test_a_network_that_explains_its_targets_is_not():
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    x, y = line()
    method = cx.BayesByBackprop(num_steps=800, learning_rate=0.05)
    fitted = cx.fit(model, (x, y), method, progress=False)
    # The gain of a line with slope 2 over its mean, in units of the noise; the noise of q costs little.
    assert fitted.info["gain"] == pytest.approx(0.5 * len(y) * np.var(y) / 0.1**2, rel=0.05)
    assert "constant" not in str(fitted.diagnose())


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


# -- predictions at given rows ---------------------------------------------------------------------


def predicting(likelihood, y, outputs):
    """A posterior whose members are tables of outputs, (member, row, output), and its rows."""
    outputs = np.asarray(outputs, np.float32)
    network = cx.networks.from_function(
        lambda key: {"table": jnp.zeros(outputs.shape[1:])},
        lambda params, x: params["table"][x[:, 0]],
    )
    rows = np.arange(len(y))[:, None]
    model = cx.Model(network, likelihood=likelihood).bind((rows, y))
    return cx.Posterior(model, Draws({"table": outputs[:, None]})), rows


def test_members_that_predict_alike_are_told():
    """The weights of the members differ only in the output at a row that is not among those given."""
    outputs = np.ones((3, 20, 1))
    outputs[:, -1] = np.arange(3)[:, None]
    found, x = predicting(cx.likelihoods.Gaussian(1.0), np.zeros(20), outputs)
    assert found.diagnose() == ()
    (told,) = found.diagnose(x[:10])
    assert told.what.startswith(
        "The 3 members make the same predictions: their disagreement is 0.0e+00"
    )
    assert told.value == 0
    assert found.diagnose(x) == ()  # the members differ at that row


@pytest.mark.parametrize("scale, inside", [(0.3, "Only"), (3.0, "")])
def test_intervals_that_hold_too_few_or_too_many_are_told(scale, inside):
    y = np.random.default_rng(1).normal(size=500)
    found, x = predicting(cx.likelihoods.Gaussian(scale), y, np.zeros((1, 500, 1)))
    assert found.diagnose(x) == ()
    (told,) = found.diagnose(x, y)
    share = np.mean(np.abs(y) <= 1.6449 * scale)
    assert told.value == pytest.approx(share)
    assert told.what.startswith(
        f"{inside}{' ' if inside else ''}{100 * share:.3g} % of the 500 targets"
    )
    assert told.what.endswith("too narrow." if scale < 1 else "too wide.")
    assert "posterior.calibrate" in told.advice


def test_intervals_that_hold_what_they_should_are_no_finding():
    y = np.random.default_rng(1).normal(size=500)
    found, x = predicting(cx.likelihoods.Gaussian(1.0), y, np.zeros((1, 500, 1)))
    assert found.diagnose(x, y) == ()
    few, x = predicting(cx.likelihoods.Gaussian(0.6), y[:10], np.zeros((1, 10, 1)))
    assert few.diagnose(x, y[:10]) == ()  # ten rows are too few


@pytest.mark.slow
def test_zeros_that_a_count_must_hold_are_no_finding():
    y = np.random.default_rng(2).poisson(0.05, 300).astype(float)
    found, x = predicting(cx.likelihoods.Poisson(), y, np.full((1, 300, 1), np.log(0.05)))
    assert np.mean(y <= 0) > 0.92
    assert found.diagnose(x, y) == ()


@pytest.mark.parametrize(
    "factor, word", [(5.0, "overconfident"), (0.1, "underconfident"), (1.0, None)]
)
def test_probabilities_that_are_not_frequencies_are_told(factor, word):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=2000)
    y = (rng.uniform(size=2000) < 1 / (1 + np.exp(-2 * logits))).astype(int)
    found, x = predicting(cx.likelihoods.Bernoulli(), y, 2 * factor * logits[None, :, None])
    told = found.diagnose(x, y)
    if word is None:
        assert told == ()
    else:
        assert f"The class probabilities are {word}" in told[0].what
        scores = found.evaluate(x, y)
        assert told[0].value == pytest.approx(scores.sharpness - scores.accuracy)


def test_targets_need_their_rows():
    with pytest.raises(ValueError, match=r"diagnose\(x=...\) must be given if y is given"):
        posterior().diagnose(y=np.zeros(3))


# -- chains ----------------------------------------------------------------------------------------

STEPS = 1000


def run(model=DENSITY, params=None, chains=4, warmup=200, **info):
    """Chains without problems after warm-up, unless the arguments say otherwise."""
    rng, steps = np.random.default_rng(3), warmup + STEPS
    figures = {
        "log_joint": rng.normal(size=(chains, steps)),
        "energy": rng.normal(size=(chains, steps)),
        "acceptance_rate": rng.uniform(0.6, 1.0, size=(chains, steps)),
        "diverging": np.zeros((chains, steps)),
        "step_size": np.ones((chains, steps)),
    }
    figures["log_joint"][:, :warmup] -= np.linspace(500, 0, warmup)
    figures["acceptance_rate"][:, :warmup] = 0
    figures["diverging"][:, :warmup] = 1
    params = rng.normal(size=(chains, STEPS, 2)) if params is None else params
    figures |= {"kept": warmup + np.arange(STEPS), "steps": steps, "ended": "complete", **info}
    return cx.Posterior(model, Draws(params), info=figures)


def changed(name, change, **settings):
    """A run in which one figure is changed after warm-up, by a function that modifies it in place."""
    healthy = run(**settings)
    history = np.array(healthy.info[name])
    change(history[:, -STEPS:])
    return run(**settings, **{name: history})


@pytest.mark.parametrize("chains", [1, 2, 4, 40])
def test_healthy_chains_have_no_finding(chains):
    assert run(chains=chains).diagnose() == ()
    assert alarms(run(chains=chains)) == ()


# Chains that do not move.


def stopped(*which, chains=4):
    params = np.array(run(chains=chains).draws)
    params[list(which)] = params[list(which), :1]
    return params


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
    assert alarms(run(params=once)) == ()


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
    assert not found.grave
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


def slow(correlation, chains=4, steps=STEPS):
    rng = np.random.default_rng(5)
    values = rng.normal(size=(chains, steps))
    for t in range(1, steps):
        values[:, t] = correlation * values[:, t - 1] + np.sqrt(1 - correlation**2) * values[:, t]
    return values


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


def network_run(shift=0.0):
    """Chains of a network in which the output bias of chain 1 is shifted."""
    x = np.linspace(-1, 1, 25)[:, None]
    model = cx.Model(cx.networks.mlp([2]), likelihood=cx.likelihoods.Gaussian(0.1)).bind(
        (x, x[:, 0])
    )
    rng = np.random.default_rng(6)
    shapes = {
        "layer_0": {"kernel": (1, 2), "bias": (2,)},
        "layer_1": {"kernel": (2, 1), "bias": (1,)},
    }
    params = {
        layer: {name: rng.normal(size=(4, STEPS, *shape)) for name, shape in leaves.items()}
        for layer, leaves in shapes.items()
    }
    params["layer_1"]["bias"][1] += shift
    return run(model, params), x


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


# -- weighted draws and temperatures ---------------------------------------------------------------


def weighted(**info):
    draws = Draws(np.random.default_rng(0).normal(size=(1, 500, 2)), (), np.zeros((1, 500)))
    return cx.Posterior(DENSITY, draws, info={"kept": np.arange(0), "ended": "complete", **info})


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
