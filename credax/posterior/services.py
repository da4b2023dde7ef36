"""What a posterior offers that is built on top of it: scores, diagnoses, files.

The modules that provide these import :class:`~credax.posterior.Posterior`, so it cannot import them. Each of
them enters its function here when it is imported, which ``import credax`` does for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

save: Callable[..., None]
evaluate: Callable[..., Any]
calibrate: Callable[..., Any]
diagnose: Callable[..., Any]
alarms: Callable[..., Any]
convergence: Callable[..., Any]
