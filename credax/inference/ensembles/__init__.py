"""Ensembles: several point estimates stand for the posterior."""
