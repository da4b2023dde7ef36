"""What a run keeps and shows, which rows it uses, where it starts, and how early stopping ends it."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from walks import LINE, Info, Walk, hundred_apart, same, table, walk

import credax as cx
from credax.fit.record import Capacity, Record
from credax.inference import Method
from credax.posterior.approximations import Draws

# -- which steps are kept --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_steps, replicas, num_warmup, thin",
    [(23, 1, 0, 1), (23, 2, 0, 4), (23, 2, 6, 3), (23, 1, 22, 1), (24, 3, 4, 5), (1, 1, 0, 1)],
)
def test_draws_are_the_states_after_every_thin_th_step_past_warmup(
    num_steps, replicas, num_warmup, thin
):
    posterior = walk(Walk(num_steps, replicas, num_warmup, thin))
    kept = [s for s in range(num_steps) if s >= num_warmup and (s + 1 - num_warmup) % thin == 0]
    np.testing.assert_array_equal(posterior.info["kept"], kept)
    assert posterior.draws.shape == (replicas, len(kept))
    np.testing.assert_array_equal(posterior.draws, posterior.info["walk"][:, kept])


def test_info_of_every_step_has_axes_replica_and_step():
    info = walk(Walk(num_steps=17, replicas=3, num_warmup=5, thin=4)).info
    np.testing.assert_array_equal(info["made"], np.tile(np.arange(1, 18), (3, 1)))
    np.testing.assert_allclose(info["walk"], np.cumsum(info["noise"], axis=1), rtol=1e-5, atol=1e-5)
    assert info["made"].dtype == np.int32
    assert info["noise"].dtype == jnp.result_type(float)


def test_info_has_the_method_s_figures_and_the_run_s():
    info = walk(Walk(num_steps=4)).info
    times = {"seconds", "compile_seconds"}
    assert set(info) == {*Info._fields, *times, "kept", "steps", "memory", "ended"}
    assert info["steps"] == 4
    assert info["ended"] == "complete"
    assert info["seconds"] > 0
    assert info["compile_seconds"] > 0


def test_every_replica_and_step_has_noise_of_its_own():
    noise = walk(Walk(num_steps=50, replicas=4)).info["noise"]
    assert len(np.unique(noise)) == noise.size


def test_the_key_decides_every_bit():
    same(walk(Walk(), key=3), walk(Walk(), key=3))
    same(walk(Walk(), key=3), walk(Walk(), key=jax.random.key(3)))
    assert not np.any(walk(Walk(), key=3).draws == walk(Walk(), key=4).draws)


def test_double_precision(x64):
    posterior = walk(Walk(replicas=2))
    assert posterior.draws.dtype == posterior.info["noise"].dtype == np.float64
    same(posterior, walk(Walk(replicas=2), chunk_steps=3))


def test_figures_are_the_means_of_the_last_chunk():
    events = []
    info = walk(Walk(num_steps=6, replicas=2), chunk_steps=3, callbacks=[events.append]).info
    assert [event.step for event in events][-1] == 6
    assert events[-1].num_steps == 6
    begin = events[-2].step
    for name in Info._fields:
        assert events[-1].figures[name] == pytest.approx(info[name][:, begin:].mean(), rel=1e-5)
    assert events[-1].seconds >= events[-2].seconds > 0


def test_the_mean_of_huge_figures_does_not_overflow():
    largest = np.finfo(np.float32).max
    infos = {"energy_change": np.full((2, 3), largest, np.float32)}
    record = Record(cx.MAP(num_steps=3), Capacity(3, 1), infos, None, _seen=(0, 3))
    assert record.figures() == {"energy_change": float(largest)}


# -- batches ---------------------------------------------------------------------------------------


class Seen(NamedTuple):
    rows: jax.Array
    scale: jax.Array
    index: jax.Array


@dataclass(frozen=True)
class Reader(Method):
    """A method whose info shows the rows of its batch, as a sum of 2^i over the rows i."""

    num_steps: int = 12
    batch_size: int | None = None
    replicas: int = 1

    kind = "point"
    needs = frozenset()

    def init(self, key, model, data):
        return model.init(key)

    def step(self, key, state, model, batch, step):
        return state, Seen(jnp.sum(batch.y), batch.scale, batch.index)

    def posterior(self, model, trace):
        return cx.Posterior(
            model, Draws(jax.tree.map(lambda a: jax.device_get(a)[:, None], trace.state))
        )


@pytest.mark.parametrize("batch_size", [None, 1, 3, 4, 10])
@pytest.mark.filterwarnings("ignore::credax.DataWarning")  # of powers of two, one per row
def test_an_epoch_gives_no_row_twice_and_replicas_shuffle_on_their_own(batch_size):
    rows, replicas = 10, 3
    data = np.zeros((rows, 1)), 2.0 ** np.arange(rows)
    info = cx.fit(LINE, data, Reader(12, batch_size, replicas), progress=False).info
    size = batch_size or rows
    per_epoch = rows // size
    seen = info["rows"].astype(int)
    np.testing.assert_array_equal(info["scale"], np.float32(rows / size))
    np.testing.assert_array_equal(info["index"], np.tile(np.arange(12) % per_epoch, (replicas, 1)))
    for replica in range(replicas):
        for epoch in range(12 // per_epoch):
            batches = seen[replica, epoch * per_epoch : (epoch + 1) * per_epoch]
            assert all(int(batch).bit_count() == size for batch in batches)
            assert int(np.bitwise_or.reduce(batches)).bit_count() == size * per_epoch
    if size < rows:
        assert not np.array_equal(seen[0], seen[1])
        assert not np.array_equal(seen[0, :per_epoch], seen[0, per_epoch : 2 * per_epoch])


# -- starting points -------------------------------------------------------------------------------


def test_members_go_on_as_replicas():
    first = walk(Walk(num_steps=5, replicas=3))
    second = walk(Walk(num_steps=1, replicas=3), start=first, key=1)
    expected = first.draws[:, -1] + second.info["noise"][:, 0]
    np.testing.assert_allclose(second.draws[:, 0], expected, rtol=1e-6)


def test_other_numbers_of_replicas_start_from_draws():
    first = hundred_apart(3)
    second = walk(Walk(num_steps=1, replicas=64), start=first)
    origins = np.round((second.info["walk"][:, 0] - second.info["noise"][:, 0]) / 100)
    assert set(origins) == {0, 1, 2}


def test_a_network_s_posterior_starts_another_method():
    data = table()
    first = cx.fit(LINE, data, cx.DeepEnsemble(members=2, num_steps=300), progress=False)
    second = cx.fit(
        LINE, data, cx.DeepEnsemble(2, 1, learning_rate=1e-9), start=first, progress=False
    )
    for name in ("slope", "offset"):
        np.testing.assert_allclose(second.draws[name], first.draws[name], atol=1e-7)


def test_a_start_of_another_shape_is_refused():
    first = cx.fit(LINE, table(), cx.MAP(num_steps=1), progress=False)
    with pytest.raises(ValueError, match=r"fit\(start=...\) must have the parameters of the model"):
        walk(Walk(), start=first)


# -- early stopping in the loop --------------------------------------------------------------------


def test_early_stopping_ends_the_run_and_returns_the_best_state():
    x, y = table(20)
    looks = cx.EarlyStopping(validation=(x, -y), every=10, patience=3)
    method = cx.MAP(num_steps=500, learning_rate=0.1)
    fitted = cx.fit(LINE, (x, y), method, early_stopping=looks, progress=False)
    assert fitted.info["ended"] == "early stopping"
    steps, scores = fitted.info["held_out_log_likelihood"].T
    np.testing.assert_array_equal(steps, 10 * np.arange(1, len(steps) + 1))
    best = int(np.argmax(scores))
    assert len(scores) == best + 1 + 3
    assert fitted.info["steps"] == steps[-1]
    found = fitted.predict(x).log_prob(-y).mean()
    assert found == pytest.approx(scores[best], rel=1e-6)
