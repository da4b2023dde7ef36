"""Lets the tests of this folder say ``from saved import ...``, and gives them the bytes of a posterior."""

import sys
from pathlib import Path

import numpy as np
import pytest

# The suite runs with --import-mode=importlib, which leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    from saved import small

    path = tmp_path_factory.mktemp("content") / "it"
    small(replicas=1, draws=1, info={"log_joint": np.arange(4.0), "flag": np.array([True])}).save(
        path
    )
    return path.read_bytes()
