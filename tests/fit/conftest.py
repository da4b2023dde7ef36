"""Lets the tests of this folder say ``from walks import ...``, and write a checkpoint after every chunk."""

import sys
from pathlib import Path

import pytest

from credax.fit import pace

# The suite runs with --import-mode=importlib, which leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def every_chunk(monkeypatch):
    """Write a checkpoint after every chunk, even if little time has passed."""
    monkeypatch.setattr(pace, "SHARE", 1e9)
