r"""The random number generator of credax: Threefry-2x32 with 20 rounds, written so that it compiles well.

JAX's default generator computes the same function, but on the CPU as a loop that keeps its state in memory.
Written out as plain operations, it becomes one vectorised pass that the compiler fuses with the code that uses
the bits. A credax key gives exactly the bits that JAX's default generator gives for the same key data:
``jax.random.split``, ``fold_in``, ``uniform`` and the other functions accept it and return the same values.

Salmon, Moraes, Dror & Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3".
"""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import define_prng_impl

from credax.core.checks import integer, must, shown

NAME = "credax_threefry"
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)  # from Skein: makes the third key word differ from the other two
# sin(pi v) = v (c_0 + c_1 v^2 + ...) on [-1/2, 1/2] to 7e-9: least squares at Chebyshev points.
SINE = (3.14159264, -5.16771008, 2.55007752, -0.598291286, 0.0776576603)
MANY = 8
"""From this number of leaves on, the words of their keys are computed by JAX's own generator.

The bits are the same, but those of JAX come from a loop, which the compiler does not copy. Blocks that are
written out it copies into the code of every leaf, with all splits of keys before them: they were half of the
program of Bayes by Backprop on a small transformer."""
FEW = 64
"""Up to this number of words, what a key gives is computed before the code that uses it, not inside of it.

The compiler otherwise copies the block into every loop over the elements of an array that a key, a word or a
scalar draw is combined with. The LLVM of JAX 0.11.2 and later then follows each use of each of its 20 rounds,
three to the power of 20 paths, so that compiling such a loop takes hours."""
WIDTHS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def threefry2x32(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Array, Array]:
    """The 64-bit block cipher, which maps two key words and two counter words to two random words.

    For each key it is a bijection of the counters, so that distinct counters never give the same block.

    Args:
      key: two uint32 arrays.
      counter: two uint32 arrays; all four broadcast against each other.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    x, y = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = x + y
            left = lax.shift_left(y, np.uint32(distance))
            y = x ^ (left | lax.shift_right_logical(y, np.uint32(32 - distance)))
        x = x + schedule[(group + 1) % 3]
        y = y + (schedule[(group + 2) % 3] + np.uint32(group + 1))
    return x, y


def _counters(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The row-major index of every element, as a high and a low 32-bit word.

    It is a sum over axes rather than a reshaped range, so that XLA can partition it along any axis.
    """
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if math.prod(shape) <= 2**32:
        low = jnp.zeros(shape, np.uint32)
        for axis, stride in enumerate(strides):
            if shape[axis] > 1:
                low = low + lax.broadcasted_iota(np.uint32, shape, axis) * np.uint32(stride)
        return jnp.zeros(shape, np.uint32), low
    with jax.enable_x64(True):
        index = jnp.zeros(shape, np.uint64)
        for axis, stride in enumerate(strides):
            index = index + lax.broadcasted_iota(np.uint64, shape, axis) * np.uint64(stride)
        high = lax.shift_right_logical(index, np.uint64(32))
        return (
            lax.convert_element_type(high, np.uint32),
            lax.convert_element_type(index, np.uint32),
        )


def _apart(words: Array) -> Array:
    """The same words; if they are few, no loop that uses them computes them again."""
    return lax.optimization_barrier(words) if words.size <= FEW else words


@partial(jax.jit, static_argnums=(1, 2))
def _random_bits(data: Array, width: int, shape: tuple[int, ...]) -> Array:
    """Random bits from one block per element, so that element i depends on nothing but the key and i.

    Two elements per block would halve the number of rounds, but the compiler then either computes each block
    twice or stores the bits in memory first, which costs more than it saves.
    """
    if width not in WIDTHS:
        raise ValueError(must("random_bits", "width", "8, 16, 32 or 64", width))
    x, y = threefry2x32((data[0], data[1]), _counters(shape))
    if width < 64:
        return _apart(lax.convert_element_type(x ^ y, WIDTHS[width]))
    high, low = (lax.convert_element_type(word, np.uint64) for word in (x, y))
    return _apart(lax.shift_left(high, np.uint64(32)) | low)


@partial(jax.jit, static_argnums=1)
def _split(data: Array, shape: tuple[int, ...]) -> Array:
    return _apart(jnp.stack(threefry2x32((data[0], data[1]), _counters(shape)), axis=-1))


@jax.jit
def _fold_in(data: Array, message: Array) -> Array:
    counter = jnp.zeros((), np.uint32), lax.convert_element_type(message, np.uint32)
    return _apart(jnp.stack(threefry2x32((data[0], data[1]), counter)))


@jax.jit
def _seed(seed: Array) -> Array:
    bits = np.array(32, seed.dtype)  # a shift by the whole width gives zero for 32-bit seeds
    words = lax.shift_right_logical(seed, bits), seed
    return jnp.stack([lax.convert_element_type(word, np.uint32) for word in words])


# JAX compares implementations by their functions. If this module is reloaded, the old implementation is kept,
# so that keys made before are still of the same type.
IMPLEMENTATION = globals().get("IMPLEMENTATION") or define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name=NAME,
    tag=NAME,
)


def key(seed: Any) -> Array:
    """Make a credax key from a seed or from any JAX key.

    Args:
      seed: an int of at most 64 bits (all bits are used; a negative int is taken modulo :math:`2^{64}`), a
        typed JAX key of any implementation, or a legacy raw key, which is a uint32 array of shape (2,). JAX's
        own ``threefry2x32`` keys and raw keys keep their data and therefore give the same random bits; keys
        of more words are hashed to two words.

    >>> import jax
    >>> bool((jax.random.bits(key(0), (3,)) == jax.random.bits(jax.random.key(0), (3,))).all())
    True
    """
    dtype, shape = getattr(seed, "dtype", None), getattr(seed, "shape", None)
    if shape == () and dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return _adopt(seed)
    if shape == (2,) and dtype == np.uint32:
        return jax.random.wrap_key_data(jnp.asarray(seed), impl=IMPLEMENTATION)
    try:
        number = None if isinstance(seed, bool | np.bool_) else operator.index(seed)
    except TypeError:
        number = None
    if number is None:
        came = shown(seed) if shape is None else f"an array of shape {shape} and dtype {dtype}"
        raise TypeError(f"key must be an int or a JAX key; got {came}.")
    if not -(2**63) <= number < 2**64:
        raise ValueError(
            f"key must be an int or a JAX key, the int of at most 64 bits; got {number}."
        )
    words = divmod(number % 2**64, 2**32)
    return jax.random.wrap_key_data(jnp.array(words, np.uint32), impl=IMPLEMENTATION)


def _adopt(other: Array) -> Array:
    """Convert a typed JAX key of any implementation to a credax key."""
    implementation = jax.random.key_impl(other)
    if implementation == IMPLEMENTATION:
        return other
    data = jax.random.key_data(other)
    # Compare the name too: a key made before this module was imported afresh has an implementation of the same
    # name that is a different object.
    if str(implementation) not in ("threefry2x32", NAME):
        words = [*data.ravel(), *[np.uint32(0)] * (data.size % 2)]
        state = np.uint32(0), np.uint32(0)
        for pair in zip(words[::2], words[1::2], strict=True):
            state = threefry2x32(state, pair)
        data = jnp.stack(state)
    return jax.random.wrap_key_data(data, impl=IMPLEMENTATION)


def native(key: Array) -> Array:
    """Convert a key to JAX's default generator, which gives the same bits but is slower on the CPU.

    ``jax.random.poisson`` accepts only ``threefry2x32`` keys. For all other keys ``jax.random.gamma`` (and
    hence beta, Dirichlet and Student t) is a slow loop on accelerators.
    """
    return jax.random.wrap_key_data(jax.random.key_data(_adopt(key)), impl="threefry2x32")


def normal(key: Array, shape: tuple[int, ...] = (), dtype: Any = None) -> Array:
    r"""Standard normal draws, faster than ``jax.random.normal`` with the same key.

    One block gives two uniform words, so that a Box-Muller variate costs a logarithm, a square root and a short
    polynomial; the inverse error function, which JAX uses, takes twice as long:

    .. math:: z = \sqrt{-2 \log u}\, \sin(\pi v), \qquad u \sim U(0, 1),\ v \sim U(-1/2, 1/2)

    (the sine of a uniform angle has the same distribution over half a turn as over a whole turn). With 32 bits
    for :math:`u` the largest possible draw is 6.8 standard deviations; with JAX's 23 bits it is 5.4. Draws in
    formats narrower than float32 are rounded from float32. Wider formats, for which 32 bits are too coarse, use
    ``jax.random.normal``.
    """
    dtype = jnp.dtype(jnp.result_type(float) if dtype is None else dtype)
    if not jnp.issubdtype(dtype, np.floating):
        raise TypeError(must("normal", "dtype", "a real floating point type", str(dtype)))
    key = _adopt(key)
    if dtype.itemsize > 4:
        return jax.random.normal(key, shape, dtype)
    return _normal(jax.random.key_data(key), tuple(shape), dtype)


@partial(jax.jit, static_argnums=(1, 2))
def _normal(data: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return _apart(_box_muller(*threefry2x32((data[0], data[1]), _counters(shape)), dtype))


def _box_muller(x: Array, y: Array, dtype: np.dtype) -> Array:
    """Standard normal draws from two arrays of uniform words, as :func:`normal` describes."""
    # Half a step is added so that u is never zero.
    u = lax.convert_element_type(x, np.float32) * np.float32(2**-32) + np.float32(2**-33)
    signed = lax.bitcast_convert_type(y, np.int32)
    v = lax.convert_element_type(signed, np.float32) * np.float32(2**-32)
    sine = np.float32(SINE[-1])
    for coefficient in SINE[-2::-1]:
        sine = sine * (v * v) + np.float32(coefficient)
    draws = lax.sqrt(np.float32(-2) * lax.log(u)) * (v * sine)
    return lax.convert_element_type(draws, dtype)


def noise(key: Array, shape: tuple[int, ...] = (), dtype: Any = None) -> Array:
    """Standard normal draws for stochastic gradients, where millions are drawn at every step and used once.

    This differs from :func:`normal` in that both words of an element come from one keyed 32-bit hash of its
    index instead of a Threefry block. That takes a twentieth of the integer operations, and the largest
    possible draw is 5.4 standard deviations. The draws pass the same statistical tests, but use
    :func:`normal` where the draws themselves are the result.
    """
    dtype = jnp.dtype(jnp.result_type(float) if dtype is None else dtype)
    if not _hashed(jax.ShapeDtypeStruct(shape, dtype)):
        return normal(key, shape, dtype)
    return _noise(jax.random.bits(_adopt(key), (2,), np.uint32), tuple(shape), dtype)


def _hashed(leaf: Any) -> bool:
    """Whether 32 bits are enough for the digits of an element and for its index."""
    return leaf.dtype.itemsize <= 4 and math.prod(leaf.shape) < 2**32


@partial(jax.jit, static_argnums=(1, 2))
def _noise(words: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    # The sum starts with a word of the key. Otherwise the index would be the same at every step, and the
    # compiler would compute it once, outside the loop over steps, and then read it from memory.
    index = words[0]
    for axis in range(len(shape)):
        ones = [1] * axis, [1] * (len(shape) - axis - 1)
        steps = lax.broadcasted_iota(np.uint32, (*ones[0], shape[axis], *ones[1]), axis)
        index = index + steps * np.uint32(math.prod(shape[axis + 1 :]))
    word = _mixed(index, words[1])
    # The last 12 bits choose the angle, at the centre of one of 4,096 arcs; they hardly affect the radius.
    return _box_muller(word, lax.shift_left(word, np.uint32(20)) | np.uint32(1 << 19), dtype)


def noise_like(key: Array, tree: Any) -> Any:
    """Independent draws of :func:`noise` in the structure and shapes of a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    if any(not _hashed(leaf) for leaf in leaves):
        return _like(noise, key, tree)
    key = _adopt(key) if len(leaves) < MANY else native(key)
    words = jax.random.bits(key, (len(leaves), 2), np.uint32)
    draws = [_noise(w, leaf.shape, leaf.dtype) for w, leaf in zip(words, leaves, strict=True)]
    return jax.tree.unflatten(structure, draws)


def normal_like(key: Array, tree: Any) -> Any:
    """Independent standard normal draws in the structure and shapes of a pytree.

    Args:
      key: the key, which is split into one key per leaf.
      tree: a pytree of arrays or ``jax.ShapeDtypeStruct``; only shapes and dtypes are read.
    """
    return _like(normal, key, tree)


def _like(draw: Callable[..., Array], key: Array, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(_adopt(key) if len(leaves) < MANY else native(key), len(leaves))
    draws = [draw(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, draws)


def shuffled(key: Array, positions: Any, size: int) -> Array:
    r"""A random permutation of ``range(size)``, evaluated at the given positions only.

    Drawing a minibatch without replacement then costs a few hundred operations per row for any ``size``,
    without sorting and without storing a permutation. Write a position as a pair :math:`(l, r)` in
    :math:`Z_a \times Z_b`, where a and b are nearly equal and :math:`ab \ge n`, n being ``size``. One iteration
    of a generalised Feistel network consists of the two rounds

    .. math:: l \leftarrow l + F_k(r) \bmod a, \qquad r \leftarrow r + F_{k'}(l) \bmod b

    with keyed hashes :math:`F`. Each round is invertible, so the network is a bijection of :math:`Z_{ab}`. A
    value of at least ``size`` goes through the network again until it is below ``size`` (cycle walking),
    which gives a bijection of ``range(size)``.

    Args:
      key: selects the permutation.
      positions: integers, taken modulo ``size``.
      size: the number of elements to permute, below :math:`2^{31}`.

    Returns:
      The permuted positions as int32, in the shape of ``positions``.

    Black & Rogaway (2002), "Ciphers with arbitrary finite domains".
    """
    size = integer("shuffled", "size", size)
    if size >= 2**31:
        raise ValueError(must("shuffled", "size", "below 2**31", size))
    positions = jnp.asarray(positions)
    if not jnp.issubdtype(positions.dtype, np.integer):
        raise TypeError(must("shuffled", "positions", "integers", positions))
    return _shuffled(key, positions, size)


@partial(jax.jit, static_argnums=2)
def _shuffled(key: Array, positions: Array, size: int) -> Array:
    root = math.isqrt(size - 1) + 1
    # Choose the sides with the smallest excess ab - size. Without excess no cycle walking is needed: 60,000
    # rows (240 x 250) need no loop at all.
    candidates = range(root, min(root + max(1, root // 2), 2**16 + 1))
    a = min(candidates, key=lambda side: -size % side)
    b = -(-size // a)
    # With ideal hashes, t iterations bring the joint distribution of any two positions within about
    # (ab)^(1/2-t) of uniform in total variation. The number below achieves 2^-24, and is at least three because
    # no hash is ideal.
    turns = max(3, 1 + math.ceil(24 / math.log2(max(size, 2))))
    round_keys = jax.random.bits(key, (turns, 2, 2), np.uint32)

    def permute(x):
        left = lax.div(x, np.uint32(b))
        right = x - left * np.uint32(b)
        for turn in range(turns):
            left = _add_modulo(left, _hash(right, round_keys[turn, 0]), a)
            right = _add_modulo(right, _hash(left, round_keys[turn, 1]), b)
        return left * np.uint32(b) + right

    if positions.dtype.itemsize < 4:
        positions = positions.astype(np.int32)
    start = jnp.remainder(positions, np.array(size, positions.dtype)).astype(np.uint32)
    end = permute(start)
    if a * b > size:
        end = lax.while_loop(
            lambda x: jnp.any(x >= np.uint32(size)),
            lambda x: jnp.where(x >= np.uint32(size), permute(x), x),
            end,
        )
    return end.astype(np.int32)


def _hash(x: Array, round_key: Array) -> Array:
    """The finaliser of MurmurHash3, with a word of the key mixed in before each multiplication."""
    return _mixed(x ^ round_key[0], round_key[1])


def _mixed(x: Array, word: Array) -> Array:
    x = (x ^ lax.shift_right_logical(x, np.uint32(16))) * np.uint32(0x85EBCA6B) + word
    x = (x ^ lax.shift_right_logical(x, np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ lax.shift_right_logical(x, np.uint32(16))


def _add_modulo(x: Array, word: Array, modulus: int) -> Array:
    """The sum modulo ``modulus`` (at most 2^16) of x and of ``word`` scaled to ``range(modulus)``."""
    m = np.uint32(modulus)
    # floor(word * modulus / 2^32), computed in 16-bit halves to avoid 64-bit products and divisions.
    low = lax.shift_right_logical((word & np.uint32(0xFFFF)) * m, np.uint32(16))
    high = lax.shift_right_logical(word, np.uint32(16)) * m
    total = x + lax.shift_right_logical(high + low, np.uint32(16))
    return lax.min(total, total - m)  # if total < m, total - m wraps round to a huge word
