"""The modules of BlackJAX, imported on first use: ``kernels.hmc`` is ``blackjax.mcmc.hmc``.

Importing BlackJAX runs JAX, which fixes JAX's devices and flags. Importing credax must not do that.
"""

import importlib
import importlib.util
from functools import cache
from types import ModuleType

import jax

PACKAGES = (
    "blackjax.mcmc",
    "blackjax.adaptation",
    "blackjax.smc",
    "blackjax.sgmcmc",
    "blackjax.vi",
    "blackjax",
)
"""Where a module is looked for, in this order."""


def __getattr__(name: str) -> ModuleType:
    return _imported(name)


@cache
def _imported(name: str) -> ModuleType:
    # The first use may be while a step is traced, and what the import computes must not become part of it.
    with jax.ensure_compile_time_eval():
        for package in () if name.startswith("__") else PACKAGES:
            if importlib.util.find_spec(f"{package}.{name}") is not None:
                return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"kernels has no {name}: no such module in {', '.join(PACKAGES)}")
