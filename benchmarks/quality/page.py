"""The page ``docs/evidence.md``, made from all stored figures, with its pictures."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "evidence.md"
PICTURES = DOCS / "pictures"


def write() -> None:
    """Draw the page."""
