"""Tables as people keep them: each with what a person would read in it."""

import datetime
import decimal
import io
import json
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from credax.core.errors import CredaxError
from credax.tables.columns import decide
from credax.tables.preprocessing import Preprocessor
from credax.tables.reading import TableError, read_table, separator_of

ROWS = 24


def lines(*columns, separator=",", rows=ROWS):
    """A CSV text with a column ``y`` behind these, each of which is (name, values); short ones are repeated."""
    noise = np.random.default_rng(0).normal(size=rows).round(3)
    table = {name: [str(values[i % len(values)]) for i in range(rows)] for name, values in columns}
    if "y" not in table:
        table["y"] = [str(v).replace(".", ",") if separator == ";" else str(v) for v in noise]
    rows = [separator.join(row) for row in zip(*table.values(), strict=True)]
    return "\n".join([separator.join(table), *rows]) + "\n"


@dataclass
class Messy:
    """A table, and what a person reads in it.

    Attributes:
      text: the table as CSV, as bytes or text.
      kinds: the kind of each column; ``None`` if it should be left out.
      numbers: for some columns, the first values as numbers.
      note: a part of a note that tells the user about it.
    """

    text: str | bytes
    kinds: dict
    numbers: dict = field(default_factory=dict)
    note: str = ""
    target: str = "y"
    task: str = "regression"


NUMBERS = [1.5, 2.25, 3.0, 4.75, 8.5, 9.0, 7.25]
MESSY = {
    "stray words": Messy(
        lines(("a", [*NUMBERS, "n.a."]), ("b", [3, 5, "?"]), ("c", [7, 9, "missing", "-"])),
        {"a": "number", "b": "number", "c": "number"},
        {"c": [7, 9, np.nan, np.nan]},
        "a: 3 missing values were filled in",
    ),
    "an unknown word among numbers": Messy(
        lines(("a", [*range(23), "refused"]), ("b", NUMBERS), rows=48),
        {"a": "number", "b": "number"},
        note="a: 2 values such as 'refused' count as missing",
    ),
    "dollars": Messy(
        lines(("a", ['"$1,234.00"', "$99.50", '"-$2,000"', '"($5.00)"'])),
        {"a": "number"},
        {"a": [1234, 99.5, -2000, -5]},
        "a: amounts of money",
    ),
    "euros": Messy(
        lines(("a", ["1.234,50 €", "99,00 €", "5,10 €"]), separator=";"),
        {"a": "number"},
        {"a": [1234.5, 99, 5.1]},
    ),
    "euros without cents": Messy(
        lines(("a", ["€ 1.000", "€ 2.500", "€ 900"])),
        {"a": "number"},
        {"a": [1000, 2500, 900]},
        "the point marks thousands",
    ),
    "two currencies": Messy(
        lines(("a", ["100 USD", "20 EUR"])),
        {"a": "number"},
        note="in EUR and USD, taken as they are",
    ),
    "both marks": Messy(
        lines(("a", ["1.5", '"1,5"', "2.25", '"2,25"']), ("b", NUMBERS)),
        {"a": "category", "b": "number"},
        note="a: numbers that are written in different ways",
    ),
    "feet and inches": Messy(
        lines(("a", ["5'10", "6'2"]), ("b", NUMBERS)), {"a": "category", "b": "number"}
    ),
    "per cent": Messy(
        lines(("a", ["45.2%", "3 %", "100%"])), {"a": "number"}, {"a": [45.2, 3, 100]}, "45% is 45"
    ),
    "thousands": Messy(
        lines(("a", ['"12,345"', '"1,234"', "999"])),
        {"a": "number"},
        {"a": [12345, 1234, 999]},
        "the comma is taken to mark thousands",
    ),
    "decimal commas, and the target too": Messy(
        lines(("a", ["1,5", "2,25", "10,0"]), separator=";"),
        {"a": "number"},
        {"a": [1.5, 2.25, 10]},
    ),
    "points for thousands": Messy(
        lines(("a", ["12.345", "1.234", "9.876"]), ("b", ["1,5", "2,5"]), separator=";"),
        {"a": "number", "b": "number"},
        {"a": [12345, 1234, 9876]},
    ),
    "spaces and apostrophes for thousands": Messy(
        lines(("a", ["12 345", "1 234", "999"]), ("b", ["12'345.5", "1'234.0", "7"])),
        {"a": "number", "b": "number"},
        {"a": [12345, 1234, 999], "b": [12345.5, 1234, 7]},
    ),
    "units": Messy(
        lines(("a", ["1498 CC", "1197 CC", "800 CC"]), ("b", ["19.6 km/l", "20 km/l"])),
        {"a": "number", "b": "number"},
        {"a": [1498, 1197, 800]},
        "a: numbers in CC",
    ),
    "millions and thousands": Messy(
        lines(("a", ["€1.2M", "€300K", "€5M"])), {"a": "number"}, {"a": [1.2e6, 3e5, 5e6]}
    ),
    "dates with the day first": Messy(
        lines(("a", ["25/03/2023", "06/04/2023", "07/05/2023"])),
        {"a": "date"},
        {"a": [19441, 19453, 19484]},
        "the day comes first",
    ),
    "dates with the month first": Messy(
        lines(("a", ["03/25/2023", "06/04/2023"])),
        {"a": "date"},
        {"a": [19441, 19512]},
        "the month comes first",
    ),
    "dates that leave it open": Messy(
        lines(("a", ["05/03/2023", "01/02/2023", "06/04/2023"])),
        {"a": "date"},
        {"a": [19480, 19359]},
        "assumed",
    ),
    "German dates": Messy(
        lines(("a", ["05.03.2023", "01.02.2023"])), {"a": "date"}, {"a": [19421]}
    ),
    "dates in words": Messy(
        lines(("a", ["5 Mar 2023", '"March 6, 2023"', "07-Mar-23"])),
        {"a": "date"},
        {"a": [19421, 19422, 19423]},
    ),
    "moments with zones": Messy(
        lines(("a", ["2023-03-05T10:00:00Z", "2023-03-05 12:00:00+01:00"])),
        {"a": "date"},
        {"a": [19421 + 10 / 24, 19421 + 11 / 24]},
    ),
    "versions": Messy(
        lines(("a", ["3.11.7", "3.12.1", "3.9.12"]), ("b", NUMBERS)),
        {"a": "category", "b": "number"},
    ),
    "times of day": Messy(
        lines(("a", ["11:08", "23:59", "0:30"]), ("b", ["1:15 PM", "12:00 am"])),
        {"a": "time", "b": "time"},
        {"a": [11 + 8 / 60, 23 + 59 / 60, 0.5], "b": [13.25, 0]},
        "points on a circle",
    ),
    "durations": Messy(
        lines(("a", ["1h 30m", "45 min", "2h"]), ("b", ["25:00:00", "0:30:00"])),
        {"a": "duration", "b": "duration"},
        {"a": [5400, 2700, 7200], "b": [90000, 1800]},
        "in seconds",
    ),
    "weekdays and months": Messy(
        lines(("a", ["Mon", "Tuesday", "SUN"]), ("b", ["Jan", "May", "Dec"])),
        {"a": "weekday", "b": "month"},
        {"a": [0, 1, 6], "b": [0, 4, 11]},
        "a: weekdays, as points on a circle",
    ),
    "age bands": Messy(
        lines(("a", ["1-5", "6-10", "11-20"]), ("b", ["1990-1995", "1996-2000"])),
        {"a": "category", "b": "category"},
    ),
    "whole-number codes": Messy(lines(("a", [101, 205, 309])), {"a": "number"}),
    "free text": Messy(
        lines(
            ("a", [f"the guest number {i} was very happy with it" for i in range(ROWS)]),
            ("b", NUMBERS),
        ),
        {"a": None, "b": "number"},
        note="a: left out, since it is free text",
    ),
    "identifiers": Messy(
        lines(
            ("customer_id", [f"C{i:04d}" for i in range(ROWS)]),
            ("Unnamed: 0", range(ROWS)),
            ("time", range(ROWS)),
            ("b", NUMBERS),
        ),
        {"customer_id": None, "Unnamed: 0": None, "time": "number", "b": "number"},
        note="time: a running number",
    ),
    "an index without a name": Messy(
        lines(("", range(ROWS)), ("b", NUMBERS)),
        {"Unnamed: 0": None, "b": "number"},
        note="numbers the rows",
    ),
    "a leak": Messy(
        lines(
            ("price", [10.0 + i * i for i in range(ROWS)]),
            ("b", NUMBERS),
            ("y", [1.19 * (10.0 + i * i) for i in range(ROWS)]),
        ),
        {"price": "number", "b": "number"},
        note="price: tells y almost perfectly on its own",
    ),
    "nothing in a column": Messy(
        lines(("a", [""]), ("b", NUMBERS)), {"a": None, "b": "number"}, note="no values at all"
    ),
    "Latin-1": Messy(lines(("a", ["Köln", "Bonn"])).encode("latin-1"), {"a": "category"}),
    "UTF-16": Messy(lines(("a", ["Köln", "Bonn"])).encode("utf-16"), {"a": "category"}),
    "UTF-8 with a mark": Messy(
        lines(("a", ["Köln", "Bonn"])).encode("utf-8-sig"), {"a": "category"}
    ),
    "one value of 1e300": Messy(
        lines(("a", [*range(23), 1e300]), ("b", NUMBERS)),
        {"a": "number", "b": "number"},
        note="a: 1 missing value was filled in",
    ),
    "a target of money": Messy(
        lines(("a", NUMBERS), ("y", ['"$1,200.50"', "$99", "n.a."])),
        {"a": "number"},
        note="y: 8 rows without a target were left out",
    ),
    "classes with a question mark": Messy(
        lines(("a", NUMBERS), ("y", ["good", " bad", "?"])), {"a": "number"}, task="classification"
    ),
    "tabs, bars and blank lines": Messy(
        "\n\n" + lines(("a", NUMBERS), ("b", ["u", "v"]), separator="|") + "\n\n",
        {"a": "number", "b": "category"},
    ),
    "months with a short year, and quarters": Messy(
        lines(
            ("a", ["Jan-23", "Mar-23", "Dec-99", "Jan-24"]),
            ("b", ["Q1 2023", "Q4 2022", "2023-Q2", "3Q23"]),
            ("c", ["2024Q1", "2025Q1", "2026Q1"]),
            ("d", ["03/2023", "12/2022", "01/2024"]),
        ),
        {"a": "date", "b": "date", "c": "date", "d": "date"},
        {
            "a": [19358, 19417, 10926, 19723],
            "b": [19358, 19266, 19448, 19539],
            "c": [19723, 20089, 20454],
            "d": [19417, 19327, 19723],
        },
        "a: months, of which the number is the year",
    ),
    "days of an unknown year": Messy(
        lines(("a", [f"Jan-{day:02d}" for day in range(1, 32)]), ("b", NUMBERS), rows=62),
        {"a": "category", "b": "number"},
    ),
    "weeks and half-years": Messy(
        lines(("a", ["2023-W01", "2023-W05", "2022W52"]), ("b", ["H1 2023", "2022-H2", "H2 2023"])),
        {"a": "date", "b": "date"},
        {"a": [19359, 19387, 19352], "b": [19358, 19174, 19539]},
    ),
    "booleans in capitals and not": Messy(
        lines(("a", ["Yes", "no", "YES", "No"]), ("b", NUMBERS)),
        {"a": "boolean", "b": "number"},
        {"a": [1, 0, 1, 0]},
    ),
    "codes with leading zeros": Messy(
        lines(("zip", ["01234", "10115", "80331", ""]), ("hour", ["08", "12", "23"])),
        {"zip": "category", "hour": "number"},
        {"hour": [8, 12, 23]},
        "zip: codes with leading zeros",
    ),
    "lists as texts": Messy(
        lines(("a", ['"[1, 2]"', '"[3]"', "[]"]), ("b", NUMBERS), ("c", ["[low]", "[high]"])),
        {"a": None, "b": "number", "c": "category"},
        note="a: left out, since it holds lists",
    ),
    "pairs of numbers": Messy(
        lines(("a", ['"52.5,13.4"', '"48.1,11.6"']), ("b", NUMBERS)),
        {"a": "category", "b": "number"},
    ),
    "limits of detection": Messy(
        lines(("a", ["<0.5", 1.2, 3.4, 2.2]), ("b", NUMBERS)),
        {"a": "category", "b": "number"},
        note="a: numbers and limits such as '<0.5'",
    ),
    "a separator at the end of every line but the first": Messy(
        lines(("a", NUMBERS), ("b", ["u", "v"])).replace("\n", ",\n").replace("y,\n", "y\n"),
        {"a": "number", "b": "category"},
        {"a": NUMBERS},
    ),
    "lines as old programs end them": Messy(
        lines(("a", NUMBERS)).replace("\n", "\r"), {"a": "number"}, {"a": NUMBERS}
    ),
    "a line for Excel": Messy(
        "sep=|\n" + lines(("a", NUMBERS), separator="|"), {"a": "number"}, {"a": NUMBERS}
    ),
    "lines with a hash above": Messy(
        "# made, by hand\n# on Monday\n" + lines(("a", NUMBERS), ("b", ["u", "v"])),
        {"a": "number", "b": "category"},
    ),
    "a hash before the names": Messy(lines(("#a", NUMBERS)), {"#a": "number"}),
    "spaces between numbers": Messy(
        lines(("a", NUMBERS), ("b", [3, 4]), separator=" "), {"a": "number", "b": "number"}
    ),
    "a column of 1e-300": Messy(
        lines(("a", [1e-300, 3e-300, 2e-300]), ("b", NUMBERS)), {"a": "number", "b": "number"}
    ),
    "a column beyond all numbers": Messy(
        lines(("a", [1e300, -1e300]), ("b", NUMBERS)),
        {"a": None, "b": "number"},
        note="a: left out, since none of its values can be used, such as '1e+300'",
    ),
    "names of rows without a heading": Messy(
        "a\ty\n" + "".join(f"row{i}\t{v}\t{2 * v}\n" for i, v in enumerate(NUMBERS)),
        {"a": "number"},
    ),
}


def read(folder, messy, **options):
    path = folder / "table.csv"
    path.write_bytes(messy.text if isinstance(messy.text, bytes) else messy.text.encode())
    return read_table(path, **options)


def test_there_are_thirty_messy_tables():
    assert len(MESSY) >= 30


@pytest.mark.parametrize("name", MESSY)
def test_a_messy_table_is_read_as_a_person_reads_it(tmp_path, name):
    messy = MESSY[name]
    table = read(tmp_path, messy)
    found = Preprocessor.learn(table, messy.target)
    kinds = dict.fromkeys(table.columns) | {column.name: column.kind for column in found.columns}
    del kinds[messy.target]
    assert kinds == messy.kinds
    assert found.task == messy.task
    columns = {column.name: column for column in found.columns}
    for column, values in messy.numbers.items():
        read_as = columns[column].reading.numbers(table[column])[: len(values)]
        np.testing.assert_allclose(read_as, values)
    assert messy.note in " | ".join(found.notes)
    assert np.isfinite(found.encode(table)).all()
    again = Preprocessor.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    # The table that is shown to the user has a line for each column.
    assert {line[0] for line in found.read_as()} == set(table.columns)


def test_a_target_of_money_is_a_number(tmp_path):
    table = read(tmp_path, MESSY["a target of money"])
    found = Preprocessor.learn(table, "y")
    assert (found.task, found.classes) == ("regression", ())
    assert found.centre == pytest.approx((1200.5 + 99) / 2)


def test_a_decimal_comma_in_the_target_is_read(tmp_path):
    table = read(tmp_path, MESSY["decimal commas, and the target too"])
    noise = np.random.default_rng(0).normal(size=ROWS).round(3)
    np.testing.assert_allclose(Preprocessor.learn(table, "y").targets(table), noise)


# -- other values in the same table ------------------------------------------------------------------


def learned(folder, name, **options):
    return Preprocessor.learn(read(folder, MESSY[name]), "y", **options)


def test_new_rows_are_read_in_the_style_of_the_fit(tmp_path):
    found = learned(tmp_path, "dates with the day first")
    day = found.columns[0].reading.numbers(pd.Series(["01/02/2023", "02/01/2023"]))
    np.testing.assert_array_equal(day, [19389, 19359])
    comma = learned(tmp_path, "decimal commas, and the target too")
    assert comma.as_written == ("a",)
    path = tmp_path / "new.csv"
    path.write_text("a\n1.234\n")
    new = read_table(path, text=comma.as_written)
    np.testing.assert_array_equal(comma.columns[0].reading.numbers(new["a"]), [1234])


def test_times_do_not_drift_with_the_clock(tmp_path, monkeypatch):
    """A date is made of the present day for a time by some readers; here it never is."""
    table = read(tmp_path, MESSY["times of day"])
    found = Preprocessor.learn(table, "y")
    before = found.encode(table)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2055, 6, 7, 8, 9)

    monkeypatch.setattr(datetime, "datetime", Later)
    np.testing.assert_array_equal(found.encode(table), before)
    # Midnight and one minute before it are neighbours.
    near = found.columns[0].encode(pd.Series(["23:59", "0:00", "12:00"]))
    assert np.linalg.norm(near[0] - near[1]) < 0.05 < 1 < np.linalg.norm(near[0] - near[2])


@pytest.mark.parametrize(
    "kind, encoded",
    [("category", 3), ("number", 1), ("ignore", 0)],
)
def test_the_user_overrides_what_a_column_is(tmp_path, kind, encoded):
    table = read(tmp_path, MESSY["whole-number codes"]).assign(b=np.resize(NUMBERS, ROWS))
    found = Preprocessor.learn(table, "y", kinds={"a": kind})
    assert len([name for name in found.features if name.startswith("a")]) == encoded


def test_the_user_chooses_the_order_of_dates(tmp_path):
    table = read(tmp_path, MESSY["dates that leave it open"])
    found = Preprocessor.learn(table, "y", kinds={"a": "date:day-first"})
    assert found.columns[0].reading.numbers(table["a"])[0] == 19421


def test_the_user_says_that_numbers_after_months_are_years(tmp_path):
    table = read(tmp_path, MESSY["days of an unknown year"])
    found = Preprocessor.learn(table, "y", kinds={"a": "date:month-year"})
    days = found.columns[0].reading.numbers(table["a"])
    np.testing.assert_array_equal(days[:2], [11323, 11688])  # the first of January 2001 and 2002


def test_a_kind_that_does_not_fit_is_refused(tmp_path):
    table = read(tmp_path, MESSY["age bands"])
    with pytest.raises(TableError, match="--column a=number: 24 of 24 values cannot be read so"):
        Preprocessor.learn(table, "y", kinds={"a": "number"})
    with pytest.raises(TableError, match="must be one of number, boolean, category"):
        Preprocessor.learn(table, "y", kinds={"a": "colour"})
    with pytest.raises(TableError, match="no column 'z'"):
        Preprocessor.learn(table, "y", kinds={"z": "number"})


def test_codes_stay_categories_in_a_file_with_missing_values(tmp_path):
    table = read(tmp_path, MESSY["whole-number codes"])
    found = Preprocessor.learn(table, "y", kinds={"a": "category"})
    new = pd.DataFrame({"a": [101.0, np.nan, 205.0]})
    assert found.unseen(new) == {}
    np.testing.assert_array_equal(found.encode(new)[[0, 2]], [[1, 0, 0], [0, 1, 0]])


def test_a_target_of_any_name_is_read(tmp_path):
    table = read(tmp_path, MESSY["units"]).rename(columns={"y": "self", "a": "a: b = [c]"})
    found = Preprocessor.learn(table, "self")
    assert found.target == "self"
    assert [line[:2] for line in found.read_as()] == [
        ("a: b = [c]", "number"),
        ("b", "number"),
        ("self", "number"),
    ]


def test_dates_cannot_be_the_target(tmp_path):
    table = read(tmp_path, MESSY["German dates"])
    with pytest.raises(TableError, match="holds dates, which cannot be predicted"):
        Preprocessor.learn(table, "a")


# -- Parquet and frames --------------------------------------------------------------------------------


def test_columns_of_a_frame_have_their_kinds():
    frame = pd.DataFrame(
        {
            "money": [decimal.Decimal("1.50"), decimal.Decimal("2.25")] * 10,
            "day": [datetime.date(2023, 3, 5), datetime.date(2023, 3, 6)] * 10,
            "clock": [datetime.time(11, 8), datetime.time(12)] * 10,
            "span": [datetime.timedelta(hours=1), datetime.timedelta(minutes=5)] * 10,
            "tags": [[1, 2], []] * 10,
            "size": pd.Categorical([1, 2] * 10),
            "some": [True, None] * 10,
            "bytes": [b"u", b"v"] * 10,
        }
    )
    found = {name: decide(frame[name]).reading.kind for name in frame}
    assert found == {
        "money": "number",
        "day": "date",
        "clock": "time",
        "span": "duration",
        "tags": "lists",
        "size": "category",
        "some": "boolean",
        "bytes": "category",
    }
    learned = Preprocessor.learn(frame.assign(y=np.arange(20.0)), "y")
    assert np.isfinite(learned.encode(frame)).all()
    assert "tags: left out, since it holds lists" in learned.notes


def test_parquet_decimals_are_numbers(tmp_path):
    frame = pd.DataFrame({"a": [decimal.Decimal(f"{i}.25") for i in range(20)], "y": range(20)})
    frame.to_parquet(tmp_path / "t.parquet")
    found = Preprocessor.learn(read_table(tmp_path / "t.parquet"), "y")
    assert found.columns[0].kind == "number"


# -- files -----------------------------------------------------------------------------------------------


def test_a_file_of_one_column_is_a_table(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("name\nAnn\nBob\nAnn and Bob\n")
    assert list(read_table(path).columns) == ["name"]


def test_standard_input_is_read(monkeypatch):
    class Pipe:
        buffer = io.BytesIO(b"a,b\n1,2\n")

    monkeypatch.setattr("sys.stdin", Pipe)
    assert read_table("-").shape == (1, 2)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"\n\n\n", "holds blank lines only"),
        (b"a,b\n", "has no rows"),
        (b"a,a\n1,2\n", "two columns named 'a'"),
        (b"PK\x03\x04rest", "spreadsheet"),
        (b"\x1f\x8bbroken", "cannot be unpacked"),
        (b"a,b\n1,2\n1,2,3,4\n", "line 3 has 4 fields instead of 2"),
        (b'a,b\n1,"2\n', "a quotation mark that begins in line 2 has no end"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TableError, match=words):
        read_table(path)


def test_a_zero_byte_does_not_make_a_file_utf_16(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,x\x00y\n2,z\n")
    assert list(read_table(path)["b"]) == ["xy", "z"]


def test_the_encoding_can_be_given(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("a,b\nŁódź,1\n".encode("cp1250"))
    assert read_table(path, encoding="cp1250")["a"][0] == "Łódź"
    assert "Latin-1" in read_table(path).attrs["notes"][0]
    with pytest.raises(TableError, match="--encoding must be the name of an encoding"):
        read_table(path, encoding="klingon")
    with pytest.raises(TableError, match="is no text in the encoding utf-8"):
        read_table(path, encoding="utf-8")


@pytest.mark.parametrize(
    "sample, separator",
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2\n3,5;1\n", ";"),
        ("a\tb\n1 x\t2\n", "\t"),
        ("a|b\n1|2\n", "|"),
        ("name\nAnn, Bob\nEve\n", ","),
        ('a,b\n"x;y;z",1\n"u;v;w",2\n', ","),
    ],
)
def test_the_separator_is_found(sample, separator):
    assert separator_of(sample) == separator


def test_a_code_keeps_its_zeros_in_new_rows(tmp_path):
    found = learned(tmp_path, "codes with leading zeros")
    assert "01234" in found.columns[0].levels
    path = tmp_path / "new.csv"
    path.write_text("zip,hour\n01234,8\n")
    new = read_table(path, text=found.as_written)
    np.testing.assert_array_equal(found.encode(new)[0, :3], [1, 0, 0])


def test_a_target_that_names_the_rows_is_refused():
    table = pd.DataFrame({"a": range(12), "y": [f"name {i}" for i in range(12)]})
    with pytest.raises(TableError, match="has another class in every row, such as 'name 0'"):
        Preprocessor.learn(table, "y")


def test_a_target_beyond_all_numbers_is_refused_with_its_value():
    table = pd.DataFrame({"a": range(12), "y": [1e300] * 12})
    with pytest.raises(TableError, match=r"'y' has no value that can be used.* '1e\+300'"):
        Preprocessor.learn(table, "y")


def test_a_table_without_names_says_what_its_first_line_must_hold(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1.5,3.0\n2.5,5.0\n")
    with pytest.raises(TableError, match="first line of a table must hold the names"):
        Preprocessor.learn(read_table(path), "y")


# -- fuzz ------------------------------------------------------------------------------------------------


def test_two_hundred_mutated_files_are_read_or_refused_in_a_sentence(tmp_path, mutated):
    generator = np.random.default_rng(0)
    texts = [m.text if isinstance(m.text, bytes) else m.text.encode() for m in MESSY.values()]
    path, read_well, refusals = tmp_path / "t.csv", 0, []
    for i in range(200):
        path.write_bytes(mutated(texts[i % len(texts)], generator))
        try:
            table = read_table(path)
            found = Preprocessor.learn(table, table.columns[-1])
            assert np.isfinite(found.encode(table)).all()
            read_well += 1
        except CredaxError as error:
            refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)
    assert read_well > 100
