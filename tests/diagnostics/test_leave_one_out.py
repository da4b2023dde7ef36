"""Leave-one-out densities from draws, also of rows about which all draws agree."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.special import logsumexp

from credax.diagnostics.leave_one_out import leave_one_out

EACH = np.random.default_rng(0).normal(size=(256, 40)) * np.linspace(0.1, 2, 40)
EQUAL = np.full(256, -np.log(256))


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_one_of_arviz(weighted):
    weights = EQUAL if not weighted else np.random.default_rng(1).normal(size=256)
    weights = weights - logsumexp(weights)
    values, pareto_k = leave_one_out(EACH, weights)
    ratios, want = array_stats.psislw(EACH.T - weights, axis=-1)
    np.testing.assert_allclose(values, logsumexp(ratios + EACH.T, axis=1), rtol=1e-10)
    np.testing.assert_allclose(pareto_k, want)


def test_rows_of_which_all_draws_say_the_same():
    """The largest importance weights are equal, which ArviZ refuses; of an impossible row nothing is known."""
    each = EACH.copy()
    each[:, 0] = -0.3
    each[:, 1] = np.where(np.arange(256) < 100, np.log(0.5), 0.0)
    each[0, 2] = -np.inf
    values, pareto_k = leave_one_out(each, EQUAL)
    assert values[0] == pytest.approx(-0.3)
    # The mean of the inverse probabilities: 100 draws weigh twice as much as the others.
    assert values[1] == pytest.approx(np.log(256 / (100 / 0.5 + 156)))
    assert pareto_k[0] == pareto_k[1] == 0
    assert np.isnan(values[2])
    np.testing.assert_array_equal(values[3:], leave_one_out(EACH, EQUAL)[0][3:])


def test_few_draws_are_not_smoothed():
    values, pareto_k = leave_one_out(EACH[:10], np.full(10, -np.log(10)))
    assert np.all(np.isnan(pareto_k))
    np.testing.assert_allclose(values, np.log(10) - logsumexp(-EACH[:10], axis=0))
