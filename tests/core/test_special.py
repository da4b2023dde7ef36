"""Special functions against scipy, in both precisions, also where those of JAX lose digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit as sigmoid

from credax.core import special

TIMES = np.concatenate([-np.logspace(4, -8, 60), [0.0], np.logspace(-8, 4, 60)])
RATES = [1e-6, 0.3, 3.0, 20.0, 40.0, 200.0, 1e3, 2e3, 1e5, 1e6]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_softplus_and_its_derivatives(dtype, x64):
    x = jnp.concatenate([jnp.linspace(-40, 40, 1_601, dtype=dtype), jnp.zeros(1, dtype)])
    exact = np.asarray(x, np.float64)
    digits = {"rtol": 8 * float(jnp.finfo(dtype).eps)}
    np.testing.assert_allclose(special.softplus(x), np.logaddexp(0, exact), **digits)
    slope = jax.vmap(jax.grad(special.softplus))
    np.testing.assert_allclose(slope(x), sigmoid(exact), **digits)
    bend = jax.vmap(jax.grad(jax.grad(special.softplus)))
    np.testing.assert_allclose(bend(x), sigmoid(exact) * sigmoid(-exact), rtol=1e3 * digits["rtol"])
    far = jnp.asarray([-1e4, -200, -95, 95, 200, 1e4], dtype)
    np.testing.assert_allclose(slope(far), sigmoid(np.asarray(far, np.float64)), atol=1e-18)
    np.testing.assert_allclose(bend(far), 0, atol=1e-18)


@pytest.mark.parametrize("x64, atol, rtol", [(True, 2e-12, 1e-10), (False, 1e-6, 1e-4)])
@pytest.mark.parametrize("df", [2.1, 4.0, 10.0, 30.0, 31.0, 100.0, 1e4, 1e6])
def test_student_t_cdf(df, x64, atol, rtol):
    with jax.enable_x64(x64):
        t = jnp.asarray(TIMES)
        expected = stats.t.cdf(np.asarray(t, float), df)
        cdf = np.asarray(special.student_t_cdf(t, df), float)
        np.testing.assert_allclose(cdf, expected, rtol=0, atol=atol)
        tail = (expected > 1e-6) & (expected < 0.5)
        np.testing.assert_allclose(cdf[tail], expected[tail], rtol=max(rtol, 1e-7 * (df > 30)))


@pytest.mark.parametrize("df", [4.0, 50.0])
def test_student_t_cdf_ends(df):
    ends = jnp.asarray([-jnp.inf, -1e30, 0.0, 1e30, jnp.inf])
    np.testing.assert_allclose(special.student_t_cdf(ends, df), [0, 0, 0.5, 1, 1], atol=1e-30)


def poisson_table(levels):
    """For each rate, the quantiles of the Poisson distribution at these levels; also the rates."""
    rates = np.asarray(RATES)[:, None]
    return stats.poisson.ppf(levels, rates), rates


@pytest.mark.parametrize("x64, rtol", [(True, 1e-10), (False, 1e-5)])
def test_poisson_log_prob(x64, rtol):
    counts, rates = poisson_table([1e-9, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-9])
    with jax.enable_x64(x64):
        y, log_rate = jnp.asarray(counts), jnp.asarray(np.log(rates))
        got = np.asarray(special.poisson_log_prob(y, log_rate), float)
    # Use the counts and the rates after rounding to the dtype.
    y, log_rate, eps = np.asarray(y, float), np.asarray(log_rate, float), np.finfo(y.dtype).eps
    expected = stats.poisson.logpmf(y, np.exp(log_rate))
    # The effect of a rounding error of log(y) is proportional to y - rate. The terms of scipy do not cancel
    # exactly.
    rounding = (np.abs(y - rates) + 1) * eps * (1 + np.abs(log_rate))
    scipy_rounding = np.finfo(float).eps * y * np.abs(log_rate)
    assert np.all(np.abs(got - expected) <= rtol * np.abs(expected) + rounding + scipy_rounding)


@pytest.mark.parametrize("x64, atol", [(True, 5e-11), (False, 3e-6)])
def test_poisson_cdf(x64, atol):
    counts, rates = poisson_table([1e-6, 1e-3, 0.1, 0.4, 0.5, 0.8, 0.99, 1 - 1e-6])
    with jax.enable_x64(x64):
        t = jnp.asarray(np.concatenate([counts, counts - 0.5, 10 * rates, 0.1 * rates], axis=1))
        rate = jnp.asarray(rates)
        cdf = special.poisson_cdf(t, rate)
    expected = stats.poisson.cdf(np.asarray(t, float), np.asarray(rate, float))
    np.testing.assert_allclose(cdf, expected, rtol=0, atol=atol)


def test_poisson_cdf_ends():
    t = jnp.asarray([-jnp.inf, -1e-3, jnp.inf, 1e6, 3.0, 1e6, 0.0])
    rate = jnp.asarray([1.0, 1.0, 1.0, 0.0, jnp.inf, jnp.inf, 0.0])
    np.testing.assert_array_equal(special.poisson_cdf(t, rate), [0, 0, 1, 1, 0, 0, 1])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_poisson_sample(impl):
    n, rates = 40_000, np.array([0.4, 15.0, 999.0, 1001.0, 1e5])
    key = jax.random.key(0, impl=impl)
    draws = special.poisson_sample(key, jnp.broadcast_to(jnp.asarray(rates, jnp.float32), (n, 5)))
    draws = np.asarray(draws, float)
    assert np.all(draws == np.floor(draws))
    assert draws.min() >= 0
    assert np.all(np.abs(draws.mean(0) - rates) < 4 * np.sqrt(rates / n))
    # The fourth central moment of a Poisson variable is rate + 3 rate^2.
    assert np.all(np.abs(draws.var(0) - rates) < 4 * np.sqrt((rates + 2 * rates**2) / n))
    for level in (0.05, 0.3, 0.5, 0.7, 0.95):
        t = stats.poisson.ppf(level, rates)
        expected = stats.poisson.cdf(t, rates)
        error = np.abs(np.mean(draws <= t, axis=0) - expected)
        assert np.all(error < 4 * np.sqrt(expected * (1 - expected) / n))


def test_poisson_sample_of_any_rate():
    rate = jnp.asarray([0.0, 1e12, 1e30, jnp.inf], jnp.float32)
    draws = special.poisson_sample(jax.random.key(0), rate)
    np.testing.assert_allclose(draws, rate, rtol=1e-5)
