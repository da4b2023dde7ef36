"""Sources give the rows that arrays would give, and say where a bad row is."""

import gc
import itertools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.scaling import Scaling
from credax.model.data import ArrayData
from credax.model.sources import survey

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(103, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * GENERATOR.normal(size=103)


class Pairs:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Records(Pairs):
    def __getitem__(self, i):
        return {"inputs": self.x[i].tolist(), "target": float(self.y[i])}

    def __getitems__(self, numbers):
        return [self[i] for i in numbers]


def write(folder, name, x, y, columns=("a", "b", "c"), kind="parquet"):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({**dict(zip(columns, x.T, strict=True)), "y": y})
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    elif kind == "csv":
        pytest.importorskip("pyarrow.csv").write_csv(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path


def sources_of(folder):
    """Every kind of source, with the same rows."""
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    memmap = np.memmap(folder / "raw.bin", X.dtype, "w+", shape=X.shape)
    memmap[:] = X
    yield cx.sources.arrays(X, Y)
    yield cx.sources.arrays(folder / "x.npy", str(folder / "y.npy"))
    yield cx.sources.arrays(memmap, Y)
    yield cx.sources.dataset(Pairs(X, Y))
    yield cx.sources.dataset(Records(X, Y), x="inputs", y="target")
    for kind in ("parquet", "csv", "arrow"):
        cut = [0, 40, 41, 103]
        for i, (begin, end) in enumerate(itertools.pairwise(cut)):
            write(folder / kind, f"part-{i}", X[begin:end], Y[begin:end], kind=kind)
        yield cx.sources.files(folder / kind, "y", cache=folder / "cache")


def test_every_source_has_the_batches_of_the_arrays(tmp_path):
    key = jax.random.fold_in(cx.random.key(3), 1)
    data = ArrayData(jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32))
    steps = np.array([0, 5, 6, 31], np.int32)
    wanted = [data.batch(key, jnp.asarray(step), 16) for step in steps]
    words = np.tile(np.asarray(jax.random.key_data(key)), (4, 1))
    for source in sources_of(tmp_path):
        rows = source.batches(words, steps, 16)
        got = np.float32(rows.x).reshape(4, 16, 3), np.float32(rows.y).reshape(4, 16)
        np.testing.assert_array_equal(got[0], np.stack([batch.x for batch in wanted]))
        np.testing.assert_array_equal(got[1], np.stack([batch.y for batch in wanted]))
        assert source.rows == 103


def test_all_rows_come_once_and_in_order(tmp_path):
    for source in sources_of(tmp_path):
        blocks = list(source.blocks(40))
        assert [len(rows.x) for rows in blocks] == [40, 40, 23]
        np.testing.assert_array_equal(np.concatenate([rows.x for rows in blocks]), X)
        np.testing.assert_array_equal(np.concatenate([rows.y for rows in blocks]), Y)


def test_rows_are_read_in_any_order_and_more_than_once():
    numbers = [7, 3, 3, 102, 0]
    rows = cx.sources.arrays(X, Y).read(numbers)
    np.testing.assert_array_equal(rows.x, X[numbers])
    np.testing.assert_array_equal(rows.y, Y[numbers])
    assert rows.place(3) == "row 102"


def test_files_remember_their_columns_and_places(tmp_path):
    write(tmp_path / "data", "b", X[60:], Y[60:])
    write(tmp_path / "data", "a", X[:60], Y[:60])
    source = cx.sources.files(tmp_path / "data", "y", features=["c", "a"])
    assert source.x_names == ("c", "a")
    np.testing.assert_array_equal(source.read([61]).x, X[[61]][:, [2, 0]])
    assert source.read([61]).place(0) == f"row 1 of {tmp_path / 'data' / 'b.parquet'}"
    several = cx.sources.files(tmp_path / "data", ["y", "a"])
    assert several.y_names == ("y", "a")
    assert several.read([0, 1]).y.shape == (2, 2)
    only = cx.sources.files(tmp_path / "data", None, features=["a"])
    assert only.read([0]).y is None
    assert "2 files, 103 rows, counted once" in repr(source)


def test_a_temporary_copy_of_files_is_removed_with_the_source(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write(tmp_path / "data", "a", X, Y)
    source = cx.sources.files(tmp_path / "data", "y")
    assert len(list(tmp_path.glob("credax-*"))) == 1
    del source
    gc.collect()
    assert not list(tmp_path.glob("credax-*"))


def test_a_cache_is_used_again_until_a_file_changes(tmp_path, monkeypatch):
    path, cache = write(tmp_path / "data", "a", X, Y), tmp_path / "cache"
    first = cx.sources.files(tmp_path / "data", "y", cache=cache)
    read = []
    monkeypatch.setattr("credax.model.sources.tabular._write", lambda *rest: read.append(rest))
    again = cx.sources.files(tmp_path / "data", "y", cache=cache)
    assert not read
    assert again.fingerprint() == first.fingerprint()
    monkeypatch.undo()
    write(tmp_path / "data", "a", X[:50], Y[:50])
    os.utime(path, ns=(1, 1))
    changed = cx.sources.files(tmp_path / "data", "y", cache=cache)
    assert changed.rows == 50
    assert changed.fingerprint() != first.fingerprint()


@pytest.mark.parametrize(
    "bad, message",
    [
        (
            lambda f: write(f, "b", np.where(X[5, 1] == X, np.nan, X), Y),
            "got nan in column 'b' at row 5",
        ),
        (lambda f: write(f, "b", X, Y, ("a", "b", "d")), "b.parquet has no column 'c'"),
        (lambda f: write(f, "b", X.astype(str), Y), "column 'a' has the type string"),
        (
            lambda f: (f / "b.parquet").write_bytes(b"PAR1 not a table PAR1"),
            "b.parquet cannot be read",
        ),
        (lambda f: write(f, "b", X.astype(int), Y), None),
    ],
)
def test_a_bad_file_is_named(tmp_path, bad, message):
    write(tmp_path / "data", "a", X, Y)
    bad(tmp_path / "data")
    if message is None:  # whole numbers are numbers
        assert cx.sources.files(tmp_path / "data", "y").rows == 206
        return
    with pytest.raises(cx.SourceError, match=message):
        cx.sources.files(tmp_path / "data", "y")


def test_columns_of_categories_and_lists_are_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    for i, column in enumerate(
        (pa.array(["a", "b"]).dictionary_encode(), pa.array([[1.0], [2.0]]))
    ):
        pytest.importorskip("pyarrow.parquet").write_table(
            pa.table({"a": column, "y": [0.0, 1.0]}), tmp_path / f"{i}.parquet"
        )
        with pytest.raises(cx.SourceError, match="must have numeric columns; column 'a'"):
            cx.sources.files(tmp_path / f"{i}.parquet", "y")


def test_a_truncated_file_is_named_with_the_rows_before(tmp_path):
    path = write(tmp_path / "data", "a", X, Y, kind="csv")
    path.write_text(path.read_text() + "1.0,2.0\n")
    with pytest.raises(
        cx.SourceError, match=r"a\.csv cannot be read after row .*Expected 4 columns"
    ):
        cx.sources.files(path, "y")


def test_missing_values_are_named(tmp_path):
    path = write(tmp_path / "data", "a", X, Y, kind="csv")
    lines = path.read_text().splitlines()
    lines[4] = ",".join(["", *lines[4].split(",")[1:]])
    path.write_text("\n".join(lines))
    with pytest.raises(cx.SourceError, match="no value in column 'a' at row 3"):
        cx.sources.files(path, "y")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda f: cx.sources.arrays(X, Y[:50]), "same number of rows"),
        (lambda f: cx.sources.arrays(X[:0], Y[:0]), "at least 1 row"),
        (lambda f: cx.sources.arrays(f / "x.csv"), "the path of a .npy file"),
        (lambda f: cx.sources.arrays(f / "x.npy"), "cannot be read as a .npy file"),
        (lambda f: cx.sources.arrays(np.array([["a"]])), "real numbers"),
        (lambda f: cx.sources.dataset(5), r"dataset\(items=...\) must be a data set"),
        (lambda f: cx.sources.files(3, "y"), r"files\(paths=...\) must be a file, a folder"),
        (lambda f: cx.sources.files(f / "none.csv", "y"), "There is no file"),
        (lambda f: cx.sources.files(f, "y"), "it holds none"),
        (
            lambda f: cx.sources.function(3, 10, name="a"),
            r"function\(batch=...\) must be a function",
        ),
        (lambda f: cx.sources.function(max, 0, name="a"), "at least 1"),
        (lambda f: cx.sources.function(max, 10, name=""), r"function\(name=...\) must be a text"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(tmp_path)


def test_an_unknown_target_is_refused_with_the_columns(tmp_path):
    write(tmp_path / "data", "a", X, Y)
    with pytest.raises(ValueError, match=r"target=...\) must be a column of .*'a', 'b', 'c', 'y'"):
        cx.sources.files(tmp_path / "data", "z")


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = cx.sources.arrays(tmp_path / "x.npy", Y)
    np.save(tmp_path / "x.npy", X[:50])
    with pytest.raises(cx.SourceError, match=r"x\.npy has changed"):
        source.read([0])
    Path(tmp_path / "x.npy").unlink()
    with pytest.raises(cx.SourceError, match="can no longer be read"):
        source.read([0])


def test_a_data_set_that_changes_or_fails_is_refused_with_the_row():
    pairs = Pairs(X, Y)
    source = cx.sources.dataset(pairs)
    pairs.x = X[:50]
    with pytest.raises(cx.SourceError, match=r"had 103 rows .* now it has 50"):
        source.read([0])

    class Broken(Records):
        def __getitem__(self, i):
            if i == 17:
                raise OSError("disk")
            return super().__getitem__(i)

    broken = cx.sources.dataset(Broken(X, Y), x="inputs", y="target")
    with pytest.raises(cx.SourceError, match="row 17 could not be read: OSError: disk"):
        broken.read([16, 17])
    ragged = cx.sources.dataset(Pairs([np.zeros(2), np.zeros(3)], [0.0, 0.0]))
    with pytest.raises(cx.SourceError, match=r"got \(3,\) at row 1"):
        ragged.read([0, 1])
    with pytest.raises(cx.SourceError, match="row 0 has no entry 'x'"):
        cx.sources.dataset(Records(X, Y), x="x").read([0])


def test_fingerprints_tell_other_rows_apart(tmp_path):
    other = X.copy()
    other[50, 1] += 1e-9
    prints = [source.fingerprint() for source in sources_of(tmp_path)]
    assert next(source.fingerprint() for source in sources_of(tmp_path)) == prints[0]
    for make in (cx.sources.arrays, lambda x, y: cx.sources.dataset(Pairs(x[:40], y[:40]))):
        assert make(X, Y).fingerprint() == make(X, Y).fingerprint()
    assert cx.sources.arrays(X, Y).fingerprint() != cx.sources.arrays(other, Y).fingerprint()
    np.save(tmp_path / "x.npy", other)
    changed = cx.sources.arrays(tmp_path / "x.npy", tmp_path / "y.npy")
    assert changed.fingerprint() != prints[1]


def test_moments_of_blocks_are_those_of_all_rows(monkeypatch):
    x = np.concatenate([X * [1, 1e3, 1e-3] + [1e6, 0, 0], np.full((103, 1), 0.1)], axis=1)
    moments = survey.Moments()
    for begin in range(0, 103, 25):
        moments.add(x[begin : begin + 25])
    whole, found = Scaling.learn(x), moments.scaling(x)
    np.testing.assert_allclose(found.centre, whole.centre, rtol=1e-12)
    np.testing.assert_allclose(found.scale, whole.scale, rtol=1e-10)
    assert found.outliers == whole.outliers
    gross = x.copy()
    gross[7, 1] = 1e9
    moments = survey.Moments()
    moments.add(gross)
    assert moments.scaling(gross) == Scaling.learn(gross)


def test_a_large_source_is_standardised_by_all_its_rows(monkeypatch):
    monkeypatch.setattr(survey, "SAMPLE", 32)
    monkeypatch.setattr("credax.model.sources.survey.BLOCK", 40)
    model = cx.Model(cx.networks.mlp([4]), standardise=True)
    bound, data = survey.prepare(model, cx.sources.arrays(X, Y))
    exact, _ = model.prepare((X, Y))
    np.testing.assert_allclose(bound.frame.x_scaling.centre, exact.frame.x_scaling.centre)
    np.testing.assert_allclose(bound.frame.x_scaling.scale, exact.frame.x_scaling.scale)
    np.testing.assert_allclose(bound.frame.y_scaling.scale, exact.frame.y_scaling.scale)
    assert (data.rows, len(data.sample.x)) == (103, 32)
    standard = exact.network_inputs(X)[data.numbers]
    np.testing.assert_allclose(data.sample.x, standard, rtol=1e-4, atol=1e-6)


def test_rare_classes_of_a_large_source_are_found(monkeypatch):
    monkeypatch.setattr(survey, "SAMPLE", 32)
    labels = np.zeros(103, int)
    labels[50], labels[70] = 1, 2
    model = cx.Model(cx.networks.mlp([4]), likelihood=cx.likelihoods.Categorical())
    bound, _ = survey.prepare(model, cx.sources.arrays(X, labels))
    assert bound.schema.outputs == 3
    labels[70] = 5
    with pytest.raises(ValueError, match="got labels 0, 1, 5"):
        survey.prepare(model, cx.sources.arrays(X, labels))


def test_a_bad_number_in_a_large_source_is_found_before_the_fit(monkeypatch):
    monkeypatch.setattr(survey, "SAMPLE", 32)
    x = X.copy()
    x[77, 2] = np.inf
    model = cx.Model(cx.networks.mlp([4]))
    with pytest.raises(cx.SourceError, match="got inf at row 77, column 2"):
        survey.prepare(model, cx.sources.arrays(x, Y))


def test_a_function_must_return_what_was_asked_for():
    words, steps = np.zeros((1, 2), np.uint32), np.array([3])
    for result, message in (
        (X, r"must return a pair \(x, y\); got ndarray"),
        ((X[:3], Y[:3]), r"batch\(key, 3, 4\) .* must return 4 rows of x; got shape \(3, 3\)"),
    ):
        source = cx.sources.function(lambda key, step, size: result, 100, name="a")  # noqa: B023
        with pytest.raises(cx.SourceError, match=message):
            source.batches(words, steps, 4)


def test_a_function_source_refuses_what_needs_all_rows():
    source = cx.sources.function(lambda key, step, size: (X[:size], Y[:size]), 100, name="rows")
    with pytest.raises(cx.SourceError, match="use standardise=False"):
        survey.prepare(cx.Model(cx.networks.mlp([4]), standardise=True), source)
    with pytest.raises(cx.SourceError, match="cannot be counted"):
        source.read([0])


def test_a_data_set_of_grain_is_a_source():
    grain = pytest.importorskip("grain")
    items = grain.MapDataset.source(list(zip(X, Y, strict=True)))
    found = cx.sources.dataset(items).read([3, 0, 3])
    np.testing.assert_array_equal(found.x, X[[3, 0, 3]])
    np.testing.assert_array_equal(found.y, Y[[3, 0, 3]])
