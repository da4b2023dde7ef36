"""The documentation names what exists, shows examples that work, and covers every method and public name."""

import doctest
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_its_uncertainty_gets_wrong(name):
    assert METHODS[name].errs, (
        f"Add to {METHODS[name].__name__}: errs = 'in which direction it errs'"
    )
    page = DOCS / "guide" / "what-each-method-gets-wrong.md"
    assert "<!-- methods: errs -->" in page.read_text()


def test_examples_and_references_in_docstrings_become_markdown():
    pytest.importorskip("griffe")
    path = DOCS / "hooks" / "docstrings.py"
    spec = importlib.util.spec_from_file_location("docstrings", path)
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = "See :meth:`~Model.fit`.\n\n>>> f(1)\n[(2, 3)]\n>>> f(2)\n\nArgs:\n  x: it."
    docstring = SimpleNamespace(value=text)
    hook.Docstrings().on_instance(obj=SimpleNamespace(docstring=docstring))
    assert docstring.value == (
        "See `Model.fit`.\n\n```pycon\n>>> f(1)\n[(2, 3)]\n>>> f(2)\n```\n\nArgs:\n  x: it."
    )


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


ROWS = "x = np.random.default_rng(0).uniform(-2, 2, size=({rows}, 1))\n"
PROBLEMS = {
    "sine": (ROWS, "np.sin(2 * x[:, 0])"),
    "step": (ROWS, "np.sign(x[:, 0])"),
    "eight inputs": (
        "x = np.random.default_rng(0).normal(size=({rows}, 8))\n",
        "np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]",
    ),
}
SIZES = [
    ("sine", 50, 5_000),
    ("sine", 80, 5_000),
    ("sine", 500, 5_000),
    ("sine", 5_000, 5_000),
    ("step", 80, 5_000),
    ("step", 500, 5_000),
    ("eight inputs", 500, 5_000),
]


@pytest.mark.slow
@pytest.mark.parametrize("problem, rows, steps", SIZES)
def test_the_ten_lines_fit_tables_of_any_size(problem, rows, steps):
    """The first example of the README, with other data: it predicts new rows well, and its intervals hold."""
    inputs, function = PROBLEMS[problem]
    data = f"{inputs}f = {function}\ny = f + 0.1 * np.random.default_rng(1).normal(size={{rows}})\n"
    _, example = blocks(ROOT / "README.md")[0].split("import credax as cx\n")
    model = example[example.index("model = ") : example.index("predictive = ")]
    assert "num_steps=5_000" in model
    scope = {"np": np, "cx": cx}
    exec(data.format(rows=rows) + model.replace("5_000", str(steps)), scope)
    posterior = scope["posterior"]
    exec(data.format(rows=1_000).replace("default_rng(0)", "default_rng(2)"), scope)
    x, f, y = (scope[name] for name in ("x", "f", "y"))
    predictive = posterior.predict(x)
    explained = 1 - np.mean((np.asarray(predictive.mean) - f) ** 2) / np.var(f)
    lower, upper = predictive.interval(0.9)
    coverage = np.mean((lower <= y) & (y <= upper))
    assert explained > 0.95
    assert 0.8 < coverage < 0.995
    assert "constant" not in str(posterior.diagnose())


@pytest.mark.slow
def test_the_ten_lines_tell_two_moons_apart():
    rng = np.random.default_rng(0)

    def moons(rows):
        label, angle = rng.integers(0, 2, rows), rng.uniform(0, np.pi, rows)
        first = np.where(label == 0, np.cos(angle), 1 - np.cos(angle))
        second = np.where(label == 0, np.sin(angle), 0.5 - np.sin(angle))
        return np.stack([first, second], 1) + 0.2 * rng.normal(size=(rows, 2)), label

    train, (x, y) = moons(80), moons(1_000)
    model = cx.Model(
        cx.networks.mlp([50, 50]), cx.priors.LearnedNormal(), cx.likelihoods.Bernoulli()
    )
    method = cx.BayesByBackprop(num_steps=5_000)
    found = cx.fit(model, train, method, key=0, progress=False).evaluate(x, y)
    best = cx.fit(
        cx.Model(cx.networks.mlp([50, 50]), likelihood=cx.likelihoods.Bernoulli()),
        train,
        cx.MAP(),
        progress=False,
    )
    assert found.accuracy > best.evaluate(x, y).accuracy - 0.02


def test_the_method_that_the_contributing_guide_writes_can_be_fitted(tmp_path):
    run(
        blocks(ROOT / "CONTRIBUTING.md")[0]
        + "import credax as cx\n"
        + "density = cx.LogDensity(lambda key: jax.numpy.zeros(2), lambda w: -0.5 * (w**2).sum())\n"
        + "posterior = cx.fit(density, None, Langevin(step_size=0.5, num_steps=2_000))\n"
        + "assert abs(posterior.draws.std() - 1) < 0.3\n",
        tmp_path,
    )


@pytest.mark.slow
def test_the_skeleton_of_a_method_runs_and_is_calibrated(tmp_path):
    code = blocks(DOCS / "guide" / "write-your-own-method.md")
    check = "assert abs(float(posterior.predict(x).mean[-1]) - 2) < 0.4\n"
    run(code[0] + check + code[1], tmp_path)


@pytest.mark.slow
def test_the_code_on_the_page_of_plots_runs(tmp_path):
    run(
        "import matplotlib\nmatplotlib.use('agg')\n"
        + "\n".join(blocks(DOCS / "guide" / "plots.md")),
        tmp_path,
    )
    assert (tmp_path / "sine.png").stat().st_size > 5_000


def run(code, folder):
    """Runs code as a user would, in a process and a folder of its own; its data must suit its model."""
    strict = "import warnings, credax; warnings.simplefilter('error', credax.DataWarning)\n"
    done = subprocess.run(
        [sys.executable, "-c", strict + code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_give_what_they_say(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
