"""The comparison on tables computes what its page says, and goes on where it was stopped."""

import json
import math

import numpy as np
import pytest
from scipy import integrate, stats

from benchmarks import peers, tables, tables_page

# -- ranks ----------------------------------------------------------------------------------------


def test_equal_figures_share_a_rank():
    found = tables_page.average_ranks(
        np.array([[0.1, 0.2, 0.3], [5.0, 4.0, 9.0], [1.0, 1.0, np.inf]])
    )
    np.testing.assert_allclose(found, [4.5 / 3, 4.5 / 3, 3])


@pytest.mark.parametrize("count, quantile", [(2, 1.960), (4, 2.569), (6, 2.850), (10, 3.164)])
def test_the_critical_difference_is_that_of_the_paper(count, quantile):
    expected = quantile * math.sqrt(count * (count + 1) / (6 * 14))  # table 5 of Demšar (2006)
    assert tables_page.critical_difference(count, 14) == pytest.approx(expected, rel=5e-4)


def test_libraries_within_the_critical_difference_are_joined():
    assert tables_page.groups([3.5, 1.0, 1.8, 2.1], 1.2) == [(0, 2)]
    assert tables_page.groups([1.0, 2.0, 3.0, 4.0], 1.5) == [(0, 1), (1, 2), (2, 3)]
    assert tables_page.groups([1.0, 2.0, 3.0], 0.5) == []


def figures():
    def cells(*values, measure="nll"):
        return {str(split): {measure: value, "seconds": 1.0} for split, value in enumerate(values)}

    numbers = {"task": "regression", "columns": 3}
    return {
        "large": {
            **numbers,
            "rows": 9_000,
            "libraries": {"credax": cells(1.0, 3.0, 99.0), "CatBoost": cells(2.0, 4.0)},
        },
        "small": {
            **numbers,
            "rows": 100,
            "libraries": {
                "credax": cells(0.5),
                "CatBoost": {"0": {"failed": "why"}},
                "Gaussian process": cells(0.1),
            },
        },
    }


def test_only_splits_count_that_all_libraries_have():
    found = tables_page.losses(figures(), "nll")
    assert list(found) == ["small", "large"]
    assert found["large"] == {"credax": 2.0, "CatBoost": 3.0}
    assert found["small"] == {"credax": 0.5, "CatBoost": math.inf, "Gaussian process": 0.1}


def test_a_library_that_is_asked_for_does_not_decide_which_splits_count():
    given = figures()
    given["large"]["libraries"]["bde"] = {"0": {"nll": 0.0}}
    assert tables_page.losses(given, "nll")["large"] == {"credax": 2.0, "CatBoost": 3.0}
    given["large"]["libraries"]["bde"]["1"] = {"nll": 1.0}
    assert tables_page.losses(given, "nll")["large"]["bde"] == 0.5


def test_wins_are_counted_by_table():
    found = tables_page.losses(figures(), "nll")
    assert tables_page.wins(found, found, "CatBoost") == (2, 0)
    assert tables_page.wins(found, found, "Gaussian process") == (0, 1)


def test_a_library_for_small_tables_is_ranked_on_these_alone():
    assert tables_page.ranked(figures()) == ["credax", "CatBoost"]
    assert tables_page.ranked(figures(), 2_000) == ["credax", "CatBoost", "Gaussian process"]


def test_the_page_gets_the_figures(tmp_path):
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    page.write_text(tables_page.PAGE.read_text())
    tables_page.write(figures(), page, picture)
    tables_page.write(figures(), page, picture)
    lines = page.read_text().splitlines()
    assert "| small | 100 | 3 | 0.500 | inf | **0.100** |" in lines
    assert lines.count("| large | 9,000 | 3 | **2.000** | 3.000 |  |") == 1
    assert picture.stat().st_size > 5_000


# -- scores ---------------------------------------------------------------------------------------


def mixture():
    rng = np.random.default_rng(0)
    return peers.Mixtures(rng.normal(size=(3, 2)), rng.uniform(0.2, 1.0, size=(3, 2)))


def test_the_continuous_ranked_probability_score_is_its_integral():
    y, predicted = np.array([0.3, -1.2]), mixture()

    def score(t, row):
        below = stats.norm.cdf(t, predicted.means[:, row], predicted.sds[:, row]).mean()
        return (below - (y[row] <= t)) ** 2

    expected = [
        integrate.quad(score, -20, 20, args=(row,), points=[y[row]], limit=200)[0] for row in (0, 1)
    ]
    np.testing.assert_allclose(predicted.crps(y), expected, rtol=1e-5)


def test_a_mixture_of_one_is_normal():
    one, y = mixture(), np.array([0.3, -1.2])
    normals = peers.Normals(one.means[0], one.sds[0])
    alone = peers.Mixtures(one.means[:1], one.sds[:1])
    np.testing.assert_allclose(alone.log_prob(y), normals.log_prob(y))
    np.testing.assert_allclose(alone.crps(y), normals.crps(y))
    np.testing.assert_allclose(alone.interval(0.9), normals.interval(0.9))


def test_measures_do_not_depend_on_the_unit_of_the_target():
    y, predicted = np.array([0.3, -1.2]), peers.Normals(np.array([0.0, -1.0]), np.array([1.0, 0.5]))
    far = peers.Normals(7 + 100 * predicted.mean, 100 * predicted.sd)
    expected = tables.scores("regression", predicted, y)
    assert tables.scores("regression", far, 7 + 100 * y, 100.0) == pytest.approx(expected)
    assert expected["nll"] == pytest.approx(-predicted.log_prob(y).mean())


def test_no_class_is_impossible():
    predicted = peers.Classes(np.array([[1.0, 0.0], [0.25, 0.75]]), smallest=0.01)
    found = tables.scores("classification", predicted, np.array([1, 1]))
    expected = [-math.log(0.01 / 1.01), -math.log(0.75)]
    assert found == pytest.approx({"nll": np.mean(expected), "worst": expected[0], "error": 0.5})


@pytest.mark.parametrize("name", ["random forest", "Gaussian process"])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_peer_predicts_better_than_one_who_knows_nothing(name, task):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    signal = x[:, 0] + 0.1 * rng.normal(size=80)
    y = signal if task == "regression" else np.digitize(signal, [-0.5, 0.5])
    predicted = peers.LIBRARIES[name].fit(task, x[:60], y[:60])(x[60:])
    found = tables.scores(task, predicted, y[60:])
    assert found["nll"] < (1.0 if task == "regression" else math.log(3) - 0.3)


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two small tables, one of each kind of file."""
    rng = np.random.default_rng(0)
    x, test = rng.normal(size=(30, 2)), rng.random((3, 30)) < 0.2
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "first.npz", x=x, y=x[:, 0], test_mask=test)
    (tmp_path / "tables").mkdir()
    packed = {"rows": 30, "test_mask": np.packbits(test, axis=1), "task": "classification"}
    np.savez(tmp_path / "tables" / "second.npz", x=x, y=np.where(x[:, 0] > 0, 7, 3), **packed)
    monkeypatch.setenv("CREDAX_DATA", str(tmp_path))
    monkeypatch.setattr(tables, "STORED", tmp_path / "results" / "tables.json")
    return test


def test_both_kinds_of_files_are_read(data):
    first, second = (tables.load(tables.paths()[name]) for name in ("first", "second"))
    np.testing.assert_array_equal(first.test, data)
    np.testing.assert_array_equal(second.test, data)
    assert (first.task, second.task) == ("regression", "classification")
    assert set(second.y) == {0, 1}


def test_a_folder_without_tables_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDAX_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="set CREDAX_DATA to the folder"):
        tables.paths()


def test_an_interrupted_run_goes_on_where_it_was(data, monkeypatch):
    fits = []

    def fit(task, x, y):
        fits.append(task)
        if len(fits) == 4:
            raise KeyboardInterrupt
        if task == "regression":
            return lambda rows: peers.Normals(np.zeros(len(rows)), np.ones(len(rows)))
        return lambda rows: peers.Classes(np.full((len(rows), 2), 0.5))

    libraries = {
        "plain": peers.Library(fit, "numpy"),
        "absent": peers.Library(fit, "no_such_module"),
    }
    monkeypatch.setattr(tables, "LIBRARIES", libraries)
    with pytest.raises(KeyboardInterrupt):
        tables.measure(splits=2)
    assert len(fits) == 4
    assert sum(len(e["libraries"]["plain"]) for e in tables._load(tables.STORED).values()) == 3
    found = tables.measure(splits=2)
    assert len(fits) == 5
    assert found["second"]["libraries"]["plain"]["1"]["nll"] == pytest.approx(math.log(2))
    assert json.loads(tables.STORED.read_text())["figures"] == found
    assert list(tables.STORED.parent.iterdir()) == [tables.STORED]
    tables.measure(splits=9, tables=["first"])  # a third split, which is the last one
    assert len(fits) == 6
    tables.measure(splits=1, again="plain")
    assert len(fits) == 8


def test_parts_are_measured_apart_and_put_together(data, monkeypatch, tmp_path):
    losses = iter([1.0, 2.0, 3.0, 4.0])

    def fit(task, x, y):
        return lambda rows, loss=next(losses): loss

    monkeypatch.setattr(tables, "scores", lambda task, predicted, y, unit: {"nll": predicted})
    monkeypatch.setattr(tables, "LIBRARIES", {"plain": peers.Library(fit, "numpy")})
    whole = tables.measure(splits=1, tables=["first"])
    assert whole["first"]["libraries"]["plain"]["0"]["nll"] == 1
    parts = tmp_path / "one.json", tmp_path / "other.json"
    assert tables.measure(splits=2, tables=["first"], results=parts[0]) is None
    assert tables.measure(splits=1, tables=["second"], results=parts[1]) is None
    tables.measure(splits=2, tables=["first"], results=parts[0])  # there is nothing left to measure
    assert json.loads(tables.STORED.read_text())["figures"] == whole
    found = tables.measure(merge=parts)
    values = {
        name: [each["nll"] for each in entry["libraries"]["plain"].values()]
        for name, entry in found.items()
    }
    assert values == {"first": [2, 3], "second": [4]}


def test_a_fit_that_fails_is_recorded(data, monkeypatch):
    def fit(task, x, y):
        raise ValueError("no")

    monkeypatch.setattr(tables, "LIBRARIES", {"plain": peers.Library(fit, "numpy")})
    found = tables.measure(tables=["first"], splits=1)
    assert found["first"]["libraries"]["plain"]["0"] == {"failed": "ValueError: no"}


def test_what_a_library_lacks_is_named(monkeypatch, capsys):
    absent = peers.Library(peers.bde, "no_such_module")
    elsewhere = peers.Library(peers.bde, "bde", interpreter="NO_SUCH_PYTHON")
    monkeypatch.setattr(tables, "LIBRARIES", {"absent": absent, "elsewhere": elsewhere})
    assert tables.installed(["absent", "elsewhere"]) == []
    printed = capsys.readouterr().out
    assert "absent is left out: install the package no_such_module to run it." in printed
    assert "set NO_SUCH_PYTHON to a Python that has bde" in printed
    monkeypatch.setenv("NO_SUCH_PYTHON", "python")
    assert tables.installed(["elsewhere"]) == ["elsewhere"]
