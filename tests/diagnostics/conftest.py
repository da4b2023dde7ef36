"""Make ``from known_predictions import ...`` work in the tests of this folder."""

import sys
from pathlib import Path

# The suite runs with --import-mode=importlib, which does not change sys.path.
sys.path.insert(0, str(Path(__file__).parent))
