"""Any network, every Bayesian approximation, one posterior."""

from credax import approximations, inference, likelihoods, networks, priors, random
from credax.data import Batch
from credax.devices import fuse_outputs, use_cores
from credax.errors import CredaxError, DivergedError, PosteriorWarning, StorageError
from credax.fit import Event, fit
from credax.inference import (
    HMC,
    IVON,
    MAP,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    SMC,
    BayesByBackprop,
    BlackBoxVI,
    DeepEnsemble,
    Enumeration,
    ImportanceSampling,
    MaximumLikelihood,
    Metropolis,
    SimulatedAnnealing,
)
from credax.inference.variational.variance import gradient_variance
from credax.model import LogDensity, Model
from credax.posterior import Posterior
from credax.predictive import Predictive
from credax.stopping import EarlyStopping
from credax.storage import load
from credax.version import __version__

__all__ = [
    "HMC",
    "IVON",
    "MAP",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SMC",
    "Batch",
    "BayesByBackprop",
    "BlackBoxVI",
    "CredaxError",
    "DeepEnsemble",
    "DivergedError",
    "EarlyStopping",
    "Enumeration",
    "Event",
    "ImportanceSampling",
    "LogDensity",
    "MaximumLikelihood",
    "Metropolis",
    "Model",
    "Posterior",
    "PosteriorWarning",
    "Predictive",
    "SimulatedAnnealing",
    "StorageError",
    "__version__",
    "approximations",
    "fit",
    "fuse_outputs",
    "gradient_variance",
    "inference",
    "likelihoods",
    "load",
    "networks",
    "priors",
    "random",
    "use_cores",
]
