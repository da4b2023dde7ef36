import json

import numpy as np
import pandas as pd
import pytest

from credax.tables.preprocessing import Preprocessor, learn_column
from credax.tables.reading import TableError, read_table


def table(rows=40):
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": generator.normal(50.0, 10.0, rows),
            "rooms": generator.integers(1, 6, rows),
            "garden": generator.choice([True, False], rows),
            "heated": generator.choice(["yes", "no"], rows),
            "city": generator.choice(["Bonn", "Kiel", "Ulm"], rows),
            "sold": pd.date_range("2020-03-01", periods=rows, freq="17D").astype(str),
            "price": generator.normal(300.0, 50.0, rows),
        }
    )
    frame.loc[::7, "size"] = np.nan
    frame.loc[3, "city"] = None
    return frame


def column(values, name="c"):
    return learn_column(pd.Series(values, name=name))[0]


def test_each_kind_of_column_is_recognised():
    found = {c.name: c.kind for c in Preprocessor.learn(table(), "price").columns}
    assert found == {
        "size": "number",
        "rooms": "number",
        "garden": "boolean",
        "heated": "boolean",
        "city": "category",
        "sold": "date",
    }


def test_numbers_have_mean_zero_and_unit_variance():
    values = [3.0, 5.0, 10.0, 2.0]
    encoded = column(values).encode(pd.Series(values))[:, 0]
    np.testing.assert_allclose(encoded, (np.array(values) - 5.0) / np.std(values))


def test_missing_numbers_are_the_median_and_marked():
    values = pd.Series([1.0, np.nan, 2.0, 9.0], name="c")
    found = learn_column(values)
    encoded = found[0].encode(values)
    assert found[0].outputs == ("c", "c is missing")
    np.testing.assert_array_equal(encoded[:, 1], [0, 1, 0, 0])
    np.testing.assert_allclose(encoded[1, 0], encoded[2, 0])  # the median is 2
    assert "1 missing" in found[1]


def test_infinite_numbers_count_as_missing():
    values = pd.Series([1.0, np.inf, 2.0, 9.0], name="c")
    encoded = learn_column(values)[0].encode(values)
    assert np.isfinite(encoded).all()


def test_categories_have_a_number_each():
    values = pd.Series(["b", "a", "b", None], name="c")
    found = learn_column(values)[0]
    assert found.outputs == ("c = a", "c = b", "c is missing")
    np.testing.assert_array_equal(
        found.encode(values), [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    )
    # All indicators are 0 for a category that the fit has not seen.
    np.testing.assert_array_equal(found.encode(pd.Series(["z"])), [[0, 0, 0]])
    assert found.unseen(pd.Series(["z", "a"])) == ["z"]


def test_rare_categories_share_a_number():
    values = pd.Series([f"level {i}" for i in range(40) for _ in range(40 - i)], name="c")
    found, note = learn_column(values)
    assert len(found.outputs) == 31
    assert found.outputs[-1] == "c = (other)"
    encoded = found.encode(pd.Series(["level 39", "new", "level 0"]))
    np.testing.assert_array_equal(encoded[:, -1], [1, 1, 0])
    np.testing.assert_array_equal(encoded.sum(1), 1)
    assert "40 categories" in note


def test_dates_are_days_and_a_season():
    values = pd.Series(["2021-01-01", "2021-07-02", "2022-01-01"], name="d")
    found = learn_column(values)[0]
    days = found.encode(values)[:, 0]
    assert found.kind == "date"
    np.testing.assert_allclose((days[1] - days[0]) / (days[2] - days[0]), 182 / 365, rtol=1e-6)
    # Half a year later, the season is the opposite point of the circle; a year later, the same point.
    raw = found.encode(values)[:, 1:] * found.scale[1:] + found.centre[1:]
    np.testing.assert_allclose(raw[0], -raw[1], atol=0.02)
    np.testing.assert_allclose(raw[0], raw[2], atol=0.02)


def test_useless_columns_are_left_out_and_noted():
    frame = table().assign(same=3, name=[f"house {i}" for i in range(40)])
    found = Preprocessor.learn(frame, "price")
    assert not {"same", "name"} & {c.name for c in found.columns}
    assert any("same" in note for note in found.notes)
    assert any("name" in note for note in found.notes)


def test_the_target_of_a_regression_is_scaled():
    found = Preprocessor.learn(table(), "price")
    y = found.encode_target(table())
    np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-12)
    np.testing.assert_allclose(found.centre + found.scale * y, table()["price"])


@pytest.mark.parametrize(
    "values, task",
    [
        ([1.5, 2.0, 3.0], "regression"),
        ([1, 2, 3], "regression"),
        ([0, 1, 1], "classification"),
        ([True, False, True], "classification"),
        (["a", "b", "a"], "classification"),
    ],
)
def test_the_task_is_detected(values, task):
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0], "y": values})
    assert Preprocessor.learn(frame, "y").task == task


def test_classes_are_in_the_order_of_numbers():
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0], "y": [10, 9, 2]})
    found = Preprocessor.learn(frame, "y", task="classification")
    assert found.classes == ("2", "9", "10")
    np.testing.assert_array_equal(found.encode_target(frame), [2, 1, 0])


def test_rows_without_a_target_are_left_out_and_noted():
    frame = table()
    frame.loc[[1, 5], "price"] = np.nan
    found = Preprocessor.learn(frame, "price")
    assert any("2 rows without a target" in note for note in found.notes)


def test_json_and_back():
    found = Preprocessor.learn(table(), "price")
    again = Preprocessor.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    np.testing.assert_array_equal(again.encode(table()), found.encode(table()))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_files(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    frame = table()
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    found = read_table(path)
    assert list(found.columns) == list(frame.columns)
    np.testing.assert_allclose(found["price"], frame["price"])


def write(folder, text):
    path = folder / "table.csv"
    path.write_text(text)
    return path


REFUSED = [
    ("no file", lambda folder: read_table(folder / "table.csv"), "There is no file"),
    ("a folder", read_table, "is a folder"),
    ("an empty file", lambda folder: read_table(write(folder, "")), "is empty"),
    ("no rows", lambda folder: read_table(write(folder, "a,b\n")), "has no rows"),
    ("two names", lambda folder: read_table(write(folder, "a,a \n1,2\n")), "two columns named 'a'"),
    (
        "no such target",
        lambda folder: Preprocessor.learn(table(), "prise"),
        "no column 'prise'. Did you mean 'price'",
    ),
    (
        "nothing to predict",
        lambda folder: Preprocessor.learn(table().assign(price=np.nan), "price"),
        "no values at all, so there is nothing to predict",
    ),
    (
        "one class",
        lambda folder: Preprocessor.learn(table().assign(price="x"), "price"),
        "'x' in every row",
    ),
    (
        "text as numbers",
        lambda folder: Preprocessor.learn(table(), "city", task="regression"),
        "must hold finite numbers for a regression; got",
    ),
    (
        "no columns",
        lambda folder: Preprocessor.learn(table()[["price"]], "price"),
        "no column left to predict 'price' from",
    ),
    (
        "too many classes",
        lambda folder: Preprocessor.learn(
            pd.DataFrame({"x": np.arange(300.0), "y": np.arange(300)}), "y", task="classification"
        ),
        "300 different values",
    ),
]


@pytest.mark.parametrize("refused, words", [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_bad_tables(tmp_path, refused, words):
    with pytest.raises(TableError, match=words.replace("(", r"\(")):
        refused(tmp_path)


def test_bad_rows_to_predict():
    found = Preprocessor.learn(table(), "price")
    with pytest.raises(TableError, match="no column 'rooms'"):
        found.encode(table().drop(columns="rooms"))
    with pytest.raises(TableError, match="held numbers in the fit; got 'many' in row 0"):
        found.encode(table().assign(rooms="many"))
    with pytest.raises(TableError, match="held dates in the fit; got 'soon'"):
        found.encode(table().assign(sold="soon"))


def test_a_missing_value_is_filled_in_even_if_the_fit_had_none():
    found = Preprocessor.learn(table(), "price")
    frame = table().astype({"rooms": float})
    frame.loc[2, "rooms"] = np.nan
    assert np.isfinite(found.encode(frame)).all()
    usual = frame.assign(rooms=frame["rooms"].fillna(table()["rooms"].median()))
    np.testing.assert_array_equal(found.encode(frame), found.encode(usual))
    assert found.remarks(frame) == [
        "column 'rooms' had no missing values in the fit; 1 value was replaced by its usual value."
    ]
    assert found.remarks(table()) == []


def test_a_column_of_nothing_is_left_out_and_noted():
    found = Preprocessor.learn(table().assign(size=np.nan), "price")
    assert "size" not in {c.name for c in found.columns}
    assert "size: left out, since it has no values at all" in found.notes


def test_a_column_that_differs_by_rounding_only_is_left_out():
    values = pd.Series([0.1 + 0.2, 0.3, 0.3, 0.3], name="c")
    found, note = learn_column(values)
    assert found is None
    assert "the same in every row" in note


def test_a_gross_outlier_leaves_the_scale_of_a_column_and_of_the_target():
    frame = table(rows=200)
    frame.loc[17, "size"] = 1e6
    frame.loc[18, "price"] = 1e9
    found = Preprocessor.learn(frame, "price")
    by_name = {c.name: c for c in found.columns}
    assert by_name["size"].outliers
    assert not by_name["rooms"].outliers
    assert found.outliers
    assert np.abs(found.encode(frame)).max() < 30
    assert abs(found.centre - 300) < 20
    assert abs(found.scale - 50) < 15
    assert any("size: " in note and "gross outliers" in note for note in found.notes)
    assert any("1e+09 in row 18" in note and "Student's t" in note for note in found.notes)
    assert Preprocessor.from_json(json.loads(json.dumps(found.to_json()))) == found
