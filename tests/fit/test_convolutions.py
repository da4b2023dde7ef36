"""Networks with convolutions: their steps in the loop, and the layout of their replicas."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.fit import program
from credax.tracing.convolutions import _convolutions, _in_order

RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(24, 6, 6, 2)).astype(np.float32), RNG.integers(0, 3, 24)
MODEL = cx.Model(cx.networks.cnn([3]), likelihood=cx.likelihoods.Categorical(3))


def fit(method, **options):
    return cx.fit(MODEL, DATA, method, progress=False, **options)


def equal(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


@pytest.mark.parametrize(
    "method", [cx.MAP(num_steps=7, batch_size=8), cx.DeepEnsemble(3, 7, batch_size=8)]
)
def test_chunks_and_resumed_runs_have_the_same_bits(method, tmp_path, every_chunk):
    whole = fit(method)
    for length in (1, 3):
        cut = fit(method, chunk_steps=length)
        assert equal(whole.draws, cut.draws)
        assert equal(whole.info["log_joint"], cut.info["log_joint"])
    stop = lambda event: event.step >= 3  # noqa: E731
    fit(method, checkpoint=tmp_path, chunk_steps=2, callbacks=[stop])
    resumed = fit(method, checkpoint=tmp_path)
    assert resumed.info["steps"] == 7
    assert equal(whole.draws, resumed.draws)


def programs(method, monkeypatch):
    """The loops that a fit ran, and whether the convolutions in them have the order that is fast."""
    seen, orders = [], []
    for name in ("_alone", "_together", "_in_turn"):
        layout = getattr(program, name)

        def watched(*arguments, name=name, layout=layout):
            seen.append(name)
            return layout(*arguments)

        monkeypatch.setattr(program, name, watched)
    loop = program._loop

    def watched_loop(method, step, keep, finished, capacity, states, keys, begin, end):
        made = jax.make_jaxpr(step)(keys, states, begin)
        orders.extend(map(_in_order, _convolutions(made)))
        return loop(method, step, keep, finished, capacity, states, keys, begin, end)

    monkeypatch.setattr(program, "_loop", watched_loop)
    fit(method)
    return seen, orders


def test_replicas_of_convolutions_run_in_turn(monkeypatch):
    seen, orders = programs(cx.DeepEnsemble(2, 5, batch_size=6), monkeypatch)
    assert seen == ["_in_turn"]
    assert len(orders) >= 2  # forwards, and at least the gradient of the kernel
    assert all(orders)


def test_a_number_of_members_at_once_is_kept(monkeypatch):
    seen, _ = programs(cx.DeepEnsemble(2, 5, batch_size=5, members_at_once=2), monkeypatch)
    assert seen == ["_together"]


def test_members_in_turn_are_those_of_a_batch():
    in_turn = fit(cx.DeepEnsemble(3, 6, batch_size=8))
    together = fit(cx.DeepEnsemble(3, 6, batch_size=8, members_at_once=3))
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, in_turn.draws, together.draws)


def test_replicas_without_convolutions_stay_one_batch():
    method = cx.DeepEnsemble(2, 5)
    model = cx.Model(cx.networks.mlp([3]), likelihood=cx.likelihoods.Gaussian(1.0))
    bound, data = model.prepare((np.ones((5, 1)), np.arange(5.0)), None)
    keys, states = program.begin(method, bound, None, cx.random.key(0), data, None)
    shared = (data, jnp.int32(0), jnp.int32(5))
    assert program._at_once(method, bound, None, states, keys, shared) == 2


def test_first_states_that_are_only_drawn_are_compiled_quickly():
    drawn, computed = cx.MAP(num_steps=5), cx.HMC(chains=2, num_warmup=2, num_draws=2)
    bound, data = MODEL.prepare(DATA, None)
    chosen = [
        program._beginning(method, bound, None, cx.random.key(0), data, None)
        for method in (drawn, computed)
    ]
    assert chosen == [program._begin.quick, program._begin]  # a chain begins with a gradient
