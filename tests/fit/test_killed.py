"""A run that is killed at any moment, again and again, ends with the same bits as one that is not."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from killed import RUNS

KILLS = int(os.environ.get("CREDAX_KILLS", "6"))
"""The number of kills of each of the six runs."""


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    cache = tmp_path_factory.mktemp("compiled")
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("killed.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            # A thread that exists when a process is copied does not exist in the copy.
            "OPENBLAS_NUM_THREADS": "1",
            "JAX_NUMPY_DTYPE_PROMOTION": "strict",
            # A program that was compiled once is read from the disk afterwards.
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        },
    ) as process:
        yield process
        process.stdin.close()


def start(starter, name, folder, seconds=None):
    """Run a fit, and kill it after some seconds; return whether it was completed, and how long it took."""
    starter.stdin.write(f"{name} {folder}\n")
    starter.stdin.flush()
    process, began = int(starter.stdout.readline()), time.perf_counter()
    if seconds is not None:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):  # it was completed before
            os.kill(process, signal.SIGKILL)
    status = int(starter.stdout.readline())
    assert status in (0, signal.SIGKILL), f"{name} ended with status {status}"
    return status == 0, time.perf_counter() - began


def result(folder):
    with np.load(folder / "result.npz") as file:
        return {name: file[name].tobytes() for name in file.files}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path, starter, name):
    (tmp_path / "whole").mkdir()
    start(starter, name, tmp_path / "whole")
    whole = result(tmp_path / "whole")
    assert len(whole) >= 3
    assert any(any(values) for values in whole.values())
    # Nothing needs to be compiled any more, so this is how long a run takes.
    _, duration = start(starter, name, tmp_path / "timed")
    generator, runs, kills = np.random.default_rng(len(name)), 0, 0
    # A run that is completed before its kill counts nothing, and the next one begins in a new folder.
    for _ in range(10 * KILLS):
        fresh = not (tmp_path / str(runs)).exists()
        completed, _ = start(
            starter, name, tmp_path / str(runs), generator.uniform(0.3, 0.9) * duration
        )
        kills += not completed
        if fresh and completed:
            duration *= 0.8  # the machine was busier when the duration was measured
        if kills == KILLS and not completed:
            completed, _ = start(starter, name, tmp_path / str(runs))
        if completed:
            assert result(tmp_path / str(runs)) == whole
            assert not list((tmp_path / str(runs)).glob(".*.credax-*"))
            runs += 1
        if kills == KILLS:
            break
    assert kills == KILLS
