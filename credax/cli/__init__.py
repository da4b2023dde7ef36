"""The command line."""

from credax.cli.main import main

__all__ = ["main"]
