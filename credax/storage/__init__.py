"""Posteriors on disk: one file each, which holds JSON and tensors; loading never runs code from it."""

from credax.storage.export import export
from credax.storage.files import FORMAT, read_file, write_file
from credax.storage.posteriors import UNREADABLE, load, save

__all__ = ["FORMAT", "UNREADABLE", "export", "load", "read_file", "save", "write_file"]
