"""The loop, step by step, on methods that record what the loop did to them."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.typing import Draw
from credax.fit.record import Capacity, Record
from credax.inference import Method
from credax.posterior.approximations import Draws

loop = importlib.import_module("credax.fit")
record = importlib.import_module("credax.fit.record")


class State(NamedTuple):
    count: jax.Array
    walk: jax.Array


class Info(NamedTuple):
    count: jax.Array
    noise: jax.Array
    walk: jax.Array


@dataclass(frozen=True)
class Walk(Method):
    """A random walk that counts its steps; its draws are where it is and how many steps it made."""

    num_steps: int = 23
    replicas: int = 1
    num_warmup: int = 0
    thin: int = 1
    keeps: bool = True
    nan_at: int | None = None
    nan_in: int = 0

    needs_gradient = False
    when_diverged = "Walk more slowly."

    def __post_init__(self):
        self.check_settings()

    def init(self, key, model, data):
        return State(jnp.zeros((), jnp.int32), model.init(key))

    def step(self, key, state, model, batch):
        noise = jax.random.normal(key)
        if self.nan_at is not None:
            # The walks start a hundred apart, which tells the replicas from each other.
            here = jnp.round(state.walk / 100) == self.nan_in
            noise = jnp.where(here & (state.count == self.nan_at), jnp.nan, noise)
        state = State(state.count + 1, state.walk + noise)
        return state, Info(state.count, noise, state.walk)

    def keep(self, state):
        return Draw(state.walk) if self.keeps else None

    def posterior(self, model, trace):
        walk = trace.state.walk[:, None] if trace.draws is None else trace.draws.params
        return cx.Posterior(model, Draws(jax.device_get(walk)))


def zero(key):
    return jnp.zeros(())


def flat(params):
    return -0.5 * params**2


DENSITY = cx.LogDensity(zero, flat)


def walk(method, **arguments):
    return cx.fit(DENSITY, None, method, **{"progress": False, **arguments})


def line(key):
    return {"slope": jax.random.normal(key, (1, 1)), "offset": jnp.zeros(1)}


def apply_line(params, x):
    return x @ params["slope"] + params["offset"]


LINE = cx.Model(
    cx.networks.from_function(line, apply_line), likelihood=cx.likelihoods.Gaussian(0.1)
)


def table(rows=50):
    x = np.linspace(-1, 1, rows)[:, None]
    return x, 2 * x[:, 0] + np.random.default_rng(0).normal(0, 0.1, rows)


def same(a, b):
    np.testing.assert_array_equal(a.draws, b.draws)
    for name in Info._fields:
        np.testing.assert_array_equal(a.info[name], b.info[name])


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
    np.testing.assert_array_equal(info["count"], np.tile(np.arange(1, 18), (3, 1)))
    np.testing.assert_allclose(info["walk"], np.cumsum(info["noise"], axis=1), rtol=1e-5, atol=1e-5)
    assert info["count"].dtype == np.int32
    assert info["noise"].dtype == jnp.result_type(float)


def test_info_has_the_method_s_figures_and_the_run_s():
    info = walk(Walk(num_steps=4)).info
    assert set(info) == {*Info._fields, "kept", "steps", "seconds", "compile_seconds", "ended"}
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


@pytest.mark.parametrize("method", [Walk(23, 2, 6, 3), Walk(23, 2, keeps=False)])
def test_chunks_of_any_length_give_the_same_bits(method):
    whole = walk(method)
    for chunk_steps in range(1, 8):
        events = []
        cut = walk(method, chunk_steps=chunk_steps, callbacks=[events.append])
        assert max(np.diff([0] + [event.step for event in events])) <= chunk_steps
        same(whole, cut)


@pytest.mark.parametrize(
    "info_bytes, draw_bytes, chunk_steps",
    [(1, 1, None), (1, 1 << 20, 5), (1 << 20, 1, None), (100, 17, None), (100, 17, 2)],
)
def test_room_on_the_device_limits_a_chunk_and_changes_no_bit(
    monkeypatch, info_bytes, draw_bytes, chunk_steps
):
    method = Walk(23, 2, 6, 3)
    whole = walk(method)
    monkeypatch.setattr(record, "INFO_BYTES", info_bytes)
    monkeypatch.setattr(record, "DRAW_BYTES", draw_bytes)
    events = []
    cut = walk(method, chunk_steps=chunk_steps, callbacks=[events.append])
    same(whole, cut)
    ends = np.array([0] + [event.step for event in events])
    steps = max(1, info_bytes // 24)  # two replicas of an int32 and two float32
    draws = max(1, draw_bytes // 8)
    assert np.diff(ends).max() <= steps
    assert np.diff(np.maximum(ends - 6, 0) // 3).max() <= draws


def test_states_are_donated(monkeypatch):
    given, advance = [], loop._advance

    def watched(*args):
        given.extend(jax.tree.leaves(args[4]))
        return advance(*args)

    monkeypatch.setattr(loop, "_advance", watched)
    walk(Walk(num_steps=6), chunk_steps=2)
    assert len(given) >= 2 * 4  # two leaves; once to compile, and at least three chunks
    assert all(leaf.is_deleted() for leaf in given)


def test_figures_are_the_means_of_the_last_chunk():
    events = []
    info = walk(Walk(num_steps=6, replicas=2), chunk_steps=3, callbacks=[events.append]).info
    assert [event.step for event in events][-1] == 6
    assert events[-1].num_steps == 6
    begin = events[-2].step
    for name in Info._fields:
        assert events[-1].figures[name] == pytest.approx(info[name][:, begin:].mean(), rel=1e-5)
    assert events[-1].seconds >= events[-2].seconds > 0


# -- batches ---------------------------------------------------------------------------------------


class Seen(NamedTuple):
    rows: jax.Array
    scale: jax.Array
    index: jax.Array


@dataclass(frozen=True)
class Reader(Method):
    """Shows which rows it was given: row i is worth 2^i."""

    num_steps: int = 12
    batch_size: int | None = None
    replicas: int = 1

    needs_gradient = False

    def init(self, key, model, data):
        return model.init(key)

    def step(self, key, state, model, batch):
        return state, Seen(jnp.sum(batch.y), batch.scale, batch.index)

    def posterior(self, model, trace):
        return cx.Posterior(
            model, Draws(jax.tree.map(lambda a: jax.device_get(a)[:, None], trace.state))
        )


@pytest.mark.parametrize("batch_size", [None, 1, 3, 4, 10])
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


# -- divergence ------------------------------------------------------------------------------------


def hundred_apart(replicas):
    """A posterior whose draws tell the replicas from each other."""
    return cx.Posterior(DENSITY, Draws(100 * np.arange(replicas, dtype=np.float32)[:, None]))


@pytest.mark.parametrize("chunk_steps", [1, 4, None])
@pytest.mark.parametrize("at, replica", [(0, 0), (7, 2), (19, 3)])
def test_nan_stops_the_run_and_names_step_replica_and_advice(at, replica, chunk_steps):
    method = Walk(num_steps=20, replicas=4, nan_at=at, nan_in=replica)
    with pytest.raises(cx.DivergedError) as caught:
        walk(method, start=hundred_apart(4), chunk_steps=chunk_steps)
    message = str(caught.value)
    assert f"Walk met noise = nan at step {at} of replica {replica};" in message
    assert "no checkpoint was kept" in message
    assert message.endswith("Walk more slowly.")


def test_nan_with_one_replica_does_not_speak_of_replicas():
    with pytest.raises(cx.DivergedError, match=r"at step 3; no checkpoint was kept"):
        walk(Walk(nan_at=3))


def test_nan_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("credax.fit.checkpoint.SHARE", 1e9)  # a checkpoint after every chunk
    with pytest.raises(cx.DivergedError) as caught:
        walk(Walk(nan_at=11), chunk_steps=5, checkpoint=tmp_path)
    assert f"the last good checkpoint is at step 11 in {tmp_path}" in str(caught.value)


class Two(NamedTuple):
    late: jax.Array
    early: jax.Array


@dataclass(frozen=True)
class TwoFigures(Method):
    num_steps: int = 10
    needs_gradient = False

    def init(self, key, model, data):
        return jnp.zeros(())

    def step(self, key, state, model, batch):
        state = state + 1
        return state, Two(
            jnp.where(state > 7, jnp.inf, state), jnp.where(state > 3, jnp.nan, state)
        )

    def posterior(self, model, trace):
        return cx.Posterior(model, Draws(np.asarray(trace.state)[:, None]))


def test_the_first_step_that_is_not_finite_is_named_whatever_the_figure(monkeypatch):
    monkeypatch.setattr(loop, "next_length", lambda steps, seconds: 100)
    with pytest.raises(cx.DivergedError, match="early = nan at step 3"):
        walk(TwoFigures())


# -- callbacks and interrupts ----------------------------------------------------------------------


def test_a_callback_ends_the_run_by_true_only():
    seen = []
    posterior = walk(
        Walk(num_steps=50), chunk_steps=3, callbacks=[seen.append, lambda e: e.step >= 7]
    )
    assert posterior.info["ended"] == "callback"
    assert posterior.info["steps"] == seen[-1].step == posterior.draws.shape[1]
    assert 7 <= seen[-1].step < 10
    assert walk(Walk(), callbacks=[lambda e: 1, lambda e: "yes"]).info["ended"] == "complete"


def interrupt_at(step):
    def callback(event):
        if event.step >= step:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("method", [Walk(50, 2, 4, 2), Walk(50, 2, keeps=False)])
def test_keyboard_interrupt_returns_what_there_is(method):
    posterior = walk(method, chunk_steps=4, callbacks=[interrupt_at(9)])
    whole = walk(method)
    steps = posterior.info["steps"]
    assert posterior.info["ended"] == "interrupt"
    assert 9 <= steps < 13
    np.testing.assert_array_equal(posterior.info["walk"], whole.info["walk"][:, :steps])
    if method.keeps:
        np.testing.assert_array_equal(posterior.draws, whole.draws[:, : (steps - 4) // 2])
        np.testing.assert_array_equal(posterior.info["kept"], np.arange(5, steps, 2))
    else:
        np.testing.assert_array_equal(posterior.draws[:, 0], posterior.info["walk"][:, -1])


def test_keyboard_interrupt_before_the_first_draw_raises():
    with pytest.raises(KeyboardInterrupt, match="before the first draw"):
        walk(Walk(50, num_warmup=40), chunk_steps=4, callbacks=[interrupt_at(9)])


def test_an_interrupt_in_the_middle_of_a_chunk_loses_no_consistency(tmp_path, monkeypatch):
    """Another program's handler may raise anywhere; no state may pass for that of another step."""
    advance, calls = loop._advance, []

    def interrupted(*args):
        calls.append(advance(*args))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(loop, "_advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        walk(Walk(keeps=False), chunk_steps=5, checkpoint=tmp_path)
    monkeypatch.setattr(loop, "_advance", advance)
    resumed = walk(Walk(keeps=False), chunk_steps=5, checkpoint=tmp_path)
    same(walk(Walk(keeps=False)), resumed)


def test_sigint_waits_for_the_chunk_and_returns_what_there_is():
    before = signal.getsignal(signal.SIGINT)

    def send(event):
        if event.step >= 9:
            os.kill(os.getpid(), signal.SIGINT)

    posterior = walk(Walk(num_steps=10_000), chunk_steps=4, callbacks=[send])
    assert posterior.info["ended"] == "interrupt"
    assert 9 <= posterior.info["steps"] < 13
    assert posterior.draws.shape[1] == posterior.info["steps"]
    assert signal.getsignal(signal.SIGINT) is before
    assert "interrupted after" in str(posterior.diagnose())


def test_the_second_sigint_does_not_wait():
    def send_twice(event):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    posterior = walk(Walk(), chunk_steps=4, callbacks=[send_twice, lambda event: 1 / 0])
    assert posterior.info["ended"] == "interrupt"


def test_another_program_s_handler_stays_in_place():
    mine = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGINT, mine)
    try:
        seen = []
        walk(Walk(), callbacks=[lambda event: seen.append(signal.getsignal(signal.SIGINT))])
        assert set(seen) == {mine}
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_handler_is_put_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError):
        walk(Walk(), callbacks=[lambda event: 1 / 0])
    assert signal.getsignal(signal.SIGINT) is before


def test_works_from_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(walk(Walk(replicas=2))))
    thread.start()
    thread.join()
    same(found[0], walk(Walk(replicas=2)))


def run(script, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUMPY_DTYPE_PROMOTION": "strict", **environment},
    )


def test_ctrl_c_from_outside():
    script = """
        import numpy as np, credax as cx
        x = np.linspace(-1, 1, 50)[:, None]
        model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
        method = cx.DeepEnsemble(members=2, num_steps=10**7)
        ready = lambda event: print("step", event.step, flush=True)
        more = {"progress": False, "callbacks": [ready], "chunk_steps": 100}
        info = cx.fit(model, (x, x[:, 0]), method, **more).info
        print("ended", info["ended"], info["steps"], info["log_joint"].shape, flush=True)
    """
    process = run(script)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("step")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    last, ended = (first + out).splitlines()[-2:]
    steps = last.split()[1]
    assert ended == f"ended interrupt {steps} (2, {steps})"
    assert err == ""


# -- devices ---------------------------------------------------------------------------------------


def test_replicas_are_laid_over_the_devices(tmp_path):
    script = """
        import sys, importlib, jax, numpy as np, credax as cx
        assert len(jax.devices()) == int(sys.argv[2])
        loop = importlib.import_module("credax.fit")
        x = np.linspace(-1, 1, 50)[:, None]
        model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
        shardings, text = [], []
        def watch(name):
            advance = getattr(loop, name)
            def watched(*args):
                shardings.extend(leaf.sharding for leaf in jax.tree.leaves(args[4]))
                if not text:
                    text.append(name + advance.lower(*args).as_text())
                return advance(*args)
            setattr(loop, name, watched)
        watch("_advance")
        watch("_advance_on_cores")
        def fit(members, **more):
            method = cx.DeepEnsemble(members=members, num_steps=60, batch_size=10)
            return cx.fit(model, (x, np.sin(3 * x[:, 0])), method, progress=False, **more)
        four = fit(4)
        print(all(len(s.device_set) == len(jax.devices()) for s in shardings))
        laid = "shard_map" in text[0] or "sdy.manual_computation" in text[0]
        assert laid == text[0].startswith("_advance_on_cores")
        print(laid)
        if len(jax.devices()) == 2:
            shardings.clear()
            fit(3)
            assert all(len(s.device_set) == 1 for s in shardings)
        folder = f"{sys.argv[1]}/checkpoint-{sys.argv[2]}"
        fit(4, checkpoint=folder, chunk_steps=7, callbacks=[lambda event: event.step > 20])
        again = fit(4, checkpoint=folder)
        same = jax.tree.map(np.array_equal, four.draws, again.draws)
        print(all(jax.tree.leaves(same)))
        np.savez(sys.argv[1] + f"/{len(jax.devices())}.npz", log_joint=four.info["log_joint"],
                 mean=four.predict(x).mean)
    """
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count="
    processes = {n: run(script, tmp_path, n, XLA_FLAGS=f"{flags}{n}") for n in (1, 2)}
    for devices, process in processes.items():
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        over, mapped, resumed = out.split()
        assert over == resumed == "True"
        assert mapped == str(devices == 2)
    one, two = (np.load(tmp_path / f"{n}.npz") for n in (1, 2))
    # Another width of the batched program may round differently, no more.
    np.testing.assert_allclose(one["log_joint"], two["log_joint"], rtol=1e-4)
    np.testing.assert_allclose(one["mean"], two["mean"], rtol=1e-4, atol=1e-5)


# -- progress --------------------------------------------------------------------------------------


def test_the_bar_is_on_standard_error_only(capsys):
    walk(Walk(num_steps=9), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Walk" in shown.err
    assert "9/9" in shown.err


def test_no_bar_where_none_is_wanted(capsys):
    walk(Walk(num_steps=9), progress=False)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


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


# -- compiling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [cx.MAP(num_steps=7), cx.DeepEnsemble(2, 7, batch_size=8)])
def test_the_second_fit_compiles_nothing(compilations, method):
    data = table()
    with compilations() as count:
        first = cx.fit(LINE, data, method, progress=False)
    assert count() > 0
    with compilations() as count:
        second = cx.fit(LINE, data, method, key=5, progress=False)
        cx.fit(LINE, (data[0] + 1, data[1]), method, progress=False, chunk_steps=3)
    assert count() == 0
    assert not np.array_equal(first.draws["slope"], second.draws["slope"])


def test_the_second_fit_of_a_density_compiles_nothing(compilations):
    walk(Walk(31, 2, 4, 2))
    with compilations() as count:
        walk(Walk(31, 2, 4, 2), key=1)
    assert count() == 0


def test_double_precision(x64):
    posterior = walk(Walk(replicas=2))
    assert posterior.draws.dtype == posterior.info["noise"].dtype == np.float64
    same(posterior, walk(Walk(replicas=2), chunk_steps=3))


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model": LINE.network}, r"fit\(model=...\) must be a cx.Model or a cx.LogDensity"),
        ({"method": cx.MAP}, r"fit\(method=...\) must be a method .*with parentheses"),
        ({"method": "map"}, r"fit\(method=...\) must be a method"),
        ({"data": None}, r"data must be a pair \(x, y\); got None"),
        ({"chunk_steps": 1.5}, r"fit\(chunk_steps=...\) must be a whole number"),
        ({"early_stopping": 3}, r"fit\(early_stopping=...\) must be an EarlyStopping"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    given = {"model": LINE, "data": table(), "method": cx.MAP(num_steps=1), "progress": False}
    with pytest.raises(TypeError, match=message):
        cx.fit(**{**given, **arguments})


def test_chunk_steps_must_be_positive():
    with pytest.raises(
        ValueError, match=r"fit\(chunk_steps=...\) must be a whole number, at least 1"
    ):
        walk(Walk(), chunk_steps=0)


def test_a_density_takes_no_data():
    with pytest.raises(TypeError, match="data must be None for a LogDensity"):
        cx.fit(DENSITY, table(), Walk(), progress=False)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(
        ValueError, match=r"MAP\(batch_size=...\) must be at most the number of rows, 50"
    ):
        cx.fit(LINE, table(), cx.MAP(batch_size=51), progress=False)


def test_discrete_weights_have_no_gradient():
    model = cx.Model(cx.networks.linear(), prior=cx.priors.Discrete([-1, 1]))
    with pytest.raises(ValueError, match="MAP needs gradients"):
        cx.fit(model, table(), cx.MAP(), progress=False)


def test_the_mean_of_huge_figures_does_not_overflow():
    largest = np.finfo(np.float32).max
    infos = {"energy_change": np.full((2, 3), largest, np.float32)}
    record = Record(cx.MAP(num_steps=3), Capacity(3, 1), infos, None, (0, 3))
    assert record.figures() == {"energy_change": float(largest)}
