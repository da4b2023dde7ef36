"""Replicas and rows over the axes of a mesh. The eight devices are those of a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from walks import LINE, Walk, table

import credax as cx
from credax.core import hosts
from credax.fit.mesh import (
    check_divisible,
    mesh_for,
    model_size,
    model_spec,
    padded,
    refilled,
    sizes,
)

SCRIPT = Path(__file__).parent / "over_devices.py"
ON_ALL = "deep-ensemble"
TOLERANCE = 1e-6
"""In double precision: sums in another order round differently, and chains amplify this over a few steps."""


@pytest.mark.slow
@pytest.mark.parametrize("name", cx.inference.METHODS)
def test_eight_devices_give_the_result_of_one(name):
    """On every mesh for one method, and on two for the others, since each compiles programs of its own."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), name, *(["all"] if name == ON_ALL else [])],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for difference in found.values():
        if isinstance(difference, str):
            allowed = ("must have at most", "must have a number of devices along 'model'")
            assert difference.startswith(tuple(f"fit(mesh=...) {text}" for text in allowed))
        else:
            assert difference < TOLERANCE
    assert not isinstance(found["data"], str)  # every method takes rows over devices


def on_eight(devices, **axes):
    shape = tuple(axes.values())
    return Mesh(np.array(devices[: int(np.prod(shape))]).reshape(shape), tuple(axes))


def test_arrays_are_divided_along_their_longest_axis_that_divides(eight):
    mesh = on_eight(jax.local_devices(), replica=2, data=1, model=4)
    assert model_size(mesh) == 4
    assert model_size(None) == 1
    spec = lambda *shape: tuple(model_spec(mesh, shape))  # noqa: E731
    assert spec(64, 128) == (None, "model")
    assert spec(128, 64) == ("model",)
    assert spec(64, 127) == ("model",)
    assert spec(63, 127) == ()  # nothing divides
    assert spec(4, 4) == ()  # too small
    assert spec() == ()
    assert tuple(model_spec(mesh, (8, 1024), ("replica",))) == ("replica", None, "model")
    assert tuple(model_spec(None, (64, 128), ("replica",))) == ("replica",)


def test_a_state_that_cannot_be_divided_is_refused(eight):
    mesh = on_eight(jax.local_devices(), model=8)
    check_divisible(mesh, {"w": np.zeros((1, 64, 64))})
    check_divisible(None, {"w": np.zeros((1, 3))})
    with pytest.raises(
        ValueError, match=r"along 'model' that divides .*; got 8, .* \(3,\), \(7, 5\)"
    ):
        check_divisible(mesh, [np.zeros((2, 3)), np.zeros((2, 7, 5))])


def test_devices_of_hosts_are_chosen_evenly(monkeypatch):
    devices = [Fake(number, host) for host in range(2) for number in range(4)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(hosts, "count", lambda: 2)
    data = LINE.prepare(table())[1]
    mesh = mesh_for({"replica": 2, "data": 2}, Walk(replicas=2), data, True)
    assert [device.process_index for device in mesh.devices.flat] == [0, 0, 1, 1]
    # Replicas first, then rows; of a method without either, nothing.
    assert sizes(mesh_for(None, Walk(replicas=3), data, True)) == (2, 4)
    assert sizes(mesh_for(None, Walk(replicas=8), data, True)) == (8, 1)
    assert sizes(mesh_for(None, Walk(replicas=4), None, True)) == (4, 1)
    assert sizes(mesh_for(None, cx.Laplace(), data, False)) == (1, 8)
    with pytest.raises(ValueError, match=r"too few replicas, 1, .* to be divided among 2 hosts"):
        mesh_for(None, Walk(replicas=1), None, True)
    with pytest.raises(ValueError, match=r"must have a multiple of 2 devices, .*; got 3"):
        mesh_for({"data": 3}, cx.MAP(), data, True)
    with pytest.raises(ValueError, match=r"must have devices of all 2 hosts; got a mesh of 2"):
        mesh_for(Mesh(np.array(devices[:2]), ("data",)), cx.MAP(), data, True)


def test_replicas_are_filled_up_from_those_that_are_kept():
    stored = np.arange(4)[:, None]  # three replicas, filled up to four
    assert refilled(stored, 3, 4).tolist() == stored.tolist()
    assert refilled(stored, 3, 3).tolist() == [[0], [1], [2]]
    assert refilled(stored, 3, 6).tolist() == [[0], [1], [2], [2], [2], [2]]


# -- what a mesh is --------------------------------------------------------------------------------


def test_one_device_is_no_mesh():
    data = LINE.prepare(table())[1]
    for given in (None, {"replica": 1}, {"data": 1}, {"replica": 1, "data": 1}):
        assert mesh_for(given, cx.MAP(), data, True) is None
    assert sizes(None) == (1, 1)
    assert padded(None, 5) == 5


@pytest.mark.parametrize(
    "mesh, error",
    [
        (3, r"fit\(mesh=...\) must be a jax.sharding.Mesh or a mapping .*; got 3"),
        ({}, r"fit\(mesh=...\) must be a jax.sharding.Mesh or a mapping .*; got {}"),
        (
            {"rows": 2},
            r"fit\(mesh=...\) must be of axes among \('replica', 'data', 'model'\); got 'rows'",
        ),
        ({"data": 0}, r"fit\(mesh\['data'\]=...\) must be a whole number, at least 1; got 0"),
        (
            {"data": 64},
            r"fit\(mesh=...\) must have at most as many devices as there are, 1; got 64",
        ),
        ({"replica": 2, "data": 4}, r"at most as many devices as there are, 1; got 8"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, error):
    assert len(jax.devices()) == 1
    with pytest.raises((TypeError, ValueError), match=error):
        cx.fit(LINE, table(), cx.MAP(num_steps=2), mesh=mesh, progress=False)


class Fake:
    """As many devices as a test wants; nothing runs on them."""

    platform = "cpu"

    def __init__(self, number, host=0):
        self.id, self.process_index = number, host


@pytest.fixture
def eight(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: [Fake(number) for number in range(8)])


@pytest.mark.parametrize(
    "replicas, devices, each", [(3, 3, 1), (8, 8, 1), (9, 5, 2), (20, 7, 3), (1, 1, 1)]
)
def test_replicas_that_do_not_divide_are_padded(eight, replicas, devices, each):
    mesh = mesh_for(None, Walk(replicas=replicas), None, True)
    assert sizes(mesh) == (devices, 1)
    assert padded(mesh, replicas) == devices * each >= replicas


def test_a_mesh_must_suit_the_method(eight):
    data = LINE.prepare(table())[1]
    with pytest.raises(ValueError, match=r"at most 1 device along 'replica' for Laplace.*got 2"):
        mesh_for({"replica": 2}, cx.Laplace(), data, False)
    with pytest.raises(ValueError, match=r"as the method has replicas, 3; got 4"):
        mesh_for({"replica": 4}, cx.DeepEnsemble(members=3), data, True)
    with pytest.raises(ValueError, match=r"no 'data' axis for a LogDensity; got 2"):
        mesh_for({"data": 2}, cx.HMC(), None, True)
    with pytest.raises(ValueError, match=r"along 'data' as a batch has rows, 4; got 8"):
        mesh_for({"data": 8}, cx.MAP(batch_size=4), data, True)
    assert mesh_for(None, cx.Laplace(), data, False) is None
    assert np.shape(data.x)[0] >= 8
