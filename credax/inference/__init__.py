"""The methods, one line each, in the order in which the documentation explains them.

To add a method, write its file and import it here. The command line, the comparison, the tests, the
documentation and the benchmarks take it from ``METHODS``.
"""

import re

from credax.core.typing import Draw as Draw
from credax.inference.method import Method as Method
from credax.inference.method import Trace as Trace
from credax.storage import methods as _stored

# isort: off
from credax.inference.point import MaximumLikelihood as MaximumLikelihood
from credax.inference.point import MAP as MAP
from credax.inference.exact import Enumeration as Enumeration
from credax.inference.montecarlo.importance import ImportanceSampling as ImportanceSampling
from credax.inference.montecarlo.metropolis import Metropolis as Metropolis
from credax.inference.montecarlo.elliptical_slice import EllipticalSlice as EllipticalSlice
from credax.inference.montecarlo.hamiltonian import HMC as HMC
from credax.inference.montecarlo.hamiltonian import NUTS as NUTS
from credax.inference.montecarlo.annealing import SimulatedAnnealing as SimulatedAnnealing
from credax.inference.montecarlo.mclmc import MCLMC as MCLMC
from credax.inference.montecarlo.langevin import SGLD as SGLD
from credax.inference.montecarlo.langevin import SGHMC as SGHMC
from credax.inference.montecarlo.tempered import SMC as SMC
from credax.inference.variational.black_box import BlackBoxVI as BlackBoxVI
from credax.inference.variational.bayes_by_backprop import BayesByBackprop as BayesByBackprop
from credax.inference.variational.ivon import IVON as IVON
from credax.inference.variational.last_layer import VariationalLastLayer as VariationalLastLayer
from credax.inference.ensembles.deep_ensemble import DeepEnsemble as DeepEnsemble
from credax.inference.ensembles.batch_ensemble import BatchEnsemble as BatchEnsemble
from credax.inference.ensembles.cross_fit import CrossFitEnsemble as CrossFitEnsemble
from credax.inference.ensembles.dropout import MCDropout as MCDropout
from credax.inference.ensembles.swag import SWAG as SWAG
from credax.inference.ensembles.svgd import SVGD as SVGD
from credax.inference.montecarlo.microcanonical_ensemble import (
    MicrocanonicalEnsemble as MicrocanonicalEnsemble,
)
from credax.inference.laplace.laplace import Laplace as Laplace
# isort: on


def command_name(method: type[Method]) -> str:
    """The name of a method on the command line and in addresses of pages.

    >>> command_name(MCDropout), command_name(BlackBoxVI), command_name(MAP)
    ('mc-dropout', 'black-box-vi', 'map')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", method.__name__).lower()


METHODS: dict[str, type[Method]] = {
    command_name(value): value
    for value in tuple(globals().values())
    if isinstance(value, type) and issubclass(value, Method) and value is not Method
}
"""Every method that is imported above, by its name on the command line, in the same order."""

__all__ = [method.__name__ for method in METHODS.values()]  # pyright: ignore[reportUnsupportedDunderAll]

# So that loading a posterior builds its method again.
_stored.METHODS.update({method.__name__: method for method in METHODS.values()})
