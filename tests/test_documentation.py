"""The documentation names what exists, shows examples that work, and covers every method and public name."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import credax as cx
from credax.inference import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(cx.__path__, "credax.")
    if not module.name.endswith("__main__")
)
PARTS = {
    "When to use it": "one or two sentences",
    "How it works": "the equation, as $$...$$",
    "Example": "a ```python block that can be pasted and runs in seconds",
    "What can go wrong": "each problem with its remedy",
    "Settings": "the line ::: credax.{method}",
    "References": "a list of papers, each line as - Author (year). Title. *Journal*.",
}
"""The sections of the page of a method, in this order; others may stand between them."""
PUBLIC = {name for name in cx.__all__ if type(getattr(cx, name, None)).__name__ == "module"}
"""The modules that ``import credax`` offers."""


def blocks(page, language="python"):
    """The code on a page, one text for each block."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def page_of(name):
    return DOCS / "methods" / f"{name}.md"


# -- methods --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_all_parts_in_order(name):
    method = METHODS[name].__name__
    outline = "\n".join(f"## {part}: {what.format(method=method)}" for part, what in PARTS.items())
    page = page_of(name)
    assert page.exists(), f"Write docs/methods/{name}.md with these sections:\n{outline}"
    title, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    texts = dict(section.split("\n", 1) for section in sections)
    found = [part for part in texts if part in PARTS]
    assert title.startswith("# "), f"docs/methods/{name}.md must begin with a title, # ..."
    assert found == list(PARTS), f"docs/methods/{name}.md must have, in this order:\n{outline}"
    assert "$$" in texts["How it works"]
    assert "```python\nimport " in texts["Example"]
    assert f"::: credax.{method}\n" in texts["Settings"]
    assert re.search(r"^- [^-]*\(\d{4}\)", texts["References"], re.MULTILINE)


def test_every_page_of_a_method_has_a_method():
    pages = {page.stem for page in (DOCS / "methods").glob("*.md")}
    assert pages <= set(METHODS), f"No method of docs/methods/: {sorted(pages - set(METHODS))}."


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_code_on_the_page_of_a_method_runs(name, tmp_path):
    run("\n".join(blocks(page_of(name))), tmp_path)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_page_names_in_the_code_is_there(name):
    sources = "\n".join(path.read_text() for path in (ROOT / "credax").rglob("*.py"))
    table = re.search(r"^\| in the equations \|.*?\n\n", page_of(name).read_text(), re.S | re.M)
    for cell in re.findall(r"`([\w.]+)", table[0]) if table else ():
        if not cell.endswith(".py"):
            word = cell.split(".")[-1]
            assert re.search(rf"\b{word}\b", sources), f"docs/methods/{name}.md names {cell}"


def test_the_readme_names_a_method_of_every_family():
    families = {}
    for method in METHODS.values():
        families.setdefault(method.__module__.split(".")[2], []).append(method.__name__)
    text = (ROOT / "README.md").read_text()
    for family, methods in families.items():
        row = (
            f"| {family} | what stands for the posterior | {', '.join(f'`{m}`' for m in methods)} |"
        )
        assert any(f"`{m}`" in text for m in methods), (
            f"Add to the table of README.md, in words:\n{row}"
        )


def test_the_page_on_reports_lists_every_section():
    text = (DOCS / "guide" / "report.md").read_text()
    for path in sorted((ROOT / "credax" / "report").glob("*.py")):
        for title in re.findall(r'Section\("[\w-]+", "([^"]+)"', path.read_text()):
            assert f"| {title} |" in text, f"Add a row for {title!r} to docs/guide/report.md."


# -- public names ---------------------------------------------------------------------------------


def test_every_public_name_is_documented():
    for name in cx.__all__:
        assert (getattr(cx, name).__doc__ or "").strip() or name == "__version__", name


@pytest.mark.parametrize("name", [n for n in cx.__all__ if n != "__version__"])
def test_every_public_name_is_in_the_reference(name):
    text = (DOCS / "reference.md").read_text()
    if name in cx.inference.__all__:
        assert "<!-- methods -->" in text
    else:
        assert re.search(rf"^::: credax\.{name}\b", text, re.MULTILINE), (
            f"Add to docs/reference.md, under the heading where it belongs:\n::: credax.{name}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_public_name_on_a_page_is_real(page):
    for dotted in set(re.findall(r"\bcx((?:\.[A-Za-z_]+)+)", page.read_text())):
        thing = cx
        for part in dotted.strip(".").split("."):
            assert hasattr(thing, part), f"{page.name} names cx{dotted}"
            thing = getattr(thing, part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_for_users_import_public_modules_only(page):
    if page.name == "CONTRIBUTING.md":  # for those who write a method
        return
    for code in blocks(page):
        for module in re.findall(r"^\s*(?:from|import) credax\.([\w.]+)", code, re.MULTILINE):
            allowed = ", ".join(f"credax.{name}" for name in sorted(PUBLIC))
            assert module in PUBLIC, f"{page.name} imports credax.{module}; public are {allowed}"


# -- what a reader can click and paste -------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_piece_of_python_is_python(page):
    for code in blocks(page):
        compile(code, page.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=lambda p: p.name)
def test_the_first_example_can_be_pasted(page, tmp_path):
    run(blocks(page)[0], tmp_path)


def test_the_method_that_the_contributing_guide_writes_can_be_fitted(tmp_path):
    run(
        blocks(ROOT / "CONTRIBUTING.md")[0]
        + "import credax as cx\n"
        + "density = cx.LogDensity(lambda key: jax.numpy.zeros(2), lambda w: -0.5 * (w**2).sum())\n"
        + "posterior = cx.fit(density, None, Langevin(step_size=0.5, num_steps=2_000))\n"
        + "assert abs(posterior.draws.std() - 1) < 0.3\n",
        tmp_path,
    )


def run(code, folder):
    """Runs code as a user would, in a process and a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_what_they_say(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
