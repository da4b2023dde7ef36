"""Let the tests in this folder import its helpers, such as ``from exact_targets import ...``."""

import sys
from pathlib import Path

# The suite runs with --import-mode=importlib, which leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent))
