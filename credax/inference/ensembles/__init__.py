"""Ensembles: several trained networks, or variants of one, that together represent the posterior."""
