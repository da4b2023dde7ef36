"""The same arguments give the same bits in every process, with the same number of cores and devices."""

import hashlib
import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, sys
import numpy as np
import credax as cx

if sys.argv[1] != "0":
    cx.use_cores(int(sys.argv[1]))
import jax

x = np.linspace(-1, 1, 40)[:, None]
y = np.sin(3 * x[:, 0])
model = cx.Model(cx.networks.mlp([16]), likelihood=cx.likelihoods.Gaussian(0.2))
methods = [
    cx.DeepEnsemble(members=4, num_steps=60, batch_size=16),
    cx.BayesByBackprop(num_steps=60, batch_size=16),
    cx.HMC(chains=2, num_warmup=20, num_draws=10, num_leapfrog=8),
    cx.SMC(particles=32, num_leapfrog=4, num_moves=1),
    cx.Laplace(num_steps=60),
]
for method in methods:
    posterior = cx.fit(model, (x, y), method, key=3, progress=False)
    predictive = posterior.predict(x[::8])
    leaves = [*jax.tree.leaves(posterior.sample(5, 4)), predictive.mean, predictive.quantile(0.9)]
    content = b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)
    print(type(method).__name__, hashlib.sha256(content).hexdigest())
"""


def bits(devices=0, **environment):
    """The hashes of the posteriors that a new process computes."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(devices)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == 5
    assert all(len(line.split()[1]) == len(hashlib.sha256().hexdigest()) for line in lines)
    return lines


@pytest.mark.slow
def test_two_processes_give_the_same_bits():
    # The order of sets and the threads of NumPy's BLAS must not matter either.
    first = bits(PYTHONHASHSEED="1", OPENBLAS_NUM_THREADS="1")
    assert first == bits(PYTHONHASHSEED="2", OPENBLAS_NUM_THREADS="2")


@pytest.mark.slow
def test_two_processes_with_a_device_for_each_core_give_the_same_bits():
    assert bits(devices=2, PYTHONHASHSEED="1") == bits(devices=2, PYTHONHASHSEED="2")
