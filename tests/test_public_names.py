"""What the documentation names can be imported as it says, and everything that is public is documented.

A name is public if every part of its path is: no part begins with an underscore, and a module is listed in
``__all__`` of the package that it belongs to, from ``credax.__all__`` on. All other modules are private,
whatever they are called, so that they can move.
"""

import ast
import dataclasses
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import credax as cx
from credax.inference import METHODS

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
REFERENCE = ROOT / "docs" / "reference.md"

CHAIN = re.compile(r"(?<![\w./-])(?:cx|credax)((?:\.[A-Za-z_]\w*)+)")
DIRECTIVE = re.compile(r"^ *::: +credax\.([\w.]+)", re.MULTILINE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^ *(from|import) credax.*$", re.MULTILINE)
LINK = re.compile(r"https?://\S+")

# Runs in a process that has imported credax and nothing else, as a reader has who copies an example.
RESOLVE = """
import dataclasses, inspect, json, sys, types
import credax

def wrong(path):
    thing, at = credax, "credax"
    for part in path.split("."):
        if part.startswith("_") and part != "__version__":
            return f"{part} is private: name something public instead"
        fields = getattr(thing, "__dataclass_fields__", {})
        if not hasattr(thing, part) and not (inspect.isclass(thing) and part in fields):
            return f"{at} has no {part} after `import credax`: correct the name, or import it in {at}"
        value = getattr(thing, part, None)
        if isinstance(value, types.ModuleType) and part not in getattr(thing, "__all__", ()):
            return f"the module {part} is private: use a name that {at} offers, or add it to {at}.__all__"
        thing, at = value, f"{at}.{part}"
    return None

paths = json.load(sys.stdin)
print(json.dumps({path: wrong(path) for path in paths}))
"""


def text_of(page):
    return LINK.sub("", page.read_text(encoding="utf-8"))


def chains(page):
    """What a page names by attributes of ``cx`` or ``credax``, in its text and in its code."""
    text = IMPORT.sub("", DIRECTIVE.sub("", text_of(page)))
    return {chain.strip(".") for chain in CHAIN.findall(text)}


def imports(page):
    """What the examples of a page import from credax."""
    found = set()
    for _, block in BLOCK.findall(text_of(page)):
        try:
            tree = ast.parse(textwrap.dedent(block))
        except SyntaxError as error:
            pytest.fail(
                f"{page.relative_to(ROOT)} has an example that is not Python ({error}):\n{block}"
            )
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [item.name for item in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{item.name}" for item in node.names]
            found |= {name.removeprefix("credax.") for name in names if name.startswith("credax.")}
    return found


def directives(page):
    """What a page asks the reference to show."""
    return set(DIRECTIVE.findall(text_of(page)))


def names(page):
    """Everything of credax that a page names."""
    return chains(page) | imports(page) | directives(page)


@pytest.fixture(scope="module")
def problems():
    """What is wrong with each name on any page; ``None`` if nothing is."""
    found = sorted({name for page in PAGES for name in names(page)})
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE],
        input=json.dumps(found),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_public(page, problems):
    wrong = [f"credax.{name}: {problems[name]}." for name in sorted(names(page)) if problems[name]]
    assert not wrong, f"{page.relative_to(ROOT)} names what is not public.\n" + "\n".join(wrong)


def test_every_public_name_is_in_the_reference():
    shown = directives(REFERENCE)
    listed = "<!-- methods -->" in REFERENCE.read_text(encoding="utf-8")
    methods = {method.__name__ for method in METHODS.values()} if listed else set()
    missing = [
        name
        for name in cx.__all__
        if name not in methods
        and name != "__version__"
        and not any(entry == name or entry.startswith(f"{name}.") for entry in shown)
    ]
    assert not missing, (
        "docs/reference.md does not show these public names; add a line '::: credax.<name>' for each, or "
        f"take it out of credax.__all__: {', '.join(missing)}."
    )


def test_the_public_names_exist_once():
    assert len(set(cx.__all__)) == len(cx.__all__), "credax.__all__ lists a name twice"
    missing = [name for name in cx.__all__ if not hasattr(cx, name)]
    assert not missing, f"credax.__all__ lists what credax does not have: {missing}"
    assert set(cx.__all__) >= set(cx.inference.__all__)


# -- methods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_when_to_use_it(name):
    when = getattr(METHODS[name], "when", "")
    assert isinstance(when, str), f"{METHODS[name].__name__}.when must be a text"
    assert when.strip(), (
        f"say in {METHODS[name].__name__}.when, in a few words, when to use the method"
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_that_shows_its_settings(name):
    page = ROOT / "docs" / "methods" / f"{name}.md"
    assert page.exists(), f"write docs/methods/{name}.md about cx.{METHODS[name].__name__}"
    assert METHODS[name].__name__ in directives(page), (
        f"docs/methods/{name}.md needs the line '::: credax.{METHODS[name].__name__}'"
    )


def test_every_page_of_a_method_has_its_method():
    pages = {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")} - {"index"}
    assert pages <= set(METHODS), (
        f"{sorted(pages - set(METHODS))}: delete the page, or import its method in "
        "credax/inference/__init__.py"
    )


def declared_with_checks(cls):
    """For each setting, the classes among the ancestors of a class that declare it with a check."""
    found = {}
    for ancestor in reversed(cls.__mro__):
        fields = vars(ancestor).get("__dataclass_fields__", {})
        for item in fields.values():
            seen = found.setdefault(item.name, {})
            # An inherited field is the same object.
            if "check" in item.metadata and item not in seen.values():
                seen[ancestor.__name__] = item
    return {name: list(classes) for name, classes in found.items()}


@pytest.mark.parametrize("name", METHODS)
def test_no_setting_is_declared_with_a_check_twice(name):
    twice = {k: v for k, v in declared_with_checks(METHODS[name]).items() if len(v) > 1}
    assert not twice, (
        f"settings of {METHODS[name].__name__} have a check in several classes: {twice}. Keep the check of the "
        "first; a subclass that wants another default writes the default alone."
    )


def test_a_setting_that_is_declared_with_a_check_twice_is_found():
    from credax.core.settings import Settings, at_least, setting

    @dataclasses.dataclass(frozen=True)
    class Walk(Settings):
        steps: int = setting(10, at_least(1))
        chains: int = setting(4, at_least(1))

    @dataclasses.dataclass(frozen=True)
    class Long(Walk):
        steps: int = setting(100, at_least(1))
        chains: int = 2

    assert declared_with_checks(Long) == {"steps": ["Walk", "Long"], "chains": ["Walk"]}
