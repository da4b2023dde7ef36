"""What ``fit`` returns: the posterior, its predictions, and the distributions that represent it."""

from credax.posterior.estimate import Estimate
from credax.posterior.heads import HeadsPredictive
from credax.posterior.posterior import Posterior
from credax.posterior.predictive import Predictive
from credax.posterior.stacked import StackedPosterior, StackedPredictive, stacking_weights
from credax.posterior.streamed import SourcePredictive

__all__ = [
    "Estimate",
    "HeadsPredictive",
    "Posterior",
    "Predictive",
    "SourcePredictive",
    "StackedPosterior",
    "StackedPredictive",
    "stacking_weights",
]
