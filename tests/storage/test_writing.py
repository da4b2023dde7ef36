"""Writing replaces a file as a whole, and files hold numbers and JSON only."""

import hashlib
import itertools
import json
import os
import re
import resource
import stat
from pathlib import Path

import numpy as np
import pytest
from saved import (
    same_tree,
    small,
)

import credax
import credax as cx

# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_whole(tmp_path, monkeypatch, function, error):
    small().save(tmp_path / "it")
    before = (tmp_path / "it").read_bytes()

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(type(error)):
            small(draws=2).save(tmp_path / "it")
        with pytest.raises(type(error)):
            small(draws=2).save(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    assert (tmp_path / "it").read_bytes() == before
    same_tree(cx.load(tmp_path / "it").draws, small().draws)


def test_the_content_is_on_disk_before_the_name_points_to_it(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, real=real: (order.append(name), real(*args))
        )
    small().save(tmp_path / "it")
    assert order[:2] == ["fsync", "replace"]


def test_saving_replaces_the_older_file(tmp_path):
    small().save(tmp_path / "it")
    small(draws=7).save(tmp_path / "it")
    assert cx.load(tmp_path / "it").draws["layer_0"]["bias"].shape == (2, 7, 1)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    small().save(tmp_path / "it")
    (tmp_path / "it").chmod(0o600)
    small(draws=7).save(tmp_path / "it")
    assert stat.S_IMODE((tmp_path / "it").stat().st_mode) == 0o600
    assert cx.load(tmp_path / "it").draws["layer_0"]["bias"].shape == (2, 7, 1)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed(tmp_path, exists):
    (tmp_path / "elsewhere").mkdir()
    if exists:
        small(draws=7).save(tmp_path / "elsewhere" / "it")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "it")
    small().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["it"]
    same_tree(cx.load(tmp_path / "elsewhere" / "it").draws, small().draws)


def test_a_full_disk_is_told_with_the_path(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            small().save(tmp_path / "it.credax")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "it.credax")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match=name):
            small().save(tmp_path / name)
        with pytest.raises(cx.StorageError, match=r"(is not|must be) a file"):
            cx.load(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


# -- no code in files ------------------------------------------------------------------------------


def test_no_file_of_credax_can_run_what_it_reads():
    forbidden = re.compile(
        r"\b(import|from) (pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\b|pickle\.|"
        r"(?<![\w.])(?<!def )(eval|exec|__import__|compile)\(|"
        r"allow_pickle\s*=\s*True|yaml\.load\(|torch\.load\(|os\.system\("
    )
    folder = Path(credax.__file__).parent
    found = [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_the_files_hold_json_and_numbers_only(content):
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    metadata = head.pop("__metadata__")
    assert set(metadata) == {"credax", "sha256"}
    header = json.loads(metadata["credax"])
    kinds = {dict, list, str, int, float, bool, type(None)}
    inside = [header]
    for value in inside:
        assert type(value) in kinds
        inside += (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        )
    ends = sorted(itertools.chain(*(entry["data_offsets"] for entry in head.values())))
    assert ends[-1] == len(content) - 8 - length


@pytest.mark.parametrize("version", [1, 2])
def test_the_format_is_the_one_that_is_written_down(version):
    """Read a file with nothing but what docs/guide/files.md says about its bytes."""
    content = (Path(__file__).parent / "data" / f"format-{version}.credax").read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    metadata = head.pop("__metadata__")
    kinds = {"F32": "float32", "F64": "float64", "I64": "int64", "U8": "uint8"}
    digest, arrays = hashlib.sha256(metadata["credax"].encode()), {}
    for name, entry in sorted(head.items()):
        begin, end = entry["data_offsets"]
        data, shape = content[8 + length :][begin:end], tuple(entry["shape"])
        digest.update(f"\0{name}\0{kinds[entry['dtype']]}\0{shape}\0".encode() + data)
        arrays[name] = np.frombuffer(data, "<" + np.dtype(kinds[entry["dtype"]]).str[1:]).reshape(
            shape
        )
    assert digest.hexdigest() == metadata["sha256"]
    header = json.loads(metadata["credax"])
    assert (header["format"], header["kind"], header["credax"]) == (version, "posterior", "0.1.0")
    for name, shape in header.get("sparse", {}).items():
        common, mask, rest = (arrays.pop(f"sparse/{p}/{name}") for p in ("common", "mask", "rest"))
        entries = iter(rest)
        bits = [mask[i // 8] >> (7 - i % 8) & 1 for i in range(np.prod(shape))]
        array = np.array([next(entries) if bit else common[0] for bit in bits]).reshape(shape)
        assert next(entries, None) is None
        arrays[name] = array
    kernel = arrays["approximation/params/network/layer_0/kernel"]
    loaded = cx.load(Path(__file__).parent / "data" / f"format-{version}.credax").draws
    np.testing.assert_array_equal(kernel, loaded["network"]["layer_0"]["kernel"])
