"""The states are given back before the final lower bound is computed, and no result depends on it."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from regression import rows

import credax as cx

MODEL = cx.Model(cx.networks.mlp([16]), likelihood=cx.likelihoods.Gaussian(0.5))
X, Y = rows(40)
STOPPING = cx.EarlyStopping(validation=(X[:10], Y[:10]), every=5, patience=1)
METHODS = {
    "BayesByBackprop": cx.BayesByBackprop(num_steps=30, batch_size=10),
    "average": cx.BayesByBackprop(num_steps=30, batch_size=10, averaging=0.5),
    "IVON": cx.IVON(num_steps=30, batch_size=10),
    "BlackBoxVI": cx.BlackBoxVI(num_steps=30),
}

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")


def fitted(method, **settings):
    return cx.fit(MODEL, (X, Y), method, key=3, progress=False, **settings)


def bits(posterior):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(posterior.approximation)]
    assert leaves
    return [leaf.tobytes() for leaf in leaves], posterior.elbo


@pytest.mark.matrix
@pytest.mark.parametrize("stopping", [None, STOPPING], ids=["whole", "stopped"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_bound_is_computed_without_the_state_and_is_the_same_as_with_it(
    method, stopping, monkeypatch
):
    seen, finish = [], type(method).finish

    def recorded(self, posterior, trace):
        seen.append(trace.state)
        return finish(self, posterior, trace)

    monkeypatch.setattr(type(method), "finish", recorded)
    without = fitted(method, early_stopping=stopping)
    monkeypatch.setattr(type(method), "can", method.can - {"drop state"})
    with_it = fitted(method, early_stopping=stopping)
    assert seen[0] is None
    assert seen[1] is not None
    assert bits(without) == bits(with_it)


@pytest.mark.slow
def test_nothing_of_the_optimiser_is_in_memory_while_the_bound_is_computed(monkeypatch):
    model = cx.Model(cx.networks.mlp([1013]), likelihood=cx.likelihoods.Gaussian(0.5))
    left, finish = [], cx.BayesByBackprop.finish

    def recorded(self, posterior, trace):
        gc.collect()
        left.extend(a.shape for a in jax.live_arrays() if 1013 in a.shape)
        return finish(self, posterior, trace)

    monkeypatch.setattr(cx.BayesByBackprop, "finish", recorded)
    cx.fit(model, (X, Y), METHODS["BayesByBackprop"], progress=False, early_stopping=STOPPING)
    assert not left


@pytest.mark.matrix
@pytest.mark.parametrize("stopping", [None, STOPPING], ids=["whole", "stopped"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_posterior_keeps_its_bits_when_the_memory_of_its_run_is_used_again(method, stopping):
    posterior = fitted(method, early_stopping=stopping)
    before = bits(posterior)
    fitted(method, start=posterior)
    gc.collect()
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(posterior.approximation)]
    jax.block_until_ready([jnp.full((1, *shape), 7.0) for shape in shapes for _ in range(50)])
    assert bits(posterior) == before


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_look_at_the_run_does_not_change_what_follows(method):
    """A posterior built during the run reads the memory that the next chunk of the run is given."""
    never = cx.EarlyStopping(validation=(X[:10], Y[:10]), every=30)
    often = cx.EarlyStopping(validation=(X[:10], Y[:10]), every=3, patience=30)
    once, looked = fitted(method, early_stopping=never), fitted(method, early_stopping=often)
    assert len(looked.info["held_out_log_likelihood"]) == 10
    np.testing.assert_array_equal(once.info["elbo"], looked.info["elbo"])
    # The same rows are evaluated at the last step of both.
    last = [p.info["held_out_log_likelihood"][-1] for p in (once, looked)]
    np.testing.assert_array_equal(*last)
