"""The warm-up of MCLMC: the step size, the mass matrix and the length that it finds."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_targets import check, gaussian, ill_conditioned, isotropic
from mclmc_runs import after_warmup, energy_variance, fit, fitted

from credax.core import random
from credax.inference.montecarlo.mclmc import MCLMC
from credax.inference.montecarlo.mclmc_tuning import (
    Blocks,
    Search,
    add_to_blocks,
    autocorrelation_time,
    block_lengths,
    rescale,
    schedule,
)

slow = pytest.mark.slow
both = pytest.mark.parametrize("adjusted", [False, True])


@slow
def test_the_energy_variance_is_the_desired():
    for target in ("ill_conditioned", "correlated", "logistic_regression"):
        ratio = energy_variance(fitted("unadjusted", target)) / 2e-5
        assert np.all((ratio > 0.25) & (ratio < 4)), target
        assert 0.5 < ratio.mean() < 2, target
        assert not np.any(after_warmup(fitted("unadjusted", target), "diverging"))


@pytest.mark.slow
def test_the_acceptance_rate_is_the_target():
    posterior = fitted("adjusted", "correlated")
    rates = after_warmup(posterior, "acceptance_rate").mean(1)
    np.testing.assert_allclose(rates, 0.9, atol=0.06)
    steps = after_warmup(posterior, "num_leapfrog")
    assert len(np.unique(steps)) > 1


NUM_WARMUP = {False: 10_000, True: 2_000}  # in single steps, or in trajectories


@cache
def long_run(adjusted, mass="diagonal"):
    """The state of a chain at the end of the warm-up, and 50 steps later."""
    target = ill_conditioned(6)
    method = MCLMC(num_warmup=NUM_WARMUP[adjusted], adjusted=adjusted, mass=mass)

    @jax.jit
    def run(key):
        def one(state, step):
            step_key = jax.random.fold_in(key, step)
            return method.step(step_key, state, target.model, None, step)[0], None

        init_key, key = jax.random.split(key)
        state = method.init(init_key, target.model, None)
        steps = jnp.arange(method.num_warmup + 50, dtype=jnp.int32)
        tuned, _ = jax.lax.scan(one, state, steps[: method.num_warmup])
        after, _ = jax.lax.scan(one, tuned, steps[method.num_warmup :])
        return tuned, after

    return run(random.key(1))


@pytest.mark.slow
@pytest.mark.parametrize("adjusted", [False, pytest.param(True, marks=slow)])
def test_what_was_tuned_stays_as_it_is(adjusted):
    tuned, after = long_run(adjusted)
    assert not np.array_equal(tuned.position.vector, after.position.vector)
    jax.tree.map(np.testing.assert_array_equal, tuned.tuning, after.tuning)


@both
def test_the_mass_is_the_variance(adjusted):
    scales = np.sqrt(long_run(adjusted)[0].tuning.tree.inverse_mass)
    np.testing.assert_allclose(scales, ill_conditioned(6).sd, rtol=0.5)


@both
def test_the_length_is_that_of_the_posterior(adjusted):
    length = long_run(adjusted)[0].tuning.tree.length / math.sqrt(6)
    assert 0.3 < length < 3


@slow
def test_with_a_unit_mass_the_length_is_in_units_of_the_weights():
    target = gaussian(np.zeros(20), 0.01**2 * np.eye(20))
    posterior = fit(target, MCLMC(mass="unit", num_warmup=3_000, num_draws=2_000))
    check(posterior, target)
    step_size = posterior.info["step_size"][:, -1] / (0.01 * math.sqrt(20))
    assert np.all((step_size > 0.5) & (step_size < 1))


@pytest.mark.slow
def test_given_numbers_hold_after_warmup():
    target = isotropic(10)
    method = MCLMC(num_warmup=300, num_draws=20, step_size=1.25, length=2.0, chains=2)
    steps = fit(target, method).info["step_size"]
    assert np.all(steps[:, 300:] == np.float32(1.25))
    assert len(np.unique(steps[:, :300])) > 100


def test_a_step_size_is_found_where_the_variance_goes_with_its_sixth_power():
    generator = np.random.default_rng(0)
    step_size, search = jnp.float32(100.0), Search(jnp.float32(0.0), jnp.float32(0.0))
    once = jax.jit(lambda size, search, noise: rescale(noise * (size / 3) ** 6, search))
    for noise in generator.chisquare(1, size=1_000).astype(np.float32):
        factor, search = once(step_size, search, noise)
        step_size = step_size * factor
    assert step_size == pytest.approx(3.0, rel=0.05)


def test_autocorrelation_times_of_known_series():
    steps, lengths = 4_000, block_lengths(4_000)
    generator = np.random.default_rng(0)
    for coefficient in (0.0, 0.8, 0.97):
        values = np.zeros((steps, 64), np.float32)
        for step in range(1, steps):
            values[step] = coefficient * values[step - 1] + generator.normal(size=64)
        zeros = jnp.zeros((len(lengths), 64))

        def one(blocks, item):
            number, value = item
            return add_to_blocks(blocks, value, number, lengths, jnp.array(True)), None

        with jax.numpy_dtype_promotion("standard"):
            items = jnp.arange(1, steps + 1), jnp.asarray(values)
            blocks, _ = jax.lax.scan(one, Blocks(zeros, zeros, zeros), items)
            time = autocorrelation_time(blocks, steps, lengths)
        assert time == pytest.approx((1 + coefficient) / (1 - coefficient), rel=0.25)


def test_stages_of_warmup_follow_each_other():
    for num_warmup in (*range(0, 400, 7), 1_000, 10_000, 123_456):
        begin, ends, length = schedule(num_warmup)
        stages = [0, begin, *ends, length, num_warmup]
        if ends:
            assert stages == sorted(set(stages))
            assert min(np.diff(stages)) >= 5
        else:
            assert num_warmup < 100


@pytest.mark.slow
@pytest.mark.parametrize("num_warmup", [1, 99, 100])
def test_short_warmups(num_warmup):
    posterior = fit(isotropic(), MCLMC(num_warmup=num_warmup, num_draws=3, chains=2))
    assert np.all(np.isfinite(posterior.draws))
