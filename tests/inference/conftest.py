"""Lets the tests of this folder say ``from gate import ...`` and ``from problems import ...``."""

import sys
from pathlib import Path

# The suite runs with --import-mode=importlib, which leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent / "answers"))
