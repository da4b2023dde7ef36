"""The modules of BlackJAX are found by their names, and imported only when they are used."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from credax.inference.montecarlo import kernels


@pytest.mark.parametrize(
    "name, module",
    [
        ("hmc", "blackjax.mcmc.hmc"),
        ("step_size", "blackjax.adaptation.step_size"),
        ("resampling", "blackjax.smc.resampling"),
        ("sgld", "blackjax.sgmcmc.sgld"),
        ("meanfield_vi", "blackjax.vi.meanfield_vi"),
        ("util", "blackjax.util"),
    ],
)
def test_modules_are_found_by_name(name, module):
    assert getattr(kernels, name).__name__ == module


def test_a_name_in_two_packages_is_taken_from_the_first():
    assert kernels.diffusions.__name__ == "blackjax.mcmc.diffusions"


def test_an_unknown_module_is_an_attribute_error():
    with pytest.raises(
        AttributeError, match=r"kernels has no hcm: no such module in blackjax\.mcmc"
    ):
        kernels.hcm  # noqa: B018
    assert not hasattr(kernels, "__wrapped__")


def test_the_first_use_may_be_in_a_traced_function():
    kernels._imported.cache_clear()
    root = jax.jit(lambda x: kernels.util.generate_unit_vector(jax.random.key(0), x))(jnp.ones(3))
    assert jnp.linalg.norm(root) == pytest.approx(1)


def test_importing_credax_imports_no_blackjax():
    program = "import sys, credax; sys.exit('blackjax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
