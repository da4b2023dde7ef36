"""What to do with uncertainty: choose a model, the next label, the weights to keep, the next action."""
