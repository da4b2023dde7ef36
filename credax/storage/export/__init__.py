"""Predictions that run without credax: programs in StableHLO, and the weights, in one file."""

from credax.storage.export.export import export

__all__ = ["export"]
