"""The lists of methods on the site, made from ``credax.inference.METHODS`` when the site is built.

A method that is imported in ``credax/inference/__init__.py`` and has its page ``docs/methods/<name>.md``
appears in the navigation and in every table without another edit. In a page, the comment ``<!-- methods -->``
stands for one table of methods per family, ``<!-- methods: needs -->`` for a table of what each method needs,
``<!-- methods: errs -->`` for one of what it gets wrong.
"""

import os
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.inference import METHODS

PAGES = Path(__file__).parent.parent / "methods"
MARK = re.compile(r"^<!-- methods(?:: (\w+))? -->$", re.MULTILINE)


def on_config(config, **_):
    """Called by MkDocs with its settings: puts a section for each family under "Methods"."""
    problems = missing_and_unknown()
    if problems:
        from mkdocs.exceptions import PluginError

        raise PluginError("\n".join(problems))
    section = next(entry for entry in config.nav if isinstance(entry, dict) and "Methods" in entry)
    section["Methods"] = [
        {title: [f"methods/{name}.md" for name in names]} for title, _, names in families()
    ]
    return config


def on_page_markdown(markdown, page, **_):
    """Called by MkDocs with the text of each page: replaces the comments by tables."""
    folder = os.path.dirname(page.file.src_uri)
    tables = {None: overview, "needs": needs, "errs": errs}
    return MARK.sub(lambda found: tables[found[1]](folder), markdown)


def missing_and_unknown():
    """What to do about methods without a page, and about pages without a method."""
    pages = {path.stem for path in PAGES.glob("*.md")}
    return [
        f"docs/methods/{name}.md is missing: write the page of cx.{METHODS[name].__name__}."
        for name in METHODS
        if name not in pages
    ] + [
        f"docs/methods/{name}.md describes no method: delete it, or import its method in "
        "credax/inference/__init__.py."
        for name in sorted(pages - set(METHODS))
    ]


def families():
    """The families in the order of their first methods: title, description and names of methods.

    A family is a module or package in ``credax/inference``, and the first line of its docstring reads
    ``Title: description.``
    """
    names = {}
    for name, method in METHODS.items():
        module = ".".join(method.__module__.split(".")[:3])
        names.setdefault(module, []).append(name)
    for module, members in names.items():
        title, _, description = sys.modules[module].__doc__.partition("\n")[0].partition(":")
        yield title, description.strip(), members


def overview(folder):
    """What each method is and when to use it, a table for each family."""
    parts = []
    for title, description, names in families():
        parts.append(f"### {title}\n\n{description[:1].upper()}{description[1:]}")
        rows = ["| method | what it is | when to use it |", "| --- | --- | --- |"]
        rows += [
            f"| {link(name, folder)} | {summary(METHODS[name])} | {METHODS[name].when} |"
            for name in names
        ]
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def errs(folder):
    """What the uncertainty of each method gets wrong."""
    rows = ["| method | what its uncertainty gets wrong |", "| --- | --- |"]
    rows += [f"| {link(name, folder)} | {method.errs} |" for name, method in METHODS.items()]
    return "\n".join(rows)


def needs(folder):
    """What each method gives, and which models it takes with its default settings."""
    linear, likelihood = cx.networks.linear(), cx.likelihoods.Gaussian(1.0)
    normalised = cx.networks.mlp([2], batch_norm=True)
    continuous = cx.Model(linear, likelihood=likelihood)
    discrete = cx.Model(linear, cx.priors.Discrete([-1, 1]), likelihood)
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -0.5 * jnp.sum(w**2))
    statistics = cx.Model(normalised, likelihood=likelihood)
    rows = [
        "| method | posterior | weights | `LogDensity` | batch statistics |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, cls in METHODS.items():
        method = cls()
        weights = {"continuous": continuous, "discrete": discrete}
        trained = "`start=`" if "trained state" in method.needs else "trained"
        cells = [
            method.kind,
            ", ".join(kind for kind, model in weights.items() if takes(method, model)),
            "yes" if takes(method, density) else "no",
            trained if takes(method, statistics) else "no",
        ]
        rows.append(f"| {link(name, folder)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def takes(method, model):
    """Whether a method accepts a model, by its own check."""
    x = np.linspace(-1, 1, 256)[:, None]
    data = None if isinstance(model, cx.LogDensity) else (x, x[:, 0])
    try:
        method.check(*model.prepare(data))
    except (TypeError, ValueError):
        return False
    return True


def link(name, folder):
    """A link from a page in a folder to the page of a method."""
    path = os.path.relpath(f"methods/{name}.md", folder or ".")
    return f"[`{METHODS[name].__name__}`]({path})"


def summary(method):
    """The first sentence of a docstring."""
    return " ".join(method.__doc__.strip().partition("\n\n")[0].split())
