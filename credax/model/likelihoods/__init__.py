r"""Likelihoods: the density of the targets, given the outputs of the network.

.. math:: \log p(D \mid w) = \sum_i \log p(y_i \mid f_w(x_i))

Outputs have shape ``(rows, outputs)``, targets ``(rows,)`` or ``(rows, targets)``. There may be further axes
after the rows, such as the positions of a sequence: then :class:`PerPosition` sums over them. The targets of a
row are independent given the outputs, unless the likelihood says otherwise. Parameters that a likelihood learns
in addition to the network's (such as the noise scale) are a small dictionary of arrays, passed as ``params``.
"""

from credax.model.likelihoods.classification import Bernoulli, Categorical
from credax.model.likelihoods.counts import NegativeBinomial, Poisson
from credax.model.likelihoods.heads import Heads
from credax.model.likelihoods.likelihood import Likelihood
from credax.model.likelihoods.mixture import MixtureDensity
from credax.model.likelihoods.ordinal import Ordinal
from credax.model.likelihoods.per_position import PerPosition
from credax.model.likelihoods.positive import LogNormal
from credax.model.likelihoods.regression import (
    ConstantScale,
    Gaussian,
    Heteroscedastic,
    LocationScale,
    MultivariateGaussian,
    StudentT,
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "ConstantScale",
    "Gaussian",
    "Heads",
    "Heteroscedastic",
    "Likelihood",
    "LocationScale",
    "LogNormal",
    "MixtureDensity",
    "MultivariateGaussian",
    "NegativeBinomial",
    "Ordinal",
    "PerPosition",
    "Poisson",
    "StudentT",
]
