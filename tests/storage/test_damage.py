"""A damaged or foreign file is refused."""

import hashlib
import json
import pickle
import re
import resource
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from saved import (
    ONE,
    SMALL,
    VECTORS,
    nested,
    refused,
    same_tree,
    small,
    with_arrays,
    with_header,
)

import credax as cx
from credax import storage
from credax.model import likelihoods, priors
from credax.model.frame import Frame
from credax.model.networks import mlp
from credax.posterior.approximations import Draws

# -- damage ----------------------------------------------------------------------------------------


def test_every_flipped_bit_is_refused(tmp_path, content):
    # One random bit of every byte of the file.
    bits = np.random.default_rng(0).integers(0, 8, len(content))
    for at, bit in enumerate(bits):
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        refused(tmp_path / "it", damaged)


def test_every_swapped_or_zeroed_stretch_is_refused(tmp_path, content):
    generator = np.random.default_rng(1)
    for _ in range(100):
        begin = generator.integers(0, len(content) - 8)
        damaged = bytearray(content)
        damaged[begin : begin + 8] = bytes(generator.integers(0, 256, 8, np.uint8))
        if damaged != content:
            refused(tmp_path / "it", damaged)


def test_every_truncation_is_refused(tmp_path, content):
    for length in {*range(0, len(content), 7), *range(len(content) - 20, len(content))}:
        refused(tmp_path / "it", content[:length])


def test_what_follows_the_end_is_refused(tmp_path, content):
    for more in (b"\0", b"more", content):
        refused(tmp_path / "it", content + more)


def test_a_header_of_our_own_making_is_accepted(tmp_path, content):
    (tmp_path / "it").write_bytes(with_header(content, lambda header: header))
    assert cx.load(tmp_path / "it").model.schema is not None


def test_a_file_from_before_columns_had_names_and_scales_is_read(tmp_path, content):
    def without(header):
        model = {k: v for k, v in header["model"].items() if k not in ("frame", "standardise")}
        return {**header, "model": model}

    (tmp_path / "it").write_bytes(with_header(content, without))
    model = cx.load(tmp_path / "it").model
    assert model.frame == Frame()
    assert model.standardise is False


def test_a_newer_format_is_refused(tmp_path, content):
    newer = lambda header: {**header, "format": storage.FORMAT + 1, "credax": "9.9"}  # noqa: E731
    message = refused(tmp_path / "it", with_header(content, newer))
    assert f"was written by credax 9.9 in format {storage.FORMAT + 1}" in message
    assert "Upgrade credax" in message


@pytest.mark.parametrize(
    "path, value",
    [
        (("kind",), "checkpoint"),
        (("format",), "one"),
        (("format",), None),
        (("model",), None),
        (("model",), []),
        (("model",), {}),
        (("model", "network"), {"type": "Popen", "args": ["true"]}),
        (("model", "network"), {"type": "Normal"}),
        (("model", "network", "hidden"), [-1]),
        (("model", "network", "surplus"), 1),
        (("model", "network"), "MLP"),
        (("model", "prior"), {"type": "MLP"}),
        (("model", "likelihood"), {"type": "Likelihood"}),
        (("model", "likelihood", "scale_prior"), {"type": "Gaussian"}),
        (("model", "schema"), None),
        (("model", "schema", "outputs"), 2),
        (("model", "frame"), 3),
        (("model", "frame"), {"type": "Frame", "x_names": None, "surplus": 1}),
        (("model", "standardise"), "z"),
        (("parameters",), {}),
        (("parameters",), None),
        (("approximation", "type"), "Posterior"),
        (("approximation",), []),
        (("log_evidence",), [1]),
        (("elbo",), "high"),
        (("elbo",), [1, 2, "unbiased", 3]),
        (("method",), 3),
        (("method",), {"type": []}),
        (("info",), 3),
    ],
)
def test_a_header_that_describes_no_posterior_is_refused(tmp_path, content, path, value):
    refused(
        tmp_path / "it", with_header(content, lambda header: nested(header, *path, value=value))
    )


@pytest.mark.parametrize(
    "missing", ["model", "parameters", "approximation", "method", "info", "elbo"]
)
def test_a_header_with_a_hole_is_refused(tmp_path, content, missing):
    hole = lambda header: {k: v for k, v in header.items() if k != missing}  # noqa: E731
    assert missing in refused(tmp_path / "it", with_header(content, hole))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"'])
def test_a_header_that_is_no_object_is_refused(tmp_path, text):
    digest = hashlib.sha256(text.encode()).hexdigest()
    refused(tmp_path / "it", safetensors.numpy.save({}, {"credax": text, "sha256": digest}))


# -- what is no posterior at all -------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"hello, world\n",
        b"\0" * 1000,
        b"\xff" * 1000,
        pickle.dumps({"params": np.zeros(3)}),
        pickle.dumps(Bomb()),
        safetensors.numpy.save({"weight": np.zeros(3)}),
        safetensors.numpy.save({"weight": np.zeros(3)}, {"format": "pt"}),
        safetensors.numpy.save({}),
    ],
    ids=["empty", "text", "zeros", "ones", "pickle", "bomb", "tensors", "torch", "no tensors"],
)
def test_a_foreign_file_is_refused(tmp_path, monkeypatch, foreign):
    monkeypatch.chdir(tmp_path)
    message = refused(tmp_path / "it", foreign)
    assert re.search(r"is not a credax file|but not one of credax", message)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(cx.StorageError, match=str(tmp_path)):
        cx.load(tmp_path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.credax does not exist"):
        cx.load(tmp_path / "gone.credax")


def test_a_checkpoint_is_not_a_posterior(tmp_path):
    cx.fit(SMALL, (VECTORS, ONE), cx.MAP(num_steps=1), progress=False, checkpoint=tmp_path)
    with pytest.raises(cx.StorageError, match="holds a checkpoint, not a posterior"):
        cx.load(tmp_path / "state.credax")


# -- files that are made to do harm, with the digest that belongs to them ----------------------------


def nest(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "path, value",
    [
        (("format",), float("inf")),
        (("model", "network"), nest(900)),
        (("model", "prior", "scale"), nest(900)),
        (("method",), {"type": "MAP", "num_steps": nest(900)}),
        (("elbo",), [float("inf"), 10**400, "unbiased"]),
        (("model", "prior", "scale"), 10**400),
        (("model", "schema", "outputs"), float("inf")),
        (("model", "schema", "input_shape"), [10**20]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_extreme_values_are_refused(tmp_path, content, path, value):
    refused(tmp_path / "it", with_header(content, lambda head: nested(head, *path, value=value)))


def test_deep_nesting_is_refused(tmp_path):
    text = "[" * 100_000
    digest = hashlib.sha256(text.encode()).hexdigest()
    refused(tmp_path / "it", safetensors.numpy.save({}, {"credax": text, "sha256": digest}))


def test_a_small_file_cannot_ask_for_much_memory(tmp_path):
    model = cx.Model(mlp([2], batch_norm=True), likelihood=likelihoods.Gaussian(0.1))
    bound = model.bind((VECTORS, ONE))
    one = lambda tree: jax.tree.map(lambda leaf: np.zeros((1, 1, *leaf.shape), leaf.dtype), tree)  # noqa: E731
    params = jax.eval_shape(bound.init, jax.random.key(0))
    cx.Posterior(bound, Draws(one(params), one(bound.init_state()))).save(tmp_path / "it")
    wide = 400_000_000

    def widen(header):
        header["model"]["network"]["hidden"] = [wide]
        shapes = header["parameters"]
        header["parameters"] = {k: [wide if n == 2 else n for n in v] for k, v in shapes.items()}
        return header

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = refused(tmp_path / "it", with_header((tmp_path / "it").read_bytes(), widen))
    assert "other shapes than the model's parameters" in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


@pytest.mark.parametrize("name", ["kernel", "bias"])
@pytest.mark.parametrize(
    "change", [lambda a: a[:, :, :-1], lambda a: a[:, :0], lambda a: a[0], lambda a: a[..., None]]
)
def test_arrays_of_another_shape_than_the_network_s_are_refused(tmp_path, content, name, change):
    def replace(arrays):
        path = f"approximation/params/layer_0/{name}"
        arrays[path] = change(arrays[path])

    refused(tmp_path / "it", with_arrays(content, replace))


def test_a_number_of_weights_other_than_that_of_the_draws_is_refused(tmp_path):
    small(weighted=True).save(tmp_path / "it")

    def cut(arrays):
        arrays["approximation/log_weights"] = arrays["approximation/log_weights"][:1]

    content = with_arrays((tmp_path / "it").read_bytes(), cut)
    assert "its weights and its draws differ in number" in refused(tmp_path / "it", content)


# -- random damage ---------------------------------------------------------------------------------


def check_mutated(path, mutated, count, seed):
    """Each of many damaged files is refused, or holds what the whole file holds."""
    content = path.read_bytes()
    whole, generator = cx.load(path), np.random.default_rng(seed)
    damaged = path.with_name("damaged")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusals = []
    for _ in range(count):
        damaged.write_bytes(mutated(content, generator))
        try:
            loaded = cx.load(damaged)
        except cx.StorageError as error:
            refusals.append(str(error))
        else:
            same_tree(loaded.draws, whole.draws)
            assert loaded.model == whole.model
    # A few mutations replace a digit by itself.
    assert len(refusals) > 0.9 * count
    assert all(str(damaged) in refusal for refusal in refusals)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kilobytes


DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("version", [1, 2])
def test_mutated_files_are_refused(tmp_path, mutated, version):
    shutil.copy(DATA / f"format-{version}.credax", tmp_path / "it")
    check_mutated(tmp_path / "it", mutated, 150, seed=version)


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_ten_thousand_mutated_files_are_refused(tmp_path, mutated, version):
    shutil.copy(DATA / f"format-{version}.credax", tmp_path / "it")
    check_mutated(tmp_path / "it", mutated, 5_000, seed=10 + version)


def mutate_value(value, generator):
    """The JSON value with one part of it replaced by something else."""
    if isinstance(value, dict) and value and generator.uniform() < 0.9:
        key = list(value)[generator.integers(len(value))]
        return {**value, key: mutate_value(value[key], generator)}
    if isinstance(value, list) and value and generator.uniform() < 0.7:
        at = generator.integers(len(value))
        return [*value[:at], mutate_value(value[at], generator), *value[at + 1 :]]
    odd = [None, True, -1, 0, 2, 10**9, 10**40, 0.5, 1e400, float("nan"), "", "MLP", [], {}, [[]]]
    return odd[generator.integers(len(odd))]


def check_mutated_headers(tmp_path, content, count, seed):
    """A header of which a part is replaced, with the right digest, gives a posterior or a refusal."""
    generator, path = np.random.default_rng(seed), tmp_path / "it"
    before, refusals = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(count):
        path.write_bytes(with_header(content, lambda header: mutate_value(header, generator)))
        try:
            assert isinstance(cx.load(path), cx.Posterior)
        except cx.StorageError as error:
            refusals.append(str(error))
    assert 0 < len(refusals) < count
    assert all(str(path) in refusal for refusal in refusals)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kilobytes


def test_mutated_headers_are_read_or_refused(tmp_path, content):
    check_mutated_headers(tmp_path, content, 100, seed=0)


@pytest.mark.slow
def test_two_thousand_mutated_headers_are_read_or_refused(tmp_path, content):
    check_mutated_headers(tmp_path, content, 2_000, seed=1)


# -- files of every version ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_every_format_is_read(version):
    """The files were written once and never change."""
    path = DATA / f"format-{version}.credax"
    loaded = cx.load(path)
    assert loaded.method == cx.MAP(num_steps=7)
    assert loaded.model.prior == priors.StudentT(4.0)
    assert loaded.log_evidence == (-1.5, 0.25)
    np.testing.assert_array_equal(loaded.info["log_joint"], np.arange(7.0))
    known = json.loads(path.with_suffix(".json").read_text())
    found = loaded.predict(np.array(known["x"]))
    np.testing.assert_allclose(found.mean, known["mean"], rtol=1e-5)
    np.testing.assert_allclose(found.std, known["std"], rtol=1e-5)
    header, _ = storage.read_file(path, "posterior")
    assert header["format"] == version


def test_there_is_a_file_of_every_format():
    assert len(list(DATA.glob("format-*.credax"))) == storage.FORMAT
