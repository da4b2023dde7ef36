"""The progress bar, and Ctrl-C that waits for the chunk to end."""

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
    """Name, bar, steps, times and the method's own figures, on the standard error stream."""

    def __init__(self, method: Any, shown: bool, done: int = 0, total: int | None = None):
        name = type(method).__name__
        # Of the columns, a narrow terminal squeezes the name first.
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
        """Shows how far the run is and its latest figures."""
        text = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
        self._progress.update(self._task, completed=step, figures=text, refresh=True)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within it, the first Ctrl-C is only noted, so that no chunk is lost; the second one raises."""
    noted = False

    def note(number, frame):
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True

    # Python delivers signals to the main thread alone, and another program's handler is not ours to replace.
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
