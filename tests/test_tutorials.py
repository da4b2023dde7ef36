"""The tutorials are notebooks that begin with text, hold no outputs, use public names and plots, and run."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

import credax as cx

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def hook(name):
    """A module of docs/hooks, which is no package."""
    path = ROOT / "docs" / "hooks" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(f"hook_{name}", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def read(path):
    return json.loads(path.read_text("utf-8"))


def cells(path, kind):
    return ["".join(c["source"]) for c in read(path)["cells"] if c["cell_type"] == kind]


def test_there_are_six():
    assert len(NOTEBOOKS) == 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_well_formed_and_holds_no_outputs(path):
    found = read(path)
    assert found["nbformat"] == 4
    assert found["nbformat_minor"] >= 5
    identifiers = [cell["id"] for cell in found["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    for cell in found["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert isinstance(cell["source"], list)
        assert "".join(cell["source"]).strip(), "an empty cell"
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], (
                "clear the outputs: they are computed when the site is built"
            )
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_text_first_and_draws(path):
    first = read(path)["cells"][0]
    assert first["cell_type"] == "markdown"
    text = "".join(first["source"])
    assert text.startswith("# ")
    assert len(text.split("\n\n")) >= 2, "say under the title what the tutorial is about"
    assert len(cells(path, "markdown")) >= len(cells(path, "code"))
    assert ".plot(" in "".join(cells(path, "code"))
    assert "What to remember" in cells(path, "markdown")[-1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_is_python_that_names_what_exists(path):
    text = "\n".join(cells(path, "code"))
    tree = ast.parse(text)
    for dotted in set(
        re.findall(r"\bcx((?:\.[A-Za-z_]+)+)", "\n".join(cells(path, "markdown")) + text)
    ):
        thing = cx
        for part in dotted.strip(".").split("."):
            assert hasattr(thing, part), f"{path.name} names cx{dotted}"
            thing = getattr(thing, part)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("credax"):
            assert node.module.removeprefix("credax.") in cx.__all__


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_local_link_of_a_notebook_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", "\n".join(cells(path, "markdown"))):
        assert (FOLDER / target).exists(), f"{path.name} links to {target}"


def test_every_notebook_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    for path in NOTEBOOKS:
        assert f"tutorials/{path.stem}.md" in text


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_pictures(path):
    if "from flax" in "\n".join(cells(path, "code")):
        pytest.importorskip("flax")
    found = hook("notebooks").outputs(path)
    assert not isinstance(found, str), found
    assert len(found) == len(cells(path, "code"))
    assert sum(kind == "png" for outputs in found for kind, _ in outputs) >= 2


# -- how a page is made -----------------------------------------------------------------------------


def test_cells_give_what_they_print_their_last_value_and_their_figures():
    cell = hook("cells")
    first, second, third, fourth = cell.run(
        [
            "a = 2\nprint('two')\na + 1",
            "a * 10;",
            "import matplotlib.pyplot as plt\nplt.plot([a, 1])",
            "class Table:\n    def _repr_html_(self):\n        return '<b>x</b>'\nTable()",
        ]
    )
    assert first == [["text", "two"], ["text", "3"]]
    assert second == []
    assert [kind for kind, _ in third] == ["png"]
    assert fourth == [["html", "<b>x</b>"]]


def test_a_notebook_becomes_a_page():
    notebooks = hook("notebooks")
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title\n", "\n", "As [there](other.ipynb)."]},
            {"cell_type": "code", "source": ["1 + 1"]},
        ]
    }
    plain = notebooks.markdown(notebook, "page", None)
    assert plain.startswith("# Title\n\nAs [there](other.md).\n\n!!! note")
    assert "```python\n1 + 1\n```" in plain
    ran = notebooks.markdown(notebook, "page", [[["text", "2"], ["png", "QUJD"]]])
    assert "```text\n2\n```" in ran
    assert "data:image/png;base64,QUJD" in ran
    assert "[Download this notebook](page.ipynb)" in ran


def test_a_notebook_that_fails_says_why(tmp_path):
    path = tmp_path / "broken.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]}))
    assert "ZeroDivisionError" in hook("notebooks").outputs(path)


def test_the_gallery_shows_every_example_that_has_a_picture():
    text = hook("notebooks").gallery("guide")
    for path in (ROOT / "examples").glob("*.py"):
        assert f"](../pictures/{path.stem}.png)" in text
        assert (ROOT / "docs" / "pictures" / f"{path.stem}.png").exists()
