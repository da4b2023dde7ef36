"""What a fit returns: the posterior, its predictions, and the distributions behind them."""

from credax.posterior.posterior import Estimate, Posterior
from credax.posterior.predictive import Predictive

__all__ = ["Estimate", "Posterior", "Predictive"]
