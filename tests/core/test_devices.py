"""Replicas spread over cores. Each case runs in a separate process, because JAX fixes its devices once."""

import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
import threadpoolctl

import credax as cx
from credax.core.devices import one_blas_thread


def run(script):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


def test_cores_become_devices_and_replicas_are_laid_over_them():
    done = run(
        "import credax as cx, numpy as np\n"
        "cx.use_cores(2)\n"
        "import jax\n"
        "x = np.linspace(-1, 1, 20)[:, None]\n"
        "model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))\n"
        "method = cx.DeepEnsemble(members=4, num_steps=20)\n"
        "posterior = cx.fit(model, (x, x[:, 0]), method, progress=False)\n"
        "print(jax.device_count(), posterior.info['log_joint'].shape)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "2 (4, 20)"


def test_too_late_is_said():
    done = run("import jax.numpy as jnp, credax as cx\njnp.zeros(1) + 1\ncx.use_cores(2)")
    assert done.returncode == 1
    assert "before JAX has run anything" in done.stderr


@pytest.mark.parametrize("count", [0, -1, 1.5, "two"])
def test_nonsense_is_refused(count):
    with pytest.raises((TypeError, ValueError), match=r"use_cores\(count=\.\.\.\) must be"):
        cx.use_cores(count)


def threads():
    pools = threadpoolctl.threadpool_info()
    return [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]


def test_runs_that_overlap_give_the_threads_back_together():
    before = threads()
    first, second = ExitStack(), ExitStack()
    first.enter_context(one_blas_thread)
    second.enter_context(one_blas_thread)
    first.close()
    assert set(threads()) == {1}
    second.close()
    assert threads() == before


def test_linear_algebra_keeps_to_one_thread_while_a_run_lasts():
    seen, before = [], threads()
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    x = np.linspace(-1, 1, 20)[:, None]
    watch = lambda event: seen.append(threads())  # noqa: E731
    cx.fit(model, (x, x[:, 0]), cx.MAP(num_steps=2), callbacks=[watch], progress=False)
    assert seen
    assert {count for counts in seen for count in counts} == {1}
    assert threads() == before
