"""Functions behind methods of ``Posterior`` that are defined in higher layers: scores, diagnoses, files.

The modules that define these functions import :class:`~credax.posterior.Posterior`, which therefore cannot
import them. Each module assigns its function here when it is imported, and ``import credax`` imports all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

save: Callable[..., None]
evaluate: Callable[..., Any]
calibrate: Callable[..., Any]
diagnose: Callable[..., Any]
alarms: Callable[..., Any]
examine: Callable[..., Any]
convergence: Callable[..., Any]
