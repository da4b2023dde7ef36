"""Draws that go to disk during a run: the same bits, little memory, and nothing written over."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from crashes import CHAIN, POINT, Crash, crash_at, fit, same

import credax as cx
from credax.core.errors import StorageError
from credax.fit.disk import DrawFile
from credax.storage import files


def test_draws_on_disk_are_those_in_memory(tmp_path):
    whole, stored = fit(CHAIN), fit(CHAIN, draws=tmp_path / "draws", chunk_steps=5)
    assert all(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(stored.draws))
    compared = {**whole.info, "memory": stored.info["memory"]}
    assert stored.info["memory"]["draws"] == 0 < whole.info["memory"]["draws"]
    same(cx.Posterior(whole.model, whole.approximation, info=compared), stored)
    for a, b in zip(*(jax.tree.leaves(p.sample(3, 7)) for p in (whole, stored)), strict=True):
        np.testing.assert_array_equal(a, b)
    described = json.loads((tmp_path / "draws" / "draws.json").read_text())
    assert described["complete"]
    first = described["leaves"][0]
    raw = np.fromfile(tmp_path / "draws" / first["file"], first["dtype"]).reshape(first["shape"])
    np.testing.assert_array_equal(raw, jax.tree.leaves(whole.draws)[0])


@pytest.mark.parametrize("place", ["draws", "checkpoint"])
def test_a_run_that_crashes_again_and_again_ends_with_the_same_bits(tmp_path, every_chunk, place):
    checkpoint, draws = tmp_path / "checkpoint", tmp_path / place
    for step in (2, 8, 9, 21, 35):
        with pytest.raises(Crash):
            fit(CHAIN, checkpoint, draws=draws, chunk_steps=2, callbacks=[crash_at(step)])
    whole, found = fit(CHAIN), fit(CHAIN, checkpoint, draws=draws)
    for a, b in zip(*(jax.tree.leaves(p.draws) for p in (whole, found)), strict=True):
        np.testing.assert_array_equal(a, b)
    # The draws are in their files alone, and the run that has ended can be asked for again.
    parts = list(checkpoint.glob("part-*.credax"))
    assert parts
    assert not any("draw/0" in files.read_file(path, "part")[1] for path in parts)
    same(found, fit(CHAIN, checkpoint, draws=draws))


def test_draws_that_a_posterior_reads_are_not_written_over(tmp_path):
    first = fit(CHAIN, draws=tmp_path)
    before = [np.array(leaf) for leaf in jax.tree.leaves(first.draws)]
    with pytest.raises(StorageError, match="holds the draws of another fit"):
        fit(CHAIN, draws=tmp_path, key=2)
    for a, b in zip(before, jax.tree.leaves(first.draws), strict=True):
        np.testing.assert_array_equal(a, b)


def test_files_of_a_run_that_was_killed_are_replaced(tmp_path):
    with pytest.raises(Crash):
        fit(CHAIN, draws=tmp_path, key=5, chunk_steps=5, callbacks=[crash_at(20)])
    found, whole = fit(CHAIN, draws=tmp_path), fit(CHAIN)
    for a, b in zip(*(jax.tree.leaves(p.draws) for p in (whole, found)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_and_its_draws_belong_together(tmp_path, every_chunk):
    with pytest.raises(Crash):
        fit(CHAIN, tmp_path / "a", draws=tmp_path / "one", chunk_steps=5, callbacks=[crash_at(20)])
    with pytest.raises(StorageError, match=r"kept on disk: fit.draws=.* must be their folder"):
        fit(CHAIN, tmp_path / "a")
    with pytest.raises(StorageError, match="does not hold the draws of the run"):
        fit(CHAIN, tmp_path / "a", draws=tmp_path / "other")
    with pytest.raises(Crash):
        fit(CHAIN, tmp_path / "b", chunk_steps=5, callbacks=[crash_at(20)])
    with pytest.raises(StorageError, match=r"kept in memory: fit.draws=.* must be left out"):
        fit(CHAIN, tmp_path / "b", draws=tmp_path / "two")
    (tmp_path / "one" / "draw-0.bin").write_bytes(b"short")
    with pytest.raises(StorageError, match=r"draw-0.bin is missing, or does not have its"):
        fit(CHAIN, tmp_path / "a", draws=tmp_path / "one")


def test_methods_that_keep_no_draws_write_none(tmp_path):
    same(fit(POINT), fit(POINT, draws=tmp_path))
    assert not list(tmp_path.glob("draw*"))


def test_a_description_that_is_damaged_and_a_bad_path_are_refused(tmp_path):
    (tmp_path / "draws.json").write_text("[]")
    with pytest.raises(StorageError, match="does not describe draws"):
        fit(CHAIN, draws=tmp_path)
    with pytest.raises(TypeError, match=r"fit\(draws=...\) must be the path of a folder; got 3"):
        fit(CHAIN, draws=3)


def test_a_full_disk_is_an_error(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    file = DrawFile(Path("/dev/full"), (1, 4, 2), np.float32)
    with pytest.raises(OSError, match="No space left"):
        file.write(0, np.zeros((1, 4, 2), np.float32))


def test_large_files_are_mapped_when_they_are_loaded(tmp_path, monkeypatch):
    stored = fit(
        CHAIN, draws=tmp_path / "draws", callbacks=lambda event: event.step > 30, chunk_steps=4
    )
    stored.save(tmp_path / "p.credax")
    read = cx.load(tmp_path / "p.credax")
    monkeypatch.setattr("credax.storage.files.MAPPED", 0)
    monkeypatch.setattr("credax.storage.tensors.SMALL", 0)
    found = cx.load(tmp_path / "p.credax")
    assert all(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(found.draws))
    assert not any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(read.draws))
    same(stored, found)
    same(read, found)
    content = bytearray((tmp_path / "p.credax").read_bytes())
    content[-3] ^= 1
    (tmp_path / "p.credax").write_bytes(content)
    with pytest.raises(StorageError, match="does not match its digest"):
        cx.load(tmp_path / "p.credax")


MEASURED = """
import sys, numpy as np, warnings
sys.path.insert(0, {folder!r})
import credax as cx
warnings.simplefilter("ignore")
def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1e3
generator = np.random.default_rng(0)
x = generator.normal(size=(64, 8)).astype(np.float32)
model = cx.Model(cx.networks.mlp([990, 990]), likelihood=cx.likelihoods.Gaussian(0.3))
def used(draws, place):
    method = cx.SGLD(chains=1, num_warmup=2, num_draws=draws, batch_size=16, step_size=1e-8)
    posterior = cx.fit(model, (x, x[:, 0]), method, progress=False, draws=place)
    posterior.predict(x).mean
    posterior.sample(0, 3)
    posterior.save(place + ".credax")
    cx.load(place + ".credax").predict(x).mean
    return posterior
used(5, {place!r} + "0")
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
posterior = used(160, {place!r})
size = sum(a.nbytes for a in posterior.draws["layer_1"].values()) / 1e6
print(size, status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak memory")
def test_draws_need_far_less_memory_than_they_have_bytes(tmp_path):
    code = MEASURED.format(folder=str(Path(cx.__file__).parents[1]), place=str(tmp_path / "draws"))
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    size, grown = map(float, answer.stdout.split())
    assert size > 620
    assert grown < 280, "160 to 195 were measured, with 100 draws as with 160"
