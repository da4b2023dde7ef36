"""The progress bar of a notebook: one output that is replaced, whatever the number of steps."""

import sys
from types import ModuleType

import pytest
import rich.console
from walks import Walk, walk

from credax.fit import notebook
from credax.fit.notebook import NotebookBar


class Handle:
    """Stands for a place below a cell; ``shown`` are the HTML texts that were put there."""

    def __init__(self):
        self.shown = []

    def display(self, line, **_):
        self.update(line)
        return self

    def update(self, line):
        self.shown.append(line._repr_html_())


def test_updates_replace_one_line_and_are_few(monkeypatch):
    clock = iter(range(1_000))
    monkeypatch.setattr(notebook.time, "perf_counter", lambda: 0.05 * next(clock))
    handle = Handle()
    bar = NotebookBar("HMC", 100, show=handle.display)
    bar.start()
    for step in range(1, 101):
        bar.update(step, f"log joint {step}")
    bar.refresh()
    assert handle.shown[0].startswith(
        '<div><b>HMC</b> <progress value="0" max="100"></progress> 0/100'
    )
    assert "compiling" in handle.shown[0]
    assert "left" in handle.shown[1]
    assert 10 < len(handle.shown) < 60  # five a second at most
    assert "100/100" in handle.shown[-1]
    assert "left" not in handle.shown[-1]
    assert "log joint 100" in handle.shown[-1]


def test_names_and_figures_are_escaped():
    assert "<b>A&lt;b&gt;</b>" in NotebookBar("A<b>", 1)._repr_html_()


@pytest.fixture
def in_a_notebook(monkeypatch):
    """Lets rich believe that a notebook runs this, and IPython display into a list."""
    handle, display = Handle(), ModuleType("IPython.display")
    display.display = handle.display
    package = ModuleType("IPython")
    package.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    return handle


def test_a_fit_in_a_notebook_shows_html_and_writes_nothing(in_a_notebook, capsys):
    walk(Walk(num_steps=9), progress=True)
    assert capsys.readouterr() == ("", "")
    assert "Walk" in in_a_notebook.shown[0]
    assert "9/9" in in_a_notebook.shown[-1]


def test_a_fit_in_a_notebook_shows_nothing_if_asked(in_a_notebook):
    walk(Walk(num_steps=9), progress=False)
    assert not in_a_notebook.shown
