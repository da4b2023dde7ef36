"""The modules of BlackJAX, imported when they are first used: ``kernels.hmc`` is ``blackjax.mcmc.hmc``.

To import BlackJAX runs JAX, which settles its devices and flags; to import credax must not.
"""

import importlib
from types import ModuleType

import jax

MODULES = {
    "adjusted_mclmc": "blackjax.mcmc.adjusted_mclmc",
    "adjusted_mclmc_dynamic": "blackjax.mcmc.adjusted_mclmc_dynamic",
    "hmc": "blackjax.mcmc.hmc",
    "integrators": "blackjax.mcmc.integrators",
    "mass_matrix": "blackjax.adaptation.mass_matrix",
    "metrics": "blackjax.mcmc.metrics",
    "nuts": "blackjax.mcmc.nuts",
    "proposal": "blackjax.mcmc.proposal",
    "step_size": "blackjax.adaptation.step_size",
    "util": "blackjax.util",
}


def __getattr__(name: str) -> ModuleType:
    if name not in MODULES:
        raise AttributeError(f"kernels has no {name}")
    # The first use may be while a step is traced, and what the import computes must not become part of it.
    with jax.ensure_compile_time_eval():
        return importlib.import_module(MODULES[name])
