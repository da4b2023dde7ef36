"""What the user brings: a network, a prior, a likelihood and data, or any log density."""

from credax.model.log_density import LogDensity
from credax.model.model import Model, Schema

__all__ = ["LogDensity", "Model", "Schema"]
