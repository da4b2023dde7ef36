"""What is used where the user leaves the choice to us, chosen on the UCI tables (see the benchmarks)."""

from __future__ import annotations

from collections.abc import Sequence

from credax.inference import DeepEnsemble, Method, MicrocanonicalEnsemble
from credax.model.networks import mlp
from credax.model.networks.mlp import MLP
from credax.model.priors import Normal, Prior

SMALL = 3_000
"""Rows up to which every step of a chain can see all of them within seconds."""


def recommended_method(rows: int) -> Method:
    """A good method for so many rows."""
    if rows <= SMALL:
        return MicrocanonicalEnsemble(members=4, num_warmup=3_000, num_draws=100, thin=20)
    return DeepEnsemble(members=5, num_steps=5_000, batch_size=256)


def recommended_network(hidden: Sequence[int] | None = None) -> MLP:
    """A good network for a table."""
    return mlp((50,) if hidden is None else tuple(hidden))


def recommended_prior() -> Prior:
    """A good prior for the weights of a network whose inputs and targets have unit variance."""
    return Normal(1.0)
