"""The model of a run: a network, a prior, a likelihood and the data, or any log density instead."""

from credax.model.log_density import LogDensity
from credax.model.model import Model, Schema

__all__ = ["LogDensity", "Model", "Schema"]
