"""What ``fit`` returns: the posterior, its predictions, and the distributions that represent it."""

from credax.posterior.estimate import Estimate
from credax.posterior.posterior import Posterior
from credax.posterior.predictive import Predictive

__all__ = ["Estimate", "Posterior", "Predictive"]
