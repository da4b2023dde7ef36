"""The benchmark of the README's first example fits its model, and its table shows the ranges over the keys."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import first_page

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_model_is_that_of_the_readme():
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example
    source = Path(first_page.__file__).read_text()
    for part in (
        "mlp([50, 50])",
        "LearnedNormal()",
        "Gaussian(scale=None)",
        "num_steps=5_000",
    ):
        assert part in example[1]
        assert part in source


@pytest.mark.parametrize("problem", first_page.PROBLEMS)
def test_rows_and_targets_belong_together(problem):
    x, f = first_page.PROBLEMS[problem](np.random.default_rng(0), 30)
    assert x.ndim == 2
    assert len(x) == len(f) == 30
    assert len(np.unique(f)) > 1


def test_the_table_shows_ranges_and_what_is_said():
    numbers = {
        "errs": [[], ["too sure", "too unsure"], ["too sure"]],
        "explained": [0.9, 0.95, 0.99],
        "coverage": [0.9, 0.9, 0.9],
        "noise": [0.1, 0.2, 0.15],
    }
    classes = {"errs": [[]], "accuracy": [0.951], "log_loss": [0.1]}
    lines = first_page.table_of({"sine": {"5000": numbers}, "two moons": {"50": classes}})
    said = f"too sure (2 of {first_page.KEYS}), too unsure (1 of {first_page.KEYS})"
    assert lines.splitlines()[2:] == [
        f"| sine | 5,000 | 0.900 to 0.990 | 90 % | 0.10 to 0.20 | {said} |",
        "| two moons | 50 | 95.1 % |  |  |  |",
    ]


def test_the_page_has_a_place_for_it(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(first_page.OWN_PAGE.read_text())
    monkeypatch.setattr(first_page, "OWN_PAGE", page)
    first_page.write_page({})
    assert "| sine |" not in page.read_text()
    assert page.read_text().count("| data | rows |") == 1
