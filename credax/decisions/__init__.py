"""What to do with uncertainty: choose a model, the next label, the weights to keep, the next action."""

from credax.decisions import active_learning, bandits, model_selection, pruning

__all__ = ["active_learning", "bandits", "model_selection", "pruning"]
