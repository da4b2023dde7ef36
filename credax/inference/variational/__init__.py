"""Variational inference: the posterior as the closest member of a family."""
