"""Arrays and tables: which are accepted, how they are checked, and how they are divided into minibatches."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import credax as cx
from credax.core import random
from credax.model.data import ArrayData, Batch, check_array, check_lengths, pair


def rows_of(data, key, steps, size):
    """The numbers of the rows in the batch of each step (the target of a row is its number)."""
    batches = jax.vmap(lambda step: data.batch(key, step, size))(jnp.asarray(steps))
    return np.asarray(batches.y)


def numbered(rows):
    y = np.arange(rows, dtype=np.int32)
    return ArrayData(jnp.asarray(np.stack([y, -y], 1), jnp.result_type(float)), jnp.asarray(y))


# -- minibatches ------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    "rows, size", [(12, 4), (12, 12), (13, 4), (10, 7), (5, 1), (1, 1), (97, 8)]
)
def test_batches_of_an_epoch_are_disjoint_and_cover(rows, size):
    data, key, count = numbered(rows), random.key(1), rows // size
    left_out = []
    for epoch in range(3):
        steps = np.arange(epoch * count, (epoch + 1) * count)
        seen = rows_of(data, key, steps, size)
        assert seen.shape == (count, size)
        assert len(np.unique(seen)) == count * size
        assert seen.min() >= 0
        assert seen.max() < rows
        left_out.append(set(range(rows)) - set(seen.ravel().tolist()))
        assert len(left_out[-1]) == rows % size
    if rows % size:
        assert left_out[0] != left_out[1] or left_out[1] != left_out[2]


def test_each_epoch_is_shuffled_anew():
    data, key = numbered(40), random.key(0)
    epochs = [rows_of(data, key, np.arange(5) + 5 * epoch, 8).ravel() for epoch in range(4)]
    for one, next_one in pairwise(epochs):
        assert not np.array_equal(one, next_one)
        assert not np.array_equal(one, np.arange(40))
    np.testing.assert_array_equal(epochs[0], rows_of(data, key, np.arange(5), 8).ravel())


def test_replicas_see_different_orders():
    data = numbered(40)
    keys = jax.random.split(random.key(0), 6)
    orders = {tuple(rows_of(data, key, np.arange(5), 8).ravel()) for key in keys}
    assert len(orders) == 6


@pytest.mark.slow
def test_every_row_is_in_a_batch_with_the_same_probability():
    """Also if the number of rows is not a multiple of the batch size, and for every batch of an epoch."""
    rows, size, trials = 11, 4, 4000
    data, keys = numbered(rows), jax.random.split(random.key(3), trials)
    for step in range(2):
        batches = jax.vmap(lambda key: data.batch(key, jnp.int32(step), size).y)(keys)  # noqa: B023
        shares = np.bincount(np.asarray(batches).ravel(), minlength=rows) / trials
        error = np.sqrt(size / rows * (1 - size / rows) / trials)
        assert np.all(np.abs(shares - size / rows) < 4.5 * error)


@pytest.mark.slow
@pytest.mark.parametrize("rows, size", [(12, 4), (12, 1), (12, 12), (60, 15)])
def test_scaled_sums_average_to_the_whole_over_an_epoch(rows, size, x64):
    data, count = numbered(rows), rows // size
    f = lambda batch: batch.scale * jnp.sum(jnp.sin(batch.x[:, 0]) - batch.x[:, 1])  # noqa: E731
    steps = jnp.arange(7 * count, 8 * count, dtype=jnp.int32)
    sums = jax.vmap(lambda step: f(data.batch(random.key(2), step, size)))(steps)
    whole = f(data.everything())
    assert np.mean(sums) == pytest.approx(float(whole), rel=1e-13)
    assert count == 1 or np.std(sums) > 0
    assert whole == pytest.approx(np.sum(np.sin(np.arange(rows)) + np.arange(rows)), rel=1e-13)


def test_a_batch_knows_what_it_stands_for():
    data = numbered(13)
    batch = data.batch(random.key(0), jnp.int32(7), 4)
    assert batch.scale == 13 / 4
    assert batch.total == 13
    assert batch.count == 3
    assert batch.index == 7 % 3
    np.testing.assert_array_equal(batch.x, np.stack([batch.y, -batch.y], 1))
    whole = data.batch(random.key(0), jnp.int32(7), None)
    assert isinstance(whole, Batch)
    assert whole.scale == 1
    assert whole.total == 13
    assert whole.count == 1
    assert whole.index == 0
    np.testing.assert_array_equal(whole.y, np.arange(13))
    for b in (batch, whole):
        assert not b.scale.weak_type
        assert b.scale.dtype == jnp.result_type(float)
        assert b.index.dtype == jnp.int32


def test_rows_keep_their_shape():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(9, 4, 5, 3)), jnp.float32)
    data = ArrayData(images, jnp.arange(9, dtype=jnp.int32))
    batch = data.batch(random.key(0), jnp.int32(1), 4)
    np.testing.assert_array_equal(batch.x, images[batch.y])


# -- check_array: what is accepted ---------------------------------------------------------------------

PLAIN = np.array([[1, 0], [0, 1], [1, 1]])


def memory_mapped(path):
    np.save(path / "x.npy", PLAIN.astype(float))
    return np.load(path / "x.npy", mmap_mode="r")


@pytest.mark.parametrize(
    "value",
    [
        *[PLAIN.astype(kind) for kind in "?bBhHiIlLqQefdg"],
        PLAIN.astype(">f8"),
        PLAIN.astype(">i2"),
        PLAIN.astype("<f4"),
        PLAIN.astype(ml_dtypes.bfloat16),
        PLAIN.tolist(),
        PLAIN.astype(bool).tolist(),
        tuple(map(tuple, PLAIN.tolist())),
        [np.array([1, 0]), np.array([0.0, 1.0]), [True, 1]],
        np.asfortranarray(PLAIN.astype(float)),
        np.repeat(np.repeat(PLAIN, 2, 0), 3, 1)[::2, ::3],
        PLAIN[::-1][::-1],
        jnp.asarray(PLAIN),
        jnp.asarray(PLAIN, jnp.bfloat16),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
@pytest.mark.parametrize("wide", [False, True])
def test_numbers_of_every_kind(value, wide):
    with jax.enable_x64(wide):
        result = check_array("x", value)
        assert type(result) is np.ndarray
        assert result.dtype == jnp.result_type(float)
        assert result.dtype.isnative
        assert result.flags.c_contiguous
        np.testing.assert_array_equal(result, PLAIN)


def test_a_memory_map_is_read_only_and_read(tmp_path):
    value = memory_mapped(tmp_path)
    np.testing.assert_array_equal(check_array("x", value), PLAIN)
    assert not value.flags.writeable


def test_data_frames():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = {"a": [1.5, 2.0], "b": [3, 4], "c": [True, False]}
    want = [[1.5, 3, 1], [2, 4, 0]]
    frame = pd.DataFrame(columns)
    nullable = frame.convert_dtypes()
    assert str(nullable["b"].dtype) == "Int64"
    for table in (frame, nullable, pl.DataFrame(columns)):
        np.testing.assert_array_equal(check_array("x", table), want)
        np.testing.assert_array_equal(check_array("y", table["b"], keep_integers=True), [3, 4])
        np.testing.assert_array_equal(check_array("y", table["c"]), [1, 0])
    twice = pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    np.testing.assert_array_equal(check_array("x", twice), [[1, 2]])


def test_missing_values_of_data_frames_are_refused():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    tables = [
        pd.DataFrame({"a": [1, 2], "b": pd.array([3, None], dtype="Int64")}),
        pd.DataFrame({"a": [1, 2], "b": [3.0, None]}),
        pl.DataFrame({"a": [1, 2], "b": [3, None]}),
    ]
    for table in tables:
        with pytest.raises(
            ValueError, match=r"x must hold finite numbers; got nan at row 1, column 1"
        ):
            check_array("x", table)
    for series in (pd.Series([3, None], dtype="Int64"), pl.Series([3, None])):
        with pytest.raises(ValueError, match=r"y must hold finite numbers; got nan at row 1\."):
            check_array("y", series, keep_integers=True)


def test_whole_numbers_stay_whole_where_asked():
    for value in (np.array([3, 1], np.int64), np.array([3, 1], np.uint8), [3, 1]):
        assert check_array("y", value, keep_integers=True).dtype == np.int32
        assert check_array("y", value).dtype == jnp.result_type(float)
    assert check_array("y", [3.0, 1.0], keep_integers=True).dtype == jnp.result_type(float)
    assert check_array("y", [True, False], keep_integers=True).dtype == jnp.result_type(float)
    for bad in (2**31, -(2**31) - 1):
        with pytest.raises(
            ValueError, match=rf"y must hold whole numbers of at most 32 bits; got {bad}"
        ):
            check_array("y", np.array([0, bad]), keep_integers=True)
    edge = np.array([2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(check_array("y", edge, keep_integers=True), edge)


def test_the_input_is_never_modified_nor_shared_for_writing():
    value = np.array([[1.0, 2.0]], np.float32)
    copy = value.copy()
    check_array("x", value)
    np.testing.assert_array_equal(value, copy)


# -- check_array: what is refused (the table for fit as a whole is in test_bad_input.py) -------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_where_a_value_is_not_finite(bad):
    value = np.zeros((4, 3))
    value[2, 1] = value[3, 0] = bad
    with pytest.raises(
        ValueError, match=rf"^x must hold finite numbers; got {bad} at row 2, column 1\.$"
    ):
        check_array("x", value)
    with pytest.raises(ValueError, match=rf"^y must hold finite numbers; got {bad} at row 2\.$"):
        check_array("y", value[:, 1])


def test_what_overflows_float32_fits_float64():
    value = np.array([[1.0], [1e300]])
    with (
        jax.enable_x64(False),
        pytest.raises(
            ValueError,
            match=r"x must hold finite numbers within the range of float32 \(enable .*1e\+300",
        ),
    ):
        check_array("x", value)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(check_array("x", value), value)


def test_lengths():
    check_lengths(np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(ValueError, match="x and y must have the same number of rows; got 3 and 2"):
        check_lengths(np.zeros((3, 2)), np.zeros(2))


def test_pair():
    assert pair((1, 2)) == (1, 2)
    assert pair([1, 2]) == (1, 2)
    for bad, got in [
        (None, "None"),
        ((1,), "tuple of length 1"),
        ({}, "dict"),
        (np.zeros(2), "ndarray"),
    ]:
        with pytest.raises(TypeError, match=rf"data must be a pair \(x, y\); got {got}"):
            pair(bad)


def zeros_at(rest, shape):
    """Zeros whose address has this remainder modulo 64: if it is 0, JAX shares the memory on a CPU."""
    room = np.zeros(4 * math.prod(shape) + 128, np.uint8)
    begin = (rest - room.ctypes.data) % 64
    return room[begin : begin + 4 * math.prod(shape)].view(np.float32).reshape(shape)


@pytest.mark.parametrize("rest", [0, 16])
@pytest.mark.parametrize("rows", [7, 1 << 18])
def test_the_rows_of_a_fit_stay_as_they_are_when_the_arrays_change(rest, rows, compilations):
    x, y = zeros_at(rest, (rows, 4)), zeros_at(rest, (rows,))
    shared = jax.device_put(x).unsafe_buffer_pointer() == x.ctypes.data
    assert shared == (rest == 0), "the case is not what it should be"
    model = cx.Model(cx.networks.linear())
    model.prepare((np.zeros((3, 4), np.float32), np.zeros(3, np.float32)))  # makes the first key
    with compilations() as count:
        _, data = model.prepare((x, y))
    assert count() == 0, "where an array lies decides whether a program is compiled"
    x[:], y[:] = 1.0, 1.0
    assert not np.asarray(data.x).any()
    assert not np.asarray(data.y).any()
