"""The mixture density against SciPy, quadrature and its own draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from credax.model.likelihoods import MixtureDensity

OUTPUTS = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)


def parts(likelihood, outputs):
    return [np.asarray(a, np.float64)[:, 0] for a in likelihood.parts(jnp.asarray(outputs))]


def density(likelihood, row, y):
    """The density of one row by SciPy, from the weights, locations and scales."""
    weight, location, scale = (a[row] for a in parts(likelihood, OUTPUTS))
    kinds = [stats.norm, stats.norm, stats.t(4)]
    return sum(
        w * kind.pdf((y - m) / s) / s
        for w, m, s, kind in zip(weight, location, scale, kinds, strict=True)
    )


@pytest.mark.parametrize("y", [-3.0, 0.1, 2.5, 40.0])
def test_density(y):
    likelihood = MixtureDensity()
    found = likelihood.log_prob(jnp.asarray(OUTPUTS), jnp.full(4, y))
    wanted = [np.log(density(likelihood, row, y)) for row in range(4)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.slow
def test_moments_and_distribution_function_by_quadrature():
    likelihood = MixtureDensity()
    mean, variance = likelihood.mean(OUTPUTS), likelihood.variance(OUTPUTS)
    below = likelihood.cdf(OUTPUTS, jnp.full(4, 0.7))
    for row in range(4):
        of = lambda power, row=row: integrate.quad(  # noqa: E731
            lambda y: y**power * density(likelihood, row, y), -np.inf, np.inf, limit=500
        )[0]
        assert of(0) == pytest.approx(1, abs=1e-6)
        assert mean[row, 0] == pytest.approx(of(1), abs=1e-4)
        assert variance[row, 0] == pytest.approx(of(2) - of(1) ** 2, rel=1e-3)
        part = integrate.quad(lambda y, row=row: density(likelihood, row, y), -np.inf, 0.7)[0]
        assert below[row, 0] == pytest.approx(part, abs=1e-5)


@pytest.mark.parametrize("rounding", [None, 0.5])
def test_a_stretched_density(rounding):
    plain = MixtureDensity(rounding=None if rounding is None else rounding / 2)
    twice = MixtureDensity(rounding=rounding, stretch=2.0)
    mean = plain.mean(OUTPUTS)[:, 0]
    for away in (-3.0, 0.5, 20.0):
        found = twice.log_prob(OUTPUTS, mean + 2 * away)
        np.testing.assert_allclose(
            found, plain.log_prob(OUTPUTS, mean + away) - np.log(2), rtol=1e-4, atol=1e-5
        )
    np.testing.assert_allclose(twice.mean(OUTPUTS), plain.mean(OUTPUTS), rtol=1e-5)
    np.testing.assert_allclose(twice.variance(OUTPUTS), 4 * plain.variance(OUTPUTS), rtol=1e-5)


def test_rounded_targets_have_the_probability_of_their_interval():
    rounded, plain = MixtureDensity(rounding=0.5), MixtureDensity()
    for y in (-4.0, 0.25, 30.0):
        found = rounded.log_prob(jnp.asarray(OUTPUTS), jnp.full(4, y))
        for row in range(4):
            inside = integrate.quad(
                lambda t, row=row: density(plain, row, t), y - 0.25, y + 0.25, epsabs=1e-14
            )[0]
            assert found[row] == pytest.approx(np.log(inside / 0.5), abs=2e-3)


def test_a_narrow_peak_gains_nothing_on_rounded_targets():
    narrow = np.zeros((1, 9), np.float32)
    narrow[0, 6:] = -30.0  # scales at their minimum
    narrow[0, 3:6] = [0.5, 0.0, -0.5]  # all components at zero
    outputs, y = jnp.asarray(narrow), jnp.zeros(1)
    assert MixtureDensity(min_scale=1e-4).log_prob(outputs, y)[0] > 5
    found = MixtureDensity(min_scale=1e-4, rounding=1.0).log_prob(outputs, y)[0]
    assert found == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("rounding", [None, 0.1])
def test_no_target_costs_a_hundred_nats(rounding):
    outputs = np.zeros((1, 9), np.float32)
    outputs[0, 6:], outputs[0, 2] = -30.0, -50.0  # the narrowest scales, and no weight for the tail
    likelihood = MixtureDensity(min_scale=1e-3, rounding=rounding)
    log_prob, slope = jax.value_and_grad(lambda o: likelihood.log_prob(o, jnp.full(1, 1_000.0))[0])(
        jnp.asarray(outputs)
    )
    assert -100 < log_prob < 0
    assert np.all(np.isfinite(slope))


def test_draws_have_the_distribution():
    likelihood = MixtureDensity()
    outputs = jnp.asarray(np.repeat(OUTPUTS[:1], 20_000, 0))
    drawn = np.asarray(likelihood.sample(jax.random.key(0), outputs))[:, 0]
    for t in (-1.0, 0.0, 1.0):
        wanted = float(likelihood.cdf(OUTPUTS[:1], jnp.full(1, t))[0, 0])
        error = np.sqrt(wanted * (1 - wanted) / len(drawn))
        assert abs(np.mean(drawn <= t) - wanted) < 4 * error


def test_several_targets_are_independent():
    likelihood = MixtureDensity(components=3)
    both = jnp.concatenate([OUTPUTS[:2], OUTPUTS[2:]], axis=1)
    y = jnp.asarray([[0.1, -0.4], [1.0, 2.0]], jnp.float32)
    assert likelihood.num_outputs(np.zeros((2, 2))) == 18
    alone = likelihood.log_prob(OUTPUTS[:2], y[:, 0]) + likelihood.log_prob(OUTPUTS[2:], y[:, 1])
    np.testing.assert_allclose(likelihood.log_prob(both, y), alone, rtol=1e-5)


@pytest.mark.parametrize("bad", [{"components": 0}, {"min_scale": 0.0}, {"rounding": -1.0}])
def test_bad_settings_are_named(bad):
    with pytest.raises(ValueError, match=rf"MixtureDensity\({next(iter(bad))}=...\)"):
        MixtureDensity(**bad)
