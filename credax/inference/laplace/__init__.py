"""Laplace approximation: a Gaussian around the mode of the posterior, from the curvature there."""

from credax.inference.laplace.laplace import Laplace

__all__ = ["Laplace"]
