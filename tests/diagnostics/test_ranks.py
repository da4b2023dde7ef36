"""Tests for uniform ranks against enumeration and simulation; bias and spread against known ones."""

import itertools

import numpy as np
import pytest
from scipy import stats

from credax.diagnostics import Ranks
from credax.diagnostics.ranks import LEVEL, NARROWEST, deviation, ecdf_band, ecdf_p_value


def of(ranks, num_draws):
    return Ranks(("q",), np.asarray(ranks)[:, None], num_draws, np.zeros(1))


def simulated(rng, count, num_draws, bias=0.0, spread=1.0):
    """Ranks of standard normal truths among normal draws."""
    truth = rng.normal(size=(count, 1))
    return (bias + spread * rng.normal(size=(count, num_draws)) < truth).sum(1)


def test_the_p_value_of_the_distribution_function_is_exact():
    """Four ranks from 0 to 3 have 256 equally likely outcomes."""
    outcomes = np.array(list(itertools.product(range(4), repeat=4)))
    p = np.array([ecdf_p_value(ranks, 3) for ranks in outcomes])

    def least_tail(ranks):
        tails = []
        for k in (1, 2, 3):
            count, binomial = (ranks < k).sum(), stats.binom(4, k / 4)
            tails.append(min(1, 2 * min(binomial.cdf(count), binomial.sf(count - 1))))
        return min(tails)

    least = np.array([least_tail(ranks) for ranks in outcomes])
    by_enumeration = (least[None] <= least[:, None] + 1e-12).mean(1)
    np.testing.assert_allclose(p, by_enumeration, rtol=1e-9)


@pytest.mark.parametrize("num_draws", [1, 9, 99])
def test_a_band_holds_uniform_ranks_as_often_as_it_says(num_draws):
    rng = np.random.default_rng(0)
    points, lower, upper = ecdf_band(100, num_draws, 0.9)
    assert len(points) == min(num_draws, 50)
    ranks = rng.integers(0, num_draws + 1, size=(20_000, 100))
    inside = np.ones(20_000, bool)
    for z, low, high in zip(points, lower, upper, strict=True):
        share = (ranks < round(z * (num_draws + 1))).mean(1)
        inside &= (share >= low - 1e-9) & (share <= high + 1e-9)
    # The numbers of ranks are whole, so the band may hold more, but never less than it says.
    error = np.sqrt(0.9 * 0.1 / 20_000)
    assert inside.mean() > 0.9 - 4 * error
    assert inside.mean() < (0.97 if num_draws == 1 else 0.92)


def test_the_band_and_the_p_value_agree():
    rng = np.random.default_rng(0)
    for spread in (1.0, 0.6, 1.6):
        found = of(simulated(rng, 300, 39, spread=spread), 39)
        _, lower, upper = found.ecdf_band(1 - LEVEL)
        points, shares = found.ecdf()
        inside = (shares[:, 0] >= lower - 1e-9) & (shares[:, 0] <= upper + 1e-9)
        assert inside.all() == (found.ecdf_p_value > LEVEL)
        assert inside.all() == (spread == 1.0)
        assert points[0] == pytest.approx(1 / 40)


def test_ranks_that_drift_slowly_are_found_by_the_distribution_function():
    ranks = np.floor(20 * np.random.default_rng(4).uniform(size=400) ** 1.4).astype(int)
    found = of(ranks, 19)
    assert found.p_value > LEVEL
    assert found.ecdf_p_value < 1e-3


@pytest.mark.parametrize("num_draws", [4, 39])
@pytest.mark.parametrize("bias, spread", [(0.0, 1.0), (0.5, 1.0), (0.0, 0.5), (-0.3, 1.5)])
def test_bias_and_spread_are_recovered(num_draws, bias, spread):
    ranks = simulated(np.random.default_rng(2), 4_000, num_draws, bias, spread)
    found = deviation(ranks, num_draws)
    assert abs(found.bias - bias) < 4 * found.bias_error
    assert abs(found.spread - spread) < 4 * found.spread_error
    assert found.bias_error < 0.1
    assert found.spread_error < 0.12


@pytest.mark.slow
def test_the_standard_errors_are_those_of_repeated_samples():
    rng = np.random.default_rng(3)
    found = [deviation(simulated(rng, 300, 19, 0.2, 0.8), 19) for _ in range(60)]
    bias, bias_error, spread, spread_error = np.array(found).T
    # The standard deviation of 60 numbers is known to about 9 %.
    assert bias.std() == pytest.approx(bias_error.mean(), rel=0.36)
    assert spread.std() == pytest.approx(spread_error.mean(), rel=0.36)


def test_points_have_no_spread():
    """All draws are equal, so a rank is 0 or the highest; with one draw, nothing can be said."""
    rng = np.random.default_rng(5)
    ranks = np.where(rng.normal(size=200) > 0.3, 19, 0)
    found = of(ranks, 19)
    assert found.deviations["q"].spread == NARROWEST
    assert found.deviations["q"].bias == pytest.approx(0.3, abs=0.3)
    assert np.isnan(of(ranks // 19, 1).deviations["q"].spread)
    assert found.ecdf_p_value < 1e-6
