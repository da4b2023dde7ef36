"""Checkpoints cost little, and a run that is killed often still makes progress."""

import pytest

from credax.fit.pace import SHARE, Pace


def work(seconds, cost, chunk=0.5, first=0.001):
    """Simulate a process: the times spent at work and on writing, and the work in the last checkpoint."""
    pace, now, worked, wrote, kept, length = Pace(), 100.0, 0.0, 0.0, 0.0, first
    while worked < seconds:
        step = min(length, seconds - worked)
        worked, now, length = worked + step, now + step, min(10 * length, chunk)
        if pace.due(now):
            pace.written(now, now + cost)
            now, wrote, kept = now + cost, wrote + cost, worked
    return worked, wrote, kept


@pytest.mark.parametrize("cost", [0.001, 0.05, 2.0])
def test_writing_takes_a_small_share_of_a_long_run(cost):
    worked, wrote, _ = work(3_000.0, cost)
    # At most seven checkpoints are written while the waits double, from the cost to fifty times the cost.
    assert wrote <= SHARE * worked + 8 * cost


@pytest.mark.parametrize("seconds", [1.0, 2.0, 5.0, 20.0])
def test_a_process_that_is_killed_keeps_about_half_of_its_work(seconds):
    _, _, kept = work(seconds, cost=0.05)
    # A checkpoint can only be written at the end of a chunk, which lasts half a second.
    assert kept >= seconds / 2 - 0.5 - 0.05
    assert kept > 0.1


def test_a_long_run_loses_little_work():
    _, _, kept = work(3_000.0 - 0.1, cost=0.05)
    assert kept >= 3_000.0 - 0.05 / SHARE - 1.0
