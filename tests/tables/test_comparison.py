import dataclasses

import numpy as np
import pandas as pd
import pytest

import credax as cx
from credax.diagnostics.calibration import Score, Scores
from credax.diagnostics.doctor import Diagnosis, Finding
from credax.tables import comparison
from credax.tables.comparison import Comparison, Entry, compare_table, within
from credax.tables.preprocessing import Preprocessor
from credax.tables.runs import Run


def table(rows=80):
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] - x[:, 1]})


HARD = np.random.default_rng(1).normal(size=100)
"""How much harder some rows are than others, for every method."""


def entry(name, value, error, seconds, grave=False):
    """An entry whose log likelihoods differ from row to row, with this standard error of its own."""
    findings = Diagnosis([Finding("It is bad.", 1.0, "Do not.", grave=True)] if grave else [])
    scores = Scores(100, Score(value, 0.1))
    own = np.resize([1.0, -1.0], 100) * 10 * error
    rows = value + HARD - HARD.mean() + own * (1 if name == "slow" else -1) / 2
    method = None if name == "boosting" else cx.MAP()
    return Entry(name, method, scores, seconds, 0.1, findings, 1.0, None, rows)


def recommendation(*entries):
    preprocessor = Preprocessor((), "y", "regression")
    return Comparison(entries, {}, preprocessor, (8, 2)).recommendation()


def test_the_best_is_recommended():
    words = recommendation(entry("slow", -1.0, 0.05, 9.0), entry("quick", -2.0, 0.05, 1.0))
    assert words.startswith(
        "Use slow: slow predicts the held-out rows best (log likelihood -1 ± 0.1)"
    )


def test_a_comparison_is_shown_as_a_table():
    entries = entry("slow", -1.0, 0.05, 9.0), entry("quick", -2.0, 0.05, 1.0, grave=True)
    other = (entry("boosting", -3.0, 0.05, 0.5),)
    found = Comparison(entries, {}, Preprocessor((), "y", "regression"), (8, 2), other)
    page = found._repr_html_()
    assert "<caption>8 fitted rows, 2 held-out rows</caption>" in page
    assert page.count("<tr>") == 4
    assert "<td>boosting</td><td>-3 ± 0.1</td>" in page
    assert "Use slow" in page
    assert repr(found).splitlines()[1].split()[0] == "slow"


def test_the_error_is_that_of_the_differences_row_by_row():
    """The rows differ by far more than the methods do, which says nothing about the methods."""
    slow, quick = entry("slow", -1.0, 0.01, 9.0), entry("quick", -1.05, 0.01, 1.0)
    behind = quick.behind(slow)
    assert float(behind) == pytest.approx(0.05)
    assert behind.standard_error == pytest.approx(0.01, rel=0.02)
    assert slow.behind(slow) == 0
    # As if they were independent, two errors of 0.1 would hide a difference of 0.05.
    assert "quick" not in recommendation(slow, quick)


def test_a_faster_one_that_is_as_good_is_named():
    words = recommendation(entry("slow", -1.0, 0.1, 9.0), entry("quick", -1.1, 0.1, 1.0))
    assert (
        "quick is as good within the error (behind by 0.1 ± 0.1 per row) and takes 1.0 s" in words
    )


def test_a_faster_one_with_a_grave_finding_is_not():
    entries = entry("slow", -1.0, 0.1, 9.0), entry("quick", -1.1, 0.1, 1.0, grave=True)
    assert "quick" not in recommendation(*entries)


@pytest.mark.parametrize(
    "value, words",
    [
        (-1.5, "slow is better than the best baseline, boosting, by 0.5 ± 0.01 per row."),
        (-0.5, "The baseline boosting is better than every method, by 0.5 ± 0.01 per row."),
        (
            -1.01,
            "boosting is as good as slow within the error: they differ by 0.01 ± 0.01 per row.",
        ),
    ],
)
def test_the_best_method_is_compared_with_the_best_baseline(value, words):
    slow, other = entry("slow", -1.0, 0.01, 9.0), entry("boosting", value, 0.01, 1.0)
    preprocessor = Preprocessor((), "y", "regression")
    found = Comparison((slow,), {}, preprocessor, (8, 2), (other,))
    assert found.against_baselines() == words
    assert [each.name for each in found.ranked] == sorted(
        ["slow", "boosting"], key=lambda name: name == ("slow" if value > -1 else "boosting")
    )
    assert Comparison((slow,), {}, preprocessor, (8, 2)).against_baselines() == ""


def test_nothing_to_recommend():
    assert "No method" in recommendation()


@pytest.mark.slow
def test_runs_are_shortened_to_the_budget():
    x = table()[["a", "b"]].to_numpy()
    y = table()["y"].to_numpy()
    model = cx.Model(cx.networks.mlp([8]))
    long = cx.HMC(chains=1, num_warmup=40_000, num_draws=80_000)
    shorter, share = within(long, model, (x, y), 2.0, 0)
    assert 0 < share < 0.5
    assert shorter.num_warmup == round(share * 40_000)
    assert shorter.num_draws == round(share * 80_000)
    assert dataclasses.replace(shorter, num_warmup=40_000, num_draws=80_000) == long
    short = cx.MAP(num_steps=20)
    assert within(short, model, (x, y), 60.0, 0) == (short, 1.0)


@pytest.mark.slow
def test_all_are_judged_on_the_same_rows():
    methods = {
        "map": lambda: cx.MAP(num_steps=300),
        "maximum-likelihood": lambda: cx.MaximumLikelihood(num_steps=300),
    }
    found = compare_table(table(), "y", methods, budget=20.0)
    assert {entry.name for entry in found.entries} == set(methods)
    values = [float(entry.scores.log_likelihood) for entry in found.entries]
    assert values == sorted(values, reverse=True)
    assert found.rows == (64, 16)
    assert all(entry.scores.rows == 16 for entry in found.entries)
    # The scores are on the scale of the table. Its line has no noise, so that the error is small.
    assert all(entry.scores.rmse < 0.3 for entry in found.entries)


class Counted:
    """A method that counts how often it is made."""

    def __init__(self, method):
        self.method, self.made = method, 0

    def __call__(self):
        self.made += 1
        return self.method


@pytest.mark.slow
def test_a_comparison_goes_on_after_a_kill(tmp_path):
    class Killed(Exception):
        pass

    def kill():
        raise Killed

    first, second = Counted(cx.MAP(num_steps=20)), Counted(cx.MaximumLikelihood(num_steps=20))
    with pytest.raises(Killed):
        compare_table(table(), "y", {"map": first, "other": kill}, folder=tmp_path, budget=20.0)
    said = []
    found = compare_table(
        table(),
        "y",
        {"map": first, "other": second},
        folder=tmp_path,
        budget=20.0,
        report=said.append,
    )
    assert (first.made, second.made) == (1, 1)
    assert said[0].startswith("map: taken from")
    assert {entry.name for entry in found.entries} == {"map", "other"}
    again = compare_table(
        table(), "y", {"map": first, "other": second}, folder=tmp_path, budget=20.0
    )
    assert (first.made, second.made) == (1, 1)
    for one, other in zip(found.entries, again.entries, strict=True):
        np.testing.assert_array_equal(one.log_likelihoods, other.log_likelihoods)
        assert float(one.scores.log_likelihood) == float(other.scores.log_likelihood)
        assert one.findings == other.findings
    # Each is a run, which other commands can take.
    assert len(Run.load(tmp_path / "map").held_out) == 16
    # Another table is another comparison.
    compare_table(2 * table(), "y", {"map": first, "other": second}, folder=tmp_path, budget=20.0)
    assert (first.made, second.made) == (2, 2)


def test_the_doctor_sees_the_held_out_targets(monkeypatch):
    seen = []
    monkeypatch.setattr(
        comparison, "diagnose", lambda posterior, x, y: seen.append((x, y)) or Diagnosis([])
    )
    compare_table(table(), "y", {"map": Counted(cx.MAP(num_steps=20))}, budget=20.0)
    (x, y) = seen[0]
    assert x.shape == (16, 2)
    assert y.shape == (16,)
