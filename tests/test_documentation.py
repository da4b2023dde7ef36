"""The documentation names what exists."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import credax as cx
from credax.inference import METHODS

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(cx.__path__, "credax.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_that_the_site_lists(name):
    page = ROOT / "docs" / "methods" / f"{name}.md"
    assert page.exists()
    assert f"::: credax.{METHODS[name].__name__}" in page.read_text()
    assert f"methods/{name}.md" in (ROOT / "mkdocs.yml").read_text()
    assert METHODS[name].__name__ in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_public_name_on_a_page_is_real(page):
    for dotted in set(re.findall(r"\bcx((?:\.[A-Za-z_]+)+)", page.read_text())):
        thing = cx
        for part in dotted.strip(".").split("."):
            assert hasattr(thing, part), f"{page.name} names cx{dotted}"
            thing = getattr(thing, part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_what_they_say(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_is_documented():
    for name in cx.__all__:
        assert (getattr(cx, name).__doc__ or "").strip() or name == "__version__", name
