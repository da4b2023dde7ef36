"""Counts and times of a server, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the times that are counted together, in seconds."""


class Metrics:
    """What a server counts. Only the thread of the event loop uses it."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._statuses: Counter[int] = Counter()
        self._times, self._total = [0] * (len(BOUNDS) + 1), 0.0
        self._batches = self._batched = self._rows = 0

    def request(self, status: int, seconds: float) -> None:
        """Count a request to ``/predict``."""
        self._statuses[status] += 1
        self._times[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def batch(self, requests: int, rows: int) -> None:
        """Count a batch."""
        self._batches += 1
        self._batched += requests
        self._rows += rows

    def text(self) -> str:
        """All of it as Prometheus reads it."""
        lines = _about("credax_requests_total", "counter", "Requests to /predict by status.")
        lines += [
            f'credax_requests_total{{status="{status}"}} {count}'
            for status, count in sorted(self._statuses.items())
        ]
        for name, text, value in (
            ("credax_batches_total", "Batches of requests.", self._batches),
            ("credax_batched_requests_total", "Requests in these batches.", self._batched),
            ("credax_rows_total", "Rows in these batches.", self._rows),
        ):
            lines += [*_about(name, "counter", text), f"{name} {value}"]
        name = "credax_requests_in_flight"
        lines += [*_about(name, "gauge", "Requests that have no answer yet.")]
        lines += [f"{name} {self.in_flight}"]
        name = "credax_request_seconds"
        lines += _about(name, "histogram", "Time from the arrival of a request to its answer.")
        below = 0
        for bound, count in zip((*BOUNDS, "+Inf"), self._times, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        lines += [f"{name}_sum {self._total:.6f}", f"{name}_count {below}"]
        return "\n".join(lines) + "\n"


def _about(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
