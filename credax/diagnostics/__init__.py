"""Whether to trust a posterior."""

from credax.diagnostics.convergence import Convergence, Figures, figures_of
from credax.diagnostics.doctor import Diagnosis, Finding

__all__ = ["Convergence", "Diagnosis", "Figures", "Finding", "figures_of"]
