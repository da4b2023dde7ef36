"""The random number generator: its bits, distributions, permutations and error messages."""

import importlib
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p
from scipy import stats

from credax.core import random


def plausible(p_values, tests=1):
    """Check that no p-value is below 1e-4 after Bonferroni's correction."""
    p_values = np.atleast_1d(p_values)
    assert np.all(np.isfinite(p_values))
    assert p_values.min() > 1e-4 / (tests * p_values.size)


def data(key):
    return np.asarray(jax.random.key_data(key))


def words(*values):
    return tuple(jnp.uint32(value) for value in values)


# The bits


@pytest.mark.parametrize(
    "key, counter, block",
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers_of_random123(key, counter, block):
    assert tuple(map(int, random.threefry2x32(words(*key), words(*counter)))) == block


def test_cipher_equals_jax_on_random_inputs():
    inputs = np.random.default_rng(0).integers(0, 2**32, (4, 1000), dtype=np.uint32)
    k0, k1, c0, c1 = map(jnp.asarray, inputs)
    ours = random.threefry2x32((k0, k1), (c0, c1))
    np.testing.assert_array_equal(ours, threefry2x32_p.bind(k0, k1, c0, c1))


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0, 3), (1, 7, 1, 3)])
def test_every_operation_gives_the_bits_of_jax(shape):
    ours, theirs = random.key(7), jax.random.key(7)
    for dtype in (jnp.uint8, jnp.uint16, jnp.uint32):
        bits = jax.random.bits(ours, shape, dtype)
        assert bits.dtype == dtype
        np.testing.assert_array_equal(bits, jax.random.bits(theirs, shape, dtype))
    with jax.enable_x64(True):
        bits = jax.random.bits(ours, shape, jnp.uint64)
        assert bits.dtype == jnp.uint64
        np.testing.assert_array_equal(bits, jax.random.bits(theirs, shape, jnp.uint64))
    np.testing.assert_array_equal(
        data(jax.random.split(ours, shape)), data(jax.random.split(theirs, shape))
    )
    np.testing.assert_array_equal(
        data(jax.random.fold_in(ours, 2**31 + 5)), data(jax.random.fold_in(theirs, 2**31 + 5))
    )
    np.testing.assert_array_equal(jax.random.normal(ours, shape), jax.random.normal(theirs, shape))


@pytest.mark.parametrize("seed", [0, 5, 2**31 - 1, np.int32(9), np.uint32(2**32 - 1)])
def test_seeding_through_jax_agrees(seed):
    through_jax = jax.random.key(seed, impl=random.IMPLEMENTATION)
    np.testing.assert_array_equal(data(through_jax), data(random.key(seed)))
    np.testing.assert_array_equal(data(through_jax), data(jax.random.key(seed)))


@pytest.mark.skipif(
    jax.__version_info__ < (0, 11, 2), reason="older compilers copy blocks, and compile them fast"
)
@pytest.mark.parametrize(
    "draw",
    [
        lambda key: random.normal(jax.random.split(key)[0]),
        lambda key: jax.random.uniform(jax.random.fold_in(key, 3), (2,))[1],
        lambda key: random.noise(key, (1000,)),
    ],
)
def test_no_loop_over_an_array_computes_a_key_or_a_scalar_draw(draw):
    """Some compilers need hours for a loop with a block in it that is the same for all elements."""
    scaled = jax.jit(lambda key, x: x * draw(key))
    text = scaled.lower(random.key(0), jnp.ones(1000, jnp.float32)).compile().as_text()
    loops = [part for part in text.split("\n}\n") if re.search(r"f32\[1000\]\S* multiply\(", part)]
    assert loops
    # The block has 20 of them for its rounds; a hash of noise has fewer.
    assert max(part.count(" xor(") for part in loops) < 20


def test_counters_beyond_32_bits():
    shape = (3, 2**31)  # the compiler fuses the slice, so that only its five elements are computed
    last = jax.jit(lambda key: jax.random.bits(key, shape)[2, -5:])
    compiled = last.lower(random.key(3)).compile()
    memory = compiled.memory_analysis()
    if memory is None or memory.temp_size_in_bytes > 2**20:
        pytest.skip("this compiler would store all the bits")
    low = jnp.arange(2**31 - 5, 2**31, dtype=jnp.uint32)
    x, y = random.threefry2x32(words(0, 3), (jnp.uint32(1), low))
    np.testing.assert_array_equal(compiled(random.key(3)), x ^ y)


def test_bits_do_not_depend_on_how_they_are_computed():
    keys = jax.random.split(random.key(1), 6)
    eager = np.stack([jax.random.bits(key, (10,)) for key in keys])
    np.testing.assert_array_equal(eager, jax.vmap(lambda key: jax.random.bits(key, (10,)))(keys))
    jitted = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (10,))))
    np.testing.assert_array_equal(eager, jitted(keys))
    _, scanned = jax.lax.scan(lambda c, key: (c, jax.random.bits(key, (10,))), 0, keys)
    np.testing.assert_array_equal(eager, scanned)
    np.testing.assert_array_equal(eager[0], jax.random.bits(keys[0], (2, 5)).ravel())
    np.testing.assert_array_equal(eager[0, :4], jax.random.bits(keys[0], (4,)))


@pytest.mark.slow
def test_sharded_draws_are_the_same():
    def draw(keys):
        shuffle = jax.vmap(lambda key: random.shuffled(key, jnp.arange(5), 13))
        return jax.vmap(lambda key: random.normal(key, (10,)))(keys), shuffle(keys)

    keys = jax.random.split(random.key(1), 6)
    mesh = jax.make_mesh((1,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("replica")
    sharded = jax.jit(jax.shard_map(draw, mesh=mesh, in_specs=spec, out_specs=spec))
    for ours, expected in zip(sharded(keys), draw(keys), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_draws_are_constants_to_the_gradient():
    gradient = jax.grad(lambda scale: jnp.sum(scale * random.normal(random.key(0), (4,))))(2.0)
    np.testing.assert_allclose(gradient, random.normal(random.key(0), (4,)).sum(), rtol=1e-6)


# Distributions


def test_bytes_are_uniform():
    keys = jax.random.split(random.key(11), 8)
    for key in keys:
        bits = np.asarray(jax.random.bits(key, (250_000,)))
        columns = bits.view(np.uint8).reshape(-1, 4).T
        plausible([stats.chisquare(np.bincount(c, minlength=256)).pvalue for c in columns], 8)


NORMALS = {
    "jax": lambda key, n, dtype: jax.random.normal(key, (n,), dtype),
    "credax": lambda key, n, dtype: random.normal(key, (n,), dtype),
    "noise": lambda key, n, dtype: random.noise(key, (n,), dtype),
}


@pytest.mark.slow
@pytest.mark.parametrize("draw", NORMALS.values(), ids=NORMALS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_normals_are_normal(draw, dtype):
    size = 2_000_000
    with jax.enable_x64(dtype == "float64"):
        draws = np.asarray(draw(random.key(5), size, dtype))
    assert draws.dtype == dtype
    z = draws.astype(np.float64)
    moments = [z.mean(), (z**2).mean() - 1, (z**3).mean(), (z**4).mean() - 3]
    errors = np.sqrt(np.array([1, 2, 15, 96]) / size)
    plausible(2 * stats.norm.sf(np.abs(moments) / errors))
    plausible(stats.kstest(z, "norm").pvalue)
    for sigma in (1, 2, 3, 4, 4.5):
        for tail in (z > sigma, z < -sigma):
            plausible(stats.binomtest(int(tail.sum()), size, stats.norm.sf(sigma)).pvalue, 10)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("draw", NORMALS.values(), ids=NORMALS)
def test_half_precision_normals(draw, dtype):
    draws = draw(random.key(6), 200_000, dtype)
    assert draws.dtype == dtype
    z = np.asarray(draws, np.float64)
    assert np.isfinite(z).all()
    # Rounding to the dtype changes the moments by about its precision.
    precision = float(jnp.finfo(dtype).eps)
    assert abs(z.mean()) < 4.5 / math.sqrt(z.size) + precision
    assert abs(z.var() - 1) < 4.5 * math.sqrt(2 / z.size) + 2 * precision


def test_half_precision_normals_are_rounded_single_ones():
    single = random.normal(random.key(2), (1000,), "float32")
    half = random.normal(random.key(2), (1000,), "bfloat16")
    np.testing.assert_array_equal(half, single.astype("bfloat16"))


def test_normal_is_box_muller_of_the_two_words():
    x, y = (np.asarray(w) for w in random.threefry2x32(words(0, 9), random._counters((10_000,))))
    u = (x.astype(np.float64) + 0.5) / 2**32
    v = y.view(np.int32) / 2**32
    exact = np.sqrt(-2 * np.log(u)) * np.sin(np.pi * v)
    # If u is nearly one, its rounding to float32 is visible in the square root; hence the absolute tolerance.
    draws = random.normal(random.key(9), (10_000,), "float32")
    np.testing.assert_allclose(draws, exact, rtol=3e-6, atol=1e-5)


def test_normal_at_the_ends_of_its_range(monkeypatch):
    ends = jnp.asarray([0, 1, 2**31 - 1, 2**31, 2**32 - 1], jnp.uint32)
    pairs = [grid.ravel() for grid in jnp.meshgrid(ends, ends)]
    monkeypatch.setattr(random, "threefry2x32", lambda key, counter: pairs)
    z = np.asarray(random._normal.__wrapped__(jnp.zeros(2, jnp.uint32), (25,), np.dtype("float32")))
    assert np.isfinite(z).all()
    assert np.abs(z).max() == pytest.approx(math.sqrt(2 * 33 * math.log(2)), rel=1e-5)


def correlation(x, y):
    """p-values of the hypotheses that two samples of normals, and their squares, are uncorrelated."""
    statistics = [np.mean(x * y), np.mean((x**2 - 1) * (y**2 - 1)) / 2]
    return 2 * stats.norm.sf(np.abs(statistics) * math.sqrt(x.size))


@pytest.mark.parametrize("draw", NORMALS.values(), ids=NORMALS)
def test_draws_are_uncorrelated(draw):
    size = 200_000

    def normals(key):
        return np.asarray(draw(key, size, "float32"), np.float64)

    parent = random.key(100)
    z = normals(parent)
    lags = (1, 2, 3, 8, 16, 128, 1000, 1024, 4096, 65_536)
    for lag in lags:
        plausible(correlation(z[:-lag], z[lag:]), len(lags))
    others = [random.key(seed) for seed in (101, 102, 103, 100 + 2**32)]
    others += [*jax.random.split(parent, 3), *(jax.random.fold_in(parent, i) for i in range(3, 6))]
    samples = [z, *map(normals, others)]
    pairs = [(i, j) for i in range(len(samples)) for j in range(i)]
    for i, j in pairs:
        plausible(correlation(samples[i], samples[j]), len(pairs))


@pytest.mark.parametrize("draw", [random.normal, random.noise])
def test_the_first_draws_of_sequential_keys_are_normal(draw):
    parent = random.key(0)
    seeds = jnp.stack([jnp.zeros(50_000, jnp.uint32), jnp.arange(50_000, dtype=jnp.uint32)], 1)
    families = [
        jax.random.wrap_key_data(seeds, impl=random.IMPLEMENTATION),
        jax.random.split(parent, 50_000),
        jax.vmap(lambda i: jax.random.fold_in(parent, i))(jnp.arange(50_000)),
    ]
    for keys in families:
        z = np.asarray(jax.vmap(lambda key: draw(key, (2,)))(keys), np.float64)
        plausible(stats.kstest(z[:, 0], "norm").pvalue, 3)
        plausible(correlation(z[:-1, 0], z[1:, 0]), 3)
        plausible(correlation(z[:, 0], z[:, 1]), 3)


def test_noise_has_one_value_per_element_and_follows_the_shape():
    flat = random.noise(random.key(0), (600,))
    np.testing.assert_array_equal(random.noise(random.key(0), (20, 30)).ravel(), flat)
    assert len(np.unique(flat)) == 600
    tree = {"b": jnp.zeros(3), "w": jnp.zeros((2, 3))}
    drawn = random.noise_like(random.key(0), tree)
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(jnp.shape, tree)
    assert not np.isin(drawn["b"], drawn["w"]).any()


def test_no_two_split_keys_are_equal():
    children = data(jax.random.split(random.key(4), 200_000))
    grandchildren = data(jax.vmap(jax.random.split)(jax.random.split(random.key(5), 50_000)))
    everyone = np.concatenate([children, grandchildren.reshape(-1, 2)])
    assert len(np.unique(everyone.view(np.uint64))) == len(everyone)


# Keys


@pytest.mark.parametrize(
    "seed, expected",
    [
        (0, (0, 0)),
        (2**32 + 1, (1, 1)),
        (2**64 - 1, (2**32 - 1, 2**32 - 1)),
        (-1, (2**32 - 1, 2**32 - 1)),
        (-(2**63), (2**31, 0)),
        (np.int8(-1), (2**32 - 1, 2**32 - 1)),
        (np.uint64(2**63 + 7), (2**31, 7)),
        (np.array(3), (0, 3)),
    ],
)
def test_seeds(seed, expected):
    key = random.key(seed)
    assert jax.random.key_impl(key) == random.IMPLEMENTATION
    assert tuple(data(key)) == expected


def test_keys_of_others():
    own = random.key(3)
    assert random.key(own) is own
    for other in (jax.random.key(3, impl="threefry2x32"), np.array([0, 3], np.uint32)):
        adopted = random.key(other)
        assert adopted.dtype == own.dtype
        np.testing.assert_array_equal(data(adopted), [0, 3])
    np.testing.assert_array_equal(data(random.key(jnp.array([1, 2], jnp.uint32))), [1, 2])
    np.testing.assert_array_equal(data(jax.jit(random.key)(jax.random.key(3))), [0, 3])


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", ["rbg", pytest.param("unsafe_rbg", marks=pytest.mark.slow)]
)
def test_wider_keys_stay_different(implementation):
    base = jax.random.key(0, impl=implementation)
    others = [jax.random.key(seed, impl=implementation) for seed in range(100)]
    others += [jax.random.wrap_key_data(w, impl=implementation) for w in jnp.eye(4, dtype="uint32")]
    adopted = [tuple(data(random.key(key))) for key in [*others, *jax.random.split(base, 100)]]
    assert len(set(adopted)) == 204


def test_native_keys_draw_the_same_and_reach_every_distribution():
    key = jax.random.fold_in(random.key(8), 1)
    native = random.native(key)
    assert jax.random.key_impl(native) == "threefry2x32"
    np.testing.assert_array_equal(jax.random.bits(native, (9,)), jax.random.bits(key, (9,)))
    assert jax.random.poisson(native, 3.0, (5,)).shape == (5,)
    assert random.native(jax.random.key(1, impl="rbg")).shape == ()


@pytest.mark.parametrize(
    "seed, came",
    [
        (True, "True"),
        (np.bool_(True), "dtype bool"),
        (1.0, "1.0"),
        (None, "None"),
        ("0", "'0'"),
        ([0, 1], r"\[0, 1\]"),
        (np.zeros(3, np.uint32), r"an array of shape \(3,\) and dtype uint32"),
        (np.zeros(2, np.int32), r"an array of shape \(2,\) and dtype int32"),
        (jnp.float32(1), r"an array of shape \(\) and dtype float32"),
    ],
)
def test_what_is_no_key_is_refused(seed, came):
    with pytest.raises(TypeError, match=f"key must be an int or a JAX key; got .*{came}"):
        random.key(seed)


def test_several_keys_are_refused():
    with pytest.raises(TypeError, match=r"key must be an int or a JAX key; got .*shape \(3,\)"):
        random.key(jax.random.split(jax.random.key(0), 3))


def test_a_traced_seed_is_refused():
    with pytest.raises(TypeError, match="key must be an int or a JAX key; got an array"):
        jax.jit(random.key)(3)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**30])
def test_seeds_beyond_64_bits_are_refused(seed):
    with pytest.raises(ValueError, match=f"key must be .* at most 64 bits; got {seed}"):
        random.key(seed)


def test_reloading_keeps_old_keys_valid():
    before = random.key(3)
    reloaded = importlib.reload(random)
    after = reloaded.key(3)
    assert before.dtype == after.dtype
    assert reloaded.key(before) is before
    np.testing.assert_array_equal(jax.random.bits(before, (5,)), jax.random.bits(after, (5,)))


# Normals over a pytree


def test_normal_like():
    tree = {"w": jnp.zeros((30, 20)), "b": jax.ShapeDtypeStruct((30,), jnp.bfloat16), "none": None}
    draws = random.normal_like(random.key(0), tree)
    assert draws["w"].shape == (30, 20)
    assert draws["w"].dtype == tree["w"].dtype
    assert draws["b"].shape == (30,)
    assert draws["b"].dtype == jnp.bfloat16
    assert draws["none"] is None
    keys = jax.random.split(random.key(0), 2)
    np.testing.assert_array_equal(draws["b"], random.normal(keys[0], (30,), "bfloat16"))
    np.testing.assert_array_equal(draws["w"], random.normal(keys[1], (30, 20)))
    assert random.normal_like(random.key(0), {}) == {}
    from_jax_key = random.normal_like(jax.random.key(0), tree)
    np.testing.assert_array_equal(draws["w"], from_jax_key["w"])


def test_normal_defaults_and_refusals():
    assert random.normal(random.key(0)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert random.normal(random.key(0)).dtype == jnp.float64
    with pytest.raises(TypeError, match=r"normal\(dtype=...\) must be a real floating point type"):
        random.normal(random.key(0), (3,), "int32")


def test_strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        key = random.key(2**40)
        random.normal_like(key, [jnp.zeros(3)])
        random.key(jax.random.key(0, impl="rbg"))
        random.shuffled(key, jnp.arange(7, dtype=jnp.int32), 7)
        jax.random.fold_in(jax.random.key(2, impl=random.IMPLEMENTATION), 3)


# Permutations


def permutations(count, size, seed=0):
    keys = jax.random.split(random.key(seed), count)
    shuffle = jax.vmap(lambda key: random.shuffled(key, jnp.arange(size), size))
    return np.asarray(jax.jit(shuffle)(keys))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [range(1, 81), pytest.param(range(81, 301), marks=pytest.mark.slow)], ids=str
)
def test_shuffled_is_a_bijection_of_every_small_range(sizes):
    positions = jnp.arange(300)
    for size in sizes:
        with jax.disable_jit():  # compiling once per size would take longer
            shuffle = np.asarray(random.shuffled(random.key(size), positions, size))[:size]
        assert shuffle.dtype == np.int32
        np.testing.assert_array_equal(np.sort(shuffle), np.arange(size))


@pytest.mark.matrix
@pytest.mark.parametrize("size", [59_999, 60_000, 65_537, 1_000_003])
def test_shuffled_is_a_bijection_of_large_ranges(size):
    shuffle = np.asarray(random.shuffled(random.key(1), jnp.arange(size), size))
    assert np.bincount(shuffle, minlength=size).max() == 1
    assert shuffle.min() == 0
    assert shuffle.max() == size - 1
    assert abs(np.corrcoef(shuffle[:-1], shuffle[1:])[0, 1]) < 5 / math.sqrt(size)


@pytest.mark.matrix
@pytest.mark.parametrize("size", [2**31 - 1, 2**31 - 2, 46340**2, 2_000_000_011])
def test_shuffled_of_the_largest_ranges_hits_each_value_at_most_once(size):
    positions = jnp.arange(size - 1, size - 200_001, -1)
    values = np.asarray(random.shuffled(random.key(1), positions, size))
    assert len(np.unique(values)) == len(values)
    assert values.min() >= 0
    assert values.max() < size
    plausible(stats.kstest(values / size, "uniform").pvalue)


@pytest.mark.matrix
@pytest.mark.parametrize("size", [2, 3, 8, 13])
def test_every_position_goes_everywhere_alike(size):
    shuffles = permutations(40_000, size, seed=21)
    counts = [np.bincount(column, minlength=size) for column in shuffles.T]
    plausible([stats.chisquare(count).pvalue for count in counts], 8)


@pytest.mark.matrix
@pytest.mark.parametrize("size", [4, 5, 6, 7, 8])
def test_every_pair_of_positions_goes_everywhere_alike(size):
    shuffles = permutations(100_000, size, seed=22)
    p_values = []
    for i in range(size):
        for j in range(i):
            pairs = np.bincount(shuffles[:, i] * size + shuffles[:, j], minlength=size**2)
            observed = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
            assert observed.sum() == len(shuffles)
            p_values.append(stats.chisquare(observed).pvalue)
    plausible(p_values, 5)


@pytest.mark.matrix
@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_permutation_is_as_likely(size):
    shuffles = permutations(200_000, size, seed=23)
    codes = np.unique(shuffles @ size ** np.arange(size), return_counts=True)[1]
    assert len(codes) == math.factorial(size)
    plausible(stats.chisquare(codes).pvalue, 3)


def test_pairs_of_neighbours_in_a_large_range_are_uniform():
    size, cells = 1009, 12
    keys = jax.random.split(random.key(24), 60_000)
    positions = jnp.array([0, 1, 2, 500])
    shuffles = np.asarray(jax.vmap(lambda key: random.shuffled(key, positions, size))(keys))
    bins = shuffles * cells // size
    widths = np.bincount(np.arange(size) * cells // size)
    expected = (np.outer(widths, widths) - np.diag(widths)) / (size * (size - 1))
    for i in range(4):
        for j in range(i):
            observed = np.bincount(bins[:, i] * cells + bins[:, j], minlength=cells**2)
            p_value = stats.chisquare(observed, expected.ravel() * len(keys)).pvalue
            plausible(p_value, 6)


def test_batches_are_cuts_of_one_permutation():
    size, key = 1000, random.key(2)
    whole = np.asarray(random.shuffled(key, np.arange(size), size))

    def step(carry, i):
        return carry, random.shuffled(key, i * 100 + jnp.arange(100), size)

    _, batches = jax.lax.scan(step, 0, jnp.arange(10))
    np.testing.assert_array_equal(batches.reshape(-1), whole)
    assert (whole != np.asarray(random.shuffled(random.key(3), np.arange(size), size))).mean() > 0.9


def test_positions_are_taken_modulo_the_size():
    size, key = 300, random.key(2)
    whole = np.asarray(random.shuffled(key, jnp.arange(size), size))
    np.testing.assert_array_equal(random.shuffled(key, jnp.array([300, -1]), size), whole[[0, -1]])
    positions = np.arange(250, dtype=np.uint8)
    np.testing.assert_array_equal(random.shuffled(key, positions, size), whole[:250])
    assert random.shuffled(key, 5, size).shape == ()
    assert random.shuffled(key, jnp.zeros((0, 2), int), size).shape == (0, 2)
    with jax.enable_x64(True):
        wide = random.shuffled(key, jnp.arange(size), size)
        assert wide.dtype == np.int32
        np.testing.assert_array_equal(wide, whole)


def test_shuffled_refuses():
    key = random.key(0)
    with pytest.raises(ValueError, match=r"shuffled\(size=...\) must be .* at least 1; got 0"):
        random.shuffled(key, jnp.arange(2), 0)
    with pytest.raises(ValueError, match=r"must be below 2\*\*31; got 2147483648"):
        random.shuffled(key, jnp.arange(2), 2**31)
    with pytest.raises(TypeError, match=r"shuffled\(size=...\) must be a whole number"):
        random.shuffled(key, jnp.arange(2), 2.5)
    with pytest.raises(TypeError, match=r"shuffled\(positions=...\) must be integers"):
        random.shuffled(key, jnp.zeros(2), 5)


def test_many_leaves_draw_the_same_noise_as_few(monkeypatch):
    tree = [np.zeros((i + 1, 2), np.float32) for i in range(12)]
    for draw in (random.noise_like, random.normal_like):
        rolled = draw(random.key(3), tree)
        monkeypatch.setattr(random, "MANY", 100)
        written_out = draw(random.key(3), tree)
        monkeypatch.undo()
        for a, b in zip(rolled, written_out, strict=True):
            np.testing.assert_array_equal(a, b)
