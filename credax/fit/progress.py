"""The progress bar, and an interrupt handler that waits for the current chunk to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column


class Bar:
    """A progress bar on standard error: the method's name, the steps, the times, and the method's figures."""

    def __init__(self, method: Any, shown: bool, done: int = 0, total: int | None = None):
        name = type(method).__name__
        # In a narrow terminal, the name would be the first column to be shortened.
        whole = Column(no_wrap=True, min_width=len(name))
        self._progress = Progress(
            TextColumn("[bold]{task.description}", table_column=whole),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
            auto_refresh=False,
            disable=not shown,
        )
        self._task = self._progress.add_task(
            name, total=total or method.num_steps, completed=done, figures="compiling"
        )

    def __enter__(self) -> Bar:
        self._progress.start()
        self._progress.refresh()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.refresh()
        self._progress.stop()

    def update(self, step: int, figures: dict[str, float]) -> None:
        """Show the number of steps so far and the latest figures."""
        text = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
        self._progress.update(self._task, completed=step, figures=text, refresh=True)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """A context in which the first Ctrl-C is only recorded, so that no chunk is lost; the second one raises."""
    noted = False

    def note(number, frame):
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True

    # Only the main thread receives signals, and a handler that someone else has installed must stay.
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
