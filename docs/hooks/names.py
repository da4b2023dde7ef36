"""Public names on the site: ``::: credax.HMC`` shows the class that ``credax.HMC`` is, wherever it lies.

mkdocstrings reads the code without running it. So it does not see what ``from credax.inference import *``
brings, and takes ``credax.fit`` for the package of that name instead of the function. Here each name is looked
up in the imported package, and the page shows it under the name that users write.
"""

import importlib
import inspect
import re

import credax
from credax.inference import Method

DIRECTIVE = re.compile(r"^::: credax\.([\w.]+)$", re.MULTILINE)


def on_page_markdown(markdown, **_):
    """Called by MkDocs with the text of each page."""
    return DIRECTIVE.sub(lambda found: directive(found[1]), markdown)


def directive(name):
    """The directive for a public name, with the address that mkdocstrings knows."""
    try:
        thing = look_up(name)
    except ImportError:  # of an optional package; mkdocstrings finds what is imported by its name
        thing = None
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return f"::: credax.{name}"
    options = [f"heading: credax.{name}", f"toc_label: {name}"]
    # The functions of a method are those of its contract, described once; its settings are what users need.
    if inspect.isclass(thing) and issubclass(thing, Method) and thing is not Method:
        options.append("members: false")
    address = f"{thing.__module__}.{thing.__qualname__}"
    return f"::: {address}\n    options: {{{', '.join(options)}}}"


def look_up(name):
    """What a dotted name stands for: an attribute, or else a module that nobody has imported yet."""
    thing = credax
    for part in name.split("."):
        if not hasattr(thing, part):
            importlib.import_module(f"{thing.__name__}.{part}")
        thing = getattr(thing, part)
    return thing
