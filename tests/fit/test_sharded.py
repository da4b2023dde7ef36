"""States that are written in parts, by Orbax: read to other divisions, and usable whenever a run is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from walks import LINE, table

import credax as cx
from credax.core.errors import StorageError, StorageWarning
from credax.fit import sharded

SCRIPT = Path(__file__).parent / "sharded.py"
LIMIT = 300


@pytest.mark.parametrize(
    "given, error",
    [
        ({"folder": 3}, r"Checkpoint\(folder=...\) must be the path of a folder; got 3"),
        ({"folder": " "}, r"Checkpoint\(folder=...\) must be the path of a folder; got ' '"),
        (
            {"folder": "x", "sharded": "yes"},
            r"Checkpoint\(sharded=...\) must be True, False or None",
        ),
    ],
)
def test_bad_settings_are_refused(given, error):
    with pytest.raises((TypeError, ValueError), match=error):
        cx.Checkpoint(**given)


def test_without_orbax_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sharded, "is_installed", lambda: False)
    with pytest.raises(ImportError, match=r"needs Orbax: pip install 'credax\[scale\]'"):
        cx.Checkpoint(tmp_path, sharded=True)
    assert not cx.Checkpoint(tmp_path).in_parts(None, np.zeros(3))
    with pytest.raises(StorageError, match=r"written by Orbax, which is not installed"):
        sharded.Shards(tmp_path).read("1-x", [], 1)


def test_large_states_are_written_in_parts(monkeypatch, tmp_path):
    monkeypatch.setattr(sharded, "is_installed", lambda: True)
    monkeypatch.setattr(sharded, "LARGE", 100)
    states = [np.zeros(20, np.float32), np.zeros(5, np.float32)]
    assert cx.Checkpoint(tmp_path).in_parts(None, states)
    assert not cx.Checkpoint(tmp_path, sharded=False).in_parts(None, states)
    assert not cx.Checkpoint(tmp_path).in_parts(None, states[:1])


def fitted(folder, parts, steps=12, **options):
    method = cx.DeepEnsemble(members=3, num_steps=12, batch_size=4)
    stop = lambda event: event.step >= steps  # noqa: E731
    place = None if folder is None else cx.Checkpoint(folder, sharded=parts)
    arguments = {"key": 1, "progress": False, "chunk_steps": 2, "callbacks": stop, **options}
    posterior = cx.fit(LINE, table(), method, checkpoint=place, **arguments)
    return np.asarray(posterior.predict(table()[0]).mean)


@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_a_run_goes_on_from_parts_with_the_same_bits(tmp_path, every_chunk):
    pytest.importorskip("orbax.checkpoint")
    whole = fitted(None, None)
    fitted(tmp_path, True, steps=5)
    (listed,) = tmp_path.glob("shards-*")
    (tmp_path / "shards-3-0badbad0").mkdir()  # as a killed process leaves it
    fitted(tmp_path, True, steps=9)
    assert not listed.exists()
    assert len(list(tmp_path.glob("shards-*"))) == 1
    # From parts to one file, and the parts are removed.
    np.testing.assert_array_equal(fitted(tmp_path, False), whole)
    assert not list(tmp_path.glob("shards-*"))
    np.testing.assert_array_equal(fitted(tmp_path, True), whole)  # of a run that is complete


@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_missing_parts_are_named(tmp_path, every_chunk):
    pytest.importorskip("orbax.checkpoint")
    fitted(tmp_path, True, steps=5)
    (listed,) = tmp_path.glob("shards-*")
    for path in listed.rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(StorageError, match="shards-"):
        fitted(tmp_path, True)


def start(folder, result, *options):
    environment = {**os.environ, "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    command = [sys.executable, str(SCRIPT), str(folder), str(result), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before_it(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    folder = tmp_path / "run"
    with start(tmp_path / "whole", tmp_path / "whole.npz") as process:
        assert process.wait(LIMIT) == 0
    for kills, saves in enumerate((2, 3, 2), start=1):
        with start(folder, tmp_path / "result.npz", "hold", str(saves)) as process:
            # It holds the writing of this state, whose folder is not complete.
            assert process.stdout.readline().startswith("holding")
            assert len(list(folder.glob("shards-*"))) == 2
            process.send_signal(signal.SIGKILL)
            assert process.wait(LIMIT) == -signal.SIGKILL
        steps = [int(path.name.split("-")[1]) for path in folder.glob("part-*.credax")]
        assert len(steps) >= kills  # something was gained each time
    with start(folder, tmp_path / "result.npz") as process:
        assert process.wait(LIMIT) == 0
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "result.npz") as result:
        assert whole.files == result.files
        for name in whole.files:
            np.testing.assert_array_equal(result[name], whole[name])


@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, every_chunk, monkeypatch):
    pytest.importorskip("orbax.checkpoint")

    def full(self, name, states):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded.Shards, "write", full)
    with pytest.warns(StorageWarning, match="No space left on device"):
        found = fitted(tmp_path, True)
    np.testing.assert_array_equal(found, fitted(None, None))
