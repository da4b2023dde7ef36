"""The table of contents: one line a method, in the order of the lecture.

The command line, the tests, the documentation and the benchmarks iterate over ``METHODS``.
"""

from credax.inference.ensembles.deep_ensemble import DeepEnsemble
from credax.inference.ensembles.dropout import MCDropout
from credax.inference.ensembles.swag import SWAG
from credax.inference.exact import Enumeration
from credax.inference.laplace import Laplace
from credax.inference.method import Method, Trace
from credax.inference.montecarlo.annealing import SimulatedAnnealing
from credax.inference.montecarlo.hamiltonian import HMC, NUTS
from credax.inference.montecarlo.importance import ImportanceSampling
from credax.inference.montecarlo.langevin import SGHMC, SGLD
from credax.inference.montecarlo.mclmc import MCLMC
from credax.inference.montecarlo.metropolis import Metropolis
from credax.inference.montecarlo.microcanonical_ensemble import MicrocanonicalEnsemble
from credax.inference.montecarlo.tempered import SMC
from credax.inference.point import MAP, MaximumLikelihood
from credax.inference.variational.bayes_by_backprop import BayesByBackprop
from credax.inference.variational.black_box import BlackBoxVI
from credax.inference.variational.ivon import IVON

METHODS: dict[str, type[Method]] = {
    "maximum-likelihood": MaximumLikelihood,
    "map": MAP,
    "enumeration": Enumeration,
    "importance-sampling": ImportanceSampling,
    "metropolis": Metropolis,
    "hmc": HMC,
    "nuts": NUTS,
    "simulated-annealing": SimulatedAnnealing,
    "mclmc": MCLMC,
    "sgld": SGLD,
    "sghmc": SGHMC,
    "smc": SMC,
    "black-box-vi": BlackBoxVI,
    "bayes-by-backprop": BayesByBackprop,
    "ivon": IVON,
    "deep-ensemble": DeepEnsemble,
    "mc-dropout": MCDropout,
    "swag": SWAG,
    "microcanonical-ensemble": MicrocanonicalEnsemble,
    "laplace": Laplace,
}

__all__ = [
    "HMC",
    "IVON",
    "MAP",
    "MCLMC",
    "METHODS",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SMC",
    "SWAG",
    "BayesByBackprop",
    "BlackBoxVI",
    "DeepEnsemble",
    "Enumeration",
    "ImportanceSampling",
    "Laplace",
    "MCDropout",
    "MaximumLikelihood",
    "Method",
    "Metropolis",
    "MicrocanonicalEnsemble",
    "SimulatedAnnealing",
    "Trace",
]
