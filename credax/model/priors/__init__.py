"""Priors over the weights."""

from credax.model.priors.around import Around, around_moments
from credax.model.priors.correlated import Correlated, FullCovariance, Kronecker, LowRank
from credax.model.priors.elementwise import (
    Discrete,
    Elementwise,
    FanInNormal,
    Laplace,
    LearnedNormal,
    Normal,
    PerLayer,
    Prior,
    ScaleMixture,
    StudentT,
    prior_from,
)

__all__ = [
    "Around",
    "Correlated",
    "Discrete",
    "Elementwise",
    "FanInNormal",
    "FullCovariance",
    "Kronecker",
    "Laplace",
    "LearnedNormal",
    "LowRank",
    "Normal",
    "PerLayer",
    "Prior",
    "ScaleMixture",
    "StudentT",
    "around_moments",
    "prior_from",
]
