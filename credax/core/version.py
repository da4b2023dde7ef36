"""The version of credax."""

__version__ = "0.1.0"
