"""Any network, every Bayesian approximation, one posterior."""

from typing import TYPE_CHECKING, Any

from credax import decisions, diagnostics, inference
from credax.core import random
from credax.core.devices import use_cores
from credax.core.errors import CredaxError, DivergedError, PosteriorWarning, StorageError
from credax.core.version import __version__
from credax.decisions.model_selection import select
from credax.diagnostics.fidelity import compare_posteriors
from credax.fit import Event, fit
from credax.fit.stopping import EarlyStopping
from credax.inference import (
    HMC,
    IVON,
    MAP,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    SMC,
    SWAG,
    BayesByBackprop,
    BlackBoxVI,
    DeepEnsemble,
    Enumeration,
    ImportanceSampling,
    Laplace,
    MaximumLikelihood,
    MCDropout,
    Metropolis,
    MicrocanonicalEnsemble,
    SimulatedAnnealing,
)
from credax.inference.variational.gradient_variance import gradient_variance
from credax.model import LogDensity, Model, likelihoods, networks, priors
from credax.model.data import Batch
from credax.posterior import Posterior, approximations
from credax.posterior.predictive import Predictive
from credax.storage import load

if TYPE_CHECKING:
    from credax.tables.estimators import BayesianClassifier, BayesianRegressor

__all__ = [
    "HMC",
    "IVON",
    "MAP",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SMC",
    "SWAG",
    "Batch",
    "BayesByBackprop",
    "BayesianClassifier",
    "BayesianRegressor",
    "BlackBoxVI",
    "CredaxError",
    "DeepEnsemble",
    "DivergedError",
    "EarlyStopping",
    "Enumeration",
    "Event",
    "ImportanceSampling",
    "Laplace",
    "LogDensity",
    "MCDropout",
    "MaximumLikelihood",
    "Metropolis",
    "MicrocanonicalEnsemble",
    "Model",
    "Posterior",
    "PosteriorWarning",
    "Predictive",
    "SimulatedAnnealing",
    "StorageError",
    "__version__",
    "approximations",
    "compare_posteriors",
    "decisions",
    "fit",
    "gradient_variance",
    "inference",
    "likelihoods",
    "load",
    "networks",
    "priors",
    "random",
    "select",
    "use_cores",
]


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
