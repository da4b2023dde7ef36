"""What every test can rely on: the CPU, strict dtype promotion, and a count of compilations."""

import os
import zlib
from collections import defaultdict

# Both are read when the packages are first imported. A caller's own choice wins.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("MPLBACKEND", "agg")

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import numpy as np
import pytest

# Mixing dtypes by accident is an error in credax: it doubles memory under x64 and hides weak types.
jax.config.update("jax_numpy_dtype_promotion", "strict")

# A background shell has its programs ignore Ctrl-C, and these would have theirs ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Compilations = Callable[[], AbstractContextManager[Callable[[], int]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked ``matrix``, an eighth is quick and the others are slow.

    A hash of a case's name chooses, so a case that is added changes no choice among the others. At least one
    case of each test is quick.
    """
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        ranks = {item: zlib.crc32(item.name.encode()) for item in cases}
        for item in cases:
            if ranks[item] % 8 and ranks[item] > min(ranks.values()):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """Thousands of programs in one process use up its memory maps, and then the compiler crashes."""
    yield
    jax.clear_caches()


@pytest.fixture
def standard_promotion() -> Iterator[None]:
    """NumPy's own dtype promotion, for tests that run other libraries' JAX code."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def mutated() -> Callable[[bytes, np.random.Generator], bytes]:
    """Damage the content of a file in one to three places, as disks, cables and editors do."""

    def mutate(content: bytes, generator: np.random.Generator) -> bytes:
        result = bytearray(content)
        for _ in range(generator.integers(1, 4)):
            at, kind = int(generator.integers(0, max(len(result), 1))), generator.integers(0, 7)
            stretch = slice(at, at + int(generator.integers(1, 40)))
            digits = [i for i, byte in enumerate(result) if 48 <= byte < 58] if kind == 6 else []
            if kind == 0 and result:
                result[at] ^= 1 << int(generator.integers(0, 8))
            elif kind == 1:
                result[stretch] = generator.bytes(len(result[stretch]))
            elif kind == 2:
                result[stretch] = bytes(len(result[stretch]))
            elif kind == 3:
                del result[stretch]
            elif kind == 4:
                result[at:at] = result[stretch]
            elif kind == 5:
                del result[at:]
            elif digits:
                result[digits[generator.integers(len(digits))]] = generator.integers(48, 58)
        return bytes(result)

    return mutate


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision for one test, in every thread."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """Count the programs that XLA is asked for.

    >>> with compilations() as count:
    ...     fit(model, data, method)
    >>> assert count() == 0

    A program found in a persistent cache on disk counts too: the process had to ask for it. Programs are not
    dropped meanwhile, so the count does not depend on how many the tests before left behind.
    """
    monkeypatch.setattr("credax.core.programs.MOST", 1_000)
    return _count_compilations


@contextmanager
def _count_compilations() -> Iterator[Callable[[], int]]:
    total = 0

    def listen(event: str, duration: float, **_: object) -> None:
        nonlocal total
        total += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield lambda: total
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
