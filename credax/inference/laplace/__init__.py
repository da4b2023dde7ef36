"""The Laplace approximation: a Gaussian at the mode, with the curvature there."""

from credax.inference.laplace.laplace import Laplace

__all__ = ["Laplace"]
