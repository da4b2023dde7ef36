"""How posteriors are kept: one file each, of JSON and tensors, from which no code ever runs."""

from credax.storage.files import FORMAT, read_file, write_file
from credax.storage.posteriors import load, save

__all__ = ["FORMAT", "load", "read_file", "save", "write_file"]
