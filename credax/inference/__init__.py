"""The table of contents: one line a method, in the order of the lecture.

The command line, the tests, the documentation and the benchmarks iterate over ``METHODS``.
"""

from credax.inference.ensembles.direct import DeepEnsemble
from credax.inference.method import Method, Trace
from credax.inference.point import MAP, MaximumLikelihood
from credax.inference.variational.bayes_by_backprop import BayesByBackprop
from credax.inference.variational.black_box import BlackBoxVI
from credax.inference.variational.ivon import IVON

METHODS: dict[str, type[Method]] = {
    "maximum-likelihood": MaximumLikelihood,
    "map": MAP,
    "black-box-vi": BlackBoxVI,
    "bayes-by-backprop": BayesByBackprop,
    "ivon": IVON,
    "deep-ensemble": DeepEnsemble,
}

__all__ = [
    "IVON",
    "MAP",
    "METHODS",
    "BayesByBackprop",
    "BlackBoxVI",
    "DeepEnsemble",
    "MaximumLikelihood",
    "Method",
    "Trace",
]
