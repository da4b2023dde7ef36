import numpy as np
import pandas as pd
import polars as pl
import pytest

import credax as cx
from credax.tables.encoding import median
from credax.tables.inputs import Encoded, Filled

QUICK = cx.MAP(num_steps=50)


def rows(count=40, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(2.0, 3.0, (count, 3))
    return x, x[:, 0] - x[:, 1] + 0.1 * generator.normal(size=count)


def frame(count=40):
    x, _ = rows(count)
    return pd.DataFrame(
        {
            "size": x[:, 0],
            "heating": np.resize(["gas", "oil", None, "gas"], count),
            "sold": pd.date_range("2023-01-01", periods=count),
            "rooms": pd.array(np.resize([1, 2, None], count), dtype="Int64"),
        }
    )


def test_missing_numbers_are_the_median_and_are_marked():
    """A fit to NaN is the fit to the numbers that a person would put there."""
    x, y = rows()
    x[::4, 1] = np.nan
    x[1::7, 2] = np.nan
    absent = np.isnan(x)
    by_hand = np.where(absent, np.nanmedian(x, axis=0), x)
    by_hand = np.c_[by_hand, absent[:, 1:]]
    regressor = cx.BayesianRegressor(QUICK).fit(x, y)
    expected = cx.BayesianRegressor(QUICK).fit(by_hand, y)
    np.testing.assert_array_equal(regressor.predict(x), expected.predict(by_hand))
    np.testing.assert_array_equal(regressor.inputs_.encode(x), by_hand)
    assert regressor.inputs_.features == ("x0", "x1", "x2", "x1 is missing", "x2 is missing")
    assert regressor.n_features_in_ == 3


def test_rows_without_missing_values_are_as_they_were():
    x, y = rows()
    assert cx.BayesianRegressor(QUICK).fit(x, y).inputs_.encode(x) is x


def test_new_missing_values_get_the_median_of_the_fit():
    x, y = rows()
    regressor = cx.BayesianRegressor(QUICK).fit(x, y)
    new = rows(seed=1)[0]
    new[3, 0] = np.nan
    with pytest.warns(cx.DataWarning, match="'x0' had no missing values in the fit; 1 value was"):
        found = regressor.predict(new)
    new[3, 0] = np.median(x[:, 0])
    np.testing.assert_array_equal(found, regressor.predict(new))


def test_a_column_without_values_is_left_out():
    x, y = rows()
    x[:, 1] = np.nan
    with pytest.warns(cx.DataWarning, match="x1: left out, since it has no values at all"):
        regressor = cx.BayesianRegressor(QUICK).fit(x, y)
    x[:, 1] = 7.0  # which the fit knows nothing about
    np.testing.assert_array_equal(regressor.inputs_.encode(x), x[:, [0, 2]])
    with pytest.raises(ValueError, match="X must have a column that can be used"):
        cx.BayesianRegressor(QUICK).fit(np.full((5, 2), np.nan), np.arange(5.0))


def test_missing_targets_and_infinities_are_refused():
    x, y = rows()
    with pytest.raises(ValueError, match="y contains NaN"):
        cx.BayesianRegressor(QUICK).fit(x, np.where(y > 0, np.nan, y))
    with pytest.raises(ValueError, match="y contains NaN"):
        cx.BayesianRegressor(QUICK).fit(frame(), np.where(y > 0, np.nan, y))
    x[2, 1] = np.inf
    with pytest.raises(ValueError, match="X contains infinity"):
        cx.BayesianRegressor(QUICK).fit(x, y)
    table = frame()
    table.loc[2, "size"] = -np.inf
    with pytest.raises(
        ValueError, match="column 'size' must hold finite or missing numbers; got -inf"
    ):
        cx.BayesianRegressor(QUICK).fit(table, y)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_data_frame_of_categories_and_dates(kind):
    table, (_, y) = frame(), rows()
    given = table if kind == "pandas" else pl.from_pandas(table)
    regressor = cx.BayesianRegressor(QUICK).fit(given, y)
    assert list(regressor.feature_names_in_) == list(table.columns)
    assert regressor.n_features_in_ == 4
    assert regressor.inputs_.features == (
        *("size", "heating = gas", "heating = oil", "heating is missing"),
        *("sold", "sold (season, sin)", "sold (season, cos)", "rooms", "rooms is missing"),
    )
    found = regressor.inputs_.encode(table)
    np.testing.assert_array_equal(found[:, 0], table["size"], "numbers keep their units")
    np.testing.assert_array_equal(found[:3, 1:4], [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(found[:3, 4], [19358, 19359, 19360])
    np.testing.assert_array_equal(found[:3, 7:], [[1, 0], [2, 0], [1, 1]])  # the median is 1
    assert regressor.predict(given).shape == (40,)
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        regressor.predict(table[["heating", "size", "sold", "rooms"]])


def test_missing_values_and_categories_that_matter_are_learned():
    """The target is known from the category, and from whether a number is missing, alone."""
    generator = np.random.default_rng(0)
    number, group = generator.normal(size=120), generator.choice(["a", "b", "c"], 120)
    absent = generator.uniform(size=120) < 0.3
    table = pd.DataFrame({"number": np.where(absent, np.nan, number), "group": group})
    y = 4.0 * absent + pd.Series(group).map({"a": 0.0, "b": 1.0, "c": -2.0}).to_numpy()
    regressor = cx.BayesianRegressor(cx.MAP(num_steps=800), hidden=(16,)).fit(table[:80], y[:80])
    assert np.max(np.abs(regressor.predict(table[80:]) - y[80:])) < 0.5
    classifier = cx.BayesianClassifier(cx.MAP(num_steps=300), hidden=(16,))
    assert classifier.fit(table[:80], absent[:80]).score(table[80:], absent[80:]) == 1


def test_categories_that_the_fit_has_not_seen_are_named():
    table, (_, y) = frame(), rows()
    regressor = cx.BayesianRegressor(QUICK).fit(table, y)
    new = table.assign(heating=np.where(table["heating"] == "oil", "wood", table["heating"]))
    with pytest.warns(cx.DataWarning, match="has not seen 'wood' in column 'heating'"):
        regressor.predict(new)


def test_columns_that_cannot_help_are_named():
    table, (_, y) = frame(), rows()
    table["comment"] = [f"this is what I thought of house {i}" for i in range(40)]
    with pytest.warns(cx.DataWarning, match="comment: left out, since it is free text"):
        regressor = cx.BayesianRegressor(QUICK).fit(table, y)
    assert not any("comment" in name for name in regressor.inputs_.features)


def test_names_of_columns_must_tell_them_apart():
    table = pd.DataFrame([["a", 1.0]] * 5, columns=["x", "x"])
    with pytest.raises(ValueError, match="columns with different names of text"):
        cx.BayesianRegressor(QUICK).fit(table, np.arange(5.0))


def test_a_weight_of_two_is_a_row_that_is_there_twice():
    generator = np.random.default_rng(3)
    weights = generator.integers(1, 4, 40)
    x = rows()[0]
    x[::3, 1] = np.nan
    twice = np.repeat(x, weights, axis=0)
    weighed = Filled.learn(x, "abc", weights.astype(float))
    assert weighed == Filled.learn(twice, "abc", None)
    np.testing.assert_allclose(weighed.fill, np.nanmedian(twice, axis=0))
    table, weights = frame(80), np.tile(weights, 2)
    table["heating"] = [f"kind {i % 31}" for i in range(80)]  # one kind more than are told apart
    repeated = table.loc[np.repeat(np.arange(80), weights)].reset_index(drop=True)
    assert Encoded.learn(table, weights.astype(float)) == Encoded.learn(repeated, None)


@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_the_weighted_median(count):
    generator = np.random.default_rng(count)
    values, weights = generator.normal(size=count), generator.integers(1, 5, count)
    expected = np.median(np.repeat(values, weights))
    assert median(values, weights.astype(float)) == pytest.approx(expected)
    assert median(values, 0.25 * weights) == pytest.approx(expected)
