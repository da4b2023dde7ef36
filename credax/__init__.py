"""Any network, every Bayesian approximation, one posterior.

The names below are imported when one of them is first used, so that ``import credax`` and commands that need
none of them, such as ``credax --help``, take no time.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from credax.core.version import __version__ as __version__

if TYPE_CHECKING:
    from credax import decisions as decisions
    from credax import diagnostics as diagnostics
    from credax import inference as inference
    from credax.core import random as random
    from credax.core.devices import use_cores as use_cores
    from credax.core.errors import CredaxError as CredaxError
    from credax.core.errors import DataWarning as DataWarning
    from credax.core.errors import DivergedError as DivergedError
    from credax.core.errors import HostsError as HostsError
    from credax.core.errors import MemoryLimitError as MemoryLimitError
    from credax.core.errors import PosteriorWarning as PosteriorWarning
    from credax.core.errors import SourceError as SourceError
    from credax.core.errors import StorageError as StorageError
    from credax.core.errors import StorageWarning as StorageWarning
    from credax.core.hosts import use_hosts as use_hosts
    from credax.decisions.model_selection import select as select
    from credax.diagnostics.fidelity import compare_posteriors as compare_posteriors
    from credax.fit import Checkpoint as Checkpoint
    from credax.fit import EarlyStopping as EarlyStopping
    from credax.fit import Event as Event
    from credax.fit import Memory as Memory
    from credax.fit import fit as fit
    from credax.fit import loggers as loggers
    from credax.fit import memory as memory
    from credax.inference import *  # noqa: F403  (every method)
    from credax.inference.variational.gradient_variance import (
        gradient_variance as gradient_variance,
    )
    from credax.model import LogDensity as LogDensity
    from credax.model import Model as Model
    from credax.model import likelihoods as likelihoods
    from credax.model import networks as networks
    from credax.model import priors as priors
    from credax.model import sources as sources
    from credax.model.continuation import FromPosterior as FromPosterior
    from credax.model.data import Batch as Batch
    from credax.posterior import Estimate as Estimate
    from credax.posterior import HeadsPredictive as HeadsPredictive
    from credax.posterior import Posterior as Posterior
    from credax.posterior import Predictive as Predictive
    from credax.posterior import SourcePredictive as SourcePredictive
    from credax.posterior import StackedPosterior as StackedPosterior
    from credax.posterior import approximations as approximations
    from credax.report import plots as plots
    from credax.storage import load as load
    from credax.tables.estimators import BayesianClassifier as BayesianClassifier
    from credax.tables.estimators import BayesianRegressor as BayesianRegressor
    from credax.tables.recommended import recommend as recommend

_MODULES = {
    "approximations": "credax.posterior.approximations",
    "decisions": "credax.decisions",
    "diagnostics": "credax.diagnostics",
    "inference": "credax.inference",
    "likelihoods": "credax.model.likelihoods",
    "loggers": "credax.fit.loggers",
    "networks": "credax.model.networks",
    "plots": "credax.report.plots",
    "priors": "credax.model.priors",
    "random": "credax.core.random",
    "sources": "credax.model.sources",
}
"""The public modules, wherever they lie."""
_HOMES = {
    "credax.core.devices": ("use_cores",),
    "credax.core.errors": (
        *("CredaxError", "DataWarning", "DivergedError", "HostsError", "MemoryLimitError"),
        *("PosteriorWarning", "SourceError", "StorageError", "StorageWarning"),
    ),
    "credax.core.hosts": ("use_hosts",),
    "credax.decisions.model_selection": ("select",),
    "credax.diagnostics.fidelity": ("compare_posteriors",),
    "credax.fit": ("Checkpoint", "EarlyStopping", "Event", "Memory", "fit", "memory"),
    "credax.inference.variational.gradient_variance": ("gradient_variance",),
    "credax.model": ("LogDensity", "Model"),
    "credax.model.continuation": ("FromPosterior",),
    "credax.model.data": ("Batch",),
    "credax.posterior": (
        *("Estimate", "HeadsPredictive", "Posterior", "Predictive", "SourcePredictive"),
        "StackedPosterior",
    ),
    "credax.storage": ("load",),
    "credax.tables.recommended": ("recommend",),
}
"""Where the other public names are defined, besides the methods, which are those of ``credax.inference``."""
_ESTIMATORS = ("BayesianClassifier", "BayesianRegressor")
"""The names for which scikit-learn is needed, which is imported only when they are used."""
_ROOMS = ("cli", "core", "model", "posterior", "report", "storage", "tables", "tracing")


def _load() -> None:
    """Import everything that is public, except for the estimators."""
    found: dict[str, Any] = {name: import_module(home) for name, home in _MODULES.items()}
    for home, names in _HOMES.items():
        found |= {name: getattr(import_module(home), name) for name in names}
    inference = found["inference"]
    found |= {name: getattr(inference, name) for name in inference.__all__}
    public = {*found, *_ESTIMATORS, "__version__"}
    globals().update(found, __all__=sorted(public))


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"credax.{name}")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'credax' has no attribute {name!r}")
    if name in _ESTIMATORS:
        try:
            return getattr(import_module("credax.tables.estimators"), name)
        except ImportError as error:
            raise ImportError(
                f"cx.{name} needs scikit-learn: pip install 'credax[sklearn]'."
            ) from error
    if "__all__" not in globals():
        _load()
    if name not in globals():
        raise AttributeError(f"module 'credax' has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), *(name for name in globals() if name.startswith("__"))]


class _Package(ModuleType):
    """The package. Importing ``credax.fit``, the folder, leaves ``credax.fit``, the function, in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "fit" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


class _Elsewhere(MetaPathFinder, Loader):
    """``from credax.priors import Normal`` works as ``cx.priors.Normal`` does, wherever the module lies."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        elsewhere = package == "credax" and _MODULES.get(name, fullname) != fullname
        return ModuleSpec(fullname, self) if elsewhere else None

    def exec_module(self, module: ModuleType) -> None:
        home = _MODULES[module.__name__.partition(".")[2]]
        sys.modules[module.__name__] = import_module(home)


sys.modules[__name__].__class__ = _Package
sys.meta_path.append(_Elsewhere())
