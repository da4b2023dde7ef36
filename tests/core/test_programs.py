"""How many compiled programs a process keeps, and that its memory does not grow."""

import gc
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core import programs
from credax.fit import program
from credax.posterior import mixture

MODEL = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3))
X = np.random.default_rng(0).normal(size=(60, 2))
Y = X @ [1.0, -1.0]


def live():
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def test_as_many_programs_as_allowed_are_used_in_turn(monkeypatch, compilations):
    monkeypatch.setattr(programs, "MOST", 3)
    double = programs.jit(lambda x: 2 * x)
    sizes = [np.ones(size, np.float32) for size in (1, 2, 3)]
    for x in sizes:
        double(x)
    with compilations() as count:
        for x in 2 * sizes:
            np.testing.assert_array_equal(double(x), 2 * x)
    assert count() == 0
    assert double.count == 3


def test_programs_are_dropped_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(programs, "MOST", 3)
    double = programs.jit(lambda x: 2 * x)
    double(np.ones(1, np.float32))
    before = live()
    for size in range(2, 10):
        x = np.ones(size, np.float32)
        np.testing.assert_array_equal(double(x), 2 * x)
        assert double.count <= 3
    assert live() <= before + 3


def test_options_are_passed_on():
    @programs.jit(static_argnames="power")
    def raised(x, power):
        """A power."""
        return x**power

    assert raised(jnp.float32(3), power=2) == 9
    assert raised.__doc__ == "A power."


@pytest.mark.slow
def test_a_loop_that_adds_rows_keeps_few_programs(monkeypatch):
    monkeypatch.setattr(programs, "MOST", 3)
    method = cx.MAP(num_steps=3)

    def fit_and_predict(rows):
        posterior = cx.fit(MODEL, (X[:rows], Y[:rows]), method, progress=False)
        return np.asarray(posterior.predict(X[:rows]).mean)

    first = fit_and_predict(20)
    lives = []
    for rows in range(21, 33):
        fit_and_predict(rows)
        for each in (program._begin, program._begin.quick, program._advance, mixture.fold):
            assert each.count <= 3
        lives.append(live())
    # JAX keeps a few tiny programs per shape for what runs outside of any program.
    assert lives[-1] - lives[3] <= 3 * (len(lives) - 4)
    np.testing.assert_array_equal(fit_and_predict(20), first)


GROWTH = """
import gc, ctypes, numpy as np, credax as cx
x = np.random.default_rng(0).normal(size=(60, 2))
model = cx.Model(cx.networks.mlp([8]), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3))

def run(count, method):
    for key in range(count):
        posterior = cx.fit(model, (x, np.sin(x[:, 0])), method, key=key, progress=False)
        posterior.predict(x[:10]).std
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

short = cx.HMC(chains=2, num_warmup=20, num_draws=5, num_leapfrog=2)
before = run(30, short)
print(run(200, short) - before)
long = cx.MAP(num_steps=2_000)
run(2, long)
before = run(1, long)
print(run(1, cx.MAP(num_steps=2_000)) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the memory from /proc")
def test_memory_is_flat_over_many_fits():
    """In a process of its own, whose memory no other test uses."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GROWTH], capture_output=True, text=True, check=True
    )
    fits, steps = (int(line) for line in run.stdout.split())
    assert fits < 200 * 20_000  # 20 kB per fit; one kept program would be megabytes
    assert steps < 4_000_000
