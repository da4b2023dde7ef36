"""How docstrings are shown: examples as code, references of Sphinx as names, settings with their defaults."""

import re

import griffe

EXAMPLE = re.compile(r"^( *)>>> (?:.*\n?)(?:^\1\S.*\n?)*", re.MULTILINE)
ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc):`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Called by griffe, which reads the code for mkdocstrings."""

    def on_instance(self, *, obj, **_):
        """Markdown takes ``>>>`` for a quotation, and does not know the roles of Sphinx."""
        if obj.docstring:
            text = EXAMPLE.sub(fenced, obj.docstring.value)
            obj.docstring.value = ROLE.sub(r"`\1`", text)

    def on_attribute_instance(self, *, attr, **_):
        """``num_steps: int = setting(100, at_least(1))`` has the default 100."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "setting":
            default = value.arguments[0]
            attr.value = None if str(default) == "REQUIRED" else default


def fenced(found):
    """An example of a docstring as a block of code in Markdown."""
    indent, text = found[1], found[0].rstrip("\n")
    return f"{indent}```pycon\n{text}\n{indent}```\n"
