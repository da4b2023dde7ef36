"""Networks: anything with parameters, from a line to what other libraries build."""

from credax.networks.cnn import CNN, cnn
from credax.networks.equinox import from_equinox
from credax.networks.flax import from_flax
from credax.networks.keras import from_keras
from credax.networks.mlp import MLP, linear, mlp
from credax.networks.network import AbstractNetwork, Network, from_function
from credax.networks.subset import Subset, subset
from credax.networks.torch import from_torch

__all__ = [
    "CNN",
    "MLP",
    "AbstractNetwork",
    "Network",
    "Subset",
    "cnn",
    "from_equinox",
    "from_flax",
    "from_function",
    "from_keras",
    "from_torch",
    "linear",
    "mlp",
    "subset",
]
