"""How often a run writes checkpoints."""

from __future__ import annotations

SHARE = 0.02
"""The largest fraction of the time that is spent on writing checkpoints, once a run has gone on for a while."""


class Pace:
    """When the next checkpoint is due.

    The first one is due at once: it shows how long writing takes, and whether the folder can be written to.
    After that, a process that has worked for some time waits as long again, so that one that is killed often
    still keeps half of its work; until the wait is so long that writing takes a small share of the time.
    """

    def __init__(self):
        self._began: float | None = None
        self._due = self._wrote = 0.0

    def due(self, now: float) -> bool:
        """Whether a checkpoint should be written now."""
        if self._began is None:
            self._began = now
        return now >= self._due

    def written(self, began: float, ended: float) -> None:
        """Note when a checkpoint was begun and when it was complete (or failed)."""
        cost = ended - began
        worked = began - (began if self._began is None else self._began) - self._wrote
        self._wrote += cost
        self._due = ended + min(cost / SHARE, max(cost, worked))
