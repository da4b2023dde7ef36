"""Arrays that mostly hold one value take little room in a file."""

import json

import jax
import numpy as np
import pytest
from saved import (
    LABELS,
    nested,
    refused,
    same_tree,
    with_arrays,
    with_header,
)

import credax as cx
from credax.decisions.pruning import prune
from credax.model import likelihoods
from credax.model.networks import mlp
from credax.posterior.approximations.families import MeanField
from credax.storage import files


def pruned_family(seed=0):
    """A wide mean field, whole and pruned to one weight in twenty."""
    model = cx.Model(mlp([300]), likelihood=likelihoods.Categorical(3))
    model = model.bind((np.zeros((6, 40)), LABELS))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    generator = np.random.default_rng(seed)
    draw = lambda leaf: generator.normal(size=leaf.shape).astype(leaf.dtype)  # noqa: E731
    whole = MeanField(jax.tree.map(draw, shapes), jax.tree.map(draw, shapes))
    posterior = cx.Posterior(model, whole)
    return posterior, prune(posterior, 0.95)


def test_a_pruned_posterior_takes_a_fifth_of_the_room_and_comes_back_bit_for_bit(tmp_path):
    whole, pruned = pruned_family()
    whole.save(tmp_path / "whole")
    pruned.save(tmp_path / "pruned")
    assert (tmp_path / "pruned").stat().st_size < 0.2 * (tmp_path / "whole").stat().st_size
    loaded = cx.load(tmp_path / "pruned").approximation
    for name in ("mean", "rho"):
        stored, given = (getattr(a, name) for a in (loaded, pruned.approximation))
        same_tree(stored, given)
        for a, b in zip(jax.tree.leaves(stored), jax.tree.leaves(given), strict=True):
            assert a.tobytes() == np.asarray(b).tobytes()


def format_of(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["credax"])["format"]


def test_a_file_says_the_lowest_format_that_reads_it(tmp_path, monkeypatch):
    whole, pruned = pruned_family()
    whole.save(tmp_path / "whole")
    pruned.save(tmp_path / "pruned")
    assert format_of(tmp_path / "whole") == 1
    assert format_of(tmp_path / "pruned") == 2
    monkeypatch.setattr(files, "FORMAT", 1)  # an older version
    cx.load(tmp_path / "whole")
    with pytest.raises(cx.StorageError, match="in format 2; this version reads up to format 1"):
        cx.load(tmp_path / "pruned")


@pytest.fixture(scope="module")
def sparse_content(tmp_path_factory):
    path = tmp_path_factory.mktemp("sparse") / "it"
    pruned_family()[1].save(path)
    return path.read_bytes()


def test_flipped_bits_of_a_sparse_file_are_refused(tmp_path, sparse_content):
    generator = np.random.default_rng(0)
    for at in generator.integers(0, len(sparse_content), 150):
        damaged = bytearray(sparse_content)
        damaged[at] ^= 1 << generator.integers(8)
        refused(tmp_path / "it", damaged)


SPARSE = "approximation/mean/layer_0/kernel"


@pytest.mark.parametrize("part", ["common", "mask", "rest"])
def test_a_sparse_array_without_one_of_its_parts_is_refused(tmp_path, sparse_content, part):
    without = with_arrays(sparse_content, lambda arrays: arrays.pop(f"sparse/{part}/{SPARSE}"))
    assert f"is damaged: parts of the sparse array {SPARSE} are missing" in refused(
        tmp_path / "it", without
    )


@pytest.mark.parametrize("part", ["common", "mask", "rest"])
@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: np.append(a, a[:1])])
def test_a_sparse_array_whose_parts_do_not_fit_is_refused(tmp_path, sparse_content, part, change):
    name = f"sparse/{part}/{SPARSE}"
    bad = with_arrays(sparse_content, lambda arrays: arrays.__setitem__(name, change(arrays[name])))
    assert "is damaged: " in refused(tmp_path / "it", bad)


@pytest.mark.parametrize(
    "value", [None, 3, [SPARSE], {SPARSE: [40, 301]}, {SPARSE: "all"}, {"no such": [3]}, {}]
)
def test_a_header_that_misdescribes_sparse_arrays_is_refused(tmp_path, sparse_content, value):
    refused(
        tmp_path / "it",
        with_header(sparse_content, lambda header: nested(header, "sparse", value=value)),
    )
