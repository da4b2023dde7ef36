"""Any network, every Bayesian approximation, one posterior."""

import sys
from typing import TYPE_CHECKING, Any

from credax import decisions, diagnostics, inference
from credax.core import random
from credax.core.devices import use_cores
from credax.core.errors import (
    CredaxError,
    DataWarning,
    DivergedError,
    PosteriorWarning,
    StorageError,
    StorageWarning,
)
from credax.core.version import __version__
from credax.decisions.model_selection import select
from credax.diagnostics.fidelity import compare_posteriors
from credax.fit import EarlyStopping, Event, fit, loggers
from credax.inference import *  # noqa: F403  (every method)
from credax.inference.variational.gradient_variance import gradient_variance
from credax.model import LogDensity, Model, likelihoods, networks, priors
from credax.model.data import Batch
from credax.posterior import Estimate, Posterior, Predictive, approximations
from credax.storage import load

if TYPE_CHECKING:
    from credax.tables.estimators import BayesianClassifier, BayesianRegressor

__all__ = [
    "Batch",
    "BayesianClassifier",
    "BayesianRegressor",
    "CredaxError",
    "DataWarning",
    "DivergedError",
    "EarlyStopping",
    "Estimate",
    "Event",
    "LogDensity",
    "Model",
    "Posterior",
    "PosteriorWarning",
    "Predictive",
    "StorageError",
    "StorageWarning",
    "__version__",
    "approximations",
    "compare_posteriors",
    "decisions",
    "diagnostics",
    "fit",
    "gradient_variance",
    "inference",
    "likelihoods",
    "load",
    "loggers",
    "networks",
    "priors",
    "random",
    "select",
    "use_cores",
]
__all__ += inference.__all__

# ``from credax.priors import Normal`` works as ``cx.priors.Normal`` does, wherever the module lies.
for _module in (approximations, likelihoods, loggers, networks, priors, random):
    sys.modules[f"credax.{_module.__name__.rpartition('.')[2]}"] = _module


def __getattr__(name: str) -> Any:
    """The scikit-learn estimators, for which scikit-learn is imported only when they are used."""
    if name not in ("BayesianClassifier", "BayesianRegressor"):
        raise AttributeError(f"module 'credax' has no attribute {name!r}")
    try:
        from credax.tables import estimators
    except ImportError as error:
        raise ImportError(
            f"cx.{name} needs scikit-learn: pip install 'credax[sklearn]'."
        ) from error
    return getattr(estimators, name)
