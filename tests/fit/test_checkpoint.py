"""A run that is killed at any time continues, and ends with the same bits as one that was not."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.typing import Draw
from credax.fit import checkpoint
from credax.inference import Method
from credax.posterior.approximations import Draws

MODEL = cx.Model(cx.networks.mlp([3]), likelihood=cx.likelihoods.Gaussian(None))
POINT = cx.DeepEnsemble(members=2, num_steps=40, batch_size=8)


class State(NamedTuple):
    params: dict
    accepted: jax.Array


class Info(NamedTuple):
    log_joint: jax.Array
    accepted: jax.Array


@dataclass(frozen=True)
class RandomWalk(Method):
    """A minimal Metropolis sampler, as an example of a method that keeps draws."""

    num_steps: int = 40
    num_warmup: int = 7
    thin: int = 3
    replicas: int = 2
    scale: float = 0.05

    kind = "approximate"
    needs = frozenset()

    def init(self, key, model, data):
        return State(model.init(key), jnp.zeros((), bool))

    def step(self, key, state, model, batch, step):
        proposal_key, accept_key = jax.random.split(key)
        leaves, tree = jax.tree.flatten(state.params)
        keys = jax.random.split(proposal_key, len(leaves))
        moved = [
            w + self.scale * jax.random.normal(k, w.shape, w.dtype)
            for w, k in zip(leaves, keys, strict=True)
        ]
        proposal = jax.tree.unflatten(tree, moved)
        before, after = (model.log_joint(params, batch) for params in (state.params, proposal))
        accepted = jnp.log(jax.random.uniform(accept_key)) < after - before
        params = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), proposal, state.params
        )
        return State(params, accepted), Info(before, accepted)

    def keep(self, state):
        return Draw(state.params)

    def posterior(self, model, trace):
        return cx.Posterior(model, Draws(trace.draws.params))


CHAIN = RandomWalk()
METHODS = pytest.mark.parametrize("method", [POINT, CHAIN], ids=["point", "draws"])


def table(shift=0.0):
    x = np.linspace(-1, 1, 24)[:, None]
    return x, np.sin(3 * x[:, 0]) + shift


def fit(method, folder=None, **arguments):
    given = {"progress": False, "checkpoint": folder, "key": 1, **arguments}
    return cx.fit(MODEL, table(), method, **given)


def same(a, b):
    """Draws, infos and predictions agree bit for bit."""
    assert jax.tree.structure(a.draws) == jax.tree.structure(b.draws)
    for left, right in zip(jax.tree.leaves(a.draws), jax.tree.leaves(b.draws), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert set(a.info) == set(b.info)
    for name in set(a.info) - {"seconds", "compile_seconds"}:
        np.testing.assert_array_equal(a.info[name], b.info[name])
    x = np.linspace(-2, 2, 9)[:, None]
    np.testing.assert_array_equal(a.predict(x).mean, b.predict(x).mean)
    np.testing.assert_array_equal(a.predict(x).epistemic, b.predict(x).epistemic)


class Crash(Exception):
    pass


def crash_at(step):
    def callback(event):
        if event.step >= step:
            raise Crash

    return callback


@pytest.fixture
def every_chunk(monkeypatch):
    """Write a checkpoint after every chunk, even if little time has passed."""
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)


@METHODS
def test_a_crashed_run_goes_on(tmp_path, every_chunk, method):
    whole = fit(method)
    for step in (1, 8, 22, 40):
        folder = tmp_path / str(step)
        with pytest.raises(Crash):
            fit(method, folder, chunk_steps=3, callbacks=[crash_at(step)])
        first = []
        resumed = fit(method, folder, chunk_steps=4, callbacks=[first.append])
        assert not first or first[0].step > step
        same(whole, resumed)


@METHODS
def test_a_run_that_crashes_again_and_again(tmp_path, every_chunk, method):
    for step in range(4, 40, 4):
        with pytest.raises(Crash):
            fit(method, tmp_path, chunk_steps=2, callbacks=[crash_at(step)])
    same(fit(method), fit(method, tmp_path))


@METHODS
def test_a_run_ended_by_a_callback_goes_on(tmp_path, method):
    ended = fit(method, tmp_path, chunk_steps=5, callbacks=[lambda event: event.step >= 12])
    assert ended.info["ended"] == "callback"
    events = []
    resumed = fit(method, tmp_path, callbacks=[events.append])
    assert events[0].step > ended.info["steps"]
    same(fit(method), resumed)


@METHODS
def test_an_interrupted_run_goes_on(tmp_path, method):
    def interrupt(event):
        if event.step >= 15:
            raise KeyboardInterrupt

    ended = fit(method, tmp_path, chunk_steps=5, callbacks=[interrupt])
    assert ended.info["ended"] == "interrupt"
    events = []
    resumed = fit(method, tmp_path, callbacks=[events.append])
    assert events[0].step > ended.info["steps"]
    same(fit(method), resumed)


@METHODS
def test_a_run_interrupted_before_its_first_draw_goes_on(tmp_path, method):
    def interrupt(event):
        raise KeyboardInterrupt

    if method is CHAIN:
        with pytest.raises(KeyboardInterrupt):
            fit(method, tmp_path, callbacks=[interrupt])
    else:
        fit(method, tmp_path, callbacks=[interrupt])
    same(fit(method), fit(method, tmp_path))


@METHODS
def test_a_completed_run_returns_at_once(tmp_path, method):
    first = fit(method, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    events = []
    again = fit(method, tmp_path, callbacks=[events.append])
    assert events == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    same(first, again)
    same(first, fit(method))


def test_writing_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", 1e-9)
    fit(CHAIN, tmp_path, chunk_steps=1)
    # Only the first and the last chunk are saved; writing more would take too much of the time.
    assert len(list(tmp_path.glob("part-*"))) == 2


@pytest.mark.slow
def test_early_stopping_survives_a_crash(tmp_path, every_chunk):
    x, y = table()
    stopping = cx.EarlyStopping(validation=(x, -y), every=4, patience=3)
    method = cx.MAP(num_steps=400, learning_rate=0.1)
    whole = fit(method, early_stopping=stopping)
    assert whole.info["ended"] == "early stopping"
    last = whole.info["steps"]
    for step in (1, 5, last - 5, last):
        folder = tmp_path / str(step)
        with pytest.raises(Crash):
            fit(method, folder, early_stopping=stopping, chunk_steps=3, callbacks=[crash_at(step)])
        same(whole, fit(method, folder, early_stopping=stopping))
    events = []
    again = fit(method, folder, early_stopping=stopping, callbacks=[events.append])
    assert events == []
    same(whole, again)
    with pytest.raises(cx.StorageError, match="its early_stopping differ"):
        fit(method, folder)


def test_a_start_survives_a_crash(tmp_path, every_chunk):
    start = fit(cx.DeepEnsemble(members=2, num_steps=5), key=7)
    whole = fit(POINT, start=start)
    with pytest.raises(Crash):
        fit(POINT, tmp_path, start=start, chunk_steps=3, callbacks=[crash_at(10)])
    same(whole, fit(POINT, tmp_path, start=start))
    with pytest.raises(cx.StorageError, match="its start differ"):
        fit(POINT, tmp_path)


class AllKinds(NamedTuple):
    walk: jax.Array
    half: jax.Array
    flag: jax.Array
    key: jax.Array
    nothing: tuple = ()


@dataclass(frozen=True)
class Kinds(Method):
    """A method whose state contains every kind of leaf that is allowed."""

    num_steps: int = 20
    replicas: int = 2

    kind = "approximate"
    needs = frozenset()

    def init(self, key, model, data):
        half = jnp.zeros((2, 0, 3), jnp.bfloat16)
        return AllKinds(jnp.zeros(()), half, jnp.zeros((), bool), key)

    def step(self, key, state, model, batch, step):
        own, noise_key = jax.random.split(state.key)
        walk = state.walk + jax.random.normal(noise_key)
        return AllKinds(walk, state.half, ~state.flag, own), Kind(walk, state.flag)

    def posterior(self, model, trace):
        return cx.Posterior(model, Draws(jax.device_get(trace.state.walk)[:, None]))


class Kind(NamedTuple):
    walk: jax.Array
    flag: jax.Array


def test_every_kind_of_state_goes_on(tmp_path, every_chunk):
    density = cx.LogDensity(lambda key: jnp.zeros(()), lambda w: -(w**2))
    fit = lambda **more: cx.fit(density, None, Kinds(), progress=False, **more)  # noqa: E731
    with pytest.raises(Crash):
        fit(checkpoint=tmp_path, chunk_steps=3, callbacks=[crash_at(9)])
    whole, resumed = fit(), fit(checkpoint=tmp_path)
    np.testing.assert_array_equal(whole.draws, resumed.draws)
    for name in Kind._fields:
        np.testing.assert_array_equal(whole.info[name], resumed.info[name])


def test_double_precision_goes_on(x64, tmp_path, every_chunk):
    with pytest.raises(Crash):
        fit(CHAIN, tmp_path, chunk_steps=3, callbacks=[crash_at(20)])
    resumed = fit(CHAIN, tmp_path)
    assert jax.tree.leaves(resumed.draws)[0].dtype == np.float64
    same(fit(CHAIN), resumed)


# -- killed ----------------------------------------------------------------------------------------

SCRIPT = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("killed", sys.argv[1])
killed = importlib.util.module_from_spec(spec)
sys.modules["killed"] = killed
spec.loader.exec_module(killed)
killed.checkpoint.SHARE = 1e9
def slowly(event):
    print(event.step, flush=True)
    time.sleep(0.004)
killed.fit({"point": killed.POINT, "draws": killed.CHAIN}[sys.argv[2]], sys.argv[3], chunk_steps=1,
           callbacks=[slowly])
"""


def kill_after_some_steps(name, folder, seconds):
    """Run a fit in another process, and kill it this many seconds after its first step."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, __file__, name, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUMPY_DTYPE_PROMOTION": "strict"},
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first, process.stderr.read() if process.stderr else ""
    time.sleep(seconds)
    process.kill()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"
    return int((first + out).split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name, method", [("point", POINT), ("draws", CHAIN)])
def test_a_killed_run_goes_on(tmp_path, name, method):
    times = np.random.default_rng(len(name)).uniform(0, 0.1, 3)
    steps = [kill_after_some_steps(name, tmp_path / "once", times[0])]
    # A second time, in the folder that the first run left.
    steps += [kill_after_some_steps(name, tmp_path / "once", time) for time in times[1:2]]
    kill_after_some_steps(name, tmp_path / "late", times[2])
    assert steps == sorted(steps)
    for folder in ("once", "late"):
        events = []
        resumed = fit(method, tmp_path / folder, callbacks=[events.append])
        assert events[0].step > 1
        same(fit(method), resumed)


# -- crashes in the middle of writing --------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("which", ["part", "checkpoint"])
def test_a_crash_while_writing_leaves_a_folder_to_go_on_from(
    tmp_path, monkeypatch, every_chunk, method, which
):
    write, count = checkpoint.write_file, 0

    def failing(path, kind, header, tensors):
        nonlocal count
        count += kind == which
        if kind == which and count == 4:
            path.parent.mkdir(exist_ok=True)
            # What a killed process leaves behind.
            (path.parent / f".{path.name}-half").write_bytes(b"half")
            raise OSError("No space left on device")
        write(path, kind, header, tensors)

    monkeypatch.setattr(checkpoint, "write_file", failing)
    with pytest.raises(OSError, match="No space left"):
        fit(method, tmp_path, chunk_steps=3)
    monkeypatch.setattr(checkpoint, "write_file", write)
    events = []
    resumed = fit(method, tmp_path, chunk_steps=2, callbacks=[events.append])
    assert events[0].step > 3
    same(fit(method), resumed)


def test_stale_parts_do_no_harm(tmp_path, every_chunk):
    with pytest.raises(Crash):
        fit(CHAIN, tmp_path, chunk_steps=3, callbacks=[crash_at(20)])
    (tmp_path / "part-20-30.credax").write_bytes(b"never counted")
    (tmp_path / "part-0-40.credax").write_bytes(b"never counted")
    (tmp_path / ".state.credax-abc").write_bytes(b"half")
    same(fit(CHAIN), fit(CHAIN, tmp_path, chunk_steps=5))


def test_parts_without_a_state_start_over(tmp_path, every_chunk):
    with pytest.raises(Crash):
        fit(CHAIN, tmp_path, chunk_steps=3, callbacks=[crash_at(20)])
    (tmp_path / "state.credax").unlink()
    same(fit(CHAIN), fit(CHAIN, tmp_path, chunk_steps=3))


# -- refusals --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    fit(POINT, folder)
    return folder


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changed, name",
    [
        ({"key": 2}, "key"),
        ({"data": table(shift=1e-6)}, "data"),
        ({"data": (table()[0] + 1, table()[1])}, "data"),
        ({"method": cx.DeepEnsemble(members=2, num_steps=41, batch_size=8)}, "method"),
        ({"method": cx.DeepEnsemble(members=3, num_steps=40, batch_size=8)}, "method"),
        ({"method": cx.MAP(num_steps=40, batch_size=8)}, "method"),
        ({"model": cx.Model(MODEL.network, cx.priors.Normal(2.0), MODEL.likelihood)}, "model"),
        ({"model": cx.Model(cx.networks.mlp([4]), MODEL.prior, MODEL.likelihood)}, "model"),
        ({"model": cx.Model(MODEL.network, MODEL.prior, cx.likelihoods.Gaussian(0.1))}, "model"),
    ],
)
def test_another_run_is_refused(finished, changed, name):
    given = {"model": MODEL, "data": table(), "method": POINT, "key": 1, **changed}
    with pytest.raises(cx.StorageError) as caught:
        cx.fit(**given, checkpoint=finished, progress=False)
    assert f"holds another run: its {name} differ" in str(caught.value)
    assert str(finished) in str(caught.value)


def test_another_precision_is_refused(finished, x64):
    with pytest.raises(cx.StorageError, match="holds another run: its data and float differ"):
        fit(POINT, finished)


def damage(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["state", "part"])
@pytest.mark.parametrize("at", [-1, 0, 200])
def test_a_corrupt_file_is_refused(tmp_path, finished, name, at):
    for path in finished.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = sorted(tmp_path.glob(f"{name}*"))[0]
    damage(path, at)
    with pytest.raises(cx.StorageError) as caught:
        fit(POINT, tmp_path)
    assert path.name in str(caught.value)


def test_a_missing_part_is_refused(tmp_path, finished):
    for path in finished.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    part = sorted(tmp_path.glob("part*"))[0]
    part.unlink()
    with pytest.raises(FileNotFoundError, match=f"{part.name} does not exist"):
        fit(POINT, tmp_path)


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("not a folder")
    with pytest.raises((cx.StorageError, OSError), match="file"):
        fit(POINT, path)


def test_a_posterior_is_not_a_checkpoint(tmp_path, finished):
    fit(POINT, finished).save(tmp_path / "state.credax")
    with pytest.raises(cx.StorageError, match="holds a posterior, not a checkpoint"):
        fit(POINT, tmp_path)


def test_a_folder_is_made_with_its_parents(tmp_path):
    folder = tmp_path / "neu" / "größe"
    fit(POINT, str(folder))
    assert (folder / "state.credax").exists()
