"""What a server refuses, and the errors with which it does so."""

from __future__ import annotations

from dataclasses import dataclass

from credax.core.checks import positive
from credax.core.settings import Settings, at_least, setting


@dataclass(frozen=True)
class Limits(Settings):
    """The limits of a server.

    Args:
      max_rows: the most rows in a request, and in a batch of requests.
      max_bytes: the most bytes in a request.
      max_queue: the most requests that are read, wait or are computed at the same time.
      timeout: the most seconds from the arrival of a request to its answer.
    """

    max_rows: int = setting(1024, at_least(1))
    max_bytes: int = setting(2_000_000, at_least(1))
    max_queue: int = setting(256, at_least(1))
    timeout: float = setting(30.0, positive)


class Refused(Exception):
    """A request is refused.

    Args:
      status: the HTTP status.
      message: why, in one sentence.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message
