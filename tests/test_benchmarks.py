"""The benchmark of fidelity computes what its page says."""

import dataclasses
import json

import numpy as np
import pytest

import credax as cx
from benchmarks import fidelity


def test_the_figures_are_ratios_to_the_reference():
    truth = {"mean": [0.0, 1.0, 2.0], "sd": [1.0, 2.0, 4.0], "noise": [0.1, 0.1, 0.1]}
    found = {"mean": [1.0, 1.0, 4.0], "sd": [0.5, 1.0, 2.0], "noise": [0.3, 0.3, 0.3]}
    figures = fidelity.compared(found, truth)
    assert figures == pytest.approx({"spread": 0.5, "mean_off": 0.5, "noise": 3.0})


def test_classes_are_compared_by_total_variation():
    truth, found = {"probs": [[0.5, 0.5], [1.0, 0.0]]}, {"probs": [[0.25, 0.75], [1.0, 0.0]]}
    figures = fidelity.compared(found, truth)
    assert figures == {"total_variation": 0.125, "confidence": 0.125}


def test_large_errors_are_bold():
    place = lambda spread: {"spread": spread, "mean_off": 0.0, "noise": 1.5}  # noqa: E731
    figures = {"inside": place(1.9), "outside": place(0.4), "unsaid": []}
    assert fidelity.cell(figures) == "1.9 / **0.4** (noise 1.5 ×)"
    classes = {"inside": {"total_variation": 0.02}, "outside": {"total_variation": 0.2}}
    assert fidelity.cell({**classes, "unsaid": ["outside"]}) == "0.02 / **0.2** (!)"
    assert fidelity.cell(None) == fidelity.cell({"not applicable": "why"}) == ""


def test_an_error_is_said_by_a_finding_of_its_direction():
    place = lambda spread, noise=1.0: {"spread": spread, "mean_off": 0.0, "noise": noise}  # noqa: E731
    figures = {"inside": place(3.0), "outside": place(0.1, noise=0.4), "said": ["a finding"]}
    assert fidelity.errors(figures) == {
        "inside": "too unsure",
        "outside": "too sure",
        "noise outside": "too sure",
    }
    assert fidelity.unsaid({**figures, "errs": ["too sure"]}) == ["inside"]
    assert fidelity.unsaid({**figures, "errs": ["too sure", "too unsure"]}) == []
    classes = lambda distance, gap: {"total_variation": distance, "confidence": gap}  # noqa: E731
    figures = {"inside": classes(0.2, 0.01), "outside": classes(0.2, -0.1)}
    assert fidelity.unsaid({**figures, "errs": [], "said": []}) == ["inside", "outside"]
    assert fidelity.unsaid({**figures, "errs": ["too unsure"], "said": ["a finding"]}) == []


def test_the_page_counts_what_is_not_said():
    place = {"spread": 0.1, "mean_off": 0.0, "noise": 1.0}
    good = {"inside": {**place, "spread": 1.0}, "outside": {**place, "spread": 1.0}, "unsaid": []}
    bad = {"inside": place, "outside": place, "unsaid": ["inside"]}
    figures = {"SWAG": {"sine": good, "table": bad}, "SMC": {"sine": {"not applicable": "why"}}}
    text = fidelity.count_of(figures)
    assert "Of 2 cells, 1 are off" in text
    assert text.endswith("1: SWAG on table.")
    assert fidelity.count_of({"SWAG": {"sine": good}}).endswith("none.")


@pytest.mark.parametrize("name", fidelity.PROBLEMS)
def test_every_problem_suits_its_model(name):
    problem = fidelity.PROBLEMS[name]()
    model = problem.model.bind(problem.data)
    for rows in (problem.inside, problem.outside):
        assert model.check_inputs(rows).shape == rows.shape
        assert len(rows) >= 80


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_what_is_stored_is_not_measured_again(tmp_path, monkeypatch):
    for name in ("STORED", "REFERENCES", "OWN_PAGE", "PICTURE"):
        monkeypatch.setattr(fidelity, name, tmp_path / getattr(fidelity, name).name)
    fidelity.OWN_PAGE.write_text("<!-- table -->\n<!-- end of table -->\n")
    monkeypatch.setattr(fidelity, "CHAINS", 2)
    monkeypatch.setattr(fidelity, "WARMUP", 20)
    monkeypatch.setattr(fidelity, "DRAWS", 20)
    monkeypatch.setattr(fidelity, "MIXED", np.inf)
    short = {"Laplace": dataclasses.replace(cx.Laplace(), num_steps=20)}
    monkeypatch.setattr(fidelity, "CASES", short)
    first = fidelity.measure(["Laplace"], ["sine"])
    assert first["Laplace"]["sine"]["inside"]["spread"] > 0
    assert json.loads(fidelity.STORED.read_text())["figures"] == first
    fidelity.write_page(first)
    assert "| [Laplace](../methods/laplace.md) |" in fidelity.OWN_PAGE.read_text()
    assert fidelity.PICTURE.stat().st_size > 5_000
    monkeypatch.setattr(cx, "fit", None)  # a second measurement would fail
    assert fidelity.measure(["Laplace"], ["sine"]) == first
