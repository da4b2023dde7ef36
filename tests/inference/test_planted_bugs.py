"""The test of the tests: ten bugs, each planted in the real code, and each must fail the checks of answers.

The checks are those of ``test_answers.py`` (``answers/gate.py``), with the same settings. A bug is planted by
replacing one function for the time of a test, in the method where it is easiest to imagine.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from gate import (
    CHECKS,
    check_approximate,
    check_draws,
    check_exact,
    check_point,
    check_posterior,
    check_replicas,
    check_step_size,
    fit,
)
from problems import discrete, learned_scale, linear, logistic, network
from runs import instance, quick_problem

import credax as cx
from credax.fit import program
from credax.inference import METHODS
from credax.inference.montecarlo import hamiltonian, langevin, metropolis
from credax.inference.montecarlo.adaptation import Warmup
from credax.inference.variational import bayes_by_backprop
from credax.model.data import ArrayData
from credax.model.likelihoods import Likelihood

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")


@pytest.fixture
def plant(monkeypatch):
    """Replaces ``owner.name`` by ``bug(original)``, and forgets the programs compiled from either."""

    def replace(owner, name, bug):
        monkeypatch.setattr(owner, name, bug(getattr(owner, name)))

    jax.clear_caches()
    yield replace
    monkeypatch.undo()
    jax.clear_caches()


def assert_caught(method, problem, by):
    """The given check fails, and with it the checks as a whole."""
    posterior = fit(method, problem)
    with pytest.raises(AssertionError) as caught:
        by(posterior, problem)
    print(caught.value)  # which pytest shows with -s, or where the rest fails
    with pytest.raises(AssertionError):
        check_posterior(posterior, problem)


def test_prior_moved(plant):
    def bug(step):
        def moved(self, key, state, model, batch, number):
            prior = cx.priors.Normal(2 * model.prior.scale, model.prior.loc + 3)
            return step(self, key, state, dataclasses.replace(model, prior=prior), batch, number)

        return moved

    plant(cx.Metropolis, "step", bug)
    assert_caught(instance(cx.Metropolis), learned_scale(), check_exact)


def test_likelihood_not_scaled_to_all_rows(plant):
    def bug(batch):
        def unscaled(self, key, step, size):
            rows = batch(self, key, step, size)
            return dataclasses.replace(rows, scale=jnp.ones_like(rows.scale))

        return unscaled

    plant(ArrayData, "batch", bug)
    assert_caught(instance(cx.MAP), linear(), check_point)


def test_kl_counted_twice(plant):
    plant(bayes_by_backprop, "negative_kl", lambda kl: lambda *arguments: 2 * kl(*arguments))
    assert_caught(instance(cx.BayesByBackprop), linear(), check_approximate)


def test_temperature_forgotten(plant):
    def bug(force):
        def at_one(self, *arguments):
            found, info, state = force(self, *arguments)
            return found._replace(temperature=jnp.ones_like(found.temperature)), info, state

        return at_one

    plant(langevin.LangevinChains, "force", bug)
    assert_caught(instance(cx.SGLD, temperature=0.5), linear(), check_approximate)


def test_step_size_still_adapts_after_warmup(plant):
    plant(Warmup, "update", lambda _: Warmup._learn)
    assert_caught(instance(cx.HMC), logistic(), check_step_size)


def test_momentum_not_refreshed(plant):
    def bug(metric):
        def stale(*arguments):
            kinetic = metric(*arguments)
            same = lambda key, position: kinetic.sample_momentum(jax.random.key(0), position)  # noqa: E731
            return kinetic._replace(sample_momentum=same)

        return stale

    plant(hamiltonian, "metric", bug)
    assert_caught(instance(cx.HMC), network(), check_exact)


def test_acceptance_sign(plant):
    def bug(sweep):
        return lambda *arguments: sweep(*arguments, temperature=-1.0)

    plant(metropolis, "sweep", bug)
    # Discrete weights cannot run away: with continuous ones the run diverges, which nobody overlooks.
    assert_caught(instance(cx.Metropolis), discrete(), check_exact)


def test_jacobian_of_the_learned_scale_missing(plant):
    r"""The prior is that of log sigma. Read as one of sigma it needs the Jacobian, or loses a log sigma."""

    def bug(log_prior):
        return lambda self, params: log_prior(self, params) - jnp.sum(params["log_scale"])

    plant(Likelihood, "log_prior", bug)
    assert_caught(instance(cx.Metropolis), learned_scale(), check_exact)


def test_one_key_for_all_replicas(plant):
    def bug(begin):
        def same(*arguments):
            keys, states = begin(*arguments)
            return jnp.broadcast_to(keys[:1], keys.shape), states

        return same

    plant(program, "begin", bug)
    assert_caught(instance(cx.Metropolis), learned_scale(), check_replicas)


def test_draws_not_thinned(plant):
    def bug(_):
        return lambda method, step: jnp.maximum(step, method.num_warmup) + 1

    plant(program, "_next_kept", bug)
    assert_caught(instance(cx.Metropolis), learned_scale(), check_draws)


# -- the first bug in every method ---------------------------------------------------------------------------


def moved(prior):
    """Another prior of the same kind: further away and wider, or with the probabilities reversed."""
    if isinstance(prior, cx.priors.Discrete):
        return cx.priors.Discrete(prior.values, prior.probs[::-1])
    return cx.priors.Normal(2 * prior.scale, prior.loc + 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_another_prior_is_caught_in_every_method(name):
    problem, method = quick_problem(name), instance(METHODS[name])
    other = dataclasses.replace(problem.model, prior=moved(problem.model.prior))
    posterior = fit(method, dataclasses.replace(problem, model=other))
    if "log_likelihood" in posterior.info:
        pytest.skip("the method maximises the likelihood, whatever the prior")
    with pytest.raises(AssertionError):
        CHECKS[method.kind](posterior, problem)
