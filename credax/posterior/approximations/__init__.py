"""The distributions that represent a posterior, and their names in files."""

from credax.posterior.approximations.approximation import Approximation, Generated, Samples
from credax.posterior.approximations.draws import Draws
from credax.posterior.approximations.families import Categorical, FullRank, LowRank, MeanField
from credax.posterior.approximations.masks import Masked, Seeds
from credax.posterior.approximations.mixtures import GaussianMixture
from credax.posterior.approximations.normals import FullNormal, KroneckerNormal, LowRankNormal
from credax.posterior.approximations.rank_one import RankOne

APPROXIMATIONS: dict[str, type[Approximation]] = {
    "Draws": Draws,
    "MeanField": MeanField,
    "LowRank": LowRank,
    "FullRank": FullRank,
    "Categorical": Categorical,
    "GaussianMixture": GaussianMixture,
    "Masked": Masked,
    "Seeds": Seeds,
    "KroneckerNormal": KroneckerNormal,
    "FullNormal": FullNormal,
    "LowRankNormal": LowRankNormal,
    "RankOne": RankOne,
}
"""The name of each approximation in a saved posterior. A name must never change its meaning."""

__all__ = [
    "APPROXIMATIONS",
    "Approximation",
    "Categorical",
    "Draws",
    "FullNormal",
    "FullRank",
    "GaussianMixture",
    "Generated",
    "KroneckerNormal",
    "LowRank",
    "LowRankNormal",
    "Masked",
    "MeanField",
    "RankOne",
    "Samples",
    "Seeds",
]
