"""Networks: anything with parameters, from a line to what other libraries build."""

from credax.networks.cnn import CNN, cnn
from credax.networks.mlp import MLP, linear, mlp
from credax.networks.network import AbstractNetwork, Network, from_function

__all__ = ["CNN", "MLP", "AbstractNetwork", "Network", "cnn", "from_function", "linear", "mlp"]
