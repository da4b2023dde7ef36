"""The compiled program: chunks, donated states, replicas on several devices, and what is compiled when."""

import os

import jax
import numpy as np
import pytest
from walks import LINE, Walk, run, same, table, walk

import credax as cx
from credax.fit import program, record

# -- chunks ----------------------------------------------------------------------------------------


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
    steps = max(1, info_bytes // 24)  # two replicas, each with an int32 and two float32
    draws = max(1, draw_bytes // 8)
    assert np.diff(ends).max() <= steps
    assert np.diff(np.maximum(ends - 6, 0) // 3).max() <= draws


def test_states_are_donated(monkeypatch):
    given, advance = [], program._advance

    def watched(*args):
        given.extend(jax.tree.leaves(args[4]))
        return advance(*args)

    watched.lower = advance.lower
    monkeypatch.setattr(program, "_advance", watched)
    walk(Walk(num_steps=6), chunk_steps=2)
    assert len(given) >= 4  # once to compile, and at least three chunks
    assert all(leaf.is_deleted() for leaf in given)


# -- devices ---------------------------------------------------------------------------------------


def test_replicas_are_laid_over_the_devices(tmp_path):
    script = """
        import sys, jax, numpy as np, credax as cx
        from credax.fit import program
        assert len(jax.devices()) == int(sys.argv[2])
        x = np.linspace(-1, 1, 50)[:, None]
        model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
        shardings, text = [], []
        def watch(name):
            advance = getattr(program, name)
            def watched(*args):
                shardings.extend(leaf.sharding for leaf in jax.tree.leaves(args[4]))
                if not text:
                    text.append(name + advance.lower(*args).as_text())
                return advance(*args)
            watched.lower = advance.lower
            setattr(program, name, watched)
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
        three = fit(3)
        folder = f"{sys.argv[1]}/checkpoint-{sys.argv[2]}"
        fit(4, checkpoint=folder, chunk_steps=7, callbacks=[lambda event: event.step > 20])
        again = fit(4, checkpoint=folder)
        same = jax.tree.map(np.array_equal, four.draws, again.draws)
        print(all(jax.tree.leaves(same)))
        np.savez(sys.argv[1] + f"/{len(jax.devices())}.npz", log_joint=four.info["log_joint"],
                 three=three.info["log_joint"], mean=four.predict(x).mean)
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
    # Batches of another size may round differently, but nothing else may change.
    np.testing.assert_allclose(one["log_joint"], two["log_joint"], rtol=1e-4)
    # Three replicas on two devices are padded to four.
    assert two["three"].shape == (3, 60)
    np.testing.assert_allclose(one["three"], two["three"], rtol=1e-4)
    np.testing.assert_allclose(one["mean"], two["mean"], rtol=1e-4, atol=1e-5)


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
