"""Centres and scales: constant columns, gross outliers, and the exact inverse."""

import numpy as np
import pytest

from credax.core.scaling import REACH, Scaling, has_outliers, is_constant, outlier_text

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("value", [0.1, -0.3, 1e6 / 3, 7e-9, 0.0])
@pytest.mark.parametrize("rows", [5, 7, 100])
def test_a_constant_column_has_scale_one_and_becomes_zero(value, rows):
    column = np.full((rows, 1), value)
    assert is_constant(column).all()
    scaling = Scaling.learn(column)
    assert scaling.scale == (1.0,)
    np.testing.assert_array_equal(scaling.standard(column), 0)


def test_rounding_errors_do_not_make_a_column_vary_but_small_steps_do():
    columns = np.array([[0.1 + 0.2, 1e9], [0.3, 1e9 + 1e-5], [0.3, 1e9]])
    np.testing.assert_array_equal(is_constant(columns), [True, False])


def test_columns_have_mean_zero_and_unit_variance():
    values = GENERATOR.normal(1e6, [1e-3, 1.0, 1e4], (50, 3))
    z = Scaling.learn(values).inputs(values)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-6)


def test_an_outlier_leaves_the_scale_of_the_others_and_is_drawn_in():
    values = GENERATOR.normal(5, 2, (200, 1))
    spoilt = values.copy()
    spoilt[17] = 1e6
    assert has_outliers(spoilt).all()
    assert not has_outliers(values).any()
    scaling = Scaling.learn(spoilt)
    np.testing.assert_allclose(scaling.centre, 5, atol=0.5)
    np.testing.assert_allclose(scaling.scale, 2, rtol=0.2)
    far = scaling.inputs(np.array([[1e6], [1e7], [-1e6]]))[:, 0]
    assert REACH < far[0] < far[1] < 30
    assert -30 < far[2] < -REACH
    np.testing.assert_array_equal(scaling.inputs(values), scaling.standard(values))
    assert outlier_text(spoilt[:, 0]) == "gross outliers in 1 of 200 rows: 1e+06 in row 17"


def test_rare_categories_and_heavy_tails_are_no_outliers():
    rare = (np.arange(100) == 5).astype(float)[:, None]
    heavy = GENERATOR.standard_t(3, (2_000, 1))
    assert not has_outliers(rare).any()
    assert not has_outliers(heavy).any()


def test_levels_of_a_designed_experiment_are_no_outliers():
    """The first column of the yacht table: the standard deviation is 20 times what the quartiles suggest."""
    levels = np.repeat([-5.0, -2.4, -2.3, 0.0], [2, 8, 9, 3])[:, None]
    assert levels.std() > 10 * np.subtract(*np.percentile(levels, (75, 25))) / 1.349
    assert not has_outliers(levels).any()
    scaling = Scaling.learn(levels)
    np.testing.assert_allclose(scaling.inputs(levels).std(), 1, rtol=1e-6)
