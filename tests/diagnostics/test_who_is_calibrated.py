"""The benchmark of calibration: every method takes part, exact ones pass, and the page shows the figures."""

import json

import pytest

import credax as cx
from benchmarks import calibration
from credax.inference import METHODS

EXACT = [name for name, cls in METHODS.items() if cls.kind == "exact"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, "map", "bayes-by-backprop", "deep-ensemble", "laplace"])
def test_every_kind_of_method_is_tested(name):
    """All that are exact, which must be calibrated, and one of each other family."""
    model = "discrete" if name == "enumeration" else "linear"
    found = calibration.one(name, model, simulations=60)
    assert "not applicable" not in found
    assert found["simulations"] == 60
    assert all(sum(counts) == 60 for counts in found["histograms"].values())
    if METHODS[name].kind == "exact":
        assert calibration.passed(found), found


def test_every_model_is_what_the_page_says():
    page = calibration.OWN_PAGE.read_text()
    for name, make in calibration.MODELS.items():
        assert f"| {name} |" in page
        model, data = make()
        assert model.bind(data).schema is not None


def figures(spread=1.0, bias=0.0, p=0.5):
    deviation = {"bias": bias, "bias_error": 0.1, "spread": spread, "spread_error": 0.1}
    return {
        "draws": 9,
        "chi_square_p": p,
        "ecdf_p": 0.5,
        "deviations": {"a": deviation, "b": {**deviation, "spread": 1.0}},
        "histograms": {"a": [10, 10], "b": [5, 15]},
    }


def test_cells():
    assert calibration.cell(cx.HMC, figures()) == "ok"
    assert calibration.cell(cx.HMC, figures(0.5, -0.25, 1e-5)) == "sd × 0.5, bias -0.2"
    assert calibration.cell(cx.HMC, figures(2.0, 0.5, 1e-5)) == "sd × 2, bias +0.5"
    assert calibration.cell(cx.MAP, figures(p=0.0)) == "a point"
    assert calibration.cell(cx.HMC, {"not applicable": "why"}) == "–"
    assert calibration.cell(cx.HMC, {"diverged": "why"}) == "diverged"
    assert calibration.cell(cx.HMC, None) == ""


def test_the_page_gets_its_table_and_picture(tmp_path):
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    page.write_text(f"# Title\n{calibration.BEGIN}\nold\n{calibration.END}\nafter\n")
    found = {"linear": {"hmc": figures(), "laplace": figures(0.5, 0.1, 1e-9)}}
    for _ in range(2):
        calibration.write_page(found, page, picture)
        text = page.read_text()
    assert "old" not in text
    assert text.endswith("after\n")
    assert "| [`HMC`](../methods/hmc.md) | ok |" in text
    assert "| [`Laplace`](../methods/laplace.md) | sd × 0.5, bias +0.1 |" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch):
    results, calls = tmp_path / "calibration.json", []

    def one(method, model, simulations):
        calls.append((method, model))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return figures()

    monkeypatch.setattr(calibration, "one", one)
    arguments = {"methods": ("hmc", "nuts"), "models": ("linear",), "results": results}
    with pytest.raises(KeyboardInterrupt):
        calibration.measure(**arguments)
    assert list(json.loads(results.read_text())["figures"]["linear"]) == ["hmc"]
    found = calibration.measure(**arguments)
    assert calls == [("hmc", "linear"), ("nuts", "linear"), ("nuts", "linear")]
    assert list(found["linear"]) == ["hmc", "nuts"]
    calibration.measure(**arguments, again=True)
    assert len(calls) == 5


def test_arguments_of_the_command():
    found = calibration.options(["--methods", "hmc", "--models", "eight schools", "--again"])
    assert found == {
        "methods": ["hmc"],
        "models": ["eight schools"],
        "simulations": calibration.SIMULATIONS,
        "again": True,
    }
    with pytest.raises(SystemExit):
        calibration.options(["--models", "nine schools"])
