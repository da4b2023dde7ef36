"""The progress of a run in a notebook: one line of HTML that is replaced, and needs no other package."""

from __future__ import annotations

import time
from html import escape
from typing import Any

LEAST = 0.2
"""The least time between two updates, in seconds: each is a message from the kernel to the page."""


class NotebookBar:
    """A progress bar as HTML, below the cell that runs.

    Args:
      name: the name of the method.
      total: the number of steps.
      done: the number of steps that were done before.
      show: a function that displays an object of IPython and returns a handle with ``update``. If ``None``,
        that of IPython.
    """

    def __init__(self, name: str, total: int, done: int = 0, show: Any = None):
        self._name, self._total, self._first, self._step = name, total, done, done
        self._show, self._handle = show, None
        self._figures = "compiling"
        self._began = self._shown = time.perf_counter()

    def start(self) -> None:
        """Show the bar."""
        if self._show is None:
            from IPython.display import display

            self._show = lambda line: display(line, display_id=True)
        self._handle = self._show(self)

    def update(self, step: int, figures: str) -> None:
        """Show the number of steps so far and the latest figures."""
        self._step, self._figures = step, figures
        if time.perf_counter() - self._shown >= LEAST:
            self.refresh()

    def refresh(self) -> None:
        """Replace what is shown."""
        self._shown = time.perf_counter()
        if self._handle is not None:
            self._handle.update(self)

    def _times(self) -> str:
        seconds, done = time.perf_counter() - self._began, self._step - self._first
        if self._step >= self._total or not done:
            return clock(seconds)
        left = seconds * (self._total - self._step) / done
        return f"{clock(seconds)}, {clock(left)} left"

    def __repr__(self) -> str:
        return f"{self._name} {self._step}/{self._total} {self._times()} {self._figures}".rstrip()

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._step}" max="{self._total}"></progress>'
        words = f"{self._step}/{self._total} &nbsp; {self._times()} &nbsp; {escape(self._figures)}"
        return f"<div><b>{escape(self._name)}</b> {bar} {words}</div>"


def clock(seconds: float) -> str:
    """A duration as a clock shows it.

    >>> clock(75.2), clock(3_700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
