"""Replicas and rows over the axes of a mesh. The eight devices are those of a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from walks import LINE, Walk, table

import credax as cx
from credax.fit.mesh import mesh_for, padded, sizes

SCRIPT = Path(__file__).parent / "over_devices.py"
QUICK = ("deep-ensemble",)
TOLERANCE = 1e-6
"""In double precision: sums in another order round differently, and chains amplify this over a few steps."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in cx.inference.METHODS
    ],
)
def test_eight_devices_give_the_result_of_one(name):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), name],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    _, found = json.loads(done.stdout)
    for difference in found:
        if isinstance(difference, str):
            assert difference.startswith("fit(mesh=...) must have at most")
        else:
            assert difference < TOLERANCE
    assert not isinstance(found[1], str)  # every method takes rows over devices


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
    process_index = 0

    def __init__(self, number):
        self.id = number


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
