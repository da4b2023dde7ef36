"""What ``fit`` refuses before a run, and how it stops one that diverges."""

import importlib
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from walks import DENSITY, LINE, Walk, hundred_apart, table, walk

import credax as cx
from credax.fit import pace
from credax.inference import Method
from credax.posterior.approximations import Draws

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


# -- divergence ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_nan_with_weights_in_float16_names_the_dtype(dtype):
    """Adam divides by a root of squared gradients plus 1e-8, which is zero in float16."""
    network = cx.networks.from_function(
        lambda key: {"used": jnp.ones(1, dtype), "idle": jnp.zeros(1, dtype)},
        lambda params, x: (x.astype(dtype) * params["used"] + 0 * params["idle"]).astype(
            jnp.float32
        ),
    )
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(1.0))
    x = np.ones((4, 1), np.float32)
    fit = lambda: cx.fit(model, (x, x[:, 0]), cx.MAP(num_steps=4), progress=False)  # noqa: E731
    if dtype == jnp.bfloat16:
        fit()
        return
    with pytest.raises(cx.DivergedError, match=r"weights in float16, .*: use float32 or bfloat16"):
        fit()


def test_nan_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "SHARE", 1e9)  # a checkpoint after every chunk
    with pytest.raises(cx.DivergedError) as caught:
        walk(Walk(nan_at=11), chunk_steps=5, checkpoint=tmp_path)
    assert f"the last good checkpoint is at step 11 in {tmp_path}" in str(caught.value)


class Two(NamedTuple):
    late: jax.Array
    early: jax.Array


@dataclass(frozen=True)
class TwoFigures(Method):
    num_steps: int = 10

    kind = "point"
    needs = frozenset()

    def init(self, key, model, data):
        return jnp.zeros(())

    def step(self, key, state, model, batch, step):
        state = state + 1
        return state, Two(
            jnp.where(state > 7, jnp.inf, state), jnp.where(state > 3, jnp.nan, state)
        )

    def posterior(self, model, trace):
        return cx.Posterior(model, Draws(np.asarray(trace.state)[:, None]))


def test_the_first_step_that_is_not_finite_is_named_whatever_the_figure(monkeypatch):
    loop = importlib.import_module("credax.fit.fit")  # the module, not the function of that name
    monkeypatch.setattr(loop, "next_length", lambda steps, seconds: 100)
    with pytest.raises(cx.DivergedError, match="early = nan at step 3"):
        walk(TwoFigures())
