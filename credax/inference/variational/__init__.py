"""Variational inference: the member of a family of distributions that is closest to the posterior."""
