"""Tutorials: every ``docs/tutorials/*.ipynb`` becomes a page, and can be downloaded from it.

The notebooks hold no outputs. If the environment variable ``CREDAX_TUTORIALS`` is ``run`` (``make docs
TUTORIALS=run``), they are run when the site is built, two at a time, and a notebook that fails stops the build.
Otherwise the pages show text and code alone, so that building them takes no time.

In a page, the comment ``<!-- tutorials -->`` stands for a list of the notebooks, ``<!-- examples -->`` for a
gallery of the pictures of ``examples/``.
"""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DOCS = Path(__file__).parent.parent
FOLDER = "tutorials"
SECONDS = 600
"""The longest time that one notebook may take."""
WIDE = 110
"""The most characters in a line of printed text."""
WRAP = {"subsequent_indent": "  ", "drop_whitespace": True, "replace_whitespace": False}
NOT_RUN = (
    "!!! note\n    This site was built without running the notebooks. [Download this one]({name}.ipynb) "
    "and run it, or build the site with `make docs TUTORIALS=run`."
)
RUN = "[Download this notebook]({name}.ipynb). Its outputs were computed when this site was built."


def notebooks():
    """The paths of the notebooks, in the order of their names."""
    return sorted((DOCS / FOLDER).glob("*.ipynb"))


def on_files(files, config, **_):
    """Called by MkDocs with the files of the site: adds a page for each notebook."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    paths = notebooks()
    found = [None] * len(paths)
    if os.environ.get("CREDAX_TUTORIALS") == "run":
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(outputs, paths))
    for path, ran in zip(paths, found, strict=True):
        if isinstance(ran, str):
            raise PluginError(f"{path.name} cannot be run:\n{ran}")
        page = markdown(json.loads(path.read_text("utf-8")), path.stem, ran)
        files.append(File.generated(config, f"{FOLDER}/{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown, page, **_):
    """Called by MkDocs with the text of each page: replaces the comments by lists."""
    folder = os.path.dirname(page.file.src_uri) or "."
    markdown = markdown.replace("<!-- examples -->", gallery(folder))
    if "<!-- tutorials -->" not in markdown:
        return markdown
    lines = [f"- [{title(path)}]({path.stem}.md): {summary(path)}" for path in notebooks()]
    return markdown.replace("<!-- tutorials -->", "\n".join(lines))


def outputs(path):
    """The outputs of each code cell of a notebook; the error, as text, if it fails."""
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cells.py"))],
        input=path.read_text("utf-8"),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env=environment,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr[-3_000:]


def markdown(notebook, name, ran):
    """The notebook as the text of a page. ``ran`` has the outputs of its code cells, or is ``None``."""
    parts, outputs = [], iter(ran or ())
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"(\]\([^)\s]+)\.ipynb\)", r"\1.md)", source))
        else:
            parts.append(f"```python\n{source}\n```")
            parts.extend(shown(kind, content) for kind, content in next(outputs, ()))
        if len(parts) == 1:
            parts.append((NOT_RUN if ran is None else RUN).format(name=name))
    return "\n\n".join(parts) + "\n"


def shown(kind, content):
    """One output in Markdown."""
    if kind == "png":
        return f'<img alt="Plot made by the code above" src="data:image/png;base64,{content}">'
    if kind == "html":
        content = re.sub(r"<table [^>]*>", "<table>", content)  # the site styles plain tables
        return re.sub(r"\s*\n\s*", "", content)  # a blank line would end the HTML
    lines = [
        part for line in content.split("\n") for part in textwrap.wrap(line, WIDE, **WRAP) or [line]
    ]
    return "```text\n" + "\n".join(lines) + "\n```"


def first_cell(path):
    """The text of the first cell: the title, and what the tutorial is about."""
    return "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])


def title(path):
    """The title of a notebook."""
    return first_cell(path).partition("\n")[0].removeprefix("# ")


def summary(path):
    """The first paragraph of a notebook."""
    return " ".join(first_cell(path).split("\n\n")[1].split())


def gallery(folder):
    """The pictures of the examples, each with the first sentence of the example's docstring."""
    parts = []
    for path in sorted((DOCS.parent / "examples").glob("*.py")):
        picture = os.path.relpath(f"pictures/{path.stem}.png", folder)
        said = ast.get_docstring(ast.parse(path.read_text("utf-8"))).split("\n\n")[0]
        name = path.stem.replace("_", " ").capitalize()
        parts.append(
            f"## {name}\n\n{' '.join(said.split())}\n\n![{name}]({picture})\n\n"
            f"`python examples/{path.name}` makes it."
        )
    return "\n\n".join(parts)
