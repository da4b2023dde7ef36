"""Charts: round numbers on their axes, marks at the right places, and nothing that breaks a page."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from credax.report.charts import Axis, Chart, extent, some_of, tick_labels, ticks


def chart(x=(0.0, 1.0), y=(0.0, 1.0), **names):
    return Chart("title", "description", Axis("x", *x), Axis("y", *y), **names)


def paths(picture):
    return ElementTree.fromstring(str(picture)).findall("./svg/path")


def numbers(path):
    return np.array([float(n) for n in re.findall(r"-?\d+\.?\d*", path.attrib["d"])])


@pytest.mark.parametrize(
    "lower, upper", [(0, 1), (-3, 7), (0.013, 0.0171), (1e6, 3e6), (-1e-5, 1e-5), (99.5, 100.2)]
)
def test_ticks_are_round_even_and_inside(lower, upper):
    found = ticks(lower, upper)
    assert 3 <= len(found) <= 11
    assert min(found) >= lower - 1e-9 * abs(lower)
    assert max(found) <= upper * (1 + 1e-9)
    steps = np.diff(found)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
    mantissa = steps[0] / 10.0 ** np.floor(np.log10(steps[0]) + 1e-6)
    assert any(np.isclose(mantissa, round_) for round_ in (1, 2, 5))


def test_ticks_of_no_room_are_one():
    assert ticks(3.0, 3.0) == [3.0]


def test_labels_have_the_digits_that_tell_them_apart():
    assert tick_labels([0.0, 0.5, 1.0]) == ["0.0", "0.5", "1.0"]
    assert tick_labels([0.0, 0.2], percent=True) == ["0\u00a0%", "20\u00a0%"]
    assert tick_labels([-1000.0, 0.0]) == ["\u22121\u202f000", "0"]
    for values in (ticks(0, 1e9), ticks(0, 1e-6), ticks(1.001, 1.002), [5.0]):
        labels = tick_labels(values)
        assert len(set(labels)) == len(labels) == len(values)


@pytest.mark.parametrize(
    "values", [[1.0], [0.0, 0.0], [-5.0, -5.0], [], [np.nan], [1e-12, 1e-12], [np.inf, 1.0, 2.0]]
)
@pytest.mark.parametrize("zero", [False, True])
def test_an_extent_is_never_empty_and_holds_the_finite_values(values, zero):
    lower, upper = extent(values, zero=zero)
    assert np.isfinite([lower, upper]).all()
    assert lower < upper
    finite = np.array(values)[np.isfinite(values)]
    assert ((lower <= finite) & (finite <= upper)).all()
    assert not zero or lower <= 0 <= upper


def test_marks_lie_where_the_axes_say():
    picture = chart((0, 10), (0, 100))
    wide, high = 440 - 16 - picture.left, 300 - 30 - 46
    picture.line([0, 5, 10], [0, 50, 100])
    expected = [0, high, wide / 2, high / 2, wide, 0]
    np.testing.assert_allclose(numbers(paths(picture)[0]), expected, atol=0.051)


def test_a_histogram_stands_on_zero():
    picture = chart((0, 2), (0, 4)).histogram([0, 1, 2], [2, 4])
    high = 300 - 30 - 46
    columns = numbers(paths(picture)[0]).reshape(2, 5)
    np.testing.assert_allclose(columns[:, 1], high)
    np.testing.assert_allclose(columns[:, 2], [high / 2, 0], atol=0.051)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_left_out(bad):
    picture = chart()
    x, y = np.array([0.0, bad, 1.0]), np.array([0.0, 0.5, 1.0])
    picture.line(x, y).dots(x, y).band(x, y, y).rug(x).bars(x).histogram([0, 1, 2, 3], x)
    picture.whiskers(x, y, y).spans(y, x, x)
    assert not re.search("nan|inf", "".join(p.attrib["d"] for p in paths(picture)))


def test_nothing_to_draw_draws_nothing():
    picture = chart().line([], []).dots([], []).band([], [], []).rug([]).bars([])
    assert paths(picture.histogram([0], []).whiskers([], [], []).spans([], [], [])) == []


def test_one_point_is_a_picture():
    ElementTree.fromstring(str(chart().line([0.5], [0.5]).dots(0.5, 0.5).band([0.5], [0], [1])))


def test_text_is_escaped_everywhere():
    evil = "<script>&\"'</script>"
    names = Axis.of_names([evil, "b"], evil)
    picture = Chart(evil, evil, Axis(evil), names).text(0, 0, evil)
    assert "<script" not in str(picture)
    root = ElementTree.fromstring(str(picture))
    assert root.find("title").text == evil
    assert root.find("desc").text == evil
    assert root.attrib["aria-label"] == evil


def test_days_are_read_as_dates():
    lower, upper = (np.datetime64(day).astype(float) for day in ("2020-01-01", "2020-03-01"))
    labels = [label for _, label in Axis("day", lower, upper, dates=True).ticks()]
    assert (labels[0], labels[-1]) == ("2020-01-01", "2020-03-01")


@pytest.mark.parametrize("rows", [1, 2, 250, 10_000])
def test_some_of_the_rows_hold_both_ends(rows):
    found = some_of(rows, 250)
    assert (found[0], found[-1]) == (0, rows - 1)
    assert len(found) == min(rows, 250)
    assert (np.diff(found) > 0).all()
