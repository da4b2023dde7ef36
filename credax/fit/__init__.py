"""The training loop of all methods, with progress, checkpoints and early stopping."""

from credax.fit.fit import Event, fit
from credax.fit.program import next_length
from credax.fit.sharded import Checkpoint
from credax.fit.stopping import EarlyStopping

__all__ = ["Checkpoint", "EarlyStopping", "Event", "fit", "next_length"]
