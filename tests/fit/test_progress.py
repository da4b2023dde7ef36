"""What users see and do during a run: the progress bar, callbacks, and Ctrl-C."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from walks import Walk, run, same, walk

from credax.fit import program
from credax.storage import read_file

# -- the progress bar ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("true", [np.True_, np.array(True), jnp.array(True)])
def test_a_true_of_numpy_or_jax_ends_the_run_too(true):
    posterior = walk(Walk(), callbacks=[lambda event: true if event.step > 1 else ~true])
    assert posterior.info["ended"] == "callback"
    assert posterior.info["steps"] > 1


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
    """A handler of another program may raise anywhere; states and step must stay consistent."""
    advance, calls = program._advance, []

    def interrupted(*args):
        calls.append(advance(*args))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return calls[-1]

    interrupted.lower = advance.lower
    monkeypatch.setattr(program, "_advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        walk(Walk(keeps=False), chunk_steps=5, checkpoint=tmp_path)
    monkeypatch.setattr(program, "_advance", advance)
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


def test_sigint_inside_asyncio_waits_for_the_chunk_and_returns_what_there_is():
    def send(event):
        if event.step >= 9:
            os.kill(os.getpid(), signal.SIGINT)

    async def main():
        inside = signal.getsignal(signal.SIGINT)
        posterior = walk(Walk(num_steps=500), chunk_steps=4, callbacks=[send])
        assert signal.getsignal(signal.SIGINT) is inside
        return posterior

    posterior = asyncio.run(main())
    assert posterior.info["ended"] == "interrupt"
    assert 9 <= posterior.info["steps"] < 13


def test_sigterm_is_left_alone_without_a_checkpoint():
    seen = []
    walk(Walk(), callbacks=[lambda event: seen.append(signal.getsignal(signal.SIGTERM))])
    assert set(seen) == {signal.SIG_DFL}


def test_another_program_s_handler_of_sigterm_stays_in_place(tmp_path):
    mine = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGTERM, mine)
    try:
        seen = []
        look = lambda event: seen.append(signal.getsignal(signal.SIGTERM))  # noqa: E731
        walk(Walk(), checkpoint=tmp_path, callbacks=[look])
        assert set(seen) == {mine}
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_sigterm_writes_the_checkpoint_and_ends_the_process(tmp_path):
    script = """
        import sys
        sys.path.insert(0, sys.argv[2])
        import walks
        def ready(event):
            print(event.step, flush=True)
        walks.walk(walks.Walk(num_steps=10**5), chunk_steps=50, checkpoint=sys.argv[1], callbacks=[ready])
    """
    process = run(script, tmp_path, Path(__file__).parent)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, err
    last = int((first + out).split()[-1])
    assert last < 10**5
    header, _ = read_file(tmp_path / "state.credax", "checkpoint")
    assert header["step"] == last  # no step is lost
    assert err == ""


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
