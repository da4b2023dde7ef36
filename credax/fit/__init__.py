"""The loop that every method runs in, and what it shows, keeps and saves."""

from credax.fit.fit import Event, fit, next_length
from credax.fit.stopping import EarlyStopping

__all__ = ["EarlyStopping", "Event", "fit", "next_length"]
