"""The folder of a checkpoint belongs to one run and to one process, and survives what disks and signals do."""

import resource
import shutil
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from crashes import CHAIN, METHODS, MODEL, POINT, Crash, crash_at, fit, same, table

import credax as cx
from credax.fit import checkpoint
from credax.storage import read_file, write_file

# -- crashes in the middle of writing --------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("which", ["part", "checkpoint"])
def test_a_crash_while_writing_leaves_a_folder_to_go_on_from(
    tmp_path, monkeypatch, every_chunk, method, which
):
    write, count = checkpoint.write_file, 0

    def failing(path, kind, header, tensors):
        nonlocal count
        count += kind == which
        if kind == which and count == 4:
            # What a killed process leaves behind.
            (path.parent / f".{path.name}-half").write_bytes(b"half")
            raise Crash
        write(path, kind, header, tensors)

    monkeypatch.setattr(checkpoint, "write_file", failing)
    with pytest.raises(Crash):
        fit(method, tmp_path, chunk_steps=3)
    monkeypatch.setattr(checkpoint, "write_file", write)
    events = []
    resumed = fit(method, tmp_path, chunk_steps=2, callbacks=[events.append])
    assert events[0].step > 3
    same(fit(method), resumed)
    assert not list(tmp_path.glob(".*-half"))


@pytest.fixture
def files_of_at_most():
    """A limit on the size of files, beyond which writing fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_the_checkpoint_but_not_the_run(tmp_path, every_chunk, files_of_at_most):
    def fill(event):
        files_of_at_most(100 if event.step < 30 else before)

    before, seen = resource.getrlimit(resource.RLIMIT_FSIZE)[0], []
    with pytest.warns(cx.StorageWarning) as caught:
        posterior = fit(CHAIN, tmp_path, chunk_steps=3, callbacks=[fill, seen.append])
    same(fit(CHAIN), posterior)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "could not be written: [Errno 27] File too large" in message
    assert str(tmp_path / "part-") in message
    # Later checkpoints were tried, so the run is whole.
    events = []
    same(posterior, fit(CHAIN, tmp_path, callbacks=[events.append]))
    assert events == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".part", ".state"))]


def test_a_disk_that_stays_full_is_told_at_the_end(tmp_path, every_chunk, files_of_at_most):
    full = lambda event: files_of_at_most(100)  # noqa: E731
    with pytest.warns(cx.StorageWarning) as caught:
        posterior = fit(CHAIN, tmp_path, chunk_steps=7, callbacks=[full])
    assert [("is over" in str(w.message)) for w in caught] == [False, True]
    assert "The last good one is at step 1" in str(caught[1].message)
    same(fit(CHAIN), posterior)


def test_what_killed_processes_left_is_removed(tmp_path, every_chunk):
    with pytest.raises(Crash):
        fit(CHAIN, tmp_path, chunk_steps=3, callbacks=[crash_at(20)])
    left = ["part-20-30-01234567.credax", "part-0-40.credax", ".state.credax-12-abc"]
    left += [".part-3-6-01234567.credax-7-def"]
    for name in left:
        (tmp_path / name).write_bytes(b"never counted")
    (tmp_path / "notes.txt").write_text("the user's own")
    same(fit(CHAIN), fit(CHAIN, tmp_path, chunk_steps=5))
    names = {path.name for path in tmp_path.iterdir()}
    assert not names & set(left)
    assert {"state.credax", "notes.txt"} <= names


def test_parts_without_a_state_start_over(tmp_path, every_chunk):
    with pytest.raises(Crash):
        fit(CHAIN, tmp_path, chunk_steps=3, callbacks=[crash_at(20)])
    (tmp_path / "state.credax").unlink()
    same(fit(CHAIN), fit(CHAIN, tmp_path, chunk_steps=3))


# -- refusals --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    fit(POINT, folder)
    return folder


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changed, name",
    [
        ({"key": 2}, "key"),
        ({"data": table(shift=1e-6)}, "data"),
        ({"data": (table()[0] + 1, table()[1])}, "data"),
        ({"method": cx.DeepEnsemble(members=2, num_steps=41, batch_size=8)}, "method"),
        ({"method": cx.DeepEnsemble(members=3, num_steps=40, batch_size=8)}, "method"),
        ({"method": cx.MAP(num_steps=40, batch_size=8)}, "method"),
        ({"model": cx.Model(MODEL.network, cx.priors.Normal(2.0), MODEL.likelihood)}, "model"),
        ({"model": cx.Model(cx.networks.mlp([4]), MODEL.prior, MODEL.likelihood)}, "model"),
        ({"model": cx.Model(MODEL.network, MODEL.prior, cx.likelihoods.Gaussian(0.1))}, "model"),
    ],
)
def test_another_run_is_refused(finished, changed, name):
    given = {"model": MODEL, "data": table(), "method": POINT, "key": 1, **changed}
    with pytest.raises(cx.StorageError) as caught:
        cx.fit(**given, checkpoint=finished, progress=False)
    assert f"holds another run: its {name} differs" in str(caught.value)
    assert str(finished) in str(caught.value)


def test_another_precision_is_refused(finished, x64):
    with pytest.raises(cx.StorageError, match="holds another run: its data and float differ"):
        fit(POINT, finished)


def damage(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["state", "part"])
@pytest.mark.parametrize("at", [-1, 0, 200])
def test_a_corrupt_file_is_refused(tmp_path, finished, name, at):
    for path in finished.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = sorted(tmp_path.glob(f"{name}*"))[0]
    damage(path, at)
    with pytest.raises(cx.StorageError) as caught:
        fit(POINT, tmp_path)
    assert path.name in str(caught.value)


def test_a_missing_part_is_refused(tmp_path, finished):
    for path in finished.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    part = sorted(tmp_path.glob("part*"))[0]
    part.unlink()
    with pytest.raises(FileNotFoundError, match=f"{part.name} does not exist"):
        fit(POINT, tmp_path)


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("not a folder")
    with pytest.raises(cx.StorageError, match="file is not a folder that can be written to"):
        fit(POINT, path)


def test_a_posterior_is_not_a_checkpoint(tmp_path, finished):
    fit(POINT, finished).save(tmp_path / "state.credax")
    with pytest.raises(cx.StorageError, match="holds a posterior, not a checkpoint"):
        fit(POINT, tmp_path)


def test_a_folder_is_made_with_its_parents(tmp_path):
    folder = tmp_path / "neu" / "größe"
    fit(POINT, str(folder))
    assert (folder / "state.credax").exists()


# -- several processes -----------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(tmp_path, every_chunk):
    refusals = []

    def begin_another(event):
        with pytest.raises(cx.StorageError, match="is in use by another run") as caught:
            fit(CHAIN, tmp_path, key=2)
        refusals.append(str(caught.value))

    posterior = fit(CHAIN, tmp_path, chunk_steps=20, callbacks=[begin_another])
    assert refusals
    assert str(tmp_path) in refusals[0]
    same(fit(CHAIN), posterior)
    fit(CHAIN, tmp_path)  # the folder is free again


def test_two_threads_do_not_share_a_folder(tmp_path, every_chunk):
    found = []

    def begin():
        try:
            found.append(fit(CHAIN, tmp_path, chunk_steps=1))
        except cx.StorageError as error:
            found.append(error)

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The second thread either came too late, when the first run was complete, or was refused.
    for result in found:
        if isinstance(result, cx.StorageError):
            assert "is in use" in str(result)
        else:
            same(fit(CHAIN), result)
    assert any(not isinstance(result, cx.StorageError) for result in found)


def test_two_runs_in_a_folder_without_locks_do_not_mix(tmp_path, every_chunk, monkeypatch):
    monkeypatch.setattr("credax.storage.folders.fcntl", None)  # as on a system that has no locks

    def begin_another(event):
        if event.step == 1:
            (tmp_path / "state.credax").unlink()  # as if both had begun in the empty folder
            with pytest.raises(Crash):
                fit(CHAIN, tmp_path, key=2, chunk_steps=3, callbacks=[crash_at(20)])

    fit(CHAIN, tmp_path, chunk_steps=3, callbacks=[begin_another])
    same(fit(CHAIN), fit(CHAIN, tmp_path))


# -- the format of the folder ----------------------------------------------------------------------


def with_header(folder, **changes):
    """Write the state of a checkpoint again, with another header."""
    header, tensors = read_file(folder / "state.credax", "checkpoint")
    write_file(folder / "state.credax", "checkpoint", {**header, **changes}, tensors)


@pytest.fixture
def stopped(tmp_path, every_chunk):
    fit(POINT, tmp_path, chunk_steps=5, callbacks=[lambda event: event.step >= 12])
    return tmp_path


OLD = Path(__file__).parent / "data"
DENSITY = cx.LogDensity(lambda key: jnp.ones(2), lambda w: -jnp.sum(w**2))
OLD_RUN = cx.MAP(num_steps=30, learning_rate=0.1)


def test_a_checkpoint_of_version_1_is_refused(tmp_path):
    shutil.copytree(OLD / "checkpoint-1", tmp_path / "old")
    with pytest.raises(cx.StorageError) as caught:
        cx.fit(DENSITY, None, OLD_RUN, checkpoint=tmp_path / "old", progress=False)
    assert "begun by credax 0.1.0, whose checkpoints this version cannot continue" in str(
        caught.value
    )
    assert str(tmp_path / "old") in str(caught.value)


def test_a_checkpoint_of_version_2_goes_on(tmp_path):
    shutil.copytree(OLD / "checkpoint-2", tmp_path / "old")
    events = []
    # It was written with another version of JAX, so only its arguments are compared.
    with pytest.warns(cx.StorageWarning, match=r"goes on with jax .* instead of 0\.0\.0"):
        resumed = cx.fit(
            *(DENSITY, None, OLD_RUN),
            checkpoint=tmp_path / "old",
            progress=False,
            callbacks=[events.append],
        )
    assert events[0].step > 12
    whole = cx.fit(DENSITY, None, OLD_RUN, progress=False)
    # Another version of JAX may round differently.
    np.testing.assert_allclose(resumed.draws, whole.draws, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(resumed.info["log_joint"], whole.info["log_joint"], rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": None},
        {"version": 3},
        {"identity": None},
        {"places": None},
        {"places": [{}]},
        {"run": None},
        {"run": "../../elsewhere"},
        {"step": 13},
        {"step": 1e400},
        {"parts": []},
        {"parts": [[0, 10**9]]},
        {"parts": "all"},
    ],
    ids=str,
)
def test_a_header_that_describes_no_checkpoint_is_refused(stopped, changes):
    with_header(stopped, **changes)
    with pytest.raises(cx.StorageError) as caught:
        fit(POINT, stopped)
    assert str(stopped) in str(caught.value)


def test_states_of_another_shape_are_refused(stopped):
    header, tensors = read_file(stopped / "state.credax", "checkpoint")
    tensors["state/0"] = tensors["state/0"][:1]
    write_file(stopped / "state.credax", "checkpoint", header, tensors)
    with pytest.raises(cx.StorageError, match="was stored with shape"):
        fit(POINT, stopped)


def test_a_part_of_another_run_is_refused(stopped):
    part = sorted(stopped.glob("part*"))[0]
    header, tensors = read_file(part, "part")
    write_file(part, "part", {**header, "run": "01234567"}, tensors)
    with pytest.raises(cx.StorageError, match=f"{part.name} belongs to another run"):
        fit(POINT, stopped)


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value, error", [("", ValueError), (" ", ValueError), (True, TypeError)])
def test_what_is_no_path_is_refused(value, error):
    with pytest.raises(error, match=r"^fit\(checkpoint=...\) must be the path of a folder; got"):
        fit(POINT, value)


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(tmp_path, compilations):
    (tmp_path / "file").write_text("not a folder")
    with compilations() as count, pytest.raises(cx.StorageError) as caught:
        fit(POINT, tmp_path / "file" / "inside")
    assert f"{tmp_path / 'file' / 'inside'} is not a folder that can be written to" in str(
        caught.value
    )
    assert count() == 0


def test_a_completed_run_in_a_folder_that_cannot_be_locked_is_read(tmp_path):
    first = fit(POINT, tmp_path / "run")
    # The root user, too, fails to open a folder for writing, as others fail in a folder that is read-only.
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").mkdir()
    same(first, fit(POINT, tmp_path / "run"))
    (tmp_path / "run" / "state.credax").unlink()
    with pytest.raises(cx.StorageError, match="run is not a folder that can be written to"):
        fit(POINT, tmp_path / "run")
