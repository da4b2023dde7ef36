"""The training loop of all methods, with progress, checkpoints and early stopping."""

from credax.fit.estimate import memory
from credax.fit.fit import Event, fit
from credax.fit.needs import Memory
from credax.fit.program import next_length
from credax.fit.sharded import Checkpoint
from credax.fit.stopping import EarlyStopping

__all__ = ["Checkpoint", "EarlyStopping", "Event", "Memory", "fit", "memory", "next_length"]
