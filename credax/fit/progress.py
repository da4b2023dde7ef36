"""The progress bar, and handlers of signals that wait for the current chunk to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from credax.fit.notebook import NotebookBar

WIDE = 100
"""From this width of the terminal on, there is room for a long bar and the time since the start."""


class Bar:
    """A progress bar on standard error: the method's name, the steps, the times, and the method's figures.

    Until :meth:`compiled` or the first :meth:`update`, it says for how many seconds the program has been
    compiling. In a narrow terminal the figures are shortened; the bar, the steps and the remaining time stay.
    In a notebook, the bar is a line of HTML below the cell.
    """

    def __init__(
        self,
        method: Any,
        shown: bool,
        done: int = 0,
        total: int | None = None,
        console: Console | None = None,
    ):
        terminal: Any = Console(stderr=True) if console is None else console
        name = type(method).__name__
        total = total or int(method.num_steps)
        wide = terminal.width >= WIDE
        bar = 24 if wide else 12
        columns = [
            TextColumn("[bold]{task.description}", table_column=_whole(len(name))),
            BarColumn(bar_width=bar, table_column=_whole(bar)),
            MofNCompleteColumn(table_column=_whole(2 * len(str(total)) + 1)),
            *([TimeElapsedColumn(table_column=_whole(7))] if wide else []),
            TimeRemainingColumn(table_column=_whole(7)),
            _Figures(),
        ]
        # rich's own bar in notebooks needs a package of widgets, and shows nothing without it.
        self._notebook = NotebookBar(name, total, done) if shown and terminal.is_jupyter else None
        hidden = not shown or self._notebook is not None
        # Refreshed once a second by a thread: compiling may take long, and nothing else would show it.
        self._progress = Progress(*columns, console=terminal, refresh_per_second=1, disable=hidden)
        self._task = self._progress.add_task(name, total=total, completed=done, figures=None)

    def __enter__(self) -> Bar:
        if self._notebook is not None:
            self._notebook.start()
        self._progress.start()
        self._progress.refresh()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._notebook is not None:
            self._notebook.refresh()
        self._progress.refresh()
        self._progress.stop()

    def compiled(self) -> None:
        """Show that the program is compiled, and its first steps run."""
        self._progress.update(self._task, figures="", refresh=True)

    def update(self, step: int, figures: dict[str, float]) -> None:
        """Show the number of steps so far and the latest figures."""
        text = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
        if self._notebook is not None:
            self._notebook.update(step, text)
        self._progress.update(self._task, completed=step, figures=text, refresh=True)


def _whole(width: int) -> Column:
    """A column that is never shortened."""
    return Column(no_wrap=True, min_width=width)


class _Figures(ProgressColumn):
    """The method's figures in one line, cut off where the terminal ends; before them, how long it compiles."""

    def render(self, task: Task) -> Text:
        figures = task.fields.get("figures")
        if figures is None:
            figures = f"compiling {task.elapsed or 0:.0f} s"
        return Text(figures, no_wrap=True, overflow="ellipsis")


@contextlib.contextmanager
def deferred_signals(*, terminate: bool = False) -> Iterator[Callable[[], str | None]]:
    """A context in which the first Ctrl-C is only recorded, so that no chunk is lost; the second one raises.

    It gives a function that returns ``"interrupt"`` after Ctrl-C and ``"terminated"`` after SIGTERM.

    Args:
      terminate: whether the first SIGTERM is recorded too; the second one ends the process.
    """
    noted: list[str] = []

    def interrupt(number, frame):
        if noted:
            raise KeyboardInterrupt
        noted.append("interrupt")

    def end(number, frame):
        if "terminated" in noted:
            end_by_sigterm()
        noted.append("terminated")

    before = {}
    # Only the main thread receives signals, and a handler that someone else has installed must stay.
    if threading.current_thread() is threading.main_thread():
        if _raises_later(signal.getsignal(signal.SIGINT)):
            before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
        if terminate and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            before[signal.SIGTERM] = signal.signal(signal.SIGTERM, end)
    try:
        yield lambda: noted[-1] if noted else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raises_later(handler: Any) -> bool:
    """Whether a handler of Ctrl-C is Python's own, or that of ``asyncio.run``.

    The latter ends the current task, but only when the task next waits for something, and a fit never does.
    """
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler is signal.default_int_handler or isinstance(owner, asyncio.Runner)


def end_by_sigterm() -> None:
    """End this process as SIGTERM does by default, so that its parent sees why it ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
