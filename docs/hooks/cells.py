"""Runs the code of a notebook as Jupyter would.

``python cells.py < notebook.ipynb`` prints the outputs as JSON: one list for each code cell, of pairs
``[kind, content]``. The kinds are ``text`` for what was printed, ``html`` or ``text`` for the value of the last
line, and ``png`` (base64) for the figures of matplotlib that are open after the cell. Standard Python is
enough: notebooks of this site use no magic commands.
"""

import ast
import base64
import contextlib
import io
import json
import sys


def run(cells):
    """The outputs of each cell; the cells share one namespace."""
    scope = {"__name__": "__main__"}
    return [run_cell(source, number, scope) for number, source in enumerate(cells, 1)]


def run_cell(source, number, scope):
    """The outputs of one cell: what it prints, the value of its last line, and its figures."""
    tree, last = ast.parse(source), None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    printed, name, value = io.StringIO(), f"<cell {number}>", None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), scope)
        if last is not None:
            value = eval(compile(last, name, "eval"), scope)  # noqa: S307  (the code of our own pages)
    outputs = [["text", printed.getvalue().rstrip()]] if printed.getvalue().strip() else []
    figures = pictures()
    # The value of a line that draws is an object of matplotlib, of which nobody wants to read the name.
    if value is not None and not figures:
        html = getattr(value, "_repr_html_", None)
        outputs.append(["html", html()] if html else ["text", repr(value)])
    return outputs + [["png", picture] for picture in figures]


def pictures():
    """The open figures as PNG in base64; they are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        content = io.BytesIO()
        plt.figure(number).savefig(content, format="png", dpi=110)
        found.append(base64.b64encode(content.getvalue()).decode())
    plt.close("all")
    return found


def code(notebook):
    """The code cells of a notebook, each as one text."""
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


if __name__ == "__main__":
    json.dump(run(code(json.load(sys.stdin))), sys.stdout)
