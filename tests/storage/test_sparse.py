"""Sparse arrays come back bit for bit, or their parts are refused."""

import ml_dtypes
import numpy as np
import pytest

from credax.storage.sparse import Sparse, pack, unpack

RNG = np.random.default_rng(0)
DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    np.int32,
    np.int64,
    np.uint8,
    bool,
]


def mostly(value, dtype, shape=(96, 101), share=0.9):
    array = RNG.normal(0, 40, shape).astype(dtype)
    array[RNG.uniform(size=shape) < share] = value
    return array


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.6, 0.95, 1.0])
def test_round_trip(dtype, share):
    array = mostly(1, dtype, share=share)
    parts = pack(array)
    assert parts is not None
    assert sum(part.nbytes for part in parts) < array.nbytes
    same_bits(unpack(parts, array.shape), array)


@pytest.mark.parametrize("value", [0.0, -0.0, -np.inf, np.inf, np.nan])
def test_every_bit_counts(value):
    array = mostly(value, np.float32)
    odd = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 1e-45], np.float32)
    odd = np.append(odd, np.array([0x7FC00001], np.uint32).view(np.float32))  # another NaN
    array.reshape(-1)[: len(odd)] = odd
    parts = pack(array)
    assert parts is not None
    same_bits(unpack(parts, array.shape), array)


@pytest.mark.parametrize("shape", [(4000,), (1, 4000), (4001,), (2, 3, 700), (4007, 1)])
def test_every_shape(shape):
    array = mostly(0, np.float32, shape)
    same_bits(unpack(pack(array), shape), array)


@pytest.mark.parametrize(
    "array",
    [
        RNG.normal(size=4000),
        mostly(0, np.float32, (4000,), share=0.4),
        np.zeros(20),
        np.zeros(()),
        np.zeros((0, 5)),
        np.arange(4000),
        np.zeros(4000, np.complex128),
    ],
    ids=["dense", "less than half", "small", "scalar", "empty", "different", "wide"],
)
def test_what_is_not_worth_it_stays_as_it_is(array):
    assert pack(array) is None


def test_columns_that_a_regular_look_would_miss():
    array = np.zeros((1024, 1024), np.float32)
    array[:, 0] = RNG.normal(size=1024)
    assert pack(array) is not None


def parts_of():
    array = mostly(0, np.float32, (30, 41))
    return pack(array), (30, 41)


def flipped(mask):
    mask = mask.copy()
    mask[3] ^= 16
    return mask


def padded(mask):
    mask = mask.copy()
    mask[-1] |= 1  # beyond the last of 1,230 entries
    return mask


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p, s: (p, (30, 42)), "wrong size"),
        (lambda p, s: (p, (-30, -41)), "whole numbers"),
        (lambda p, s: (p, (30.0, 41)), "whole numbers"),
        (lambda p, s: (p, "many"), "whole numbers"),
        (lambda p, s: (p, None), "whole numbers"),
        (lambda p, s: (p, (10**9, 10**9)), "wrong size"),
        (lambda p, s: (p._replace(mask=p.mask[:-1]), s), "wrong size"),
        (lambda p, s: (p._replace(mask=p.mask.astype(np.int32)), s), "wrong size"),
        (lambda p, s: (p._replace(mask=flipped(p.mask)), s), "does not fit its"),
        (lambda p, s: (p._replace(mask=padded(p.mask)), s), "does not fit its"),
        (lambda p, s: (p._replace(rest=p.rest[:-1]), s), "does not fit its"),
        (lambda p, s: (p._replace(rest=p.rest[None]), s), "one common value"),
        (lambda p, s: (p._replace(common=p.common.astype(np.float64)), s), "others of its type"),
        (lambda p, s: (p._replace(common=np.zeros(2, np.float32)), s), "one common value"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change, message):
    parts, shape = parts_of()
    assert isinstance(parts, Sparse)
    with pytest.raises(ValueError, match=message):
        unpack(*change(parts, shape))
