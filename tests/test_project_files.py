"""The files about the project agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest

from credax import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_citation_and_the_recipe_have_the_version_of_the_package():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version = "{__version__}"' in (ROOT / "recipe" / "meta.yaml").read_text()


def test_the_recipe_needs_what_the_package_needs():
    recipe = (ROOT / "recipe" / "meta.yaml").read_text()
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    needed = re.findall(r"^    - ([\w-]+) (\S+)$", run, re.MULTILINE)
    found = [name + bounds for name, bounds in needed if name != "python"]
    assert found == PROJECT["dependencies"]
    assert ("python", PROJECT["requires-python"]) in needed


def test_every_python_version_is_tested():
    named = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if ":: 3." in line]
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.search(r"python: \[(.*)\]", text)[1] == ", ".join(f'"{each}"' for each in named)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_targets_that_exist(path):
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", path.read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert "permissions:\n  contents: read\n" in path.read_text()


def test_every_extra_of_the_guide_exists():
    for page in (ROOT / "docs").rglob("*.md"):
        for extras in re.findall(r"credax\[([\w,]+)\]", page.read_text()):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), page.name
