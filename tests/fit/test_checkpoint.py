"""A run that is killed at any time continues, and ends with the same bits as one that was not."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crashes import CHAIN, METHODS, POINT, Crash, crash_at, fit, same, table

import credax as cx
from credax.inference import Method
from credax.posterior.approximations import Draws


@pytest.mark.matrix
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
    with pytest.raises(cx.StorageError, match="its early_stopping differs"):
        fit(method, folder)


def test_a_start_survives_a_crash(tmp_path, every_chunk):
    start = fit(cx.DeepEnsemble(members=2, num_steps=5), key=7)
    whole = fit(POINT, start=start)
    with pytest.raises(Crash):
        fit(POINT, tmp_path, start=start, chunk_steps=3, callbacks=[crash_at(10)])
    same(whole, fit(POINT, tmp_path, start=start))
    with pytest.raises(cx.StorageError, match="its start differs"):
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
