"""What is used where the user leaves the choice to us, chosen on the UCI tables (see the benchmarks)."""

from __future__ import annotations

from collections.abc import Sequence

from credax.inference import DeepEnsemble, Method
from credax.networks import mlp
from credax.networks.mlp import MLP
from credax.priors import FanInNormal, Prior


def recommended_method(rows: int) -> Method:
    """A good method for so many rows."""
    return DeepEnsemble(members=10, num_steps=2_000, batch_size=None if rows <= 4_000 else 1_000)


def recommended_network(hidden: Sequence[int] | None = None) -> MLP:
    """A good network for a table."""
    return mlp((50,) if hidden is None else tuple(hidden))


def recommended_prior() -> Prior:
    """A good prior for the weights of a network whose inputs and targets have unit variance."""
    return FanInNormal()
