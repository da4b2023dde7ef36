"""Decisions under uncertainty: select a model, request a label, prune weights, choose an action."""

from credax.decisions import active_learning, bandits, model_selection, pruning

__all__ = ["active_learning", "bandits", "model_selection", "pruning"]
