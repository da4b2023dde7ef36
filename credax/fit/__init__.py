"""The loop that every method runs in, and what it shows, keeps and saves."""

from credax.fit.fit import Event, fit
from credax.fit.program import next_length
from credax.fit.stopping import EarlyStopping

__all__ = ["EarlyStopping", "Event", "fit", "next_length"]
