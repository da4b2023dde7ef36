import dataclasses

import numpy as np
import pandas as pd
import pytest

import credax as cx
from credax.diagnostics.calibration import Score, Scores
from credax.diagnostics.doctor import Diagnosis, Finding
from credax.tables.comparison import Comparison, Entry, compare_table, within
from credax.tables.preprocessing import Preprocessor


def table(rows=80):
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] - x[:, 1]})


def entry(name, value, error, seconds, grave=False):
    findings = Diagnosis([Finding("It is bad.", 1.0, "Do not.", grave=True)] if grave else [])
    scores = Scores(10, Score(value, error))
    return Entry(name, cx.MAP(), scores, seconds, 0.1, findings, 1.0, None)


def recommendation(*entries):
    preprocessor = Preprocessor((), "y", "regression")
    return Comparison(entries, {}, preprocessor, (8, 2)).recommendation()


def test_the_best_is_recommended():
    words = recommendation(entry("slow", -1.0, 0.05, 9.0), entry("quick", -2.0, 0.05, 1.0))
    assert words.startswith(
        "Use slow: slow predicts the held-out rows best (log likelihood -1 ± 0.05)"
    )


def test_a_faster_one_that_is_as_good_is_named():
    words = recommendation(entry("slow", -1.0, 0.1, 9.0), entry("quick", -1.1, 0.1, 1.0))
    assert "quick is as good within the error and takes 1.0 s instead of 9.0 s" in words


def test_a_faster_one_with_a_grave_finding_is_not():
    entries = entry("slow", -1.0, 0.1, 9.0), entry("quick", -1.1, 0.1, 1.0, grave=True)
    assert "quick" not in recommendation(*entries)


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
