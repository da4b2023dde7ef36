"""A checkpoint is continued with the same functions only, and says when it moves to another place."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from crashes import CHAIN, POINT, fit, same, table

import credax as cx
from credax.storage import read_file, write_file

SHORT = cx.MAP(num_steps=6)


def zeros(key):
    return jnp.zeros(2)


def normal(scale):
    def log_density(w):
        return -0.5 * jnp.sum((w / scale) ** 2)

    return log_density


def starting_at(value):
    def start(key):
        return jnp.full(2, value, jnp.float32)

    return start


def line(power):
    def init(key):
        return {"slope": jax.random.normal(key, (1, 1))}

    def apply(params, x):
        return x**power @ params["slope"]

    return cx.Model(cx.networks.from_function(init, apply), likelihood=cx.likelihoods.Gaussian(0.1))


def bent(power):
    def activation(x):
        return jnp.sin(x) ** power

    return cx.Model(cx.networks.mlp([2], activation=activation))


def rate(start):
    return optax.cosine_decay_schedule(start, 6)


def density(function, method=SHORT, start=zeros):
    return cx.LogDensity(start, function), None, method


PAIRS = {
    "density": (density(normal(1.0)), density(normal(2.0))),
    "start": (
        density(normal(1.0), start=starting_at(1)),
        density(normal(1.0), start=starting_at(2)),
    ),
    "constants": (
        density(normal(np.array([1, 2.0], "f4"))),
        density(normal(np.array([2, 1.0], "f4"))),
    ),
    "network": ((line(1), table(), SHORT), (line(2), table(), SHORT)),
    "activation": ((bent(1), table(), SHORT), (bent(2), table(), SHORT)),
    "optimiser": tuple(
        density(normal(1.0), cx.MAP(num_steps=6, optimiser=optax.sgd(value)))
        for value in (0.1, 0.2)
    ),
    "schedule": tuple(
        density(normal(1.0), cx.MAP(num_steps=6, learning_rate=rate(value))) for value in (0.1, 0.2)
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", PAIRS)
def test_another_function_of_the_same_name_is_refused(tmp_path, name):
    one, other = PAIRS[name]
    more = {"checkpoint": tmp_path, "progress": False}
    cx.fit(*one, **more, callbacks=[lambda event: event.step >= 1])
    with pytest.raises(cx.StorageError, match="holds another run: its steps differ, although"):
        cx.fit(*other, **more)
    # The run itself still goes on.
    assert cx.fit(*one, **more).info["ended"] == "complete"


def test_a_function_that_is_defined_again_is_the_same_function(tmp_path):
    for ended in ("callback", "complete"):
        posterior = cx.fit(
            *density(normal(1.0)),
            checkpoint=tmp_path,
            progress=False,
            callbacks=[lambda event, ended=ended: ended == "callback"],
        )
        assert posterior.info["ended"] == ended


def places(folder, **changes):
    """Write the checkpoint as another place would have written it."""
    header, tensors = read_file(folder / "state.credax", "checkpoint")
    header["places"] = [{**place, **changes} for place in header["places"]]
    write_file(folder / "state.credax", "checkpoint", header, tensors)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"cores": 123}, "cores [0-9]+ instead of 123"),
        ({"jax": "0.0.1", "program": "other"}, "jax .* instead of 0.0.1"),
        ({"credax": "0.0.1", "program": "other"}, "credax .* instead of 0.0.1"),
        ({"backend": "abacus", "cores": None}, "backend cpu .* instead of abacus, cores"),
    ],
)
def test_another_place_is_told_and_the_run_goes_on(tmp_path, every_chunk, changes, said):
    first = {"chunk_steps": 5, "callbacks": [lambda event: event.step >= 12]}
    fit(CHAIN, tmp_path, **first)
    places(tmp_path, **changes)
    with pytest.warns(cx.StorageWarning, match=f"{tmp_path} goes on with {said}"):
        fit(CHAIN, tmp_path, chunk_steps=5, callbacks=[lambda event: event.step >= 22])
    # Both places are remembered, so it is said again, and a completed run has nothing to say.
    with pytest.warns(cx.StorageWarning, match=said):
        same(fit(CHAIN), fit(CHAIN, tmp_path))
    fit(CHAIN, tmp_path)


def test_another_program_in_the_same_place_is_refused(tmp_path):
    fit(POINT, tmp_path, callbacks=[lambda event: True])
    places(tmp_path, program="other")
    with pytest.raises(cx.StorageError, match="its steps differ"):
        fit(POINT, tmp_path)
