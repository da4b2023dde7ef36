"""Networks: functions with parameters, built in or made from modules of other libraries."""

from credax.model.networks.along import TrainedAlong
from credax.model.networks.cnn import CNN, cnn
from credax.model.networks.equinox import from_equinox
from credax.model.networks.flax import from_flax
from credax.model.networks.keras import from_keras
from credax.model.networks.loaded import Loaded, load_weights
from credax.model.networks.lora import LoRA, lora
from credax.model.networks.merge import merge
from credax.model.networks.mlp import MLP, linear, mlp
from credax.model.networks.network import AbstractNetwork, Network, from_function
from credax.model.networks.state_dict import state_dict, to_module
from credax.model.networks.subset import Subset, subset
from credax.model.networks.tabular import Tabular, tabular
from credax.model.networks.torch import from_torch

__all__ = [
    "CNN",
    "MLP",
    "AbstractNetwork",
    "LoRA",
    "Loaded",
    "Network",
    "Subset",
    "Tabular",
    "TrainedAlong",
    "cnn",
    "from_equinox",
    "from_flax",
    "from_function",
    "from_keras",
    "from_torch",
    "linear",
    "load_weights",
    "lora",
    "merge",
    "mlp",
    "state_dict",
    "subset",
    "tabular",
    "to_module",
]
